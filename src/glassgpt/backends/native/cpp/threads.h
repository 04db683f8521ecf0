// A pool of threads that share the work of one phase after the other.
//
// The caller leads: it hands out a phase, works on it itself, and goes on when every piece is done. Helpers join where
// they can. One that the system has taken off its core misses phases and holds up nobody, unless in the middle of a
// piece; so speed degrades gently on a busy machine, where a barrier for all threads would wait for the slowest at
// every phase.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace glassgpt {

class Pool {
public:
    // Fewer threads than asked for where the system refuses more: see `size`.
    explicit Pool(int n_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    int size() const { return n_threads_; }

    // While one of these lives, helpers stay awake.
    class Active {
    public:
        explicit Active(Pool& pool);
        ~Active();

    private:
        Pool& pool_;
    };

    // function(piece, thread) for the pieces 0 .. n - 1, each once, in whichever thread; returns when all are done.
    // A thread takes the pieces of its own range in order, since memory is read fastest in one stream, and then
    // helps the others with theirs.
    template <class Function>
    void each(int64_t n, const Function& function) {
        if (n == 1 || n_threads_ == 1) {
            for (int64_t i = 0; i < n; i++) function(i, 0);
            return;
        }
        const Call call = [](const void* f, int64_t i, int thread) { (*static_cast<const Function*>(f))(i, thread); };
        share(n, call, &function);
    }

private:
    typedef void (*Call)(const void*, int64_t, int);
    struct alignas(64) Range {
        std::atomic<uint64_t> taken{0};  // the phase in the upper half, how many of its pieces were taken in the lower
    };
    void share(int64_t n, Call call, const void* function);
    void take_part(uint32_t phase, int thread);
    void help(int thread);
    void keep_threads(int n);

    int n_threads_;  // changed before the first phase only
    std::vector<Range> ranges_;
    std::atomic<uint32_t> phase_{0};
    std::atomic<int64_t> n_{0};
    std::atomic<Call> call_{nullptr};
    std::atomic<const void*> function_{nullptr};
    alignas(64) std::atomic<int64_t> done_{0};
    std::atomic<bool> active_{false};
    std::atomic<int> sleeping_{0}, most_{0};  // most_: threads from this number on end
    std::mutex mutex_;
    std::condition_variable awake_;
    std::vector<std::thread> threads_;
};

}  // namespace glassgpt

// A pool of threads that run the same function together and meet at barriers. Waiting threads spin for a moment, since
// the next phase of a step is microseconds away, then sleep.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace glassgpt {

class Pool {
public:
    explicit Pool(int n_threads);
    ~Pool();
    Pool(const Pool&) = delete;

    int size() const { return n_threads_; }

    // Run function(thread number) in every thread, the caller's being number 0, and wait for all.
    void run(const std::function<void(int)>& function);

    // Inside `run`: wait until every thread is here.
    void barrier();

    // Inside `run`: hand out the numbers 0 .. n - 1 to whoever is free; every thread calls it with the same arguments.
    // Ends with a barrier.
    template <class Function>
    void each(int64_t n, const Function& function) {
        for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < n;) function(i);
        barrier();
    }

private:
    void work(int number);
    template <class Ready>
    void wait_until(const Ready& ready);
    void wake();

    const int n_threads_;
    std::vector<std::thread> threads_;
    std::atomic<int64_t> next_{0};  // number to hand out in this phase
    std::atomic<uint32_t> generation_{0};
    std::atomic<int> arrived_{0};
    std::atomic<uint32_t> job_{0};
    std::atomic<bool> stop_{false};
    const std::function<void(int)>* function_ = nullptr;
    std::atomic<int> sleeping_{0};
    std::mutex mutex_;
    std::condition_variable awake_;
};

}  // namespace glassgpt

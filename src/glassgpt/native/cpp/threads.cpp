#include "threads.h"

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#define PAUSE() _mm_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ __volatile__("yield")
#else
#define PAUSE() std::this_thread::yield()
#endif

namespace glassgpt {

constexpr int SPINS = 4000;   // about 50 microseconds
constexpr int YIELDS = 20;    // let another thread of this core go first, perhaps the one that is waited for

Pool::Pool(int n_threads) : n_threads_(n_threads < 1 ? 1 : n_threads) {
    for (int i = 1; i < n_threads_; i++) threads_.emplace_back(&Pool::work, this, i);
}

Pool::~Pool() {
    stop_ = true;
    job_++;
    wake();
    for (auto& thread : threads_) thread.join();
}

template <class Ready>
void Pool::wait_until(const Ready& ready) {
    for (int i = 0; i < SPINS; i++) {
        if (ready()) return;
        PAUSE();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (ready()) return;
        std::this_thread::yield();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleeping_++;
    awake_.wait(lock, ready);
    sleeping_--;
}

void Pool::wake() {
    // Whoever goes to sleep has counted itself before it looks for the last time, so one of the two is seen.
    if (sleeping_.load()) {
        std::lock_guard<std::mutex> lock(mutex_);
        awake_.notify_all();
    }
}

void Pool::barrier() {
    const uint32_t generation = generation_.load();
    if (arrived_.fetch_add(1) + 1 == n_threads_) {
        arrived_.store(0);
        next_.store(0);  // nobody draws from it any more
        generation_.store(generation + 1);
        wake();
    } else {
        wait_until([&] { return generation_.load() != generation; });
    }
}

void Pool::run(const std::function<void(int)>& function) {
    function_ = &function;
    job_++;
    wake();
    function(0);
    barrier();
}

void Pool::work(int number) {
    for (uint32_t seen = 0;;) {
        wait_until([&] { return job_.load() != seen; });
        seen = job_.load();
        if (stop_) return;
        (*function_)(number);
        barrier();
    }
}

}  // namespace glassgpt

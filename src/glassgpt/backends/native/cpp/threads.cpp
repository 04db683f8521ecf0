#include "threads.h"

#include <exception>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#define PAUSE() _mm_pause()
#elif defined(__aarch64__)
#define PAUSE() __asm__ __volatile__("yield")
#else
#define PAUSE() std::this_thread::yield()
#endif

namespace glassgpt {

constexpr int SPINS = 2000;  // about 30 microseconds; then other threads of this core go first
constexpr uint64_t CLOSED = 0xffffffff;  // as many pieces taken as no phase has
constexpr int YIELDS = 100;  // after a step; then sleep

Pool::Pool(int n_threads) : n_threads_(n_threads < 1 ? 1 : n_threads), ranges_(size_t(n_threads_)), most_(n_threads_) {
    threads_.reserve(size_t(n_threads_));
    try {
        for (int i = 1; i < n_threads_; i++) threads_.emplace_back(&Pool::help, this, i);
    } catch (const std::exception&) {  // the system has no more; half of what it gave leaves room for the model
        keep_threads(int(threads_.size() + 1) / 2);
    }
}

Pool::~Pool() { keep_threads(1); }

// Ends all but n threads, of which the caller is one.
void Pool::keep_threads(int n) {
    n_threads_ = n < 1 ? 1 : n;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        most_ = n_threads_;
        awake_.notify_all();
    }
    while (int(threads_.size()) >= n_threads_) {
        threads_.back().join();
        threads_.pop_back();
    }
}

Pool::Active::Active(Pool& pool) : pool_(pool) {
    pool.active_ = true;
    // A helper counts itself among the sleeping before it looks for the last time, so one of the two is seen.
    if (pool.sleeping_.load()) {
        std::lock_guard<std::mutex> lock(pool.mutex_);
        pool.awake_.notify_all();
    }
}

Pool::Active::~Active() { pool_.active_ = false; }

void Pool::share(int64_t n, Call call, const void* function) {
    const uint32_t phase = phase_.load(std::memory_order_relaxed) + 1;
    // Closed first: a helper that is late with the last phase, and reads what belongs to this one, must not take a
    // piece.
    for (Range& range : ranges_) range.taken.store(uint64_t(phase) << 32 | CLOSED, std::memory_order_relaxed);
    n_.store(n, std::memory_order_release);
    call_.store(call, std::memory_order_release);
    function_.store(function, std::memory_order_release);
    done_.store(0, std::memory_order_relaxed);
    for (Range& range : ranges_) range.taken.store(uint64_t(phase) << 32, std::memory_order_relaxed);
    phase_.store(phase, std::memory_order_release);
    take_part(phase, 0);
    for (int i = 0; done_.load(std::memory_order_acquire) != n; i++) {
        if (i < SPINS) PAUSE();
        else std::this_thread::yield();
    }
}

// What was read of a phase is true if a piece of it can be taken: it cannot end before that piece is done.
void Pool::take_part(uint32_t phase, int thread) {
    const int64_t n = n_.load(std::memory_order_acquire);
    const Call call = call_.load(std::memory_order_acquire);
    const void* function = function_.load(std::memory_order_acquire);
    for (int other = 0; other < n_threads_; other++) {
        const int whose = (thread + other) % n_threads_;
        const int64_t begin = n * whose / n_threads_, end = n * (whose + 1) / n_threads_;
        std::atomic<uint64_t>& taken = ranges_[size_t(whose)].taken;
        for (uint64_t now = taken.load(std::memory_order_relaxed);;) {
            if (uint32_t(now >> 32) != phase) return;
            const int64_t piece = begin + int64_t(uint32_t(now));
            if (piece >= end) break;
            if (!taken.compare_exchange_weak(now, now + 1, std::memory_order_acquire)) continue;
            call(function, piece, thread);
            done_.fetch_add(1, std::memory_order_release);
            now = taken.load(std::memory_order_relaxed);
        }
    }
}

void Pool::help(int thread) {
    uint32_t seen = 0;
    for (int idle = 0; thread < most_; idle++) {
        const uint32_t phase = phase_.load(std::memory_order_acquire);
        if (phase != seen) {
            seen = phase;
            take_part(phase, thread);
            idle = 0;
        } else if (idle < SPINS) {
            PAUSE();
        } else if (active_ || idle < SPINS + YIELDS) {
            std::this_thread::yield();
        } else {
            std::unique_lock<std::mutex> lock(mutex_);
            sleeping_++;
            awake_.wait(lock, [&] { return active_ || thread >= most_; });
            sleeping_--;
            idle = 0;
        }
    }
}

}  // namespace glassgpt

#include "mapped.h"

#include <algorithm>
#include <atomic>
#include <mutex>

#if !defined(_WIN32) && !defined(__wasm__)
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace glassgpt {

#if defined(_WIN32) || defined(__wasm__)  // where a mapped file cannot be truncated

MappedRange::~MappedRange() {}
bool MappedRange::add(const void*, size_t n_bytes) {
    used_ += n_bytes;
    return true;
}
bool MappedRange::is_lost() const { return false; }

#else

namespace {

constexpr int SLOTS = 256;

struct Slot {
    std::atomic<uintptr_t> begin{0}, end{0};
    std::atomic<bool> taken{false}, lost{false};
};

Slot slots[SLOTS];
uintptr_t page_size;
struct sigaction previous;

// Only calls that are allowed in a signal handler.
void on_bus_error(int, siginfo_t* info, void*) {
    const uintptr_t at = uintptr_t(info->si_addr);
    for (Slot& slot : slots) {
        const uintptr_t end = slot.end.load();
        if (at < slot.begin.load() || at >= end) continue;
        const uintptr_t page = at / page_size * page_size;  // what comes after it is gone as well
        void* zeros =
            mmap(reinterpret_cast<void*>(page), end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        if (zeros == MAP_FAILED) break;
        slot.lost.store(true);
        return;
    }
    sigaction(SIGBUS, &previous, nullptr);  // not ours: the instruction is tried again, for whoever handled it before
}

void install() {
    static std::once_flag once;
    std::call_once(once, [] {
        page_size = uintptr_t(sysconf(_SC_PAGESIZE));
        struct sigaction action = {};
        action.sa_sigaction = on_bus_error;
        action.sa_flags = SA_SIGINFO;
        sigemptyset(&action.sa_mask);
        sigaction(SIGBUS, &action, &previous);
    });
}

}  // namespace

bool MappedRange::add(const void* start, size_t n_bytes) {
    install();
    for (int i = 0; i < SLOTS && slot_ < 0; i++) {
        bool free = false;
        if (slots[i].taken.compare_exchange_strong(free, true)) slot_ = i;
    }
    if (slot_ < 0) return false;
    Slot& slot = slots[slot_];
    const uintptr_t begin = uintptr_t(start), end = begin + n_bytes;
    slot.begin.store(used_ ? std::min(slot.begin.load(), begin) : begin);
    slot.end.store(std::max(slot.end.load(), end));
    used_ += n_bytes;
    return true;
}

bool MappedRange::is_lost() const { return slot_ >= 0 && slots[slot_].lost.load(); }

MappedRange::~MappedRange() {
    if (slot_ < 0) return;
    slots[slot_].end.store(0);
    slots[slot_].begin.store(0);
    slots[slot_].lost.store(false);
    slots[slot_].taken.store(false);
}

#endif

}  // namespace glassgpt

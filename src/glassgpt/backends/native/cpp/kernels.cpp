// Which of the kernels that were compiled the CPU at hand can run.
#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace glassgpt {

#if defined(__x86_64__) && defined(__GNUC__)

// Asked for with cpuid itself: __builtin_cpu_supports needs a part of libgcc that other compilers' libraries do not have.
struct Cpuid {
    // Zeros if there is no such leaf.
    Cpuid(unsigned leaf, unsigned part) { __get_cpuid_count(leaf, part, &eax, &ebx, &ecx, &edx); }
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

static bool bit(unsigned value, int n) { return value >> n & 1; }

// Whether the system saves these registers (Intel's manual, XCR0) when it runs another process.
static bool saves(unsigned registers) {
    if (!bit(Cpuid(1, 0).ecx, 27)) return false;
    unsigned low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & registers) == registers;
}

static bool has_avx2() {
    const unsigned ecx = Cpuid(1, 0).ecx;
    const bool fma = bit(ecx, 12), avx = bit(ecx, 28), f16c = bit(ecx, 29);
    return saves(0x06) && fma && avx && f16c && bit(Cpuid(7, 0).ebx, 5);
}

static bool has_avx2_vnni() { return has_avx2() && bit(Cpuid(7, 1).eax, 4); }

static bool has_avx512() {
    const Cpuid seven(7, 0);
    const bool f = bit(seven.ebx, 16), dq = bit(seven.ebx, 17), bw = bit(seven.ebx, 30), vl = bit(seven.ebx, 31);
    return has_avx2() && saves(0xe6) && f && dq && bw && vl && bit(seven.ecx, 11);
}

#else

static bool has_avx2() { return false; }
static bool has_avx2_vnni() { return false; }
static bool has_avx512() { return false; }

#endif

static bool has_neon_dot() {
#if defined(__aarch64__) && defined(__linux__)
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
#else
    return true;  // every Mac with an ARM has it, and Windows 11 on ARM asks for it
#endif
}

std::vector<const Kernels*> available_kernels() {
#if defined(__wasm__)
    return {wasm_kernels()};
#else
    std::vector<const Kernels*> found{portable_kernels()};
    auto add = [&](const Kernels* kernels, bool runs) {
        if (kernels && runs) found.push_back(kernels);
    };
    add(avx2_kernels(), has_avx2());
    add(avx2_vnni_kernels(), has_avx2_vnni());
    add(avx512_kernels(), has_avx512());
    add(neon_kernels(), true);
    add(neon_dot_kernels(), has_neon_dot());
    return found;
#endif
}

}  // namespace glassgpt

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

struct Cpuid {
    // Zeros if there is no such leaf.
    Cpuid(unsigned leaf, unsigned part) { __get_cpuid_count(leaf, part, &eax, &ebx, &ecx, &edx); }
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
};

static bool has_avx2() {
    __builtin_cpu_init();
    const bool f16c = Cpuid(1, 0).ecx >> 29 & 1;  // clang 14 has no name for it
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
}

static bool has_avx2_vnni() { return has_avx2() && (Cpuid(7, 1).eax >> 4 & 1); }

static bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
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
}

}  // namespace glassgpt

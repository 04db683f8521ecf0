// Compiled with the flag of ARM's instructions for products of bytes (dotprod) where the compiler has it.
#include "kernels.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)
#include "simd_neon.h"
//
#include "kernels_impl.h"

const glassgpt::Kernels* glassgpt::neon_dot_kernels() {
    static const Kernels kernels = table("neon-dot");
    return &kernels;
}
#else
const glassgpt::Kernels* glassgpt::neon_dot_kernels() { return nullptr; }
#endif

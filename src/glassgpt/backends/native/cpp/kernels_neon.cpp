// What every 64-bit ARM can run.
#include "kernels.h"

#if defined(__aarch64__)
#include "simd_neon.h"
//
#include "kernels_impl.h"

const glassgpt::Kernels* glassgpt::neon_kernels() {
    static const Kernels kernels = table("neon");
    return &kernels;
}
#else
const glassgpt::Kernels* glassgpt::neon_kernels() { return nullptr; }
#endif

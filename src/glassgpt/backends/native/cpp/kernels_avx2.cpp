// Compiled with the flags of AVX2, FMA and F16C where the compiler has them.
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
//
#include "kernels_impl.h"

const glassgpt::Kernels* glassgpt::avx2_kernels() {
    static const Kernels kernels = table("avx2");
    return &kernels;
}
#else
const glassgpt::Kernels* glassgpt::avx2_kernels() { return nullptr; }
#endif

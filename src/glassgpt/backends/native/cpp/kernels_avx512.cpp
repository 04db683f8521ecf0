// Compiled with the flags of AVX-512 F, BW, VL, DQ and VNNI where the compiler has them.
#include "kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include "simd_avx512.h"
//
#include "kernels_impl.h"

const glassgpt::Kernels* glassgpt::avx512_kernels() {
    static const Kernels kernels = table("avx512");
    return &kernels;
}
#else
const glassgpt::Kernels* glassgpt::avx512_kernels() { return nullptr; }
#endif

// Compiled with the flags of AVX2, FMA, F16C and AVX-VNNI (Intel since Alder Lake) where the compiler has them.
#include "kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && defined(__AVXVNNI__)
#include "simd_avx2.h"
//
#include "kernels_impl.h"

const glassgpt::Kernels* glassgpt::avx2_vnni_kernels() {
    static const Kernels kernels = table("avx2-vnni");
    return &kernels;
}
#else
const glassgpt::Kernels* glassgpt::avx2_vnni_kernels() { return nullptr; }
#endif

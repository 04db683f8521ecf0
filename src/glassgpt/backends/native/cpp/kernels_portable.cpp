#include "kernels.h"
//
#include "simd_portable.h"
//
#include "kernels_impl.h"

const glassgpt::Kernels* glassgpt::portable_kernels() {
    static const Kernels kernels = table("portable");
    return &kernels;
}

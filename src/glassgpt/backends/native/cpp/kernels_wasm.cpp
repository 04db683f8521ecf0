// What browsers run: WebAssembly with 128-bit vectors.
#include "kernels.h"

#if defined(__wasm_simd128__)
#include "simd_wasm.h"
//
#include "kernels_impl.h"

const glassgpt::Kernels* glassgpt::wasm_kernels() {
    static const Kernels kernels = table("wasm");
    return &kernels;
}
#else
const glassgpt::Kernels* glassgpt::wasm_kernels() { return nullptr; }
#endif

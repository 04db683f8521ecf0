// How matrices lie in memory, for every kernel alike.
//
// A matrix has n_in inputs and n_out outputs. 64 outputs make a panel, which is stored by itself, so that a
// thread streams through it once and every lane of a vector register belongs to one output: sums run over the
// inputs in their order, in every kernel, for any number of tokens. Rows and inputs that do not exist are zeros.
//
//   float32, float16, bfloat16:  [panel][input][64 outputs]
//   int8:   [panel][input / 4][64 outputs][4 inputs], and a scale and the sum of the values for each output
//   int4:   [panel][input / 32]: 64 scales in float16, then [4 pairs][64 outputs][4 inputs]; the low half of a byte
//           is the value of one of the four inputs of step 2p, the high half of step 2p + 1; value - 8 is meant
#pragma once
#include <cstddef>
#include <cstdint>

namespace glassgpt {

constexpr int PANEL = 64;
constexpr int GROUP = 32;                               // inputs that share a scale in int4
constexpr int GROUP_BYTES = PANEL * 2 + PANEL * GROUP / 2;  // of one group of a panel

enum Dtype : int { FLOAT32 = 0, FLOAT16 = 1, BFLOAT16 = 2, INT8 = 3, INT4 = 4 };

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

struct Matrix {
    int dtype = FLOAT32;
    int n_in = 0, n_out = 0;
    int in_padded = 0, out_padded = 0;
    size_t panel_bytes = 0;
    const uint8_t* data = nullptr;
    float* scale = nullptr;      // int8: (out_padded,)
    int32_t* total = nullptr;    // int8: (out_padded,), the sum of an output's values
    const float* bias = nullptr; // (out_padded,), perhaps nullptr

    const uint8_t* panel(int i) const { return data + size_t(i) * panel_bytes; }
    int n_panels() const { return out_padded / PANEL; }
};

inline size_t bytes_per_panel(int dtype, int in_padded) {
    switch (dtype) {
        case FLOAT32: return size_t(in_padded) * PANEL * 4;
        case FLOAT16:
        case BFLOAT16: return size_t(in_padded) * PANEL * 2;
        case INT8: return size_t(in_padded) * PANEL;
        default: return size_t(in_padded) / GROUP * GROUP_BYTES;
    }
}

inline int padded_inputs(int dtype, int n_in) {
    return dtype == INT4 ? int(round_up(n_in, GROUP)) : dtype == INT8 ? int(round_up(n_in, 4)) : n_in;
}

}  // namespace glassgpt

// The table of functions that a kernel file (kernels_*.cpp) fills in: everything that is worth vector instructions.
#pragma once
#include <vector>

#include "layout.h"

namespace glassgpt {

enum Activation : int { GELU_TANH = 0, GELU_ERF = 1, RELU = 2, SILU = 3, TANH = 4 };
constexpr float GELU_A = 0.7978845608028654f, GELU_B = 0.044715f;  // as in model/numpy_gpt2.py
enum Epilogue : int { STORE = 0, ADD = 1, ACTIVATE = 2 };

// Activations of some tokens as a product reads them: floats, or integers with their scales.
struct Inputs {
    const float* x = nullptr;  // [token][ldx]
    int64_t ldx = 0;
    const uint8_t* q = nullptr;  // [token][ldq]; int8: value = (q - zero) * scale; int4: signed, scales by group
    int64_t ldq = 0;
    const float* scale = nullptr;   // int8: [token]; int4: [token][ld_groups]
    const int32_t* zero = nullptr;  // int8: [token]; int4: [token][ld_groups], -8 * the sum of the group
    int64_t ld_groups = 0;
};

// Kernels whose inputs are 16-bit integers take those of every four in the order 0, 2, 1, 3: pairs that meet the even
// and the odd bytes of the weights.
constexpr int place_of_pair(int k) { return (k & ~3) + ((k & 1) << 1) + ((k & 2) >> 1); }

// Numbers in one byte, or as a sum of up to three: what the first rounds off is rounded in the second, and so on. Three
// give float32's own precision.
constexpr int MAX_PARTS = 3;
struct InputParts {
    Inputs part[MAX_PARTS];
    int n = 1;
};

struct Matmul {
    const Matrix* w;
    Inputs in;
    float* out;  // [token][ldo], with room for out_padded values
    int64_t ldo;
    int epilogue;
    int activation;
};

constexpr int PAGE = 64;  // positions that lie together in the cache

// The cache of one head of one row. The pointers are those of its first page; the others follow at equal distances.
struct HeadCache {
    int dtype;            // FLOAT32, FLOAT16, or INT8, where every key and every value vector has its scale
    int d_head, d_padded;  // d_padded: a multiple of 16
    void* keys;                      // of a page: [position / 16][d_head][16]
    void* values;                    // of a page: [position][d_padded]
    float *key_scale, *value_scale;  // of a page: [position]
    int64_t page_bytes;              // from one page to the next
};

struct Attention {
    HeadCache cache;
    float scale;
    const float* q;         // [query][ldq]
    int64_t ldq;
    float* out;             // [query][ldo]
    int64_t ldo;
    int n_queries;          // at most MAX_QUERIES
    int first_position;     // of the first query; it sees this position and all before it
    float* scores;          // scratch: MAX_QUERIES * (context rounded up to 64, and 64)
    int64_t ld_scores;
};

constexpr int MAX_QUERIES = 8;

// A change of low rank to a matrix, of one token: out += (x A) B, computed in the same order for any other tokens.
struct LowRank {
    const float* a;  // [rank][ld_in]: zeros after n_in
    const float* b;  // [rank][ld_out]: zeros after n_out
    int rank = 0, n_in, n_out;
    int64_t ld_in, ld_out;
};

struct Kernels {
    const char* name;
    int queries;  // how many `attend` computes best at a time
    int input_bytes;  // of the integers that meet int8 weights: 1, or 2 with zero 0
    // Tokens [first, last) times the outputs of one panel.
    void (*matmul)(const Matmul&, int panel, int first, int last);
    void (*layer_norm)(const float* x, const float* weight, const float* bias, float eps, int n, float* out);
    // n floats to q[0..n_padded): value = (q - zero) * scale with q in 1..255.
    // Of `input_bytes` each, the latter less the zero.
    void (*quantize_row)(const float* x, int n, int n_padded, uint8_t* q, float* scale, int32_t* zero);
    // Where input_bytes is 2: all 16 bits, for sums of several.
    void (*quantize_wide)(const float* x, int n, int n_padded, int16_t* q, float* scale, int32_t* zero);
    // Signed values with a scale for each group of 32, and -8 times the sum of each group.
    void (*quantize_groups)(const float* x, int n, int n_padded, uint8_t* q, float* scale, int32_t* offset);
    void (*store_key)(const float* k, const HeadCache& cache, int position);
    void (*store_value)(const float* v, const HeadCache& cache, int position);
    void (*attend)(const Attention&);
    void (*activate)(float* x, int n, int activation);
    void (*add_low_rank)(const LowRank&, const float* x, float* out);
    void (*exponentials)(float* x, int n);  // x becomes e^x
    // max over x, the index of the first that is as large, and sum(exp(x - max)), in float64.
    void (*softmax_sum)(const float* x, int n, float* best, int* argbest, double* sum);
    // sum(exp((x - best) / temperature)), all in float64.
    double (*weight_sum)(const float* x, int n, float best, double temperature);
    // n times as many products of bytes as `multiply_bytes_count`, added up in registers: what the CPU can do at most.
    float (*multiply_bytes)(int n);
    int multiply_bytes_count;
};

const Kernels* portable_kernels();
const Kernels* avx2_kernels();  // these are nullptr where they were not compiled
const Kernels* avx2_vnni_kernels();
const Kernels* avx512_kernels();
const Kernels* neon_kernels();
const Kernels* neon_dot_kernels();
const Kernels* wasm_kernels();

std::vector<const Kernels*> available_kernels();  // that this CPU can run, the best last

// float16 <-> float32 without hardware for it, rounding to nearest even.
inline float half_to_float(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023, bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000 | mantissa << 13;
    } else if (exponent) {
        bits = sign | (exponent + 112) << 23 | mantissa << 13;
    } else {
        float value = float(mantissa) * (1.0f / 16777216.0f);
        return sign ? -value : value;
    }
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

inline uint16_t float_to_half(float value) {
    uint32_t bits;
    __builtin_memcpy(&bits, &value, 4);
    uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits >= 0x7f800000) return uint16_t(sign | 0x7c00 | (bits > 0x7f800000 ? 0x200 : 0));
    if (bits >= 0x477ff000) return uint16_t(sign | 0x7c00);  // rounds to infinity
    if (bits < 0x38800000) {  // a subnormal: adding 0.5 leaves the rounded steps of 2^-24 in the last bits
        float magnitude;
        __builtin_memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        __builtin_memcpy(&bits, &magnitude, 4);
        return uint16_t(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + (bits >> 13 & 1);
    return uint16_t(sign | (bits - 0x38000000) >> 13);
}

}  // namespace glassgpt

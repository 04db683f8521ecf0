// 16 floats or 16 integers at a time in four 128-bit registers of WebAssembly.
//
// It has no product of bytes, but one of 16-bit integers that adds pairs (i32x4.dot_i16x8_s). So the inputs that meet
// int8 weights are 16-bit integers: two of them are as fine as three bytes, and the weights are widened half as often.
#pragma once
#include <wasm_simd128.h>

namespace {

constexpr int INPUT_BYTES = 2;  // of the integers that meet int8 weights
constexpr int TILE_TOKENS = 4, TILE_VECTORS = 1;
constexpr int GROUP_TOKENS = 2;
constexpr int ATTEND_QUERIES = 4, ATTEND_VECTORS = 1;

struct F { v128_t v[4]; };
struct I { v128_t v[4]; };
struct W { v128_t v[4]; };        // 16 outputs of 4 bytes
struct X { v128_t even, odd; };   // inputs 0 and 2, and 1 and 3, as 16-bit integers in every lane

// The four registers of a result, i being 0 to 3.
#define EACH(Result, expression)                 \
    Result r;                                    \
    { constexpr int i = 0; r.v[i] = expression; } \
    { constexpr int i = 1; r.v[i] = expression; } \
    { constexpr int i = 2; r.v[i] = expression; } \
    { constexpr int i = 3; r.v[i] = expression; } \
    return r;

inline F set(float x) { EACH(F, wasm_f32x4_splat(x)) }
inline F zero() { return set(0.0f); }
inline F load(const float* p) { EACH(F, wasm_v128_load(p + 4 * i)) }
inline void store(float* p, F x) {
    for (int i = 0; i < 4; i++) wasm_v128_store(p + 4 * i, x.v[i]);
}
inline F load_some(const float* p, int n) {
    float copy[16] = {};
    for (int i = 0; i < n; i++) copy[i] = p[i];
    return load(copy);
}
inline void store_some(float* p, F x, int n) {
    float copy[16];
    store(copy, x);
    for (int i = 0; i < n; i++) p[i] = copy[i];
}
// The bits of a float16 moved to their places in a float32 mean 2^-112 of the value; an exponent of ones stays one.
inline v128_t widen_half(const uint16_t* p) {
    const v128_t half = wasm_u32x4_load16x4(p);
    const v128_t magnitude = wasm_i32x4_shl(wasm_v128_and(half, wasm_i32x4_splat(0x7fff)), 13);
    const v128_t value = wasm_f32x4_mul(magnitude, wasm_i32x4_splat(0x77800000));  // 2^112
    const v128_t infinite = wasm_i32x4_ge(magnitude, wasm_i32x4_splat(0x7c00 << 13));
    const v128_t sign = wasm_i32x4_shl(wasm_v128_and(half, wasm_i32x4_splat(0x8000)), 16);
    return wasm_v128_or(wasm_v128_or(value, wasm_v128_and(infinite, wasm_i32x4_splat(0x7f800000))), sign);
}
inline F load_half(const uint16_t* p) { EACH(F, widen_half(p + 4 * i)) }
inline void store_half(uint16_t* p, F x) {
    float wide[16];
    store(wide, x);
    for (int i = 0; i < 16; i++) p[i] = glassgpt::float_to_half(wide[i]);
}
inline v128_t widen_int8(const int8_t* p) {
    return wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(wasm_i16x8_extend_low_i8x16(wasm_v128_load32_zero(p))));
}
inline F load_int8(const int8_t* p) { EACH(F, widen_int8(p + 4 * i)) }
inline F load_bfloat(const uint16_t* p) { EACH(F, wasm_i32x4_shl(wasm_u32x4_load16x4(p + 4 * i), 16)) }
inline F add(F x, F y) { EACH(F, wasm_f32x4_add(x.v[i], y.v[i])) }
inline F sub(F x, F y) { EACH(F, wasm_f32x4_sub(x.v[i], y.v[i])) }
inline F mul(F x, F y) { EACH(F, wasm_f32x4_mul(x.v[i], y.v[i])) }
inline F div(F x, F y) { EACH(F, wasm_f32x4_div(x.v[i], y.v[i])) }
// There is no fused product and sum. By way of float64 it has the same bits, and so the inputs are rounded to the same
// integers, and the same tokens are drawn, as with the other kernels. Products of floats, which are many, do without.
inline v128_t upper(v128_t x) { return wasm_i32x4_shuffle(x, x, 2, 3, 2, 3); }
inline v128_t fused_low(v128_t x, v128_t y, v128_t z) {
    const v128_t product = wasm_f64x2_mul(wasm_f64x2_promote_low_f32x4(x), wasm_f64x2_promote_low_f32x4(y));
    return wasm_f32x4_demote_f64x2_zero(wasm_f64x2_add(product, wasm_f64x2_promote_low_f32x4(z)));
}
inline v128_t fused(v128_t x, v128_t y, v128_t z) {
    return wasm_i32x4_shuffle(fused_low(x, y, z), fused_low(upper(x), upper(y), upper(z)), 0, 1, 4, 5);
}
inline F fma(F x, F y, F z) { EACH(F, fused(x.v[i], y.v[i], z.v[i])) }
#define HAS_NO_FMA
// The second where one is NaN, as everywhere else.
inline F max(F x, F y) { EACH(F, wasm_f32x4_pmax(y.v[i], x.v[i])) }
inline F min(F x, F y) { EACH(F, wasm_f32x4_pmin(y.v[i], x.v[i])) }
inline I to_int(F x) { EACH(I, wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(x.v[i]))) }
inline F to_float(I x) { EACH(F, wasm_f32x4_convert_i32x4(x.v[i])) }
inline F power_of_two(I x) { EACH(F, wasm_i32x4_shl(wasm_i32x4_add(x.v[i], wasm_i32x4_splat(127)), 23)) }
inline I set(int x) { EACH(I, wasm_i32x4_splat(x)) }
inline I load(const int32_t* p) { EACH(I, wasm_v128_load(p + 4 * i)) }
inline I sub(I x, I y) { EACH(I, wasm_i32x4_sub(x.v[i], y.v[i])) }
inline I mul(I x, I y) { EACH(I, wasm_i32x4_mul(x.v[i], y.v[i])) }
inline void store_bytes(uint8_t* p, I x) {
    int32_t wide[16];
    for (int i = 0; i < 4; i++) wasm_v128_store(wide + 4 * i, x.v[i]);
    for (int i = 0; i < 16; i++) p[i] = uint8_t(wide[i]);
}

inline W load_bytes(const uint8_t* p) { EACH(W, wasm_v128_load(p + 16 * i)) }
inline W low_halves(W w) { EACH(W, wasm_v128_and(w.v[i], wasm_i8x16_splat(15))) }
inline W high_halves(W w) { EACH(W, wasm_u8x16_shr(w.v[i], 4)) }
inline v128_t even_bytes(v128_t bytes) { return wasm_i16x8_shr(wasm_i16x8_shl(bytes, 8), 8); }
inline v128_t odd_bytes(v128_t bytes) { return wasm_i16x8_shr(bytes, 8); }
inline X broadcast4(const uint8_t* p) {
    const v128_t bytes = wasm_v128_load32_splat(p);
    return {even_bytes(bytes), odd_bytes(bytes)};
}
constexpr int X_OFFSET = 0;  // what is taken from every x in a product with int8
inline X broadcast_int8(const uint8_t* p) { return {wasm_v128_load32_splat(p), wasm_v128_load32_splat(p + 4)}; }
inline v128_t dot_bytes(v128_t sum, X x, v128_t w) {
    sum = wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(even_bytes(w), x.even));
    return wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(odd_bytes(w), x.odd));
}
inline I dot_int8(I sum, X x, W w) { EACH(I, dot_bytes(sum.v[i], x, w.v[i])) }
inline I dot_int4(I sum, X x, W w) { return dot_int8(sum, x, w); }

#undef EACH

}  // namespace

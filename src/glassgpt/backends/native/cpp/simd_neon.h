// 16 floats or 16 integers at a time in four registers of NEON, which every 64-bit ARM has; with its instruction for
// products of bytes (sdot) where the file that includes this one is compiled for it.
#pragma once
#include <arm_neon.h>

namespace {

constexpr int INPUT_BYTES = 1;  // of the integers that meet int8 weights
constexpr int TILE_TOKENS = 4, TILE_VECTORS = 1;  // 16 sums in 32 registers
constexpr int GROUP_TOKENS = 2;
constexpr int ATTEND_QUERIES = 4, ATTEND_VECTORS = 1;

struct F { float32x4_t v[4]; };
struct I { int32x4_t v[4]; };
struct W { int8x16_t v[4]; };  // 16 outputs of 4 bytes
struct X { int8x16_t v; };     // the same 4 bytes in every lane

// The four registers of a result, i being 0 to 3. No loop: gcc 12 would keep the arrays in memory.
#define EACH(Result, expression)                 \
    Result r;                                    \
    { constexpr int i = 0; r.v[i] = expression; } \
    { constexpr int i = 1; r.v[i] = expression; } \
    { constexpr int i = 2; r.v[i] = expression; } \
    { constexpr int i = 3; r.v[i] = expression; } \
    return r;

inline F set(float x) { EACH(F, vdupq_n_f32(x)) }
inline F zero() { return set(0.0f); }
inline F load(const float* p) { EACH(F, vld1q_f32(p + 4 * i)) }
inline void store(float* p, F x) {
    vst1q_f32(p, x.v[0]);
    vst1q_f32(p + 4, x.v[1]);
    vst1q_f32(p + 8, x.v[2]);
    vst1q_f32(p + 12, x.v[3]);
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
inline F load_half(const uint16_t* p) { EACH(F, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)))) }
inline void store_half(uint16_t* p, F x) {
    vst1q_u16(p, vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(x.v[0]), vcvt_f16_f32(x.v[1]))));
    vst1q_u16(p + 8, vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(x.v[2]), vcvt_f16_f32(x.v[3]))));
}
inline F load_int8(const int8_t* p) {
    const int8x16_t bytes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}
inline F load_bfloat(const uint16_t* p) { EACH(F, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16))) }
inline F add(F x, F y) { EACH(F, vaddq_f32(x.v[i], y.v[i])) }
inline F sub(F x, F y) { EACH(F, vsubq_f32(x.v[i], y.v[i])) }
inline F mul(F x, F y) { EACH(F, vmulq_f32(x.v[i], y.v[i])) }
inline F div(F x, F y) { EACH(F, vdivq_f32(x.v[i], y.v[i])) }
inline F fma(F x, F y, F z) { EACH(F, vfmaq_f32(z.v[i], x.v[i], y.v[i])) }
// The second where one is NaN, as everywhere else; vmaxq_f32 would hand on the NaN of either.
inline F max(F x, F y) { EACH(F, vbslq_f32(vcgtq_f32(x.v[i], y.v[i]), x.v[i], y.v[i])) }
inline F min(F x, F y) { EACH(F, vbslq_f32(vcltq_f32(x.v[i], y.v[i]), x.v[i], y.v[i])) }
inline I to_int(F x) { EACH(I, vcvtnq_s32_f32(x.v[i])) }  // to nearest, even in the middle
inline F to_float(I x) { EACH(F, vcvtq_f32_s32(x.v[i])) }
inline F power_of_two(I x) { EACH(F, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(x.v[i], vdupq_n_s32(127)), 23))) }
inline I set(int x) { EACH(I, vdupq_n_s32(x)) }
inline I load(const int32_t* p) { EACH(I, vld1q_s32(p + 4 * i)) }
inline I sub(I x, I y) { EACH(I, vsubq_s32(x.v[i], y.v[i])) }
inline I mul(I x, I y) { EACH(I, vmulq_s32(x.v[i], y.v[i])) }
inline void store_bytes(uint8_t* p, I x) {
    int16x8_t low = vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]));
    int16x8_t high = vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]));
    vst1q_s8((int8_t*)p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

inline W load_bytes(const uint8_t* p) { EACH(W, vld1q_s8((const int8_t*)p + 16 * i)) }
inline W low_halves(W w) { EACH(W, vandq_s8(w.v[i], vdupq_n_s8(15))) }
inline W high_halves(W w) { EACH(W, vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(w.v[i]), 4))) }
inline X broadcast4(const uint8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return {vreinterpretq_s8_s32(vdupq_n_s32(four))};
}
// Both factors are signed here: x is moved by 128 to -127..127.
constexpr int X_OFFSET = 128;
inline X broadcast_int8(const uint8_t* p) { return {veorq_s8(broadcast4(p).v, vdupq_n_s8(-128))}; }
inline int32x4_t dot_bytes(int32x4_t sum, int8x16_t x, int8x16_t w) {
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sum, x, w);
#else  // a sum of two products fits 16 bits: 2 * 127 * 128
    int16x8_t low = vmull_s8(vget_low_s8(x), vget_low_s8(w)), high = vmull_high_s8(x, w);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
#endif
}
inline I dot_int8(I sum, X x, W w) { EACH(I, dot_bytes(sum.v[i], x.v, w.v[i])) }
inline I dot_int4(I sum, X x, W w) { return dot_int8(sum, x, w); }

#undef EACH

}  // namespace

// 16 floats or 16 integers at a time in one register of AVX-512, with its instructions for products of bytes (VNNI).
#pragma once
#include <immintrin.h>

namespace {

constexpr int INPUT_BYTES = 1;  // of the integers that meet int8 weights
#if defined(__SANITIZE_ADDRESS__)  // few instances, which compile in seconds
constexpr int TILE_TOKENS = 2, TILE_VECTORS = 4, GROUP_TOKENS = 2, ATTEND_QUERIES = 2, ATTEND_VECTORS = 4;
#else
constexpr int TILE_TOKENS = 6, TILE_VECTORS = 4;        // 24 sums in 32 registers
constexpr int GROUP_TOKENS = 3;                         // int4: two sums for each
constexpr int ATTEND_QUERIES = 6, ATTEND_VECTORS = 4;
#endif

struct F { __m512 v; };
struct I { __m512i v; };
struct W { __m512i v; };  // 16 outputs of 4 bytes
struct X { __m512i v; };  // the same 4 bytes in every lane

inline F zero() { return {_mm512_setzero_ps()}; }
inline F set(float a) { return {_mm512_set1_ps(a)}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline F load_some(const float* p, int n) { return {_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p)}; }
inline void store(float* p, F a) { _mm512_storeu_ps(p, a.v); }
inline void store_some(float* p, F a, int n) { _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), a.v); }
inline F load_half(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
inline void store_half(uint16_t* p, F a) { _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(a.v, 0)); }
inline F load_int8(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))};
}
inline F load_bfloat(const uint16_t* p) {
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline F add(F a, F b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F sub(F a, F b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F div(F a, F b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F max(F a, F b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F min(F a, F b) { return {_mm512_min_ps(a.v, b.v)}; }
inline I to_int(F a) { return {_mm512_cvtps_epi32(a.v)}; }  // to nearest, even in the middle
inline F to_float(I a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline F power_of_two(I a) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(a.v, _mm512_set1_epi32(127)), 23))};
}
inline I set(int a) { return {_mm512_set1_epi32(a)}; }
inline I load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
inline I sub(I a, I b) { return {_mm512_sub_epi32(a.v, b.v)}; }
inline I mul(I a, I b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
inline void store_bytes(uint8_t* p, I a) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(a.v)); }

inline W load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline W low_halves(W w) { return {_mm512_and_si512(w.v, _mm512_set1_epi8(15))}; }
inline W high_halves(W w) { return {_mm512_and_si512(_mm512_srli_epi16(w.v, 4), _mm512_set1_epi8(15))}; }
inline X broadcast4(const uint8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return {_mm512_set1_epi32(four)};
}
constexpr int X_OFFSET = 0;  // what is taken from every x in a product with int8
inline X broadcast_int8(const uint8_t* p) { return broadcast4(p); }
inline __m512i dot_bytes(__m512i sum, __m512i a, __m512i b) {  // a unsigned, b signed
#if defined(__GNUC__) && !defined(__clang__)
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));  // for the intrinsic gcc 12 spills every sum
    return sum;
#else
    return _mm512_dpbusd_epi32(sum, a, b);
#endif
}
inline I dot_int8(I sum, X x, W w) { return {dot_bytes(sum.v, x.v, w.v)}; }
inline I dot_int4(I sum, X x, W w) { return {dot_bytes(sum.v, w.v, x.v)}; }

}  // namespace

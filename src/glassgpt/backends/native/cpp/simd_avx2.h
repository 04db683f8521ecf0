// 16 floats or 16 integers at a time in two registers of AVX2 (with FMA and F16C), with the instruction for products of
// bytes (VNNI) where the file that includes this one is compiled for it.
#pragma once
#include <immintrin.h>

namespace {

constexpr int INPUT_BYTES = 1;  // of the integers that meet int8 weights
#if defined(__SANITIZE_ADDRESS__)
constexpr int TILE_TOKENS = 2, TILE_VECTORS = 1, GROUP_TOKENS = 2, ATTEND_QUERIES = 2, ATTEND_VECTORS = 1;
#else
constexpr int TILE_TOKENS = 4, TILE_VECTORS = 1;
constexpr int GROUP_TOKENS = 2;
constexpr int ATTEND_QUERIES = 4, ATTEND_VECTORS = 1;
#endif

struct F { __m256 a, b; };
struct I { __m256i a, b; };
struct W { __m256i a, b; };
struct X { __m256i v; };

inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline F set(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
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
inline F load_half(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
            _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
inline void store_half(uint16_t* p, F x) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.a, 0));
    _mm_storeu_si128((__m128i*)(p + 8), _mm256_cvtps_ph(x.b, 0));
}
inline __m256 widen_int8(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
}
inline F load_int8(const int8_t* p) { return {widen_int8(p), widen_int8(p + 8)}; }
inline __m256 widen_bfloat(const uint16_t* p) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline F load_bfloat(const uint16_t* p) { return {widen_bfloat(p), widen_bfloat(p + 8)}; }
inline F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F max(F x, F y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline I to_int(F x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline F to_float(I x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline __m256 two_to(__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
inline F power_of_two(I x) { return {two_to(x.a), two_to(x.b)}; }
inline I set(int x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline I load(const int32_t* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 8))};
}
inline I sub(I x, I y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
inline I mul(I x, I y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
inline void store_bytes(uint8_t* p, I x) {
    alignas(32) int32_t wide[16];
    _mm256_store_si256((__m256i*)wide, x.a);
    _mm256_store_si256((__m256i*)(wide + 8), x.b);
    for (int i = 0; i < 16; i++) p[i] = uint8_t(wide[i]);
}

inline W load_bytes(const uint8_t* p) {
    return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
inline W low_halves(W w) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(w.a, mask), _mm256_and_si256(w.b, mask)};
}
inline W high_halves(W w) { return low_halves({_mm256_srli_epi16(w.a, 4), _mm256_srli_epi16(w.b, 4)}); }
inline X broadcast4(const uint8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return {_mm256_set1_epi32(four)};
}
// The same instruction, encoded in two ways.
#if defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))
constexpr int X_OFFSET = 0;  // what is taken from every x in a product with int8
inline X broadcast_int8(const uint8_t* p) { return broadcast4(p); }
inline __m256i dot_bytes(__m256i sum, __m256i a, __m256i b) {  // a unsigned, b signed
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(sum, a, b);
#else
    return _mm256_dpbusd_epi32(sum, a, b);
#endif
}
inline I dot_int8(I sum, X x, W w) { return {dot_bytes(sum.a, x.v, w.a), dot_bytes(sum.b, x.v, w.b)}; }
inline I dot_int4(I sum, X x, W w) { return {dot_bytes(sum.a, w.a, x.v), dot_bytes(sum.b, w.b, x.v)}; }
#else
// The instruction multiplies unsigned with signed bytes and adds pairs in 16 bits, which 255 * 127 * 2 would overflow.
// So x is moved by 128 to -127..127 and multiplied with |w|, its sign changed where w is negative.
constexpr int X_OFFSET = 128;
inline X broadcast_int8(const uint8_t* p) { return {_mm256_xor_si256(broadcast4(p).v, _mm256_set1_epi8(-128))}; }
// a unsigned, b signed, and pairs of their products fit 16 bits.
inline __m256i dot_bytes(__m256i sum, __m256i a, __m256i b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), _mm256_set1_epi16(1)));
}
inline __m256i dot_signed(__m256i sum, __m256i x, __m256i w) {
    return dot_bytes(sum, _mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}
inline I dot_int8(I sum, X x, W w) { return {dot_signed(sum.a, x.v, w.a), dot_signed(sum.b, x.v, w.b)}; }
// 15 * 127 * 2 fits.
inline I dot_int4(I sum, X x, W w) { return {dot_bytes(sum.a, w.a, x.v), dot_bytes(sum.b, w.b, x.v)}; }
#endif

}  // namespace

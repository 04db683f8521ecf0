// 16 floats or 16 integers at a time in plain C++: runs everywhere, and is what the other kernels are tested against.
#pragma once
#include <cmath>
#include <cstring>

namespace {

constexpr int INPUT_BYTES = 1;  // of the integers that meet int8 weights
constexpr int TILE_TOKENS = 2, TILE_VECTORS = 1;
constexpr int GROUP_TOKENS = 2;
constexpr int ATTEND_QUERIES = 2, ATTEND_VECTORS = 1;

struct F { float v[16]; };
struct I { int32_t v[16]; };
struct W { uint8_t v[64]; };
struct X { uint8_t v[4]; };

#define EACH(expression)                                   \
    decltype(a) r;                                         \
    for (int i = 0; i < 16; i++) r.v[i] = expression;      \
    return r;

inline F zero() { return {}; }
inline F set(float value) { F a{}; EACH(value) }
inline F load(const float* p) { F a; memcpy(a.v, p, sizeof a.v); return a; }
inline F load_some(const float* p, int n) { F a{}; memcpy(a.v, p, sizeof(float) * size_t(n)); return a; }
inline void store(float* p, F a) { memcpy(p, a.v, sizeof a.v); }
inline void store_some(float* p, F a, int n) { memcpy(p, a.v, sizeof(float) * size_t(n)); }
inline F load_half(const uint16_t* p) { F a{}; EACH(glassgpt::half_to_float(p[i])) }
inline void store_half(uint16_t* p, F a) { for (int i = 0; i < 16; i++) p[i] = glassgpt::float_to_half(a.v[i]); }
inline F load_int8(const int8_t* p) { F a{}; EACH(float(p[i])) }
inline F load_bfloat(const uint16_t* p) {
    F a;
    for (int i = 0; i < 16; i++) {
        uint32_t bits = uint32_t(p[i]) << 16;
        memcpy(&a.v[i], &bits, 4);
    }
    return a;
}
inline F add(F a, F b) { EACH(a.v[i] + b.v[i]) }
inline F sub(F a, F b) { EACH(a.v[i] - b.v[i]) }
inline F mul(F a, F b) { EACH(a.v[i] * b.v[i]) }
inline F div(F a, F b) { EACH(a.v[i] / b.v[i]) }
inline F fma(F a, F b, F c) { EACH(a.v[i] * b.v[i] + c.v[i]) }
inline F max(F a, F b) { EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]) }
inline F min(F a, F b) { EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]) }
inline I to_int(F f) {
    I a;
    EACH(int32_t(std::nearbyint(f.v[i] >= -2147483648.0f && f.v[i] < 2147483648.0f ? f.v[i] : 0.0f)))
}
inline F to_float(I b) { F a; EACH(float(b.v[i])) }
inline F power_of_two(I b) {
    F a;
    for (int i = 0; i < 16; i++) {
        uint32_t bits = uint32_t(b.v[i] + 127) << 23;
        memcpy(&a.v[i], &bits, 4);
    }
    return a;
}
inline I set(int value) { I a; EACH(value) }
inline I load(const int32_t* p) { I a; memcpy(a.v, p, sizeof a.v); return a; }
inline I sub(I a, I b) { EACH(a.v[i] - b.v[i]) }
inline I mul(I a, I b) { EACH(a.v[i] * b.v[i]) }
inline void store_bytes(uint8_t* p, I a) { for (int i = 0; i < 16; i++) p[i] = uint8_t(a.v[i]); }

inline W load_bytes(const uint8_t* p) { W a; memcpy(a.v, p, 64); return a; }
inline W low_halves(W w) { for (auto& byte : w.v) byte = byte & 15; return w; }
inline W high_halves(W w) { for (auto& byte : w.v) byte = byte >> 4; return w; }
inline X broadcast4(const uint8_t* p) { X a; memcpy(a.v, p, 4); return a; }
constexpr int X_OFFSET = 0;  // what is taken from every x in a product with int8
inline X broadcast_int8(const uint8_t* p) { return broadcast4(p); }
inline I dot_int8(I sum, X x, W w) {
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 4; k++) sum.v[i] += int32_t(x.v[k]) * int8_t(w.v[4 * i + k]);
    return sum;
}
inline I dot_int4(I sum, X x, W w) {
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 4; k++) sum.v[i] += int8_t(x.v[k]) * int32_t(w.v[4 * i + k]);
    return sum;
}

#undef EACH

}  // namespace

// Every kernel once, in terms of the 16-wide vectors of a simd_*.h file, which is included before this one.
//
// What a token gets is computed in the same order whatever the number of tokens, the place of a token among them
// and the thread: each lane of a sum belongs to one output and runs over the inputs from first to last.
#pragma once
#include <cmath>
#include <utility>

#include "kernels.h"

#if defined(__GNUC__)
#define FORCED __attribute__((always_inline))
#else
#define FORCED
#endif
#define INLINE inline FORCED

namespace {

using namespace glassgpt;

constexpr int VECTORS = PANEL / 16;

// function(0), function(1), ... function(N - 1), each number a constant: an array that is indexed by them alone is kept
// in registers, which gcc 12 does not do for a loop, even an unrolled one.
template <class Function, int... numbers>
INLINE void times(const Function& function, std::integer_sequence<int, numbers...>) {
    (function(std::integral_constant<int, numbers>{}), ...);
}
template <int N, class Function>
INLINE void times(const Function& function) {
    times(function, std::make_integer_sequence<int, N>{});
}

#if defined(HAS_NO_FMA)
INLINE F multiply_add(F x, F y, F z) { return add(mul(x, y), z); }
#else
INLINE F multiply_add(F x, F y, F z) { return fma(x, y, z); }
#endif

// ---- elementary functions ----

inline float horizontal_sum(F a) {
    float v[16];
    store(v, a);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) v[i] += v[i + half];
    return v[0];
}

inline float horizontal_max(F a) {
    float v[16], best;
    store(v, a);
    best = v[0];
    for (int i = 1; i < 16; i++) best = v[i] > best ? v[i] : best;
    return best;
}

// e^x to about two units in the last place: 2^n times a polynomial (Cephes) on [-ln 2 / 2, ln 2 / 2].
INLINE F exponential(F x) {
    x = max(set(-87.0f), min(set(88.0f), x));  // in this order a NaN stays one
    I n = to_int(mul(x, set(1.44269504088896341f)));
    F m = to_float(n);
    F r = fma(m, set(-0.693359375f), x);
    r = fma(m, set(2.12194440e-4f), r);
    F p = set(1.9875691500e-4f);
    p = fma(p, r, set(1.3981999507e-3f));
    p = fma(p, r, set(8.3334519073e-3f));
    p = fma(p, r, set(4.1665795894e-2f));
    p = fma(p, r, set(1.6666665459e-1f));
    p = fma(p, r, set(5.0000001201e-1f));
    p = fma(p, mul(r, r), add(r, set(1.0f)));
    return mul(p, power_of_two(n));
}

INLINE F sigmoid(F x) { return div(set(1.0f), add(set(1.0f), exponential(sub(zero(), x)))); }

inline F by_each(F x, float (*function)(float)) {
    float v[16];
    store(v, x);
    for (float& one : v) one = function(one);
    return load(v);
}

inline float exact_gelu(float x) { return 0.5f * x * (1.0f + std::erf(x * 0.70710678118654752f)); }
inline float plain_tanh(float x) { return std::tanh(x); }

INLINE F activated(F x, int activation) {
    switch (activation) {
        case GELU_TANH: {  // (1 + tanh y) / 2 is the sigmoid of 2 y
            F twice_y = mul(x, fma(mul(x, x), set(2 * GELU_A * GELU_B), set(2 * GELU_A)));
            return mul(x, sigmoid(twice_y));
        }
        case RELU: return max(zero(), x);  // in this order a NaN stays one
        case SILU: return mul(x, sigmoid(x));
        case GELU_ERF: return by_each(x, exact_gelu);
        default: return by_each(x, plain_tanh);
    }
}

void activate(float* x, int n, int activation) {
    for (int i = 0; i < n; i += 16) store(x + i, activated(load(x + i), activation));
}

// ---- changes of low rank ----

template <int N>
INLINE void add_ranks(const LowRank& w, int first, const float* x, float* out) {
    F sums[N];
    times<N>([&](auto r) FORCED { sums[r] = zero(); });
    const float* a = w.a + first * w.ld_in;
    const int whole = w.n_in / 16 * 16;
    for (int i = 0; i < whole; i += 16) {
        const F some = load(x + i);
        times<N>([&](auto r) FORCED { sums[r] = fma(some, load(a + r * w.ld_in + i), sums[r]); });
    }
    if (whole < w.n_in) {
        const F some = load_some(x + whole, w.n_in - whole);
        times<N>([&](auto r) FORCED { sums[r] = fma(some, load(a + r * w.ld_in + whole), sums[r]); });
    }
    times<N>([&](auto r) FORCED { sums[r] = set(horizontal_sum(sums[r])); });
    const float* b = w.b + first * w.ld_out;
    for (int i = 0; i < w.n_out; i += 16) {
        F sum = load(out + i);
        times<N>([&](auto r) FORCED { sum = fma(sums[r], load(b + r * w.ld_out + i), sum); });
        store(out + i, sum);
    }
}

void add_low_rank(const LowRank& w, const float* x, float* out) {
    int first = 0;
    for (; first + 4 <= w.rank; first += 4) add_ranks<4>(w, first, x, out);
    for (; first < w.rank; first++) add_ranks<1>(w, first, x, out);
}

void exponentials(float* x, int n) {
    const int whole = n / 16 * 16, rest = n - whole;
    for (int i = 0; i < whole; i += 16) store(x + i, exponential(load(x + i)));
    if (rest) store_some(x + whole, exponential(load_some(x + whole, rest)), rest);
}

// ---- norms and quantization ----

void layer_norm(const float* x, const float* weight, const float* bias, float eps, int n, float* out) {
    const int whole = n / 16 * 16, rest = n - whole;
    F sum = zero();
    for (int i = 0; i < whole; i += 16) sum = add(sum, load(x + i));
    if (rest) sum = add(sum, load_some(x + whole, rest));
    const float mean = horizontal_sum(sum) / float(n);
    F squares = zero();
    for (int i = 0; i < whole; i += 16) {
        F d = sub(load(x + i), set(mean));
        squares = fma(d, d, squares);
    }
    if (rest) {
        float d[16] = {};
        store_some(d, sub(load_some(x + whole, rest), set(mean)), rest);
        squares = fma(load(d), load(d), squares);
    }
    const float inverse = 1.0f / std::sqrt(horizontal_sum(squares) / float(n) + eps);
    for (int i = 0; i < whole; i += 16)
        store(out + i, fma(mul(sub(load(x + i), set(mean)), set(inverse)), load(weight + i), load(bias + i)));
    if (rest) {
        F normed = mul(sub(load_some(x + whole, rest), set(mean)), set(inverse));
        store_some(out + whole, fma(normed, load_some(weight + whole, rest), load_some(bias + whole, rest)), rest);
    }
}

inline F load_up_to(const float* x, int i, int n) { return i + 16 <= n ? load(x + i) : load_some(x + i, n - i); }

inline void store_up_to(uint8_t* q, I value, int i, int n) {
    if (i + 16 <= n) {
        store_bytes(q + i, value);
    } else {
        uint8_t copy[16];
        store_bytes(copy, value);
        for (int j = 0; i + j < n; j++) q[i + j] = copy[j];
    }
}

// 1 / step, or 0 where the quotient, or a product with it, would not be finite: then all integers are that of zero.
inline float inverse_of(float step) { return step > 1e-30f && step < 1e30f ? 1.0f / step : 0.0f; }

inline void store_pairs(F value, int i, int n, int16_t* q) {
    float steps[16];
    store(steps, value);
    for (int j = 0; j < 16 && i + j < n; j++) q[place_of_pair(i + j)] = int16_t(steps[j]);
}

// As 16-bit integers around 0, so small that no sum of products with bytes exceeds 32 bits.
void quantize_wide(const float* x, int n, int n_padded, int16_t* q, float* scale, int32_t* zero_point) {
    F size = zero(), finite = zero();
    for (int i = 0; i < n; i += 16) {
        F value = load_up_to(x, i, n);
        finite = fma(value, zero(), finite);
        size = max(max(value, sub(zero(), value)), size);
    }
    const int limit = 0x7fffffff / (128 * n_padded) < 32767 ? 0x7fffffff / (128 * n_padded) : 32767;
    const float step = horizontal_max(size) / float(limit), inverse = inverse_of(step);
    *scale = step + horizontal_sum(finite);
    *zero_point = 0;
    for (int i = 0; i < n_padded; i += 16) {
        F value = i < n ? load_up_to(x, i, n) : zero();
        F moved = max(min(mul(value, set(inverse)), set(float(limit))), set(float(-limit)));
        store_pairs(to_float(to_int(moved)), i, n_padded, q);
    }
}

void quantize_row(const float* x, int n, int n_padded, uint8_t* q, float* scale, int32_t* zero_point) {
    F lowest = zero(), highest = zero(), finite = zero();
    for (int i = 0; i < n; i += 16) {
        F value = load_up_to(x, i, n);
        finite = fma(value, zero(), finite);  // a NaN or an infinity makes it NaN
        lowest = min(value, lowest);
        highest = max(value, highest);
    }
    const float high = horizontal_max(highest), low = -horizontal_max(sub(zero(), lowest));
    const float step = (high - low) / 254.0f;
    const float inverse = inverse_of(step);
    const int32_t middle = inverse > 0 ? 1 + int32_t(-low * inverse + 0.5f) : 1;
    *scale = step + horizontal_sum(finite);
    *zero_point = INPUT_BYTES == 2 ? 0 : middle;
    for (int i = 0; i < n_padded; i += 16) {
        F value = i < n ? load_up_to(x, i, n) : zero();
        F moved = add(to_float(to_int(mul(value, set(inverse)))), set(float(middle)));
        moved = max(min(moved, set(255.0f)), set(1.0f));
        if constexpr (INPUT_BYTES == 2)
            store_pairs(sub(moved, set(float(middle))), i, n_padded, reinterpret_cast<int16_t*>(q));
        else
            store_up_to(q, to_int(moved), i, n_padded);
    }
}

void quantize_groups(const float* x, int n, int n_padded, uint8_t* q, float* scale, int32_t* offset) {
    for (int start = 0; start < n_padded; start += GROUP) {
        F one = start < n ? load_up_to(x, start, n) : zero();
        F two = start + 16 < n ? load_up_to(x, start + 16, n) : zero();
        F size = max(max(one, sub(zero(), one)), max(two, sub(zero(), two)));
        const float largest = horizontal_max(size);
        const float step = largest / 127.0f, inverse = inverse_of(step);
        auto steps = [&](F x) { return to_int(max(min(mul(x, set(inverse)), set(127.0f)), set(-127.0f))); };
        I a = steps(one), b = steps(two);
        store_bytes(q + start, a);
        store_bytes(q + start + 16, b);
        scale[start / GROUP] = step + horizontal_sum(fma(one, zero(), mul(two, zero())));  // NaN if one is not finite
        offset[start / GROUP] = -8 * int32_t(horizontal_sum(add(to_float(a), to_float(b))));
    }
}

// ---- products ----

INLINE void finish(const Matmul& m, F sum, int token, int output) {
    float* out = m.out + token * m.ldo + output;
    if (m.epilogue == ADD) sum = add(sum, load(out));
    store(out, sum);
}

struct Float32 {
    static constexpr int bytes = 4;
    static INLINE F read(const uint8_t* p) { return load((const float*)p); }
};
struct Float16 {
    static constexpr int bytes = 2;
    static INLINE F read(const uint8_t* p) { return load_half((const uint16_t*)p); }
};
struct Bfloat16 {
    static constexpr int bytes = 2;
    static INLINE F read(const uint8_t* p) { return load_bfloat((const uint16_t*)p); }
};

template <class Type, int TOKENS, int WIDTH>
void float_tile(const Matmul& m, int panel, int first, int vector) {
    const uint8_t* w = m.w->panel(panel) + vector * 16 * Type::bytes;
    const float* x = m.in.x + first * m.in.ldx;
    const int64_t ldx = m.in.ldx;
    const int output = panel * PANEL + vector * 16, n_in = m.w->n_in;
    F sums[TOKENS][WIDTH];
    times<WIDTH>([&](auto j) FORCED {
        F bias = m.w->bias ? load(m.w->bias + output + 16 * j) : zero();
        times<TOKENS>([&](auto i) FORCED { sums[i][j] = bias; });
    });
    for (int k = 0; k < n_in; k++, w += PANEL * Type::bytes) {
        F weights[WIDTH];
        times<WIDTH>([&](auto j) FORCED { weights[j] = Type::read(w + j * 16 * Type::bytes); });
        times<TOKENS>([&](auto i) FORCED {
            F value = set(x[i * ldx + k]);
            times<WIDTH>([&](auto j) FORCED { sums[i][j] = multiply_add(value, weights[j], sums[i][j]); });
        });
    }
    times<TOKENS>([&](auto i) FORCED {
        times<WIDTH>([&](auto j) FORCED { finish(m, sums[i][j], first + i, output + 16 * j); });
    });
}

template <int TOKENS, int WIDTH>
void int8_tile(const Matmul& m, int panel, int first, int vector) {
    const uint8_t* w = m.w->panel(panel) + vector * 64;
    const uint8_t* q = m.in.q + first * m.in.ldq;
    const int64_t ldq = m.in.ldq;
    const int output = panel * PANEL + vector * 16, n_in = m.w->in_padded;
    I sums[TOKENS][WIDTH];
    times<TOKENS>([&](auto i) FORCED { times<WIDTH>([&](auto j) FORCED { sums[i][j] = set(0); }); });
    for (int k = 0; k < n_in; k += 4, w += PANEL * 4) {
        W weights[WIDTH];
        times<WIDTH>([&](auto j) FORCED { weights[j] = load_bytes(w + 64 * j); });
        times<TOKENS>([&](auto i) FORCED {
            X x = broadcast_int8(q + i * ldq + k * INPUT_BYTES);
            times<WIDTH>([&](auto j) FORCED { sums[i][j] = dot_int8(sums[i][j], x, weights[j]); });
        });
    }
    times<TOKENS>([&](auto i) FORCED {
        const int token = first + i;
        times<WIDTH>([&](auto j) FORCED {
            const int at = output + 16 * j;
            I exact = sub(sums[i][j], mul(set(m.in.zero[token] - X_OFFSET), load(m.w->total + at)));
            F scale = mul(load(m.w->scale + at), set(m.in.scale[token]));
            finish(m, fma(to_float(exact), scale, m.w->bias ? load(m.w->bias + at) : zero()), token, at);
        });
    });
}

template <int TOKENS, int WIDTH>
void int4_tile(const Matmul& m, int panel, int first, int vector) {
    const uint8_t* group = m.w->panel(panel);
    const uint8_t* q = m.in.q + first * m.in.ldq;
    const int32_t* offset = m.in.zero + first * m.in.ld_groups;
    const float* scales = m.in.scale + first * m.in.ld_groups;
    const int64_t ldq = m.in.ldq, ld_groups = m.in.ld_groups;
    const int output = panel * PANEL + vector * 16, n_groups = m.w->in_padded / GROUP;
    F sums[TOKENS][WIDTH];
    times<WIDTH>([&](auto j) FORCED {
        F bias = m.w->bias ? load(m.w->bias + output + 16 * j) : zero();
        times<TOKENS>([&](auto i) FORCED { sums[i][j] = bias; });
    });
    for (int g = 0; g < n_groups; g++, group += GROUP_BYTES, q += GROUP) {
        I dots[TOKENS][WIDTH];
        times<TOKENS>([&](auto i) FORCED {
            times<WIDTH>([&](auto j) FORCED { dots[i][j] = set(offset[i * ld_groups + g]); });
        });
        const uint8_t* w = group + PANEL * 2 + vector * 64;
        times<GROUP / 8>([&](auto pair) FORCED {
            X low[TOKENS], high[TOKENS];
            times<TOKENS>([&](auto i) FORCED {
                low[i] = broadcast4(q + i * ldq + pair * 8);
                high[i] = broadcast4(q + i * ldq + pair * 8 + 4);
            });
            times<WIDTH>([&](auto j) FORCED {
                W both = load_bytes(w + pair * PANEL * 4 + 64 * j), one = low_halves(both), two = high_halves(both);
                times<TOKENS>([&](auto i) FORCED {
                    dots[i][j] = dot_int4(dot_int4(dots[i][j], low[i], one), high[i], two);
                });
            });
        });
        times<WIDTH>([&](auto j) FORCED {
            F scale = load_half((const uint16_t*)group + vector * 16 + 16 * j);
            times<TOKENS>([&](auto i) FORCED {
                F both = mul(scale, set(scales[i * ld_groups + g]));
                sums[i][j] = fma(to_float(dots[i][j]), both, sums[i][j]);
            });
        });
    }
    times<TOKENS>([&](auto i) FORCED {
        times<WIDTH>([&](auto j) FORCED { finish(m, sums[i][j], first + i, output + 16 * j); });
    });
}

template <int TOKENS>
void tile(const Matmul& m, int panel, int first) {
    for (int vector = 0; vector < VECTORS; vector += TILE_VECTORS) {
        switch (m.w->dtype) {
            case FLOAT32: float_tile<Float32, TOKENS, TILE_VECTORS>(m, panel, first, vector); break;
            case FLOAT16: float_tile<Float16, TOKENS, TILE_VECTORS>(m, panel, first, vector); break;
            case BFLOAT16: float_tile<Bfloat16, TOKENS, TILE_VECTORS>(m, panel, first, vector); break;
            case INT8: int8_tile<TOKENS, TILE_VECTORS>(m, panel, first, vector); break;
            default:
                if constexpr (TOKENS <= GROUP_TOKENS) int4_tile<TOKENS, TILE_VECTORS>(m, panel, first, vector);
        }
    }
}

// Some tokens, at most TOKENS of them.
template <int TOKENS>
void tile_of(const Matmul& m, int panel, int first, int count) {
    if (count == TOKENS) {
        tile<TOKENS>(m, panel, first);
    } else if constexpr (TOKENS > 1) {
        tile_of<TOKENS - 1>(m, panel, first, count);
    }
}

void matmul(const Matmul& m, int panel, int first, int last) {
    const int most = m.w->dtype == INT4 ? GROUP_TOKENS : TILE_TOKENS;
    const int n_tiles = (last - first + most - 1) / most;
    for (int i = 0; i < n_tiles; i++) {  // of even sizes: two of 5 tokens are faster than 6 and 4
        const int begin = first + (last - first) * i / n_tiles, end = first + (last - first) * (i + 1) / n_tiles;
        tile_of<TILE_TOKENS>(m, panel, begin, end - begin);
        if (m.epilogue == ACTIVATE)  // while the sums are in the cache
            for (int token = begin; token < end; token++)
                activate(m.out + token * m.ldo + panel * PANEL, PANEL, m.activation);
    }
}

// ---- attention ----

// 1 / scale of the integers for n numbers, which goes to *scale: NaN where one of them is not finite.
inline float byte_scale(const float* x, int n, float* scale) {
    F size = zero(), finite = zero();
    for (int i = 0; i < n; i += 16) {
        F value = load_up_to(x, i, n);
        finite = fma(value, zero(), finite);
        size = max(max(value, sub(zero(), value)), size);
    }
    const float step = horizontal_max(size) / 127.0f;
    *scale = step + horizontal_sum(finite);
    return inverse_of(step);
}

// 16 of a vector's n numbers as the cache holds them.
template <class Stored>
INLINE void rounded(const float* x, int i, int n, float inverse, Stored* out) {
    const F value = load_up_to(x, i, n);
    if constexpr (sizeof(Stored) == 4) store(out, value);
    else if constexpr (sizeof(Stored) == 2) store_half(out, value);
    else store_bytes((uint8_t*)out, to_int(mul(value, set(inverse))));
}

// What lies at `first` on the first page, on the page of a position.
template <class T>
INLINE T* on_page(const HeadCache& cache, void* first, int position) {
    return (T*)((uint8_t*)first + position / PAGE * cache.page_bytes);
}

template <class Stored>
void store_key_as(const float* k, const HeadCache& cache, int position) {
    const int n = cache.d_head, place = position % PAGE;
    Stored* at = on_page<Stored>(cache, cache.keys, position) + place / 16 * n * 16 + place % 16;
    const float inverse =
        sizeof(Stored) == 1 ? byte_scale(k, n, on_page<float>(cache, cache.key_scale, position) + place) : 1.0f;
    for (int i = 0; i < n; i += 16) {
        Stored some[16];
        rounded(k, i, n, inverse, some);
        for (int j = 0; j < 16 && i + j < n; j++) at[16 * (i + j)] = some[j];
    }
}

template <class Stored>
void store_value_as(const float* v, const HeadCache& cache, int position) {
    const int place = position % PAGE;
    Stored* at = on_page<Stored>(cache, cache.values, position) + place * cache.d_padded;
    const float inverse = sizeof(Stored) == 1
                              ? byte_scale(v, cache.d_head, on_page<float>(cache, cache.value_scale, position) + place)
                              : 1.0f;
    for (int i = 0; i < cache.d_head; i += 16) rounded(v, i, cache.d_head, inverse, at + i);
}

void store_key(const float* k, const HeadCache& cache, int position) {
    if (cache.dtype == FLOAT32) store_key_as<float>(k, cache, position);
    else if (cache.dtype == FLOAT16) store_key_as<uint16_t>(k, cache, position);
    else store_key_as<int8_t>(k, cache, position);
}

void store_value(const float* v, const HeadCache& cache, int position) {
    if (cache.dtype == FLOAT32) store_value_as<float>(v, cache, position);
    else if (cache.dtype == FLOAT16) store_value_as<uint16_t>(v, cache, position);
    else store_value_as<int8_t>(v, cache, position);
}

struct FullCache { typedef float type; static INLINE F read(const float* p) { return load(p); } };
struct HalfCache { typedef uint16_t type; static INLINE F read(const uint16_t* p) { return load_half(p); } };
struct ByteCache { typedef int8_t type; static INLINE F read(const int8_t* p) { return load_int8(p); } };

static_assert(PAGE % (16 * ATTEND_VECTORS) == 0, "a tile of scores lies on one page");

// q . k for some queries and 16 * WIDTH positions from `position` on, which lie on one page.
template <class Cache, int QUERIES, int WIDTH>
INLINE void score_tile(const Attention& a, int first, int position) {
    typedef typename Cache::type Stored;
    const int64_t block = int64_t(a.cache.d_head) * 16;
    const Stored* keys = on_page<Stored>(a.cache, a.cache.keys, position) + position % PAGE / 16 * block;
    const float* q = a.q + first * a.ldq;
    const int64_t ldq = a.ldq;
    F sums[QUERIES][WIDTH];
    times<QUERIES>([&](auto i) FORCED { times<WIDTH>([&](auto j) FORCED { sums[i][j] = zero(); }); });
    for (int d = 0; d < a.cache.d_head; d++, keys += 16) {
        F columns[WIDTH];
        times<WIDTH>([&](auto j) FORCED { columns[j] = Cache::read(keys + j * block); });
        times<QUERIES>([&](auto i) FORCED {
            F value = set(q[i * ldq + d]);
            times<WIDTH>([&](auto j) FORCED { sums[i][j] = fma(value, columns[j], sums[i][j]); });
        });
    }
    times<QUERIES>([&](auto i) FORCED {
        times<WIDTH>([&](auto j) FORCED {
            F score = mul(sums[i][j], set(a.scale));
            if constexpr (sizeof(Stored) == 1)
                score =
                    mul(score, load(on_page<float>(a.cache, a.cache.key_scale, position) + position % PAGE + 16 * j));
            store(a.scores + (first + i) * a.ld_scores + position + 16 * j, score);
        });
    });
}

// The scores of a query become e^(score - largest), 0 where it must not look; returns one over their sum.
inline float soften(float* scores, int visible, int length) {
    F largest = set(-INFINITY);
    const int whole = visible / 16 * 16;
    for (int t = 0; t < whole; t += 16) largest = max(load(scores + t), largest);
    float best = horizontal_max(largest);
    for (int t = whole; t < visible; t++) best = scores[t] > best ? scores[t] : best;
    F sum = zero();
    for (int t = 0; t < whole; t += 16) {
        F weight = exponential(sub(load(scores + t), set(best)));
        sum = add(sum, weight);
        store(scores + t, weight);
    }
    if (whole < length) {  // the block where it ends
        F weight = exponential(sub(load(scores + whole), set(best)));
        weight = load_some((store(scores + whole, weight), scores + whole), visible - whole);
        sum = add(sum, weight);
        store(scores + whole, weight);
        for (int t = whole + 16; t < length; t++) scores[t] = 0;
    }
    return 1.0f / horizontal_sum(sum);
}

template <class Cache, int QUERIES, int WIDTH>
INLINE void mix_tile(const Attention& a, int first, int vector, int length, const float* inverse) {
    typedef typename Cache::type Stored;
    const float* weights = a.scores + first * a.ld_scores;
    const int64_t ld_scores = a.ld_scores;
    const int d_padded = a.cache.d_padded;
    F sums[QUERIES][WIDTH];
    times<QUERIES>([&](auto i) FORCED { times<WIDTH>([&](auto j) FORCED { sums[i][j] = zero(); }); });
    for (int t = 0; t < length;) {
        const Stored* values = on_page<Stored>(a.cache, a.cache.values, t) + vector * 16;
        for (const int end = length - t < PAGE ? length : t + PAGE; t < end; t++, values += d_padded) {
            F row[WIDTH];
            times<WIDTH>([&](auto j) FORCED { row[j] = Cache::read(values + 16 * j); });
            times<QUERIES>([&](auto i) FORCED {
                F weight = set(weights[i * ld_scores + t]);
                times<WIDTH>([&](auto j) FORCED { sums[i][j] = fma(weight, row[j], sums[i][j]); });
            });
        }
    }
    times<QUERIES>([&](auto i) FORCED {
        times<WIDTH>([&](auto j) FORCED {
            const int d = (vector + j) * 16;
            float* out = a.out + (first + i) * a.ldo + d;
            F mixed = mul(sums[i][j], set(inverse[first + i]));
            if (d + 16 <= a.cache.d_head) store(out, mixed);
            else store_some(out, mixed, a.cache.d_head - d);
        });
    });
}

template <class Cache, int QUERIES>
void attend_tile(const Attention& a, int first) {
    const int length = a.first_position + first + QUERIES;  // of the last query
    const int padded = (length + 15) / 16 * 16;
    int position = 0;
    for (; position + 16 * ATTEND_VECTORS <= padded; position += 16 * ATTEND_VECTORS)
        score_tile<Cache, QUERIES, ATTEND_VECTORS>(a, first, position);
    for (; position < padded; position += 16) score_tile<Cache, QUERIES, 1>(a, first, position);
    float inverse[MAX_QUERIES];
    for (int i = 0; i < QUERIES; i++)
        inverse[first + i] = soften(a.scores + (first + i) * a.ld_scores, a.first_position + first + i + 1, padded);
    if constexpr (sizeof(typename Cache::type) == 1)  // the scales of the values belong to the weights from here on
        for (int i = first; i < first + QUERIES; i++)
            for (int t = 0; t < padded; t += 16) {
                float* weights = a.scores + i * a.ld_scores + t;
                store(weights, mul(load(weights), load(on_page<float>(a.cache, a.cache.value_scale, t) + t % PAGE)));
            }
    const int n_vectors = a.cache.d_padded / 16;
    int vector = 0;
    for (; vector + ATTEND_VECTORS <= n_vectors; vector += ATTEND_VECTORS)
        mix_tile<Cache, QUERIES, ATTEND_VECTORS>(a, first, vector, length, inverse);
    for (; vector < n_vectors; vector++) mix_tile<Cache, QUERIES, 1>(a, first, vector, length, inverse);
}

template <class Cache, int QUERIES>
void attend_some(const Attention& a, int first, int count) {
    if (count == QUERIES) {
        attend_tile<Cache, QUERIES>(a, first);
    } else if constexpr (QUERIES > 1) {
        attend_some<Cache, QUERIES - 1>(a, first, count);
    }
}

void attend(const Attention& a) {
    for (int first = 0; first < a.n_queries; first += ATTEND_QUERIES) {
        const int count = a.n_queries - first < ATTEND_QUERIES ? a.n_queries - first : ATTEND_QUERIES;
        if (a.cache.dtype == FLOAT32) attend_some<FullCache, ATTEND_QUERIES>(a, first, count);
        else if (a.cache.dtype == FLOAT16) attend_some<HalfCache, ATTEND_QUERIES>(a, first, count);
        else attend_some<ByteCache, ATTEND_QUERIES>(a, first, count);
    }
}

// ---- logits to probabilities ----

void softmax_sum(const float* x, int n, float* best, int* argbest, double* sum) {
    F largest = set(-INFINITY);
    const int whole = n / 16 * 16;
    for (int i = 0; i < whole; i += 16) largest = max(load(x + i), largest);
    float top = horizontal_max(largest);
    for (int i = whole; i < n; i++) top = x[i] > top ? x[i] : top;
    int where = 0;
    while (where < n - 1 && x[where] != top) where++;
    double total = 0;
    for (int start = 0; start < n; start += 1024) {
        F part = zero();
        const int end = start + 1024 < n ? start + 1024 : n;
        int i = start;
        for (; i + 16 <= end; i += 16) part = add(part, exponential(sub(load(x + i), set(top))));
        total += horizontal_sum(part);
        for (; i < end; i++) total += std::exp(x[i] - top);
    }
    *best = top;
    *argbest = where;
    *sum = total;
}

// 8 numbers of float64 as gcc and clang compute them with whatever vectors the CPU has: the same results with all.
typedef double Doubles __attribute__((vector_size(64)));
typedef int64_t Longs __attribute__((vector_size(64)));

// x becomes e^x, for x <= 0, to about a unit in the last place: 2^n times a polynomial.
INLINE void exponentiate(Doubles& x) {
    constexpr double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it leaves a rounded number in the lowest bits
    x = x > -700.0 ? x : Doubles{} - 700.0;
    const Doubles rounded = x * 1.4426950408889634 + magic, n = rounded - magic;
    const Doubles r = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    Doubles p = Doubles{} + 1.0 / 479001600;
    for (double term : {1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120,
                        1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0})
        p = p * r + term;
    x = p * (Doubles)(((Longs)rounded + 1023) << 52);
}

double weight_sum(const float* x, int n, float best, double temperature) {
    Doubles sums{};
    const int whole = n / 8 * 8;
    for (int i = 0; i < whole; i += 8) {
        Doubles some;
        for (int j = 0; j < 8; j++) some[j] = double(x[i + j]);
        some = (some - double(best)) / temperature;
        exponentiate(some);
        sums += some;
    }
    double total = 0;
    for (int j = 0; j < 8; j++) total += sums[j];
    for (int i = whole; i < n; i++) total += std::exp((double(x[i]) - double(best)) / temperature);
    return total;
}

constexpr int PEAK_SUMS = TILE_TOKENS * TILE_VECTORS;

float multiply_bytes(int n) {
    uint8_t bytes[64];
    for (int i = 0; i < 64; i++) bytes[i] = uint8_t(i % 2);  // small, so that no sum overflows
    const X x = broadcast_int8(bytes);
    const W w = load_bytes(bytes);
    I sums[PEAK_SUMS];
    times<PEAK_SUMS>([&](auto i) FORCED { sums[i] = set(0); });
    for (int k = 0; k < n; k++) times<PEAK_SUMS>([&](auto i) FORCED { sums[i] = dot_int8(sums[i], x, w); });
    float total = 0;
    times<PEAK_SUMS>([&](auto i) FORCED { total += horizontal_sum(to_float(sums[i])); });
    return total;
}

inline Kernels table(const char* name) {
    return {name,      ATTEND_QUERIES, INPUT_BYTES, matmul,       layer_norm,  quantize_row, quantize_wide, quantize_groups, store_key,
            store_value, attend,       activate,    add_low_rank, exponentials, softmax_sum,  weight_sum,    multiply_bytes,  PEAK_SUMS * 64};
}

}  // namespace

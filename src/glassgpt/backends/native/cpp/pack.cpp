// Weights on their way in: from arrays in any order to panels (layout.h), quantized where that is asked for.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>

#if !defined(_WIN32) && !defined(__wasm__)
#include <unistd.h>
#endif

#include "engine.h"

namespace glassgpt {

static float bfloat_to_float(uint16_t b) {
    uint32_t bits = uint32_t(b) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint16_t float_to_bfloat(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 64);  // NaN
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float read(const Source& s, int64_t output, int64_t input) {
    const int64_t at = (output - s.first_output) * s.out_stride + input * s.in_stride;
    switch (s.dtype) {
        case FLOAT32: return static_cast<const float*>(s.data)[at];
        case FLOAT16: return half_to_float(static_cast<const uint16_t*>(s.data)[at]);
        case BFLOAT16: return bfloat_to_float(static_cast<const uint16_t*>(s.data)[at]);
        default: return float(static_cast<const int8_t*>(s.data)[at]) * s.scale[output];
    }
}

static void pack_floats(const Matrix& m, int panel, const Source& s, uint8_t* out) {
    const int first = panel * PANEL, n = std::min(PANEL, m.n_out - first);
    const int block = 16;  // a few inputs of all outputs, then the next: either order of the source is read in lines
    for (int k0 = 0; k0 < m.n_in; k0 += block)
        for (int j = 0; j < n; j++)
            for (int k = k0; k < std::min(k0 + block, m.n_in); k++) {
                const float value = read(s, first + j, k);
                const size_t at = size_t(k) * PANEL + j;
                if (m.dtype == FLOAT32) reinterpret_cast<float*>(out)[at] = value;
                else if (m.dtype == FLOAT16) reinterpret_cast<uint16_t*>(out)[at] = float_to_half(value);
                else reinterpret_cast<uint16_t*>(out)[at] = float_to_bfloat(value);
            }
}

// As weights/packed.py does it: the largest magnitude becomes 127.
static void quantize_output(const float* row, int n, int8_t* out, float* scale) {
    float largest = 0;
    for (int k = 0; k < n; k++) largest = std::max(largest, std::fabs(row[k]));
    *scale = largest / 127.0f;
    for (int k = 0; k < n; k++)
        out[k] = *scale > 0 ? int8_t(std::max(-127.0f, std::min(127.0f, std::nearbyint(row[k] / *scale)))) : 0;
}

static void pack_int8(const Matrix& m, int panel, const Source& s, uint8_t* out) {
    const int first = panel * PANEL, n = std::min(PANEL, m.n_out - first);
    std::vector<int8_t> values(size_t(m.in_padded) * PANEL, 0);
    std::vector<float> row(size_t(m.n_in), 0.0f);
    for (int j = 0; j < n; j++) {
        int8_t* to = values.data() + size_t(j) * m.in_padded;
        if (s.dtype == INT8) {
            const int8_t* from = static_cast<const int8_t*>(s.data) + (first + j - s.first_output) * s.out_stride;
            if (s.in_stride == 1) memcpy(to, from, size_t(m.n_in));
            else
                for (int k = 0; k < m.n_in; k++) to[k] = from[k * s.in_stride];
            m.scale[first + j] = s.scale[first + j];
        } else {
            for (int k = 0; k < m.n_in; k++) row[size_t(k)] = read(s, first + j, k);
            quantize_output(row.data(), m.n_in, to, &m.scale[first + j]);
        }
        int32_t total = 0;
        for (int k = 0; k < m.n_in; k++) total += to[k];
        m.total[first + j] = total;
    }
    for (int k = 0; k < m.in_padded; k += 4)
        for (int j = 0; j < PANEL; j++)
            memcpy(out + size_t(k) * PANEL + 4 * j, &values[size_t(j) * m.in_padded + k], 4);
}

// The sums of the values of a panel's outputs.
static void add_up(const Matrix& m, int panel) {
    const int8_t* values = reinterpret_cast<const int8_t*>(m.panel(panel));
    int32_t* total = m.total + panel * PANEL;
    for (int k = 0; k < m.in_padded; k += 4, values += 4 * PANEL)
        for (int j = 0; j < PANEL; j++)
            total[j] += values[4 * j] + values[4 * j + 1] + values[4 * j + 2] + values[4 * j + 3];
}

constexpr int LANES = 16;  // groups at a time, each in its own lane of vector registers: its sums keep their order

// Rounded to even, -8 to 7, for |x| < 2^22, in operations that compilers turn into vector instructions: of the sum, the
// last bits are the integer.
static int to_step(float x) {
    const float sum = x + 12582912.0f;
    int32_t bits;
    memcpy(&bits, &sum, 4);
    return std::max(-8, std::min(7, bits - 0x4B400000));
}

// The scale of each group of 32 values, in steps of -8 to 7, that leaves the least squared error: the best of some
// around the one that maps the largest magnitude to -8, each improved by least squares for the steps it leads to.
// weights/panels.py does the same operations in the same order.
static void best_scales(const float (*x)[LANES], float* scale, int8_t (*steps)[LANES]) {
    float largest[LANES] = {}, sign[LANES], best[LANES] = {}, best_gain[LANES];
    for (int l = 0; l < LANES; l++) {
        sign[l] = 1, best_gain[l] = -1;
        for (int k = 0; k < GROUP; k++)
            if (std::fabs(x[k][l]) > largest[l]) largest[l] = std::fabs(x[k][l]), sign[l] = x[k][l] < 0 ? 1.0f : -1.0f;
    }
    for (int trial = -9; trial <= 9; trial++) {
        float inverse[LANES], xq[LANES] = {}, qq[LANES] = {};
        for (int l = 0; l < LANES; l++)
            inverse[l] = largest[l] > 0 ? sign[l] * (8.0f + 0.1f * float(trial)) / largest[l] : 0;
        for (int k = 0; k < GROUP; k++)
            for (int l = 0; l < LANES; l++) {
                const float q = float(to_step(x[k][l] * inverse[l]));
                xq[l] += x[k][l] * q;
                qq[l] += q * q;
            }
        for (int l = 0; l < LANES; l++) {
            const float gain = xq[l] * xq[l] / qq[l];  // the error is x.x - (x.q)^2 / q.q
            const bool better = qq[l] > 0 && gain > best_gain[l];
            best_gain[l] = better ? gain : best_gain[l];
            best[l] = better ? xq[l] / qq[l] : best[l];
        }
    }
    for (int l = 0; l < LANES; l++) scale[l] = half_to_float(float_to_half(best[l]));
    for (int k = 0; k < GROUP; k++)
        for (int l = 0; l < LANES; l++) steps[k][l] = scale[l] != 0 ? int8_t(to_step(x[k][l] / scale[l])) : int8_t(0);
}

static void write_group(uint8_t* group, int output, float scale, const int8_t* steps, int stride) {
    const uint16_t half = float_to_half(scale);
    memcpy(group + 2 * output, &half, 2);
    for (int k = 0; k < GROUP; k++) {
        const int step = k / 4;  // of four inputs; an even one is the low half
        uint8_t& byte = group[2 * PANEL + (step / 2) * PANEL * 4 + output * 4 + k % 4];
        byte = uint8_t(byte | uint8_t(steps[k * stride] + 8) << (step % 2 ? 4 : 0));
    }
}

static void pack_int4(const Matrix& m, int panel, const Source& s, uint8_t* out) {
    const int first = panel * PANEL, n = std::min(PANEL, m.n_out - first), n_groups = m.in_padded / GROUP;
    float x[GROUP][LANES], scale[LANES];
    int8_t steps[GROUP][LANES];
    for (int j = 0; j < PANEL; j++)
        for (int g = 0; g < n_groups; g += LANES) {
            for (int l = 0; l < LANES; l++)
                for (int k = 0; k < GROUP; k++) {
                    const int input = (g + l) * GROUP + k;
                    x[k][l] = j < n && input < m.n_in ? read(s, first + j, input) : 0;
                }
            best_scales(x, scale, steps);
            for (int l = 0; l < std::min(LANES, n_groups - g); l++)
                write_group(out + size_t(g + l) * GROUP_BYTES, j, scale[l], &steps[0][l], LANES);
        }
}

static void describe(OwnedMatrix& m, int n_out, int n_in, int dtype) {
    m.dtype = dtype;
    m.n_out = n_out;
    m.n_in = n_in;
    m.in_padded = padded_inputs(dtype, n_in);
    m.out_padded = int(round_up(n_out, PANEL));
    m.panel_bytes = bytes_per_panel(dtype, m.in_padded);
    if (dtype == INT8) {
        m.scale_memory = Memory(size_t(m.out_padded) * 4);
        m.total_memory = Memory(size_t(m.out_padded) * 4);
        m.scale = m.scale_memory.as<float>();
        m.total = m.total_memory.as<int32_t>();
    }
}

static size_t check_bytes(size_t given, const Matrix& m) {
    const size_t needed = m.panel_bytes * size_t(m.n_panels());
    if (given != needed)
        throw Error("panels of " + std::to_string(given) + " bytes instead of " + std::to_string(needed));
    return needed;
}

void Engine::place(Model& model, OwnedMatrix& m, int n_out, int n_in, const Panels& panels) {
    if (panels.dtype != INT8 && panels.dtype != INT4) throw Error("panels are int8 or int4");
    if (panels.dtype == INT8 && !panels.scale) throw Error("int8 values without scales");
    describe(m, n_out, n_in, panels.dtype);
    const size_t n_bytes = check_bytes(panels.n_bytes, m);
    const bool borrow = panels.stays && uintptr_t(panels.data) % 64 == 0 && model.mapped.add(panels.data, n_bytes);
    if (panels.dtype == INT8) memcpy(m.scale, panels.scale, size_t(n_out) * 4);
    uint8_t* copy = borrow ? nullptr : model.arena.allocate(n_bytes);
    m.data = borrow ? panels.data : copy;
    if (borrow && panels.dtype == INT4) return;
    const Pool::Active active(*pool_);
    pool_->each(m.n_panels(), [&](int64_t panel, int) {
        const size_t at = size_t(panel) * m.panel_bytes;
        if (copy) memcpy(copy + at, panels.data + at, m.panel_bytes);
        if (panels.dtype == INT8) add_up(m, int(panel));
    });
}

void Engine::pack(Arena& arena, OwnedMatrix& m, int n_out, int n_in, int dtype, const Source& source) {
    if (dtype < FLOAT32 || dtype > INT4 || source.dtype < FLOAT32 || source.dtype > INT8) throw Error("unknown dtype");
    describe(m, n_out, n_in, dtype);
    uint8_t* memory = arena.allocate(m.panel_bytes * size_t(m.n_panels()));
    m.data = memory;
    const Pool::Active active(*pool_);
    pool_->each(m.n_panels(), [&](int64_t panel, int) {
        uint8_t* out = memory + size_t(panel) * m.panel_bytes;
        if (dtype == INT8) pack_int8(m, int(panel), source, out);
        else if (dtype == INT4) pack_int4(m, int(panel), source, out);
        else pack_floats(m, int(panel), source, out);
    });
}

// Exactly these bytes of an open file; false if it has become shorter or cannot be read.
static bool read_at(int file, int64_t offset, int8_t* to, size_t n) {
#if defined(_WIN32) || defined(__wasm__)
    (void)file, (void)offset, (void)to, (void)n;
    return false;
#else
    while (n > 0) {
        const ssize_t got = pread(file, to, n, off_t(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        to += got, offset += got, n -= size_t(got);
    }
    return true;
#endif
}

void Engine::pack_file(Arena& arena, OwnedMatrix& m, int n_out, int n_in, int file, int64_t offset,
                       const float* scale) {
    describe(m, n_out, n_in, INT8);
    uint8_t* memory = arena.allocate(m.panel_bytes * size_t(m.n_panels()));
    std::vector<std::vector<int8_t>> rows(size_t(pool_->size()), std::vector<int8_t>(size_t(n_in) * PANEL));
    std::atomic<bool> whole{true};
    const Pool::Active active(*pool_);
    pool_->each(m.n_panels(), [&](int64_t panel, int thread) {
        const int64_t first = panel * PANEL;
        int8_t* some = rows[size_t(thread)].data();
        const size_t n = size_t(std::min(int64_t(PANEL), n_out - first)) * size_t(n_in);
        if (!read_at(file, offset + first * n_in, some, n)) whole = false;
        pack_int8(m, int(panel), {some, n_in, 1, INT8, scale, first}, memory + size_t(panel) * m.panel_bytes);
    });
    if (!whole) throw Error("the file of the weights became shorter while it was being read; restore it and try again");
    m.data = memory;
}

void quantize_int4(Pool& pool, int n_out, int n_in, const Source& source, uint8_t* out, size_t n_bytes) {
    if (n_out < 1 || n_in < 1 || n_out > 1 << 24 || n_in > 1 << 24)
        throw Error("a size of the matrix is not between 1 and 2^24");
    OwnedMatrix m;
    describe(m, n_out, n_in, INT4);
    check_bytes(n_bytes, m);
    const Pool::Active active(pool);
    pool.each(m.n_panels(),
              [&](int64_t panel, int) { pack_int4(m, int(panel), source, out + size_t(panel) * m.panel_bytes); });
}

// One row of a packed matrix, as floats.
void embed(const Matrix& m, int output, float* out) {
    const uint8_t* panel = m.panel(output / PANEL);
    const int j = output % PANEL;
    for (int k = 0; k < m.n_in; k++) {
        const size_t at = size_t(k) * PANEL + j;
        switch (m.dtype) {
            case FLOAT32: out[k] = reinterpret_cast<const float*>(panel)[at]; break;
            case FLOAT16: out[k] = half_to_float(reinterpret_cast<const uint16_t*>(panel)[at]); break;
            case BFLOAT16: out[k] = bfloat_to_float(reinterpret_cast<const uint16_t*>(panel)[at]); break;
            case INT8:
                out[k] = float(int8_t(panel[size_t(k / 4) * PANEL * 4 + j * 4 + k % 4])) * m.scale[output];
                break;
            default: {
                const uint8_t* group = panel + size_t(k / GROUP) * GROUP_BYTES;
                const int step = k % GROUP / 4;
                const uint8_t byte = group[2 * PANEL + (step / 2) * PANEL * 4 + j * 4 + k % 4];
                uint16_t half;
                memcpy(&half, group + 2 * j, 2);
                out[k] = half_to_float(half) * float(int(step % 2 ? byte >> 4 : byte & 15) - 8);
            }
        }
    }
}

}  // namespace glassgpt

// Runs every kernel of this CPU on the same numbers, in odd shapes, and prints a line for each:
//
//     kernels | what | hash of the bits that came out | largest difference from the portable kernels
//
// test_kernels.py compiles it, for this machine and for 64-bit ARM under qemu, and reads the lines.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "kernels.h"

using namespace glassgpt;
typedef std::vector<float> Floats;

// Numbers from -1 to 1, the same on every machine.
struct Random {
    uint32_t state;
    uint32_t bits() { return (state = state * 1664525u + 1013904223u) >> 8; }
    float next() { return float(int(bits() % 20001) - 10000) / 10000.0f; }
    Floats some(size_t n) {
        Floats values(n);
        for (float& value : values) value = next();
        return values;
    }
};

// A matrix of random numbers, with all that a kernel reads beside them.
struct RandomMatrix : Matrix {
    RandomMatrix(int dtype_, int n_in_, int n_out_, Random& random) {
        dtype = dtype_;
        n_in = n_in_;
        n_out = n_out_;
        in_padded = padded_inputs(dtype, n_in);
        out_padded = int(round_up(n_out, PANEL));
        panel_bytes = bytes_per_panel(dtype, in_padded);
        bytes.resize(panel_bytes * size_t(n_panels()));
        data = bytes.data();
        biases = random.some(size_t(out_padded));
        bias = biases.data();
        if (dtype == FLOAT32) fill<float>([&] { return random.next(); });
        if (dtype == FLOAT16) fill<uint16_t>([&] { return float_to_half(random.next()); });
        if (dtype == BFLOAT16) fill<uint16_t>([&] { return uint16_t(0x3f80 | (random.bits() & 0x803f)); });  // 1 to 2, or -2 to -1
        if (dtype == INT8) fill_int8(random);
        if (dtype == INT4) fill_int4(random);
    }

private:
    std::vector<uint8_t> bytes;
    Floats biases, scales;
    std::vector<int32_t> totals;

    template <class T>
    void fill(const std::function<T()>& draw) {
        for (size_t at = 0; at < bytes.size(); at += sizeof(T)) {
            const T value = draw();
            memcpy(&bytes[at], &value, sizeof(T));
        }
    }
    void fill_int8(Random& random) {
        fill<int8_t>([&] { return int8_t(random.bits() % 256 - 128); });  // -128 to 127: a file may hold any
        scales = random.some(size_t(out_padded));
        totals.assign(size_t(out_padded), 0);
        for (int output = 0; output < out_padded; output++)
            for (int k = 0; k < in_padded; k++) {
                int8_t& value = reinterpret_cast<int8_t&>(
                    bytes[size_t(output / PANEL) * panel_bytes + size_t(k / 4) * PANEL * 4 + size_t(output % PANEL) * 4 + size_t(k % 4)]);
                if (k >= n_in) value = 0;
                totals[size_t(output)] += value;
            }
        scale = scales.data();
        total = totals.data();
    }
    void fill_int4(Random& random) {
        fill<uint8_t>([&] { return uint8_t(random.bits()); });
        for (size_t group = 0; group < bytes.size(); group += GROUP_BYTES)
            for (size_t j = 0; j < PANEL; j++) {
                const uint16_t half = float_to_half(random.next());
                memcpy(&bytes[group + 2 * j], &half, 2);
            }
    }
};

std::map<std::string, Floats> portable;  // what came out, by what was done

void report(const Kernels& kernels, const std::string& what, const Floats& found) {
    uint64_t hash = 14695981039346656037u;  // FNV-1a
    const auto* bytes = reinterpret_cast<const uint8_t*>(found.data());
    for (size_t i = 0; i < found.size() * sizeof(float); i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    if (&kernels == portable_kernels()) portable[what] = found;
    const Floats& wanted = portable.at(what);
    float difference = found.size() == wanted.size() ? 0.0f : INFINITY, largest = 0.0f;
    for (size_t i = 0; i < wanted.size() && i < found.size(); i++) {
        largest = std::fmax(largest, std::fabs(wanted[i]));
        if (!(std::fabs(found[i] - wanted[i]) <= difference)) difference = std::fabs(found[i] - wanted[i]);
    }
    printf("%s | %s | %016llx | %g\n", kernels.name, what.c_str(), (unsigned long long)hash, double(difference / (largest + 1e-30f)));
}

Floats product(const Kernels& kernels, const Matrix& w, const Floats& x, int n_tokens, int epilogue) {
    const int64_t ldx = w.n_in, ldq = round_up(w.in_padded, PANEL), ld_groups = ldq / GROUP;
    std::vector<uint8_t> q(size_t(n_tokens * ldq));
    Floats scale(size_t(n_tokens * ld_groups)), out(size_t(n_tokens * w.out_padded), 0.25f);
    std::vector<int32_t> zero(scale.size());
    for (int i = 0; i < n_tokens; i++) {
        const float* row = x.data() + i * ldx;
        if (w.dtype == INT8) kernels.quantize_row(row, w.n_in, w.in_padded, &q[size_t(i * ldq)], &scale[size_t(i)], &zero[size_t(i)]);
        if (w.dtype == INT4)
            kernels.quantize_groups(row, w.n_in, w.in_padded, &q[size_t(i * ldq)], &scale[size_t(i * ld_groups)],
                                    &zero[size_t(i * ld_groups)]);
    }
    const Matmul m{&w, {x.data(), ldx, q.data(), ldq, scale.data(), zero.data(), ld_groups}, out.data(), w.out_padded, epilogue, GELU_TANH};
    for (int panel = 0; panel < w.n_panels(); panel++) kernels.matmul(m, panel, 0, n_tokens);
    return out;
}

void check_products(const Kernels& kernels) {
    const char* names[] = {"float32", "float16", "bfloat16", "int8", "int4"};
    const int shapes[][2] = {{1, 1}, {7, 5}, {48, 67}, {133, 130}};
    for (int dtype = FLOAT32; dtype <= INT4; dtype++)
        for (const auto& [n_in, n_out] : shapes) {
            Random random{uint32_t(1 + dtype + n_in)};
            const RandomMatrix w(dtype, n_in, n_out, random);
            const Floats x = random.some(size_t(13 * n_in));
            Floats all;
            for (int n_tokens = 1; n_tokens <= 13; n_tokens++) {
                const Floats out = product(kernels, w, x, n_tokens, n_tokens % 3);
                all.insert(all.end(), out.begin(), out.end());
            }
            report(kernels, std::string("matmul ") + names[dtype] + " " + std::to_string(n_in) + "x" + std::to_string(n_out), all);
        }
}

void check_rows(const Kernels& kernels) {
    for (int n : {1, 7, 16, 48, 133}) {
        Random random{uint32_t(n)};
        const Floats x = random.some(size_t(n)), weight = random.some(size_t(n)), bias = random.some(size_t(n));
        Floats normed(x.size());
        kernels.layer_norm(x.data(), weight.data(), bias.data(), 1e-5f, n, normed.data());
        report(kernels, "layer_norm " + std::to_string(n), normed);

        const int padded = int(round_up(n, GROUP));
        std::vector<uint8_t> q(size_t(padded), 0);
        Floats scale(size_t(padded / GROUP));
        std::vector<int32_t> zero(scale.size());
        auto quantized = [&] {
            Floats all(q.begin(), q.end());
            all.insert(all.end(), scale.begin(), scale.end());
            all.insert(all.end(), zero.begin(), zero.end());
            return all;
        };
        kernels.quantize_row(x.data(), n, int(round_up(n, 4)), q.data(), scale.data(), zero.data());
        report(kernels, "exact quantize_row " + std::to_string(n), quantized());
        kernels.quantize_groups(x.data(), n, padded, q.data(), scale.data(), zero.data());
        report(kernels, "exact quantize_groups " + std::to_string(n), quantized());

        Floats logits = random.some(size_t(64 * n));
        float best;
        int likeliest;
        double sum;
        kernels.softmax_sum(logits.data(), 64 * n, &best, &likeliest, &sum);
        report(kernels, "softmax_sum " + std::to_string(64 * n), {best, float(likeliest), float(sum)});
    }
    const char* names[] = {"gelu_tanh", "libm gelu_erf", "relu", "silu", "libm tanh"};
    for (int activation = GELU_TANH; activation <= TANH; activation++) {
        Floats x = Random{77}.some(640);
        for (float& value : x) value *= 12.0f;
        kernels.activate(x.data(), int(x.size()), activation);
        report(kernels, std::string(names[activation]), x);
    }
}

void check_attention(const Kernels& kernels) {
    for (int d_head : {7, 16, 64, 100})
        for (int dtype : {FLOAT32, FLOAT16, INT8}) {
            Random random{uint32_t(d_head)};
            const int context = 80, n_pages = 2, d_padded = int(round_up(d_head, 16));
            Floats scores(size_t(MAX_QUERIES * (128 + 64)));
            Floats memory(size_t(n_pages * PAGE * (d_head + d_padded + 2)));  // of a page: keys, values and their scales
            float *keys = memory.data(), *values = keys + PAGE * d_head, *scales = values + PAGE * d_padded;
            const HeadCache cache{dtype, d_head, d_padded, keys, values, scales, scales + PAGE, int64_t(memory.size()) * 4 / n_pages};
            for (int position = 0; position < context; position++) {
                const Floats k = random.some(size_t(d_head)), v = random.some(size_t(d_head));
                kernels.store_key(k.data(), cache, position);
                kernels.store_value(v.data(), cache, position);
            }
            const Floats q = random.some(size_t(MAX_QUERIES * d_head));
            Floats all;
            for (int first : {0, 1, 14, 15, 16, 33, 63, 71})
                for (int n = 1; n <= MAX_QUERIES; n++) {
                    Floats out(size_t(n * d_head));
                    kernels.attend({cache, 0.5f, q.data(), d_head, out.data(), d_head, n, first, scores.data(), 128 + 64});
                    all.insert(all.end(), out.begin(), out.end());
                }
            report(kernels, "attend " + std::to_string(d_head) + (dtype == INT8 ? " int8" : dtype == FLOAT16 ? " float16" : " float32"), all);
        }
}

// What is not finite must stay so: a model that has broken down says so in its logits.
void check_broken(const Kernels& kernels) {
    for (float broken : {NAN, INFINITY, -INFINITY}) {
        auto expect = [&](const char* where, float found) {
            if (std::isfinite(found)) printf("%s | LOST %g in %s | 0 | 0\n", kernels.name, double(broken), where);
        };
        Floats x = Random{5}.some(48);
        x[17] = broken;
        for (int dtype = FLOAT32; dtype <= INT4; dtype++) {
            Random random{9};
            const RandomMatrix w(dtype, 48, 64, random);
            for (float value : product(kernels, w, x, 1, STORE)) expect("matmul", value);
        }
        Floats normed(48), weight(48, 1.0f);
        kernels.layer_norm(x.data(), weight.data(), weight.data(), 1e-5f, 48, normed.data());
        expect("layer_norm", normed[3]);
        if (broken > 0 || broken != broken)
            for (int activation = GELU_TANH; activation < TANH; activation++) {
                Floats copy = x;
                kernels.activate(copy.data(), 48, activation);
                expect("activate", copy[17]);
            }
    }
}

int main() {
    for (const Kernels* kernels : available_kernels()) {
        check_products(*kernels);
        check_rows(*kernels);
        check_attention(*kernels);
        check_broken(*kernels);
    }
}

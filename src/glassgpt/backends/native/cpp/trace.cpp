// One text, block by block, with the steps that are wanted shown to a tap, which may change them: what
// inspect/forward.py asks of a model. Everything is as fine as float32. A step's values are those of the same name in
// inspect/taps.py.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine.h"

namespace glassgpt {

// Rows of floats, each with room for whole panels.
struct Rows {
    Rows(int n, int64_t width) : ld(round_up(width, PANEL)), columns(width), memory(size_t(std::max(n, 1)) * size_t(ld) * 4) {}
    float* row(int64_t i) const { return memory.as<float>() + i * ld; }
    int64_t ld, columns;
    Memory memory;
};

namespace {

// Of some heads: rows (T, width) of each, one head after the other.
struct HeadRows {
    HeadRows(int heads, int64_t n, int64_t width)
        : rows(n), ld(round_up(width, 16)), columns(width), memory(size_t(heads) * size_t(n) * size_t(ld) * 4) {}
    float* row(int head, int64_t i) const { return memory.as<float>() + (head * rows + i) * ld; }
    int64_t rows, ld, columns;
    Memory memory;
};

void show(const Taps& taps, int step, const Rows& rows, int n) {
    if (taps.wanted >> step & 1)
        taps.call(taps.context, step, 0, 1, rows.row(0), n, int(rows.columns), int(rows.ld));
}

void show(const Taps& taps, int step, const HeadRows& rows, int first, int heads) {
    if (taps.wanted >> step & 1)
        taps.call(taps.context, step, first, heads, rows.row(0, 0), int(rows.rows), int(rows.columns), int(rows.ld));
}

float number_at(const HeadCache& cache, const void* numbers, int64_t at) {
    return cache.dtype == FLOAT32 ? static_cast<const float*>(numbers)[at]
                                  : half_to_float(static_cast<const uint16_t*>(numbers)[at]);
}

// The keys as columns, (D, L), and the values as rows, (L, D), of the positions before `end`.
void read_cache(const HeadCache& cache, int end, int64_t ld_keys, float* keys, int64_t ld_values, float* values) {
    for (int p = 0; p < end; p++) {
        const uint8_t* page = static_cast<const uint8_t*>(cache.keys) + p / PAGE * cache.page_bytes;
        const uint8_t* value_page = static_cast<const uint8_t*>(cache.values) + p / PAGE * cache.page_bytes;
        const int place = p % PAGE;
        for (int d = 0; d < cache.d_head; d++) {
            keys[d * ld_keys + p] = number_at(cache, page, int64_t(place / 16) * cache.d_head * 16 + d * 16 + place % 16);
            values[p * ld_values + d] = number_at(cache, value_page, int64_t(place) * cache.d_padded + d);
        }
    }
}

// scores[j] = q . k_j for the first `n` keys, which are columns.
void score_row(const float* q, int d_head, const float* keys, int64_t ld_keys, int n, float* scores) {
    for (int j = 0; j < n; j++) scores[j] = 0;
    for (int d = 0; d < d_head; d++) {
        const float factor = q[d];
        const float* column = keys + d * ld_keys;
        for (int j = 0; j < n; j++) scores[j] += factor * column[j];
    }
}

void mix_row(const float* weights, int n, const float* values, int64_t ld_values, int d_head, float* out) {
    for (int d = 0; d < d_head; d++) out[d] = 0;
    for (int j = 0; j < n; j++) {
        const float weight = weights[j];
        const float* value = values + j * ld_values;
        for (int d = 0; d < d_head; d++) out[d] += weight * value[d];
    }
}

void softmax_row(const Kernels& kernels, float* row, int n) {
    float best = row[0];
    for (int j = 1; j < n; j++) best = row[j] > best ? row[j] : best;
    for (int j = 0; j < n; j++) row[j] -= best;
    const float least = -87.0f;  // below, e^x is no float32
    std::vector<bool> nothing;
    for (int j = 0; j < n; j++)
        if (row[j] < least) nothing.resize(size_t(n)), nothing[size_t(j)] = true;
    kernels.exponentials(row, n);
    double sum = 0;
    for (int j = 0; j < n; j++) {
        if (!nothing.empty() && nothing[size_t(j)]) row[j] = 0;
        sum += double(row[j]);
    }
    const float inverse = float(1 / sum);
    for (int j = 0; j < n; j++) row[j] *= inverse;
}

constexpr uint32_t bit(int step) { return 1u << step; }
constexpr uint32_t ALL_PAIRS = bit(ATTN_SCORES) | bit(ATTN_SCALED) | bit(ATTN_MASKED);

}  // namespace

void Engine::linear(const Matrix& w, const float* x, int64_t ldx, int n, float* out, int64_t ldo, int epilogue,
                    int activation, int parts) {
    for (int first = 0; first < n; first += STEP_TOKENS) {
        const int some = std::min(STEP_TOKENS, n - first);
        multiply(w, quantize(w, x + first * ldx, ldx, some, parts), some, out + first * ldo, ldo, epilogue, activation);
    }
}

void Engine::normalize_rows(const Memory& weight, const Memory& bias, const Shape& shape, const float* x, int64_t ldx,
                            int n, float* out, int64_t ldo) {
    pool_->each(n, [&](int64_t i, int) {
        kernels->layer_norm(x + i * ldx, weight.as<float>(), bias.as<float>(), shape.layer_norm_epsilon, shape.n_embd,
                            out + i * ldo);
    });
}

// The heads [first, last) of a block, from queries, keys and values to the rows of `merged`.
void Engine::attend_shown(const Model& model, Cache* cache, int layer, int start, int first, int last, const Rows& qkv,
                          Rows& merged, int n, const Taps& taps) {
    const int D = model.d_head, C = model.shape.n_embd, heads = last - first, length = start + n;
    HeadRows q(heads, n, D), k(heads, n, D), v(heads, n, D);
    pool_->each(n, [&](int64_t i, int) {
        for (int h = 0; h < heads; h++) {
            const float* from = qkv.row(i) + (first + h) * D;
            memcpy(q.row(h, i), from, size_t(D) * 4);
            memcpy(k.row(h, i), from + C, size_t(D) * 4);
            memcpy(v.row(h, i), from + 2 * C, size_t(D) * 4);
        }
    });
    show(taps, ATTN_Q, q, first, heads);
    show(taps, ATTN_K, k, first, heads);
    show(taps, ATTN_V, v, first, heads);
    const int64_t ld_keys = round_up(length, 16), ld_values = round_up(D, 16);
    const size_t key_size = size_t(D * ld_keys), value_size = size_t(length) * size_t(ld_values);
    Memory keys(size_t(heads) * key_size * 4), values(size_t(heads) * value_size * 4);
    pool_->each(heads, [&](int64_t h, int) {
        float* own_keys = keys.as<float>() + size_t(h) * key_size;
        float* own_values = values.as<float>() + size_t(h) * value_size;
        if (cache) {
            const HeadCache stored = cache->head(layer, 0, first + int(h));
            for (int i = 0; i < n; i++) {
                kernels->store_key(k.row(int(h), i), stored, start + i);
                kernels->store_value(v.row(int(h), i), stored, start + i);
            }
            read_cache(stored, start, ld_keys, own_keys, ld_values, own_values);
        }
        for (int i = 0; i < n; i++) {
            const float* key = k.row(int(h), i);
            for (int d = 0; d < D; d++) own_keys[d * ld_keys + start + i] = key[d];
            memcpy(own_values + (start + i) * ld_values, v.row(int(h), i), size_t(D) * 4);
        }
    });
    float scale = model.shape.scale_by_head ? 1.0f / std::sqrt(float(D)) : 1.0f;
    if (model.shape.scale_by_layer) scale /= float(layer + 1);
    HeadRows scores(heads, n, length);
    const bool all_pairs = taps.wanted & ALL_PAIRS;  // else those that the mask leaves
    auto each_row = [&](const auto& function) {
        pool_->each(int64_t(heads) * n, [&](int64_t place, int) {
            const int h = int(place / n), i = int(place % n);
            function(h, i, scores.row(h, i), start + i + 1);
        });
    };
    each_row([&](int h, int i, float* row, int seen) {
        score_row(q.row(h, i), D, keys.as<float>() + size_t(h) * key_size, ld_keys, all_pairs ? length : seen, row);
    });
    show(taps, ATTN_SCORES, scores, first, heads);
    each_row([&](int, int, float* row, int seen) {
        for (int j = 0, end = all_pairs ? length : seen; j < end; j++) row[j] *= scale;
    });
    show(taps, ATTN_SCALED, scores, first, heads);
    if (all_pairs)
        each_row([&](int, int, float* row, int seen) { std::fill(row + seen, row + length, -INFINITY); });
    show(taps, ATTN_MASKED, scores, first, heads);
    const bool changed_mask = taps.wanted & bit(ATTN_MASKED);  // a tap may have opened it
    each_row([&](int, int, float* row, int seen) {
        softmax_row(*kernels, row, changed_mask ? length : seen);
        if (!changed_mask) std::fill(row + seen, row + length, 0.0f);
    });
    show(taps, ATTN_WEIGHTS, scores, first, heads);
    const bool changed_weights = changed_mask || (taps.wanted & bit(ATTN_WEIGHTS));
    HeadRows z(heads, n, D);
    each_row([&](int h, int i, float* row, int seen) {
        mix_row(row, changed_weights ? length : seen, values.as<float>() + size_t(h) * value_size, ld_values, D,
                z.row(h, i));
    });
    show(taps, ATTN_Z, z, first, heads);
    pool_->each(n, [&](int64_t i, int) {
        for (int h = 0; h < heads; h++) memcpy(merged.row(i) + (first + h) * D, z.row(h, i), size_t(D) * 4);
    });
}

void Engine::embed_text(const Model& model, int start, const std::vector<int32_t>& tokens, float* out) {
    const int C = model.shape.n_embd;
    const Pool::Active active(*pool_);
    pool_->each(int64_t(tokens.size()), [&](int64_t i, int) {
        embed(model.wte, tokens[size_t(i)], out + i * C);
        const float* where = model.wpe.as<float>() + (start + i) * C;
        for (int c = 0; c < C; c++) out[i * C + c] += where[c];
    });
}

void Engine::run_block(const Model& model, Cache* cache, int layer, int start, int n, float* x, const Taps& taps,
                       int parts) {
    const Shape& s = model.shape;
    const int C = s.n_embd;
    if (layer < 0 || layer >= s.n_layer) throw Error("no such layer");
    if (n < 1 || start < 0 || start > s.n_positions - n) throw Error("more tokens than the model has positions");
    if (parts < 1 || parts > MAX_PARTS) throw Error("numbers are rounded in 1 to 3 parts");
    if (start > 0 && !cache) throw Error("tokens that follow others need a cache");
    if (cache && (start > cache->context - n || cache->dtype == INT8 || cache->n_layer != s.n_layer))
        throw Error("the cache is of another model, too short, or int8");
    reserve(model, {std::max(n, start + n), parts});
    const Layer& l = model.layers[size_t(layer)];
    const Pool::Active active(*pool_);
    auto add_to_stream = [&](const Rows& rows) {
        pool_->each(n, [&](int64_t i, int) {
            for (int c = 0; c < C; c++) x[i * C + c] += rows.row(i)[c];
        });
    };
    auto show_stream = [&](int step) {
        if (taps.wanted >> step & 1) taps.call(taps.context, step, 0, 1, x, n, C, C);
    };
    Rows normed(n, C), merged(n, C);
    normalize_rows(l.ln_1_weight, l.ln_1_bias, s, x, C, n, normed.row(0), normed.ld);
    show(taps, LN_1, normed, n);
    {
        Rows qkv(n, 3 * C);
        linear(l.c_attn, normed.row(0), normed.ld, n, qkv.row(0), qkv.ld, STORE, 0, parts);
        const int at_once = std::max(1, std::min(taps.heads_at_once, s.n_head));
        for (int first = 0; first < s.n_head; first += at_once)
            attend_shown(model, cache, layer, start, first, std::min(first + at_once, s.n_head), qkv, merged, n, taps);
    }
    show(taps, ATTN_MERGED, merged, n);
    linear(l.c_proj, merged.row(0), merged.ld, n, normed.row(0), normed.ld, STORE, 0, parts);
    show(taps, ATTN_PROJ, normed, n);
    add_to_stream(normed);
    show_stream(RESID_MID);
    normalize_rows(l.ln_2_weight, l.ln_2_bias, s, x, C, n, normed.row(0), normed.ld);
    show(taps, LN_2, normed, n);
    Rows wide(n, s.d_mlp);
    linear(l.c_fc, normed.row(0), normed.ld, n, wide.row(0), wide.ld, STORE, 0, parts);
    show(taps, MLP_FC, wide, n);
    pool_->each(n, [&](int64_t i, int) { kernels->activate(wide.row(i), int(wide.ld), s.activation); });
    show(taps, MLP_GELU, wide, n);
    linear(l.mlp_proj, wide.row(0), wide.ld, n, normed.row(0), normed.ld, STORE, 0, parts);
    show(taps, MLP_PROJ, normed, n);
    add_to_stream(normed);
    show_stream(RESID_POST);
}

void Engine::final_norm(const Model& model, int n, const float* x, float* out) {
    const Pool::Active active(*pool_);
    normalize_rows(model.ln_f_weight, model.ln_f_bias, model.shape, x, model.shape.n_embd, n, out, model.shape.n_embd);
}

void Engine::times_matrix(const Model& model, const Matrix& matrix, int n, const float* x, float* out, int64_t ld,
                          int parts) {
    if (n < 1 || ld < matrix.out_padded) throw Error("no vectors, or rows that are too short");
    if (parts < 1 || parts > MAX_PARTS) throw Error("numbers are rounded in 1 to 3 parts");
    reserve(model, {1, parts});
    const Pool::Active active(*pool_);
    linear(matrix, x, matrix.n_in, n, out, ld, STORE, 0, parts);
}

// Fills in what a page says of some rows of logits: the likeliest tokens and, where a row has a target, its
// log-probability, its rank (from 1 on) and the entropy of the row.
void Engine::read_logits(int n, const float* logits, int64_t ld, int vocab_size, const Readings& readings) {
    if (n < 1 || vocab_size < 1 || ld < vocab_size || readings.k < 0 || readings.k > vocab_size)
        throw Error("no rows of logits, or more tokens than there are");
    const Pool::Active active(*pool_);
    pool_->each(n, [&](int64_t i, int) {
        const float* row = logits + i * ld;
        float best;
        int likeliest;
        double sum;
        kernels->softmax_sum(row, vocab_size, &best, &likeliest, &sum);
        const double total = double(best) + std::log(sum);
        std::vector<std::pair<float, int>> top;  // the likeliest first, of equals the lower id
        for (int j = 0; j < vocab_size && readings.k > 0; j++) {
            if (int(top.size()) == readings.k && !(row[j] > top.back().first)) continue;
            if (int(top.size()) == readings.k) top.pop_back();
            const auto place = std::find_if(top.begin(), top.end(), [&](const auto& one) { return row[j] > one.first; });
            top.insert(place, {row[j], j});
        }
        for (int k = 0; k < readings.k; k++) {
            readings.ids[i * readings.k + k] = top[size_t(k)].second;
            readings.log_p[i * readings.k + k] = double(top[size_t(k)].first) - total;
        }
        if (!readings.targets || readings.targets[i] < 0) return;
        const int target = readings.targets[i];
        const float own = target < vocab_size ? row[target] : -INFINITY;
        int larger = 0;
        for (int j = 0; j < vocab_size; j++) larger += row[j] > own;
        std::vector<float> weights(row, row + vocab_size);
        for (float& one : weights) one -= best;
        kernels->exponentials(weights.data(), vocab_size);
        double mean = 0;  // of the logits
        for (int j = 0; j < vocab_size; j++) mean += double(weights[size_t(j)]) * (double(row[j]) - double(best));
        double* found = readings.losses + 3 * i;
        found[0] = double(own) - total;
        found[1] = larger + 1;
        found[2] = std::log(sum) - mean / sum;
    });
}

}  // namespace glassgpt

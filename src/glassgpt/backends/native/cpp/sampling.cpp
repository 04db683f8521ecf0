// Logits to tokens with the same steps and the same draws as generate/sampling/sampler.py, which says what each is for.
// What differs is how the best tokens are found: never by sorting the vocabulary unless a draw depends on all of it.
//
// A row depends on no other, and one thread computes it.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "engine.h"

namespace glassgpt {
namespace {

constexpr int BLOCK = 64;           // logits that are passed over where the largest of them is too small
constexpr size_t RADIX_MIN = 1024;  // so many keys or more are sorted by their digits

// What a thread needs for a row, kept from row to row.
struct Scratch {
    std::vector<float> scores, maxima, some_maxima;  // maxima: of blocks
    std::vector<uint64_t> keys, spare;               // of the best tokens, the best first
    std::vector<double> scaled, weight;              // of each of them
    std::vector<std::pair<double, int>> typical;
};

// ---- ranking ----

// Smaller for larger logits, and among equal logits for lower ids.
inline uint64_t key_of(float logit, int id) {
    uint32_t bits;
    logit += 0.0f;  // -0.0 becomes 0.0
    memcpy(&bits, &logit, 4);
    bits ^= bits >> 31 ? 0 : 0x7fffffffu;  // floats as integers that sort the other way
    return uint64_t(bits) << 32 | uint32_t(id);
}

inline int id_of(uint64_t key) { return int(uint32_t(key)); }

void sort_keys(std::vector<uint64_t>& keys, std::vector<uint64_t>& spare) {
    if (keys.size() < RADIX_MIN) return std::sort(keys.begin(), keys.end());
    spare.resize(keys.size());
    for (int shift = 0; shift < 64; shift += 8) {
        std::array<size_t, 256> places{};
        for (uint64_t key : keys) places[key >> shift & 255]++;
        if (places[keys[0] >> shift & 255] == keys.size()) continue;  // they all have the same digit
        size_t before = 0;
        for (size_t& place : places) before += std::exchange(place, before);
        for (uint64_t key : keys) spare[places[key >> shift & 255]++] = key;
        keys.swap(spare);
    }
}

// Fills s.maxima; returns the largest score: NaN if any is.
float find_maxima(const float* scores, int n, Scratch& s) {
    s.maxima.assign(size_t((n + BLOCK - 1) / BLOCK), -INFINITY);
    int n_nans = 0;
    for (int start = 0; start + BLOCK <= n; start += BLOCK) {
        float lanes[16];
        int nans[16];
        for (int j = 0; j < 16; j++) lanes[j] = -INFINITY, nans[j] = 0;
        for (int i = start; i < start + BLOCK; i += 16)
            for (int j = 0; j < 16; j++) {
                lanes[j] = scores[i + j] > lanes[j] ? scores[i + j] : lanes[j];
                nans[j] |= scores[i + j] != scores[i + j];
            }
        for (int j = 0; j < 16; j++) n_nans |= nans[j];
        s.maxima[size_t(start / BLOCK)] = *std::max_element(lanes, lanes + 16);
    }
    for (int i = n / BLOCK * BLOCK; i < n; i++) {
        s.maxima.back() = std::max(s.maxima.back(), scores[i]);
        n_nans |= scores[i] != scores[i];
    }
    return n_nans ? NAN : *std::max_element(s.maxima.begin(), s.maxima.end());
}

// The best of the scores, at most `width` of them and none that is banned (-inf), as s.keys.
void rank_tokens(const float* scores, int n, int width, Scratch& s) {
    float bound = -std::numeric_limits<float>::max();
    if (size_t(width) <= s.maxima.size() / 2) {  // the k-th largest maximum is at most the k-th largest score
        s.some_maxima = s.maxima;
        std::nth_element(s.some_maxima.begin(), s.some_maxima.begin() + width - 1, s.some_maxima.end(),
                         std::greater<float>());
        bound = std::max(bound, s.some_maxima[size_t(width) - 1]);
    }
    s.keys.clear();
    for (int start = 0; start < n; start += BLOCK) {
        if (s.maxima[size_t(start / BLOCK)] < bound) continue;
        for (int i = start; i < std::min(n, start + BLOCK); i++)
            if (scores[i] >= bound) s.keys.push_back(key_of(scores[i], i));
    }
    if (s.keys.size() > size_t(width)) {
        std::nth_element(s.keys.begin(), s.keys.begin() + width, s.keys.end());
        s.keys.resize(size_t(width));
    }
    sort_keys(s.keys, s.spare);
}

// ---- drawing ----

// The filters of a row, in the order of FILTERS in generate/sampling/params.py.
struct Filters {
    static constexpr int N = 3;
    double typical_p = INFINITY, top_p = INFINITY, min_p = 0;  // these are off
    Filters(const Draws& d, int64_t row) {
        double* const values[N] = {&typical_p, &top_p, &min_p};
        for (int i = 0; i < N; i++)
            if (d.filters[i]) *values[i] = d.filters[i][row];
    }
};

// Sets the weight of tokens to 0 unless their -log p is among the nearest to the entropy that together hold `mass`.
void keep_typical(double mass, Scratch& s) {
    const int n = int(s.weight.size());
    double total = 0, entropy = 0;
    for (double weight : s.weight) total += weight;
    const double log_total = std::log(total);
    for (int i = 0; i < n; i++)
        if (s.weight[size_t(i)] > 0) entropy += s.weight[size_t(i)] / total * (log_total - s.scaled[size_t(i)]);
    s.typical.clear();
    for (int i = 0; i < n; i++) s.typical.push_back({std::fabs(log_total - s.scaled[size_t(i)] - entropy), i});
    const auto nearest_last = std::greater<std::pair<double, int>>();  // a heap has it on top
    std::make_heap(s.typical.begin(), s.typical.end(), nearest_last);
    auto end = s.typical.end();
    for (double before = 0; end != s.typical.begin() && before < mass * total;) {
        std::pop_heap(s.typical.begin(), end, nearest_last);
        --end;
        before += s.weight[size_t(end->second)];
    }
    for (auto one = s.typical.begin(); one != end; ++one) s.weight[size_t(one->second)] = 0;
}

struct Drawn {
    int id;
    bool certain;  // looking at more tokens would not change it
};

// `full` is the weight of all tokens, or NaN where s.keys holds all that may be drawn.
Drawn draw_ranked(const float* scores, const Draws::Row& row, const Filters& filters, double full, Scratch& s) {
    const size_t n = s.keys.size();
    const bool open = !std::isnan(full);
    s.scaled.resize(n);
    s.weight.resize(n);
    const double best = scores[id_of(s.keys[0])];
    for (size_t i = 0; i < n; i++) {
        s.scaled[i] = (double(scores[id_of(s.keys[i])]) - best) / row.temperature;
        s.weight[i] = std::exp(s.scaled[i]);
    }
    size_t kept = n;  // ranks from here on have no weight
    bool cut = false;
    if (filters.typical_p < INFINITY) keep_typical(filters.typical_p, s);
    if (filters.top_p < INFINITY) {
        double total = full, before = 0;
        if (!open) {
            total = 0;
            for (double weight : s.weight) total += weight;
        }
        for (kept = 0; kept < n && (kept == 0 || before < filters.top_p * total); kept++) before += s.weight[kept];
        cut = true;
    }
    if (filters.min_p > 0) {
        const double least = filters.min_p * *std::max_element(s.weight.begin(), s.weight.begin() + int64_t(kept));
        for (size_t i = 0; i < kept; i++) s.weight[i] = s.weight[i] >= least ? s.weight[i] : 0;
        cut = true;
    }
    double total = 0, up_to = 0;
    for (size_t i = 0; i < kept; i++) total += s.weight[i];
    const double reach = row.uniform * (open && !cut ? full : total);
    size_t drawn = 0;
    bool reached = false;
    for (size_t i = 0; i < kept && !reached; i++) {
        up_to += s.weight[i];
        reached = s.weight[i] > 0 && up_to > reach;
        if (reached) drawn = i;
    }
    if (!reached)  // by rounding: the first that has a weight
        while (drawn + 1 < kept && s.weight[drawn] == 0) drawn++;
    const bool last_is_kept = kept == n && s.weight[n - 1] > 0;
    return {id_of(s.keys[drawn]), !open || (cut ? !last_is_kept : reached)};
}

int draw_row(const Kernels& kernels, const float* scores, int n, float best, const Draws::Row& row,
             const Filters& filters, Scratch& s) {
    if (row.top_k == 1) {
        for (size_t block = 0;; block++)
            if (s.maxima[block] == best)
                return int(std::find(scores + block * BLOCK, scores + n, best) - scores);
    }
    if (row.top_k < n || filters.typical_p < INFINITY) {
        rank_tokens(scores, n, row.top_k, s);
        return draw_ranked(scores, row, filters, NAN, s).id;
    }
    // Without top-k a draw seldom falls far down: the few best first, more only where these do not decide it.
    const double full = kernels.weight_sum(scores, n, best, row.temperature);
    for (int width : {n / 128, n / 12}) {
        if (width < 32) continue;
        rank_tokens(scores, n, width, s);
        const Drawn drawn = draw_ranked(scores, row, filters, full, s);
        if (drawn.certain) return drawn.id;
    }
    rank_tokens(scores, n, n, s);
    return draw_ranked(scores, row, filters, NAN, s).id;
}

// ---- reporting ----

// out: the token's log-probability, the ids of the likeliest, their log-probabilities.
void report_logprobs(const Kernels& kernels, const float* logits, int n, int token, int alternatives, double* out,
                     Scratch& s) {
    float best;
    int likeliest;
    double sum;
    kernels.softmax_sum(logits, n, &best, &likeliest, &sum);
    const double total = double(best) + std::log(sum);
    out[0] = double(logits[token]) - total;
    if (alternatives == 0) return;
    find_maxima(logits, n, s);
    rank_tokens(logits, n, alternatives, s);
    for (int i = 0; i < alternatives; i++) {  // fewer only where logits are not finite
        const bool is_there = size_t(i) < s.keys.size();
        out[1 + i] = is_there ? id_of(s.keys[size_t(i)]) : 0;
        out[1 + alternatives + i] = is_there ? double(logits[id_of(s.keys[size_t(i)])]) - total : -INFINITY;
    }
}

// The scores of a row after its changes and bans; the logits themselves where there are none.
const float* edited(const Draws& d, int i, const float* logits, Scratch& s) {
    if (!d.n_edits && !d.allowed) return logits;
    s.scores.assign(logits, logits + d.vocab_size);
    for (int64_t e = int64_t(i) * d.n_edits; e < int64_t(i + 1) * d.n_edits; e++) {
        const float old = logits[d.edit_ids[e]];
        s.scores[size_t(d.edit_ids[e])] = (old > 0 ? old / d.edit_scale[e] : old * d.edit_scale[e]) + d.edit_shift[e];
    }
    if (d.allowed) {
        const uint32_t* bits = d.allowed + i * d.ld_allowed;
        for (int start = 0; start < d.vocab_size; start += 32) {
            const uint32_t some = bits[start / 32];
            if (some == ~0u) continue;
            for (int j = 0; j < 32 && start + j < d.vocab_size; j++)
                if (!(some >> j & 1)) s.scores[size_t(start + j)] = -INFINITY;
        }
    }
    return s.scores.data();
}

void check(const Draws& d) {
    if (d.n < 0 || d.vocab_size < 1 || d.ld < d.vocab_size || d.n_edits < 0 || d.alternatives > d.vocab_size)
        throw Error("draw: a size is wrong");
    if (d.n_filters != Filters::N) throw Error("draw: the caller has other filters; compile the engine again");
    if (d.allowed && d.ld_allowed < (d.vocab_size + 31) / 32) throw Error("draw: a mask is too short");
    for (int64_t e = 0; e < int64_t(d.n) * d.n_edits; e++)
        if (d.edit_ids[e] < 0 || d.edit_ids[e] >= d.vocab_size)
            throw Error("draw: a changed token is not in the vocabulary");
    for (int i = 0; i < d.n; i++)
        if (d.rows[i].top_k < 1 || d.rows[i].top_k > d.vocab_size || !(d.rows[i].temperature > 0))
            throw Error("draw: top_k or temperature is out of range");
}

}  // namespace

void Engine::draw(const Draws& d) {
    check(d);
    const Pool::Active active(*pool_);
    std::vector<Scratch> scratch(size_t(pool_->size()));
    pool_->each(d.n, [&](int64_t i, int thread) {
        Scratch& s = scratch[size_t(thread)];
        const float* logits = d.logits + i * d.ld;
        const float* scores = edited(d, int(i), logits, s);
        const float best = find_maxima(scores, d.vocab_size, s);
        const bool healthy = std::isfinite(best);
        const int token = healthy ? draw_row(*kernels, scores, d.vocab_size, best, d.rows[i], Filters(d, i), s) : 0;
        double* report = d.report + i * d.ld_report();
        d.tokens[i] = token;
        report[0] = healthy ? token : -1;
        if (d.alternatives >= 0)
            report_logprobs(*kernels, logits, d.vocab_size, token, d.alternatives, report + 1, s);
    });
}

}  // namespace glassgpt

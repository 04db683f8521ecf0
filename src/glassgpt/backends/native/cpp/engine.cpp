#include "engine.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace glassgpt {

constexpr size_t LARGE_PAGE = size_t(1) << 21;
constexpr int HEAD_TOKENS = 64;   // whose logits exist at a time when texts are scored

// ---- memory, model and cache ----

Memory::Memory(size_t n_bytes) : size_(n_bytes) {
    const size_t alignment = 64;
    const size_t padded = size_t(round_up(int64_t(n_bytes), alignment)) + alignment;  // vectors may read past the end
#if defined(_WIN32)
    data_ = _aligned_malloc(padded, alignment);
    if (data_) memset(data_, 0, padded);
#else
    // calloc, for pages that are never written cost nothing; its pointer is remembered in front of ours.
    void* raw = calloc(padded + alignment, 1);
    if (raw) {
        uintptr_t at = (uintptr_t(raw) + alignment) & ~uintptr_t(alignment - 1);
        reinterpret_cast<void**>(at)[-1] = raw;
        data_ = reinterpret_cast<void*>(at);
    }
#endif
    if (!data_) throw Error("out of memory for " + std::to_string(n_bytes >> 20) + " MiB");
}

Memory::~Memory() {
#if defined(_WIN32)
    _aligned_free(data_);
#else
    if (data_) free(static_cast<void**>(data_)[-1]);
#endif
}


void Memory::use_large_pages() {
#if defined(__linux__)
    const uintptr_t begin = size_t(round_up(int64_t(uintptr_t(data_)), LARGE_PAGE)),
                    end = (uintptr_t(data_) + size_) & ~(LARGE_PAGE - 1);
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // a wish: it may be refused
#endif
}

#if defined(__wasm__)
constexpr size_t CHUNK = 0, CHUNK_ALIGNMENT = 64;  // every byte counts
#else
constexpr size_t CHUNK = size_t(1) << 28;  // address space; memory only where written
constexpr size_t CHUNK_ALIGNMENT = LARGE_PAGE;
#endif

uint8_t* Arena::allocate(size_t n_bytes) {
    n_bytes = size_t(round_up(int64_t(n_bytes), 64));
    if (chunks_.empty() || chunks_.back().size - chunks_.back().taken < n_bytes) {
        const size_t size = size_t(round_up(int64_t(std::max(n_bytes, CHUNK)), int64_t(CHUNK_ALIGNMENT))) + CHUNK_ALIGNMENT;
        void* start = nullptr;
#if defined(__linux__)
        start = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (start == MAP_FAILED) start = nullptr;
        else madvise(start, size, MADV_HUGEPAGE);
#else
        start = calloc(size, 1);
#endif
        if (!start) throw Error("out of memory for " + std::to_string(n_bytes >> 20) + " MiB");
        const size_t skip = size_t(round_up(int64_t(uintptr_t(start)), int64_t(CHUNK_ALIGNMENT))) - uintptr_t(start);
        chunks_.push_back({static_cast<uint8_t*>(start), size, skip});
    }
    Chunk& chunk = chunks_.back();
    uint8_t* at = chunk.start + chunk.taken;
    chunk.taken += n_bytes;
    used_ += n_bytes;
    return at;
}

Arena::~Arena() {
    for (const Chunk& chunk : chunks_) {
#if defined(__linux__)
        munmap(chunk.start, chunk.size);
#else
        free(chunk.start);
#endif
    }
}

Model::Model(const Shape& s) : shape(s) {
    const int most = 1 << 24;
    for (int n : {s.vocab_size, s.n_positions, s.n_embd, s.n_layer, s.n_head, s.d_mlp})
        if (n < 1 || n > most) throw Error("a size of the model is not between 1 and 2^24");
    if (s.n_embd % s.n_head || s.n_embd > 1 << 16 || s.d_mlp > 1 << 16)
        throw Error("n_embd is no multiple of n_head, or a matrix has more than 65,536 inputs");
    if (s.activation < GELU_TANH || s.activation > TANH) throw Error("unknown activation");
    d_head = s.n_embd / s.n_head;
    d_padded = int(round_up(d_head, 16));
    layers.resize(size_t(s.n_layer));
}

Cache::Cache(const Model& model, int rows_, int context_, int dtype_, int parts_)
    : rows(rows_), context(context_), dtype(dtype_), parts(parts_),
      n_layer(model.shape.n_layer), n_head(model.shape.n_head), d_head(model.d_head), d_padded(model.d_padded) {
    if (rows < 1 || rows > 1 << 16 || context < 1 || context > model.shape.n_positions)
        throw Error("a cache needs 1 to 65,536 rows, and no more positions than the model");
    if (dtype != FLOAT32 && dtype != FLOAT16 && dtype != INT8) throw Error("a cache is float32, float16 or int8");
    if (parts < 1 || parts > MAX_PARTS) throw Error("numbers are rounded in 1 to 3 parts");
    element = dtype == FLOAT32 ? 4 : dtype == FLOAT16 ? 2 : 1;
    key_bytes = size_t(PAGE) * size_t(d_head * element);
    value_bytes = size_t(PAGE) * size_t(d_padded * element);
    scale_bytes = dtype == INT8 ? PAGE * sizeof(float) : 0;
    head_bytes = size_t(round_up(int64_t(key_bytes + value_bytes + 2 * scale_bytes), 64));
    page_bytes = head_bytes * size_t(n_layer) * size_t(n_head);
    row_bytes = page_bytes * size_t(round_up(context, PAGE) / PAGE);
    memory = Memory(row_bytes * size_t(rows));
    memory.use_large_pages();
    adapters.resize(size_t(rows));
}

HeadCache Cache::head(int layer, int row, int head) const {
    uint8_t* at = memory.as() + row_bytes * size_t(row) + head_bytes * (size_t(layer) * n_head + head);
    float* scales = reinterpret_cast<float*>(at + key_bytes + value_bytes);
    float* value_scales = scales + scale_bytes / sizeof(float);
    return {dtype, d_head, d_padded, at, at + key_bytes, scales, value_scales, int64_t(page_bytes)};
}

void Cache::copy(int source, int target, int length) {
    if (source < 0 || source >= rows || target < 0 || target >= rows || length < 0 || length > context)
        throw Error("copy: no such row or length");
    const size_t pages = size_t(round_up(length, PAGE) / PAGE);
    if (source != target)
        memcpy(memory.as() + row_bytes * target, memory.as() + row_bytes * source, pages * page_bytes);
}

void check_spans(const Model& model, const Cache& cache, const std::vector<Span>& spans) {
    std::vector<bool> seen(size_t(cache.rows), false);
    for (const Span& span : spans) {
        if (span.row < 0 || span.row >= cache.rows || seen[size_t(span.row)])
            throw Error("no such row, or one named twice");
        seen[size_t(span.row)] = true;
        if (span.start < 0 || span.count < 1 || span.count > cache.context || span.start > cache.context - span.count)
            throw Error("tokens outside the " + std::to_string(cache.context) + " positions of the cache");
        for (int i = 0; i < span.count; i++)
            if (span.tokens[i] < 0 || span.tokens[i] >= model.shape.vocab_size)
                throw Error("token id " + std::to_string(span.tokens[i]) + " is not in the vocabulary");
    }
}

// ---- one pass ----

void Step::plan_tiles(int queries) {
    auto plan = [&](const std::vector<int>& tokens, std::vector<Tile>& tiles) {
        for (size_t i = 0; i < tokens.size(); i++) {
            const int token = tokens[i];
            if (!tiles.empty()) {
                Tile& last = tiles.back();
                if (last.count < queries && last.row == rows[token] && last.position + last.count == positions[token]) {
                    last.count++;
                    continue;
                }
            }
            tiles.push_back({rows[token], positions[token], token, 1, int(i)});
        }
    };
    std::vector<int> everyone(ids.size());
    for (size_t i = 0; i < ids.size(); i++) everyone[i] = int(i);
    plan(everyone, all_tiles);
    plan(keep, kept_tiles);
}

Engine::Engine(const Kernels* k, int n_threads) : kernels(k), pool_(new Pool(n_threads)) {}

void Engine::reserve(const Model& model, const Needed& needed) {
    const int64_t ld = round_up(model.shape.n_embd, PANEL);
    const int64_t ld_wide = round_up(std::max(3 * model.shape.n_embd, model.shape.d_mlp), PANEL);
    const int64_t ld_q = round_up(std::max(model.shape.n_embd, model.shape.d_mlp), PANEL) * kernels->input_bytes;
    const int64_t ld_scores = round_up(needed.context, 64) + 64;
    if (ld > space_.ld || ld_wide > space_.ld_wide || ld_q > space_.ld_q || needed.parts > space_.parts) {
        space_.ld = std::max(ld, space_.ld);
        space_.ld_wide = std::max(ld_wide, space_.ld_wide);
        space_.ld_q = std::max(ld_q, space_.ld_q);
        space_.ld_groups = space_.ld_q / GROUP;
        space_.parts = std::max(needed.parts, space_.parts);
        const int64_t rounded = int64_t(space_.parts) * STEP_TOKENS;
        for (Memory* one : {&space_.x, &space_.normed, &space_.attended})
            *one = Memory(size_t(STEP_TOKENS * space_.ld) * 4);
        space_.wide = Memory(size_t(STEP_TOKENS * space_.ld_wide) * 4);
        space_.q_values = Memory(size_t(rounded * space_.ld_q));
        space_.q_scale = Memory(size_t(rounded * space_.ld_groups) * 4);
        space_.q_zero = Memory(size_t(rounded * space_.ld_groups) * 4);
        space_.rest = Memory(size_t(pool_->size() * space_.ld_q) * 4);
    }
    if (ld_scores > space_.ld_scores) {
        space_.ld_scores = ld_scores;
        space_.scores = Memory(size_t(pool_->size()) * MAX_QUERIES * size_t(ld_scores) * 4);
    }
}

// The integers of one token in every part: each rounds what those before it have left.
void Engine::quantize_token(const Matrix& w, const InputParts& in, int64_t token, int thread) {
    float* rest = space_.rest.as<float>() + int64_t(thread) * space_.ld_q;
    const float* x = in.part[0].x + token * in.part[0].ldx;
    for (int p = 0; p < in.n; p++) {
        const Inputs& part = in.part[p];
        const int64_t at = w.dtype == INT8 ? token : token * part.ld_groups;
        uint8_t* q = const_cast<uint8_t*>(part.q) + token * part.ldq;
        float* scale = const_cast<float*>(part.scale) + at;
        int32_t* zero = const_cast<int32_t*>(part.zero) + at;
        if (w.dtype == INT8 && kernels->input_bytes == 2 && in.n > 1)
            kernels->quantize_wide(x, w.n_in, w.in_padded, reinterpret_cast<int16_t*>(q), scale, zero);
        else if (w.dtype == INT8) kernels->quantize_row(x, w.n_in, w.in_padded, q, scale, zero);
        else kernels->quantize_groups(x, w.n_in, w.in_padded, q, scale, zero);
        if (p == in.n - 1) return;
        if (w.dtype == INT8 && kernels->input_bytes == 2)
            for (int k = 0; k < w.n_in; k++)
                rest[k] = x[k] - float(reinterpret_cast<const int16_t*>(q)[place_of_pair(k)]) * *scale;
        else if (w.dtype == INT8)
            for (int k = 0; k < w.n_in; k++) rest[k] = x[k] - float(int(q[k]) - *zero) * *scale;
        else
            for (int k = 0; k < w.n_in; k++) rest[k] = x[k] - float(int8_t(q[k])) * scale[k / GROUP];
        x = rest;
    }
}

InputParts Engine::quantize(const Matrix& w, const float* x, int64_t ldx, int n, int parts) {
    InputParts in;
    in.part[0].x = x;
    in.part[0].ldx = ldx;
    if (w.dtype != INT8 && w.dtype != INT4) return in;
    in.n = parts;
    for (int p = 0; p < parts; p++) {
        const int64_t first = int64_t(p) * STEP_TOKENS;
        in.part[p] = {x, ldx, space_.q_values.as() + first * space_.ld_q, space_.ld_q,
                      space_.q_scale.as<float>() + first * space_.ld_groups,
                      space_.q_zero.as<int32_t>() + first * space_.ld_groups, space_.ld_groups};
    }
    pool_->each(n, [&](int64_t i, int thread) { quantize_token(w, in, i, thread); });
    return in;
}

InputParts Engine::normalize(const Matrix& w, const float* x, int64_t ldx, const Memory& weight, const Memory& bias,
                             float eps, int n, int parts) {
    float* normed = space_.normed.as<float>();
    pool_->each(n, [&](int64_t i, int) {
        kernels->layer_norm(x + i * ldx, weight.as<float>(), bias.as<float>(), eps, w.n_in, normed + i * space_.ld);
    });
    return quantize(w, normed, space_.ld, n, parts);
}

void Engine::multiply(const Matrix& w, const InputParts& in, int n, float* out, int64_t ldo, int epilogue,
                      int activation) {
    const bool sums = in.n > 1;  // of which the last is activated, here
    const Matmul product{&w, in.part[0], out, ldo, sums && epilogue == ACTIVATE ? STORE : epilogue, activation};
    Matrix without_bias = w;
    without_bias.bias = nullptr;
    // The tokens are divided only where there are too few panels for all threads.
    const int wanted = (4 * pool_->size() + w.n_panels() - 1) / w.n_panels();
    const int pieces = std::max(1, std::min(wanted, n / 48));
    pool_->each(int64_t(w.n_panels()) * pieces, [&](int64_t i, int) {
        const int panel = int(i / pieces), piece = int(i % pieces);
        const int first = int(int64_t(n) * piece / pieces), last = int(int64_t(n) * (piece + 1) / pieces);
        kernels->matmul(product, panel, first, last);
        for (int p = 1; p < in.n; p++)  // while the panel is in the cache
            kernels->matmul({&without_bias, in.part[p], out, ldo, ADD, activation}, panel, first, last);
        if (sums && epilogue == ACTIVATE)
            for (int token = first; token < last; token++)
                kernels->activate(out + token * ldo + panel * PANEL, PANEL, activation);
    });
}

// Adds to each token's product with a matrix of a block what its adapter changes.
void Engine::adapt(const Model& model, const std::vector<int>& adapters, int layer, int which, const float* x,
                   int64_t ldx, float* out, int64_t ldo) {
    pool_->each(int64_t(adapters.size()), [&](int64_t i, int) {
        const int number = adapters[size_t(i)];
        if (number == 0) return;
        const Adapter::Change& change = model.adapters[size_t(number - 1)].changes[size_t(layer * 4 + which)];
        if (change.rank > 0) kernels->add_low_rank(change, x + i * ldx, out + i * ldo);
    });
}

void Engine::attend(const Model& model, Cache& cache, int layer, const std::vector<Step::Tile>& tiles) {
    float scale = model.shape.scale_by_head ? 1.0f / std::sqrt(float(model.d_head)) : 1.0f;
    if (model.shape.scale_by_layer) scale /= float(layer + 1);
    const float* qkv = space_.wide.as<float>();
    pool_->each(int64_t(tiles.size()) * cache.n_head, [&](int64_t i, int thread) {
        const int head = int(i / int64_t(tiles.size()));
        const Step::Tile& tile = tiles[size_t(i % int64_t(tiles.size()))];
        Attention a;
        a.cache = cache.head(layer, tile.row, head);
        a.scale = scale;
        a.q = qkv + tile.first * space_.ld_wide + head * model.d_head;
        a.ldq = space_.ld_wide;
        a.out = space_.attended.as<float>() + tile.out * space_.ld + head * model.d_head;
        a.ldo = space_.ld;
        a.n_queries = tile.count;
        a.first_position = tile.position;
        a.scores = space_.scores.as<float>() + int64_t(thread) * MAX_QUERIES * space_.ld_scores;
        a.ld_scores = space_.ld_scores;
        kernels->attend(a);
    });
}

// Leaves the residual stream of the tokens in `keep` in space_.x, one after the other.
void Engine::hidden(const Model& model, Cache& cache, const Step& step) {
    const Shape& s = model.shape;
    const int C = s.n_embd;
    int n = int(step.ids.size());
    std::vector<int> adapters = step.adapters;  // of the n tokens
    float *x = space_.x.as<float>(), *wide = space_.wide.as<float>(), *attended = space_.attended.as<float>();
    const float* normed = space_.normed.as<float>();
    pool_->each(n, [&](int64_t i, int) {
        float* out = x + i * space_.ld;
        embed(model.wte, step.ids[size_t(i)], out);
        const float* where = model.wpe.as<float>() + int64_t(step.positions[size_t(i)]) * C;
        for (int c = 0; c < C; c++) out[c] += where[c];
    });
    for (int l = 0; l < s.n_layer; l++) {
        const Layer& layer = model.layers[size_t(l)];
        const bool last = l == s.n_layer - 1;
        InputParts in = normalize(layer.c_attn, x, space_.ld, layer.ln_1_weight, layer.ln_1_bias, s.layer_norm_epsilon,
                                  n, cache.parts);
        multiply(layer.c_attn, in, n, wide, space_.ld_wide, STORE, 0);
        adapt(model, adapters, l, 0, normed, space_.ld, wide, space_.ld_wide);
        pool_->each(n, [&](int64_t i, int) {
            const float* k = wide + i * space_.ld_wide + C;
            const int row = step.rows[size_t(i)], position = step.positions[size_t(i)];
            for (int h = 0; h < s.n_head; h++) {
                const HeadCache head = cache.head(l, row, h);
                kernels->store_key(k + h * model.d_head, head, position);
                kernels->store_value(k + C + h * model.d_head, head, position);
            }
        });
        if (last && int(step.keep.size()) < n) {  // above the last keys and values nobody asks for the others
            attend(model, cache, l, step.kept_tiles);
            n = int(step.keep.size());
            for (int i = 0; i < n; i++) memmove(x + i * space_.ld, x + step.keep[size_t(i)] * space_.ld, size_t(C) * 4);
            if (n == 0) return;
            if (!adapters.empty()) {
                for (int i = 0; i < n; i++) adapters[size_t(i)] = adapters[size_t(step.keep[size_t(i)])];
                adapters.resize(size_t(n));
            }
        } else {
            attend(model, cache, l, step.all_tiles);
        }
        in = quantize(layer.c_proj, attended, space_.ld, n, cache.parts);
        multiply(layer.c_proj, in, n, x, space_.ld, ADD, 0);
        adapt(model, adapters, l, 1, attended, space_.ld, x, space_.ld);
        in = normalize(layer.c_fc, x, space_.ld, layer.ln_2_weight, layer.ln_2_bias, s.layer_norm_epsilon, n,
                       cache.parts);
        multiply(layer.c_fc, in, n, wide, space_.ld_wide, adapters.empty() ? ACTIVATE : STORE, s.activation);
        if (!adapters.empty()) {  // what an adapter adds is activated with the rest
            adapt(model, adapters, l, 2, normed, space_.ld, wide, space_.ld_wide);
            pool_->each(n, [&](int64_t i, int) {
                kernels->activate(wide + i * space_.ld_wide, layer.c_fc.out_padded, s.activation);
            });
        }
        in = quantize(layer.mlp_proj, wide, space_.ld_wide, n, cache.parts);
        multiply(layer.mlp_proj, in, n, x, space_.ld, ADD, 0);
        adapt(model, adapters, l, 3, wide, space_.ld_wide, x, space_.ld);
    }
}

// Reads the spans in steps of at most STEP_TOKENS; after each head(matrix, inputs, tokens kept, number
// of the first of them).
template <class Head>
void Engine::in_steps(const Model& model, Cache& cache, const std::vector<Span>& spans, Wanted wanted,
                      const int32_t* targets, const Head& head) {
    check_spans(model, cache, spans);
    reserve(model, {cache.context, cache.parts});
    const OwnedMatrix& matrix = model.tied ? model.wte : model.head;
    const Pool::Active active(*pool_);
    int64_t number = 0, kept = 0;  // tokens read, and kept, so far
    Step step;
    auto flush = [&] {
        step.plan_tiles(std::min(kernels->queries, MAX_QUERIES));
        if (std::any_of(step.rows.begin(), step.rows.end(), [&](int row) { return cache.adapters[size_t(row)]; }))
            for (int row : step.rows) step.adapters.push_back(cache.adapters[size_t(row)]);
        const int n = int(step.keep.size());
        hidden(model, cache, step);
        if (n > 0) {
            const InputParts in = normalize(matrix, space_.x.as<float>(), space_.ld, model.ln_f_weight, model.ln_f_bias,
                                            model.shape.layer_norm_epsilon, n, cache.parts);
            head(matrix, in, n, kept);
        }
        kept += n;
        step = Step();
    };
    for (const Span& span : spans)
        for (int i = 0; i < span.count; i++, number++) {
            const bool keep = targets ? targets[number] >= 0 : wanted == ALL || (wanted == LAST && i == span.count - 1);
            if (keep) step.keep.push_back(int(step.ids.size()));
            step.ids.push_back(span.tokens[i]);
            step.rows.push_back(span.row);
            step.positions.push_back(span.start + i);
            if (step.ids.size() == STEP_TOKENS) flush();
        }
    if (!step.ids.empty()) flush();
}

void Engine::forward(const Model& model, Cache& cache, const std::vector<Span>& spans, Wanted wanted, float* out,
                     int64_t ld) {
    if (wanted != NONE && ld < round_up(model.shape.vocab_size, PANEL)) throw Error("rows of the logits are too short");
    in_steps(model, cache, spans, wanted, nullptr, [&](const Matrix& w, const InputParts& in, int n, int64_t first) {
        multiply(w, in, n, out + first * ld, ld, STORE, 0);
    });
}

static InputParts from_token(InputParts in, int dtype, int first) {
    for (int p = 0; p < in.n; p++) {
        Inputs& part = in.part[p];
        part.x += first * part.ldx;
        if (dtype == INT8 || dtype == INT4) {
            part.q += first * part.ldq;
            part.scale += dtype == INT8 ? first : first * part.ld_groups;
            part.zero += dtype == INT8 ? first : first * part.ld_groups;
        }
    }
    return in;
}

void Engine::score(const Model& model, Cache& cache, const std::vector<Span>& spans, const Scores& s) {
    const int V = model.shape.vocab_size;
    const int64_t ld = round_up(V, PANEL);
    if (space_.logits.size() < size_t(HEAD_TOKENS * ld) * 4) space_.logits = Memory(size_t(HEAD_TOKENS * ld) * 4);
    float* logits = space_.logits.as<float>();
    std::vector<int64_t> places;  // of the scored tokens, in the arrays
    int64_t n_tokens = 0;
    for (const Span& span : spans) n_tokens += span.count;
    for (int64_t i = 0; i < n_tokens; i++) {
        if (s.targets[i] >= V) throw Error("a target is not in the vocabulary");
        if (s.targets[i] >= 0) places.push_back(i);
    }
    for (int i = 0; i < s.n_excluded; i++)
        if (s.excluded[i] < 0 || s.excluded[i] >= V) throw Error("an excluded token is not in the vocabulary");
    in_steps(model, cache, spans, NONE, s.targets, [&](const Matrix& w, const InputParts& in, int n, int64_t first) {
        for (int start = 0; start < n; start += HEAD_TOKENS) {
            const int some = std::min(HEAD_TOKENS, n - start);
            multiply(w, from_token(in, w.dtype, start), some, logits, ld, STORE, 0);
            pool_->each(some, [&](int64_t i, int) {
                const int64_t place = places[size_t(first + start + i)];
                float* row = logits + i * ld;
                float best;
                int likeliest;
                double sum;
                kernels->softmax_sum(row, V, &best, &likeliest, &sum);
                s.logprobs[place] = double(row[s.targets[place]]) - double(best) - std::log(sum);
                s.likeliest[place] = likeliest;
                for (int e = 0; e < s.n_excluded; e++) row[s.excluded[e]] = -INFINITY;
                if (s.n_excluded) kernels->softmax_sum(row, V, &best, &likeliest, &sum);
                s.likeliest_allowed[place] = likeliest;
            });
        }
    });
}

}  // namespace glassgpt

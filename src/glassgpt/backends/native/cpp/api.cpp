// The C functions that Python calls through ctypes. Each returns 0, or -1 with a message for `glassgpt_error`.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#if !defined(_WIN32) && !defined(__wasm__)
#include <unistd.h>
#define HAS_FORK
#endif

#include "engine.h"

#if defined(_WIN32)
#define API extern "C" __declspec(dllexport)
#else
#define API extern "C" __attribute__((used, visibility("default")))
#endif

using namespace glassgpt;

#if defined(__wasm__)
// What the page hands in: it sees the steps of a block.
extern "C" void glassgpt_tap(void* context, int step, int first, int heads, float* values, int rows, int columns,
                             int ld) __attribute__((import_module("env"), import_name("tap")));

API void* glassgpt_allocate(size_t n_bytes) { return aligned_alloc(64, size_t(round_up(int64_t(n_bytes), 64))); }
API void glassgpt_free(void* memory) { free(memory); }
#endif

namespace {

thread_local std::string message;

template <class Function>
int guarded(const Function& function) {
    try {
        function();
        return 0;
    } catch (const std::exception& error) {
        message = error.what();
    } catch (...) {
        message = "unknown error";
    }
    return -1;
}

struct Handle {
    Handle(const Shape& shape, const Kernels* kernels, int n_threads) : model(shape), engine(kernels, n_threads) {}
    Model model;
    Engine engine;
#if defined(HAS_FORK)
    pid_t owner = getpid();
#endif
    bool is_own() const {
#if defined(HAS_FORK)
        return getpid() == owner;
#else
        return true;
#endif
    }
    void check() const {
        if (model.mapped.is_lost())
            throw Error("the file of the weights was truncated while it was in use; load the model again");
    }
};

// The engine for one call at a time. In a forked process a thread that does not exist there may hold its lock, so that
// is checked first.
class Call {
public:
    explicit Call(void* handle) : handle_(*static_cast<Handle*>(handle)), lock_(handle_.engine.mutex, std::defer_lock) {
        if (!handle_.is_own())
            throw Error("this engine belongs to the process that forked this one; load the model again");
        lock_.lock();
        handle_.check();
    }
    Handle* operator->() const { return &handle_; }
    Handle& operator*() const { return handle_; }

private:
    Handle& handle_;
    std::unique_lock<std::recursive_mutex> lock_;
};

OwnedMatrix& matrix_of(Model& model, int layer, int which) {
    if (which == 0) return model.wte;
    if (which == 1) return model.head;
    if (layer < 0 || layer >= model.shape.n_layer) throw Error("no such layer");
    Layer& l = model.layers[size_t(layer)];
    switch (which) {
        case 2: return l.c_attn;
        case 3: return l.c_proj;
        case 4: return l.c_fc;
        case 5: return l.mlp_proj;
        default: throw Error("no such matrix");
    }
}

// Outputs and inputs.
std::pair<int, int> sizes_of(const Shape& s, int which) {
    const int outs[] = {s.vocab_size, s.vocab_size, 3 * s.n_embd, s.n_embd, s.d_mlp, s.n_embd};
    return {outs[which], which == 5 ? s.d_mlp : s.n_embd};
}

Memory copied(const float* values, int64_t n, int64_t padded) {
    Memory memory(size_t(padded) * 4);
    memcpy(memory.as(), values, size_t(n) * 4);
    return memory;
}

void set_bias(OwnedMatrix& matrix, const float* bias) {
    if (!bias) return;
    matrix.bias_memory = copied(bias, matrix.n_out, matrix.out_padded);
    matrix.bias = matrix.bias_memory.as<float>();
}

void check_text(const Model& model, int start, int n, const int32_t* tokens) {
    if (n < 1 || start < 0 || start > model.shape.n_positions - n)
        throw Error("more tokens than the model has positions");
    for (int i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= model.shape.vocab_size)
            throw Error("token id " + std::to_string(tokens[i]) + " is not in the vocabulary");
}

std::vector<Span> spans_of(int n, const int32_t* rows, const int32_t* starts, const int32_t* counts,
                           const int32_t* tokens) {
    std::vector<Span> spans;
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        if (counts[i] < 1) throw Error("a row without tokens");
        spans.push_back({rows[i], starts[i], counts[i], tokens + at});
        at += counts[i];
    }
    return spans;
}

// Lets `fill` make one matrix of the model, which is set if that, and its bias, succeeded.
template <class Fill>
int set_matrix(void* handle, int layer, int which, const float* bias, const Fill& fill) {
    return guarded([&] {
        const Call h(handle);
        OwnedMatrix& place = matrix_of(h->model, layer, which);
        if (place.data) throw Error("this matrix was set already");
        const auto [n_out, n_in] = sizes_of(h->model.shape, which);
        OwnedMatrix matrix;
        fill(*h, matrix, n_out, n_in);
        set_bias(matrix, bias);
        place = std::move(matrix);
        if (which == 1) h->model.tied = false;
    });
}

}  // namespace

API const char* glassgpt_error() { return message.c_str(); }

#if !defined(GLASSGPT_SOURCE)
#define GLASSGPT_SOURCE "unknown"
#endif

// A hash of the sources this was compiled from.
API const char* glassgpt_source() { return GLASSGPT_SOURCE; }

// The names of the kernels that this CPU can run, the best last, separated by spaces.
API const char* glassgpt_kernels() {
    static const std::string names = [] {
        std::string joined;
        for (const Kernels* kernels : available_kernels())
            joined += (joined.empty() ? "" : " ") + std::string(kernels->name);
        return joined;
    }();
    return names.c_str();
}

// sizes: vocab_size, n_positions, n_embd, n_layer, n_head, d_mlp, activation, scale_by_head, scale_by_layer
API void* glassgpt_new(const int32_t* sizes, float epsilon, const char* kernels, int n_threads) {
    Handle* handle = nullptr;
    guarded([&] {
        const Kernels* chosen = nullptr;
        for (const Kernels* one : available_kernels())
            if (!*kernels || std::string(kernels) == one->name) chosen = one;
        if (!chosen) throw Error(std::string("this CPU, or this build, has no kernels called ") + kernels);
        if (n_threads < 1 || n_threads > 1024) throw Error("the number of threads is not between 1 and 1,024");
        const Shape shape{sizes[0], sizes[1], sizes[2], sizes[3], sizes[4],
                          sizes[5], sizes[6], sizes[7], sizes[8], epsilon};
        handle = new Handle(shape, chosen, n_threads);
    });
    return handle;
}

// In a forked process it is left alone: its threads, which are not there, cannot be waited for.
API void glassgpt_delete(void* handle) {
    if (static_cast<Handle*>(handle)->is_own()) delete static_cast<Handle*>(handle);
}

// How many threads compute: fewer than were asked for where the system refused more.
API int glassgpt_threads(void* handle) { return static_cast<Handle*>(handle)->engine.n_threads(); }

// which: 0 wte, 1 lm_head, 2 c_attn, 3 c_proj, 4 c_fc, 5 mlp.c_proj; strides in elements.
API int glassgpt_set_matrix(void* handle, int layer, int which, int dtype, const void* data, int source_dtype,
                            int64_t out_stride, int64_t in_stride, const float* scale, const float* bias) {
    return set_matrix(handle, layer, which, bias, [&](Handle& h, OwnedMatrix& matrix, int n_out, int n_in) {
        if (source_dtype == INT8 && !scale) throw Error("int8 values without scales");
        h.engine.pack(h.model.arena, matrix, n_out, n_in, dtype, {data, out_stride, in_stride, source_dtype, scale, 0});
    });
}

#if !defined(__wasm__)  // what a page does not need
// int8 rows at `offset` of an open file.
API int glassgpt_set_file(void* handle, int layer, int which, int file, int64_t offset, const float* scale,
                          const float* bias) {
    return set_matrix(handle, layer, which, bias, [&](Handle& h, OwnedMatrix& matrix, int n_out, int n_in) {
        h.engine.pack_file(h.model.arena, matrix, n_out, n_in, file, offset, scale);
    });
}
#endif

// A matrix in the layout of layout.h: int8 with scales, or int4. If it `stays` in memory until the model is deleted and
// starts on a cache line it is not copied.
API int glassgpt_set_panels(void* handle, int layer, int which, int dtype, const uint8_t* data, int64_t n_bytes,
                            const float* scale, const float* bias, int stays) {
    return set_matrix(handle, layer, which, bias, [&](Handle& h, OwnedMatrix& matrix, int n_out, int n_in) {
        h.engine.place(h.model, matrix, n_out, n_in, {data, size_t(n_bytes), dtype, scale, stays != 0});
    });
}

#if !defined(__wasm__)  // what a page does not need
// The panels of a matrix, for a file; `out` is zeroed memory.
API int glassgpt_quantize_int4(int n_out, int n_in, const float* data, int64_t out_stride, int64_t in_stride,
                               uint8_t* out, int64_t n_bytes, int n_threads) {
    return guarded([&] {
        if (n_threads < 1 || n_threads > 1024) throw Error("the number of threads is not between 1 and 1,024");
        Pool pool(n_threads);
        quantize_int4(pool, n_out, n_in, {data, out_stride, in_stride, FLOAT32, nullptr, 0}, out, size_t(n_bytes));
    });
}
#endif

// which: 0 wpe, 1 ln_f.weight, 2 ln_f.bias, 3 ln_1.weight, 4 ln_1.bias, 5 ln_2.weight, 6 ln_2.bias
API int glassgpt_set_vector(void* handle, int layer, int which, const float* values) {
    return guarded([&] {
        const Call h(handle);
        const int64_t C = h->model.shape.n_embd;
        if (which == 0) {
            h->model.wpe = copied(values, C * h->model.shape.n_positions, C * h->model.shape.n_positions);
            return;
        }
        if (which > 2 && (layer < 0 || layer >= h->model.shape.n_layer)) throw Error("no such layer");
        Layer* l = which > 2 ? &h->model.layers[size_t(layer)] : nullptr;
        Memory* places[] = {nullptr, &h->model.ln_f_weight, &h->model.ln_f_bias, l ? &l->ln_1_weight : nullptr,
                            l ? &l->ln_1_bias : nullptr, l ? &l->ln_2_weight : nullptr, l ? &l->ln_2_bias : nullptr};
        if (which < 0 || which > 6) throw Error("no such vector");
        *places[which] = copied(values, C, round_up(C, PANEL));
    });
}

// The number of a new adapter that changes nothing yet, or -1.
API int glassgpt_new_adapter(void* handle) {
    int number = -1;
    guarded([&] {
        const Call h(handle);
        Adapter adapter;
        adapter.changes.resize(h->model.layers.size() * 4);
        h->model.adapters.push_back(std::move(adapter));
        number = int(h->model.adapters.size());
    });
    return number;
}

// The change of a matrix of a block, numbered as in `glassgpt_set_matrix`: W + A B with A (n_in, rank) as its transpose,
// and B (rank, n_out).
API int glassgpt_set_low_rank(void* handle, int number, int layer, int which, int rank, const float* a,
                              const float* b) {
    return guarded([&] {
        const Call h(handle);
        if (number < 1 || number > int(h->model.adapters.size())) throw Error("no such adapter");
        if (which < 2 || which > 5 || layer < 0 || layer >= h->model.shape.n_layer) throw Error("no such matrix");
        const auto [n_out, n_in] = sizes_of(h->model.shape, which);
        if (rank < 1 || rank > std::min(n_out, n_in)) throw Error("no such rank");
        Adapter::Change change;
        change.rank = rank, change.n_in = n_in, change.n_out = n_out;
        change.ld_in = round_up(n_in, PANEL), change.ld_out = round_up(n_out, PANEL);
        change.a_memory = Memory(size_t(rank * change.ld_in) * 4);
        change.b_memory = Memory(size_t(rank * change.ld_out) * 4);
        for (int r = 0; r < rank; r++) {
            memcpy(change.a_memory.as<float>() + r * change.ld_in, a + int64_t(r) * n_in, size_t(n_in) * 4);
            memcpy(change.b_memory.as<float>() + r * change.ld_out, b + int64_t(r) * n_out, size_t(n_out) * 4);
        }
        change.a = change.a_memory.as<float>(), change.b = change.b_memory.as<float>();
        h->model.adapters[size_t(number - 1)].changes[size_t(layer * 4 + which - 2)] = std::move(change);
    });
}

// Which adapter a row computes with from now on, 0 for none.
API int glassgpt_set_adapter(void* handle, void* cache, int row, int number) {
    return guarded([&] {
        const Call h(handle);
        Cache& rows = *static_cast<Cache*>(cache);
        if (row < 0 || row >= rows.rows) throw Error("no such row");
        if (number < 0 || number > int(h->model.adapters.size())) throw Error("no such adapter");
        rows.adapters[size_t(row)] = number;
    });
}

// Whether everything has been set, so that a pass touches only memory that is there.
API int glassgpt_check(void* handle) {
    return guarded([&] {
        const Call h(handle);
        bool whole =
            h->model.wte.data && h->model.wpe.size() && h->model.ln_f_weight.size() && h->model.ln_f_bias.size();
        whole &= h->model.tied || h->model.head.data;
        for (Layer& l : h->model.layers) {
            for (const Memory* one : {&l.ln_1_weight, &l.ln_1_bias, &l.ln_2_weight, &l.ln_2_bias})
                whole &= one->size() > 0;
            for (const OwnedMatrix* one : {&l.c_attn, &l.c_proj, &l.c_fc, &l.mlp_proj}) whole &= one->data && one->bias;
        }
        if (!whole) throw Error("a tensor of the model was not set");
    });
}

API int64_t glassgpt_bytes(void* handle) { return int64_t(static_cast<Handle*>(handle)->model.n_bytes()); }

// dtype: FLOAT32, FLOAT16 or INT8; parts: in how many bytes a number is rounded that meets int8 or int4 weights, 1 to 3
API void* glassgpt_new_cache(void* handle, int rows, int context, int dtype, int parts) {
    Cache* cache = nullptr;
    guarded([&] { cache = new Cache(static_cast<Handle*>(handle)->model, rows, context, dtype, parts); });
    return cache;
}

API void glassgpt_delete_cache(void* cache) { delete static_cast<Cache*>(cache); }

API int glassgpt_copy(void* handle, void* cache, int source, int n, const int32_t* rows, int length) {
    return guarded([&] {
        const Call h(handle);
        for (int i = 0; i < n; i++) static_cast<Cache*>(cache)->copy(source, rows[i], length);
    });
}

// wanted: 0 no logits, 1 those after the last token of each row, 2 those after every token; out has rows of ld floats.
API int glassgpt_forward(void* handle, void* cache, int n, const int32_t* rows, const int32_t* starts,
                         const int32_t* counts, const int32_t* tokens, int wanted, float* out, int64_t ld) {
    return guarded([&] {
        const Call h(handle);
        if (wanted < NONE || wanted > ALL) throw Error("wanted is not 0, 1 or 2");
        h->engine.forward(h->model, *static_cast<Cache*>(cache), spans_of(n, rows, starts, counts, tokens),
                          Wanted(wanted), out, ld);
        h->check();
    });
}

#if !defined(__wasm__)  // what a page does not need
API int glassgpt_score(void* handle, void* cache, int n, const int32_t* rows, const int32_t* starts,
                       const int32_t* counts, const int32_t* tokens, const int32_t* targets, const int32_t* excluded,
                       int n_excluded, double* logprobs, int32_t* likeliest, int32_t* likeliest_allowed) {
    return guarded([&] {
        const Call h(handle);
        h->engine.score(h->model, *static_cast<Cache*>(cache), spans_of(n, rows, starts, counts, tokens),
                        {targets, excluded, n_excluded, logprobs, likeliest, likeliest_allowed});
        h->check();
    });
}
#endif

// The embedding of a text from position `start` on: (n, C).
API int glassgpt_embed(void* handle, int start, int n, const int32_t* tokens, float* out) {
    return guarded([&] {
        const Call h(handle);
        check_text(h->model, start, n, tokens);
        h->engine.embed_text(h->model, start, std::vector<int32_t>(tokens, tokens + n), out);
        h->check();
    });
}

// One block of one text: x (n, C) enters and leaves it. `tap` sees, and may change, the steps whose bits (in the order
// of inspect/taps.py) are set in `wanted`; in WebAssembly, where it is null, it is the imported function `tap`.
API int glassgpt_block(void* handle, void* cache, int layer, int start, int n, float* x, uint32_t wanted,
                       int heads_at_once, Taps::Call tap, void* context, int parts) {
    return guarded([&] {
        const Call h(handle);
#if defined(__wasm__)
        if (!tap) tap = glassgpt_tap;
#endif
        if (wanted && !tap) throw Error("steps are wanted, but nobody to see them");
        h->engine.run_block(h->model, static_cast<Cache*>(cache), layer, start, n, x,
                            {wanted, heads_at_once, tap, context}, parts);
        h->check();
    });
}

// The final LayerNorm of n vectors.
API int glassgpt_final_norm(void* handle, int n, const float* x, float* out) {
    return guarded([&] {
        const Call h(handle);
        h->engine.final_norm(h->model, n, x, out);
    });
}

// The products of n vectors with a matrix, without its bias: rows of ld numbers, with room for whole panels. which: as
// in glassgpt_set_matrix, 1 the head, whether it is tied or not.
API int glassgpt_times(void* handle, int layer, int which, int n, const float* x, float* out, int64_t ld, int parts) {
    return guarded([&] {
        const Call h(handle);
        Matrix matrix = matrix_of(h->model, layer, which == 1 && h->model.tied ? 0 : which);
        matrix.bias = nullptr;
        h->engine.times_matrix(h->model, matrix, n, x, out, ld, parts);
        h->check();
    });
}

// The weights of one output of a matrix, as floats: a row of the embeddings, a column of the others.
API int glassgpt_output(void* handle, int layer, int which, int output, float* out) {
    return guarded([&] {
        const Call h(handle);
        const OwnedMatrix& matrix = matrix_of(h->model, layer, which == 1 && h->model.tied ? 0 : which);
        if (output < 0 || output >= matrix.n_out) throw Error("no such output of the matrix");
        embed(matrix, output, out);
        h->check();
    });
}

// Of n rows of logits: the ids and log-probabilities of the k likeliest tokens, [row][k]; and for the rows with a target
// (not negative; `targets` may be null) its log-probability, its rank and the row's entropy, [row][3].
API int glassgpt_read_logits(void* handle, int n, const float* logits, int64_t ld, int vocab_size, int k, int32_t* ids,
                             double* log_p, const int32_t* targets, double* losses) {
    return guarded([&] {
        const Call h(handle);
        h->engine.read_logits(n, logits, ld, vocab_size, {k, ids, log_p, targets, losses});
    });
}

#if !defined(__wasm__)  // what a page does not need
// limits: bytes a second read from memory, products and sums of bytes a second.
API int glassgpt_limits(void* handle, int64_t n_bytes, double* limits) {
    return guarded([&] {
        const Call h(handle);
        limits[0] = h->engine.read_bandwidth(size_t(std::max<int64_t>(n_bytes, 0)));
        limits[1] = h->engine.int8_peak();
    });
}
#endif

// Arrays have an element, or a row, for each row of the logits; filters[f] (one that is off), edit_ids and allowed may
// be null.
API int glassgpt_draw(void* handle, int n, int vocab_size, const float* logits, int64_t ld, const double* uniform,
                      const double* temperature, const int64_t* top_k, int n_filters, const double* const* filters,
                      int n_edits, const int64_t* edit_ids, const float* edit_scale, const float* edit_shift,
                      const uint32_t* allowed, int64_t ld_allowed, int alternatives, int64_t* tokens, double* report) {
    return guarded([&] {
        const Call h(handle);
        std::vector<Draws::Row> rows;
        for (int i = 0; i < n; i++)
            rows.push_back({temperature[i], uniform[i], int(top_k[i])});
        h->engine.draw({n, vocab_size, logits, ld, rows.data(), n_filters, filters, n_edits, edit_ids, edit_scale,
                        edit_shift, allowed, ld_allowed, alternatives, tokens, report});
    });
}

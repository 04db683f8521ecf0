// The model: weights as the kernels want them, a KV cache, and one forward pass for any number of tokens of any rows.
#pragma once
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels.h"
#include "mapped.h"
#include "threads.h"

namespace glassgpt {

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Shape {
    int vocab_size, n_positions, n_embd, n_layer, n_head, d_mlp, activation;
    int scale_by_head, scale_by_layer;  // divide scores by sqrt(d_head), and by layer + 1
    float layer_norm_epsilon;
};

// Memory aligned to cache lines, zeroed, freed with its owner.
class Memory {
public:
    Memory() = default;
    explicit Memory(size_t n_bytes);
    ~Memory();
    Memory(Memory&& other) noexcept : data_(other.data_), size_(other.size_) { other.data_ = nullptr; }
    Memory& operator=(Memory&& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        return *this;
    }
    template <class T = uint8_t>
    T* as() const { return static_cast<T*>(data_); }
    size_t size() const { return size_; }
    void use_large_pages();

private:
    void* data_ = nullptr;
    size_t size_ = 0;
};

// Memory for the matrices, one after the other. Large pages make reading them a third faster (33 against 24 GB/s on two
// cores of an EPYC), and single matrices would not fill them.
class Arena {
public:
    uint8_t* allocate(size_t n_bytes);
    ~Arena();
    Arena() = default;
    Arena(const Arena&) = delete;
    size_t used() const { return used_; }

private:
    struct Chunk {
        uint8_t* start;
        size_t size, taken;
    };
    std::vector<Chunk> chunks_;
    size_t used_ = 0;
};

// Where the numbers of a matrix come from: value(output, input) lies at output * out_stride + input * in_stride.
struct Source {
    const void* data;
    int64_t out_stride, in_stride;  // in elements
    int dtype;                      // FLOAT32, FLOAT16, BFLOAT16; or INT8 with scales
    const float* scale;
    int64_t first_output = 0;       // int8: that of `data`
};

// A matrix in the layout of layout.h already, as a packed file holds it.
struct Panels {
    const uint8_t* data;
    size_t n_bytes;
    int dtype;           // INT8 or INT4
    const float* scale;  // int8: (n_out,)
    bool stays;          // in memory, unchanged, until the model is deleted
};

struct OwnedMatrix : Matrix {
    Memory scale_memory, total_memory, bias_memory;
};

struct Layer {
    Memory ln_1_weight, ln_1_bias, ln_2_weight, ln_2_bias;
    OwnedMatrix c_attn, c_proj, c_fc, mlp_proj;
};

// Changes of low rank to the matrices of the blocks, which some rows of a cache compute with (LoRA).
struct Adapter {
    struct Change : LowRank {
        Memory a_memory, b_memory;
    };
    std::vector<Change> changes;  // [layer * 4 + which], in the order of the matrices in `Layer`; rank 0: none
};

struct Model {
    explicit Model(const Shape& shape);
    Shape shape;
    int d_head, d_padded;
    OwnedMatrix wte, head;  // the head's rows are wte's unless it has its own
    bool tied = true;
    Memory wpe;  // float32 (n_positions, n_embd)
    std::vector<Layer> layers;
    Memory ln_f_weight, ln_f_bias;
    std::vector<Adapter> adapters;  // number 1 is the first; 0 means none
    Arena arena;
    MappedRange mapped;  // the matrices that lie in a file
    size_t n_bytes() const { return arena.used() + mapped.used(); }  // of the matrices
};

struct Cache {
    Cache(const Model& model, int rows, int context, int dtype, int parts);
    HeadCache head(int layer, int row, int head) const;
    void copy(int source, int target, int length);
    int rows, context;
    int dtype, element;  // element: bytes of one number
    int parts;           // of the numbers that meet int8 or int4 weights, in all that is computed with this cache
    int n_layer, n_head, d_head, d_padded;
    size_t key_bytes, value_bytes, scale_bytes, head_bytes;  // of one head, on one page
    size_t page_bytes, row_bytes;                            // a page has all layers and heads of 64 positions
    Memory memory;
    std::vector<int> adapters;  // of each row, 0 for none
};

// Tokens of one row, from position `start` on.
struct Span {
    int row, start, count;
    const int32_t* tokens;
};

enum Wanted : int { NONE = 0, LAST = 1, ALL = 2 };

constexpr int STEP_TOKENS = 256;  // read in one pass: their activations fit a core's second cache

// The steps of a block, in the order of BLOCK_STEPS in inspect/taps.py.
enum BlockStep : int {
    LN_1, ATTN_Q, ATTN_K, ATTN_V, ATTN_SCORES, ATTN_SCALED, ATTN_MASKED, ATTN_WEIGHTS, ATTN_Z, ATTN_MERGED, ATTN_PROJ,
    RESID_MID, LN_2, MLP_FC, MLP_GELU, MLP_PROJ, RESID_POST
};

// Who sees a block's steps, and may change them.
struct Taps {
    // `rows` vectors of `columns` numbers, each `ld` after the one before; of `heads` heads from `first` on, one after
    // the other, where the step has heads.
    typedef void (*Call)(void* context, int step, int first, int heads, float* values, int rows, int columns, int ld);
    uint32_t wanted = 0;     // a bit for each step
    int heads_at_once = 1;   // more take more memory
    Call call = nullptr;
    void* context = nullptr;
};
struct Rows;

// What the forward pass needs besides weights and cache, kept from call to call.
struct Workspace {
    Memory x, normed, attended, wide;           // float32 [token][ld or ld_wide]
    Memory q_values, q_scale, q_zero;           // the inputs of a product as integers: [part][token]...
    Memory rest;                                // float32 [thread][ld_q]: what was rounded off
    Memory scores;                              // [thread][MAX_QUERIES][ld_scores]
    Memory logits;                              // [HEAD_TOKENS][vocab_size, padded], for `score`
    int64_t ld = 0, ld_wide = 0, ld_q = 0, ld_groups = 0, ld_scores = 0;
    int parts = 0;
};

// One pass over some tokens: which they are, and of which the final vector is wanted.
struct Step {
    struct Tile {  // queries that stand next to each other in one row
        int row, position, first, count, out;  // `first` and `out`: among the tokens read, among those kept
    };
    std::vector<int> ids, rows, positions;  // of each token
    std::vector<int> adapters;              // of each token, or empty: none has one
    std::vector<int> keep;                  // numbers of tokens whose final vectors are wanted, ascending
    std::vector<Tile> all_tiles, kept_tiles;
    void plan_tiles(int queries);
};

// Rows of logits of which each gives a token (sampling.cpp). The settings are those of generate/sampling/sampler.py.
struct Draws {
    struct Row {
        double temperature;
        double uniform;  // in [0, 1)
        int top_k;       // 1 to vocab_size
    };
    int n, vocab_size;
    const float* logits;  // [row][ld]
    int64_t ld;
    const Row* rows;
    int n_filters;
    const double* const* filters;  // [filter][row], as FILTERS in generate/sampling/params.py; null where one is off
    int n_edits;              // changes of single logits in each row: l -> (l > 0 ? l / scale : l * scale) + shift
    const int64_t* edit_ids;  // [row][n_edits]
    const float *edit_scale, *edit_shift;
    const uint32_t* allowed;  // [row][ld_allowed], a bit for each token, the lowest first; or null
    int64_t ld_allowed;
    int alternatives;  // how many of the likeliest tokens are reported, -1 for no log-probabilities at all
    int64_t* tokens;   // [row]
    double* report;    // [row][ld_report()]: the token, or -1 if no logit is finite; its log-probability; ids; theirs
    int ld_report() const { return alternatives < 0 ? 1 : 2 + 2 * alternatives; }
};

class Engine {
public:
    Engine(const Kernels* kernels, int n_threads);
    // Logits go to out[i * ld], i counting the tokens (or spans) for which they are wanted.
    void forward(const Model& model, Cache& cache, const std::vector<Span>& spans, Wanted wanted, float* out,
                 int64_t ld);
    // The log-probability of each token's target (none where it is negative), the likeliest token, and the likeliest
    // of those that are not excluded. Arrays have an element for every token of the spans.
    struct Scores {
        const int32_t* targets;
        const int32_t* excluded;
        int n_excluded;
        double* logprobs;
        int32_t* likeliest;
        int32_t* likeliest_allowed;
    };
    void score(const Model& model, Cache& cache, const std::vector<Span>& spans, const Scores& scores);
    void draw(const Draws& draws);

    // One text, in parts (trace.cpp). Vectors lie one after the other: x is (n, C).
    void embed_text(const Model& model, int start, const std::vector<int32_t>& tokens, float* out);
    // x enters the block and leaves it; tokens from position `start` on see the row 0 of a cache, if there is one.
    void run_block(const Model& model, Cache* cache, int layer, int start, int n, float* x, const Taps& taps,
                   int parts);
    struct Readings {
        int k;
        int32_t* ids;            // [row][k]
        double* log_p;           // [row][k]
        const int32_t* targets;  // [row], negative for none; or null
        double* losses;          // [row][3]
    };
    void read_logits(int n, const float* logits, int64_t ld, int vocab_size, const Readings& readings);
    void final_norm(const Model& model, int n, const float* x, float* out);
    void times_matrix(const Model& model, const Matrix& matrix, int n, const float* x, float* out, int64_t ld,
                      int parts);
    int n_threads() const { return pool_->size(); }
    double read_bandwidth(size_t n_bytes);  // bytes a second that all threads together read from memory
    double int8_peak();                     // products and sums of bytes a second in all threads, two for each pair
    void pack(Arena& arena, OwnedMatrix& matrix, int n_out, int n_in, int dtype, const Source& source);
    // int8 rows (n_out, n_in) of an open file, read by all threads at once.
    void pack_file(Arena& arena, OwnedMatrix& matrix, int n_out, int n_in, int file, int64_t offset,
                   const float* scale);
    // Panels as they are: used where they lie (`stays`: until the model is deleted), or copied into large pages.
    void place(Model& model, OwnedMatrix& matrix, int n_out, int n_in, const Panels& panels);

    const Kernels* kernels;
    std::recursive_mutex mutex;  // one call at a time, and those of its taps: others would compete for the same cores

private:
    template <class Head>
    void in_steps(const Model& model, Cache& cache, const std::vector<Span>& spans, Wanted wanted,
                  const int32_t* targets, const Head& head);
    void hidden(const Model& model, Cache& cache, const Step& step);
    void adapt(const Model& model, const std::vector<int>& adapters, int layer, int which, const float* x, int64_t ldx,
               float* out, int64_t ldo);
    void attend(const Model& model, Cache& cache, int layer, const std::vector<Step::Tile>& tiles);
    void multiply(const Matrix& w, const InputParts& in, int n, float* out, int64_t ldo, int epilogue, int activation);
    InputParts quantize(const Matrix& w, const float* x, int64_t ldx, int n, int parts);
    void quantize_token(const Matrix& w, const InputParts& in, int64_t token, int thread);
    InputParts normalize(const Matrix& w, const float* x, int64_t ldx, const Memory& weight, const Memory& bias,
                         float eps, int n, int parts);
    struct Needed {
        int context, parts;
    };
    void reserve(const Model& model, const Needed& needed);
    void linear(const Matrix& w, const float* x, int64_t ldx, int n, float* out, int64_t ldo, int epilogue,
                int activation, int parts);
    void normalize_rows(const Memory& weight, const Memory& bias, const Shape& shape, const float* x, int64_t ldx,
                        int n, float* out, int64_t ldo);
    void attend_shown(const Model& model, Cache* cache, int layer, int start, int first, int last, const Rows& qkv,
                      Rows& merged, int n, const Taps& taps);
    std::unique_ptr<Pool> pool_;
    Workspace space_;
};

// Into zeroed memory, as panels.
void quantize_int4(Pool& pool, int n_out, int n_in, const Source& source, uint8_t* out, size_t n_bytes);
void embed(const Matrix& wte, int token, float* out);
void check_spans(const Model& model, const Cache& cache, const std::vector<Span>& spans);

}  // namespace glassgpt

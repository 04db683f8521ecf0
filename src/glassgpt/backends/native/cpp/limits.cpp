// What this machine can do at most: the speed of its memory, and of products of bytes. `glassgpt bench` sets what the
// engine reaches beside them.
#include <algorithm>
#include <chrono>

#include "engine.h"

namespace glassgpt {
namespace {

constexpr int ROUNDS = 5;
constexpr size_t PIECE = size_t(1) << 20;

// The shortest of some runs, in seconds: everything that disturbs one makes it longer.
template <class Function>
double shortest(const Function& function) {
    double best = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        const auto begun = std::chrono::steady_clock::now();
        function();
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
    }
    return best;
}

}  // namespace

double Engine::read_bandwidth(size_t n_bytes) {
    n_bytes = std::max(n_bytes / PIECE, size_t(1)) * PIECE;
    if (n_bytes > size_t(1) << 36) throw Error("no more than 64 GiB are read to measure the memory");
    Arena arena;  // in large pages, as the weights are
    uint8_t* data = arena.allocate(n_bytes);
    std::fill(data, data + n_bytes, uint8_t(1));
    std::vector<uint64_t> sums(size_t(pool_->size()) * 8);
    const Pool::Active active(*pool_);
    const double seconds = shortest([&] {
        pool_->each(int64_t(n_bytes / PIECE), [&](int64_t piece, int thread) {
            const uint64_t* values = reinterpret_cast<const uint64_t*>(data + size_t(piece) * PIECE);
            uint64_t lanes[8] = {};
            for (size_t i = 0; i < PIECE / 8; i += 8)
                for (size_t j = 0; j < 8; j++) lanes[j] += values[i + j];
            for (size_t j = 0; j < 8; j++) sums[size_t(thread) * 8 + j] += lanes[j];
        });
    });
    uint64_t total = 0;
    for (uint64_t sum : sums) total += sum;
    if (total != uint64_t(ROUNDS) * (n_bytes / 8) * 0x0101010101010101u)
        throw Error("memory was not read as it was written");
    return double(n_bytes) / seconds;
}

double Engine::int8_peak() {
    constexpr int pieces = 32, n = 1 << 16;
    std::vector<float> sums(size_t(pieces * pool_->size()));
    const Pool::Active active(*pool_);
    const double seconds = shortest([&] {
        pool_->each(int64_t(sums.size()), [&](int64_t i, int) { sums[size_t(i)] = kernels->multiply_bytes(n); });
    });
    for (float sum : sums)
        if (sum != sums[0]) throw Error("the same products of bytes had different sums");
    return 2.0 * n * kernels->multiply_bytes_count * pieces * pool_->size() / seconds;
}

}  // namespace glassgpt

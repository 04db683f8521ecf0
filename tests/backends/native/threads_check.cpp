// Many short phases of changing sizes: every piece is done once, and no phase lasts forever.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "threads.h"

int main(int, char** arguments) {
    const int n_threads = std::atoi(arguments[1]);
    glassgpt::Pool pool(n_threads);
    glassgpt::Pool::Active active(pool);
    std::vector<std::atomic<int>> done(200);
    uint32_t random = 1;
    for (int phase = 0; phase < 4000000; phase++) {
        random = random * 1664525u + 1013904223u;
        const int64_t n = 1 + (random >> 24) % ((random >> 16) % 7 ? 8 : 200);
        for (int64_t i = 0; i < n; i++) done[size_t(i)] = 0;
        pool.each(n, [&](int64_t piece, int) { done[size_t(piece)]++; });
        for (int64_t i = 0; i < n; i++) {
            if (done[size_t(i)] != 1) {
                std::printf("phase %d of %d pieces: piece %d was done %d times\n", phase, int(n), int(i), int(done[size_t(i)]));
                return 1;
            }
        }
    }
    return 0;
}

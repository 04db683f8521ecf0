// Weights that lie in a mapped file.
//
// Another program may truncate the file. Touching what is gone raises SIGBUS, which would end the process; instead
// zeros take its place, and the model says so at its next call.
#pragma once
#include <cstddef>
#include <cstdint>

namespace glassgpt {

class MappedRange {
public:
    MappedRange() = default;
    ~MappedRange();
    MappedRange(const MappedRange&) = delete;
    // Guard these bytes, too, and those between. False if too many files are mapped already.
    bool add(const void* start, size_t n_bytes);
    bool is_lost() const;
    size_t used() const { return used_; }

private:
    int slot_ = -1;
    size_t used_ = 0;
};

}  // namespace glassgpt

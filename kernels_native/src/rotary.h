// Queries and keys as attention takes them.
#pragma once

#include <cstddef>

#include "attention.h"

namespace omnidraft {

// Normalises (where `norm` is not null) and rotates one head of one row. Its file fuses no
// multiplication with an addition: compilers differ in which of two added products they fuse.
void prepare_head(const AttentionShape& shape, const AttentionTensors& tensors, const float* input,
                  const float* norm, std::size_t row, float* output);

}  // namespace omnidraft

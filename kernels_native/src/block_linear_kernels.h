// What the files of the 4-bit linear share.
#pragma once

#include <vector>

#include "block_linear.h"

namespace omnidraft {

// Appends the kernels for this processor's instructions that it can run, the fastest first.
void add_fast_kernels(std::vector<BlockKernel>& kernels);

}  // namespace omnidraft

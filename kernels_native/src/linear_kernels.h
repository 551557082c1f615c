// What the files of the 8-bit linear share.
#pragma once

#include <vector>

#include "linear.h"

namespace omnidraft {

// Inputs that one instruction multiplies and adds.
constexpr std::size_t kGroup = 4;

// Appends the kernels for this processor's instructions that it can run, the fastest first.
void add_fast_kernels(std::vector<IntegerKernel>& kernels);

// Writes a row's results for `count` outputs, of which `products` holds sums over i of
// (level_i - 128 + zero) * weight_i.
inline void finish(const IntegerLinear& linear, std::size_t row, std::size_t output,
                   std::size_t count, const std::int32_t* products, std::int32_t zero) {
  float* result = linear.result + row * linear.outputs + output;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t exact = products[i] - zero * linear.sums[output + i];
    result[i] = static_cast<float>(exact) * linear.scales[output + i] * linear.steps[row];
  }
}

}  // namespace omnidraft

// A linear layer with 8-bit weights and inputs, as fast as memory gives the weights. Sums of
// integers are exact in any order, so every kernel on every processor gives the same bits, whatever
// rows are beside a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace omnidraft {

// Weights lie in panels of so many outputs, each [width / 4, kPanel, 4]: the order in which they
// are multiplied.
constexpr std::size_t kPanel = 16;
// Sums of so many products fit into 32 bits, whatever the factors.
constexpr std::size_t kWidest = 65'536;

struct IntegerLinear {
  std::size_t rows = 0;
  std::size_t width = 0;                 // a multiple of 4, at most kWidest
  std::size_t outputs = 0;               // a multiple of kPanel
  const std::uint8_t* levels = nullptr;  // [rows, width], 128 stands for 0
  const float* steps = nullptr;          // [rows]
  const std::int8_t* weights = nullptr;  // [outputs / kPanel, width / 4, kPanel, 4], -127...127
  const float* scales = nullptr;         // [outputs]
  const std::int32_t* sums = nullptr;    // [outputs]: of each output's weights
  float* result = nullptr;               // [rows, outputs]
};

// result = scale * step * sum over i of (level_i - 128) * weight_i, an exact integer rounded to
// float32 and then multiplied by scale and by step, for the outputs of panels begin...end-1.
void multiply(const IntegerLinear& linear, std::size_t begin, std::size_t end);

struct IntegerKernel {
  const char* name;
  void (*multiply)(const IntegerLinear& linear, std::size_t begin, std::size_t end);
};

// Those that this machine can run, the fastest first, the portable one last.
const std::vector<IntegerKernel>& integer_kernels();

}  // namespace omnidraft

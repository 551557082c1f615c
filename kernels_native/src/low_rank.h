// A linear layer's LoRA: what two narrow matrices add to its output.
#pragma once

#include <cstddef>

namespace omnidraft {

struct LowRank {
  std::size_t width = 0;
  std::size_t rank = 0;  // 0 adds nothing
  std::size_t outputs = 0;
  const float* x = nullptr;     // [rows, width]
  const float* base = nullptr;  // [rows, outputs]
  const float* a = nullptr;     // [width, rank]
  const float* b = nullptr;     // [rank, outputs]
  float* result = nullptr;      // [rows, outputs]
};

// result = base + (x a) b in rows begin...end-1. A row does not depend on begin and end. The same
// bits on the processors that gate.h names.
void add_low_rank(const LowRank& lora, std::size_t begin, std::size_t end);

}  // namespace omnidraft

#include "low_rank.h"

#include <algorithm>
#include <vector>

#include "omnidraft/vectors.h"
#include "products.h"

namespace omnidraft {
namespace {

// `count` rows, at most R: where there are fewer, the last is computed several times.
template <std::size_t W, std::size_t R>
OMNIDRAFT_INLINE void add_rows(const LowRank& lora, std::size_t begin, std::size_t count,
                               float* memory) {
  const float* x[R];
  const float* reduced[R];
  float* sums[R];
  float* results[R];
  std::fill(memory, memory + count * lora.rank, 0.0F);
  for (std::size_t r = 0; r < R; ++r) {
    const std::size_t i = std::min(r, count - 1);
    x[r] = lora.x + (begin + i) * lora.width;
    reduced[r] = sums[r] = memory + i * lora.rank;
    results[r] = lora.result + (begin + i) * lora.outputs;
  }
  add_products<W, R>(x, lora.width, lora.a, lora.rank, lora.rank, sums);
  std::copy(lora.base + begin * lora.outputs, lora.base + (begin + count) * lora.outputs,
            lora.result + begin * lora.outputs);
  add_products<W, R>(reduced, lora.rank, lora.b, lora.outputs, lora.outputs, results);
}

template <std::size_t W>
OMNIDRAFT_INLINE void add_low_rank_with(const LowRank& lora, std::size_t begin, std::size_t end) {
  constexpr std::size_t kRows = kSharedRows<W>;
  thread_local std::vector<float> memory;
  memory.resize(kRows * lora.rank);
  for (std::size_t row = begin; row < end; row += kRows) {
    if (end - row == 1) {
      add_rows<W, 1>(lora, row, 1, memory.data());
    } else {
      add_rows<W, kRows>(lora, row, std::min(end - row, kRows), memory.data());
    }
  }
}

}  // namespace

OMNIDRAFT_DISPATCH(void, add_low_rank, (const LowRank& lora, std::size_t begin, std::size_t end),
                   (lora, begin, end), 16, 8, 4)

}  // namespace omnidraft

// A linear layer with 4-bit weights and 8-bit inputs, both in blocks of 32 along the inputs.
//
// Every kernel gives the same bits, whatever rows are beside a row: products within a block are
// sums of integers, exact in any order, and the blocks are added one after the other, as `multiply`
// says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace omnidraft {

// Inputs of a block.
constexpr std::size_t kBlock = 32;
// Outputs whose weights of a block lie together.
constexpr std::size_t kBlockPanel = 16;
// The weights of a panel's block: codes from 0 to 15, then for each output a scale and an offset as
// IEEE 754 halves, little-endian. Byte 64 c + 4 j + k holds output j's codes of the inputs 4 c + k,
// in its lower half, and 16 + 4 c + k, in its upper half.
constexpr std::size_t kCodeBytes = kBlock / 2 * kBlockPanel;
constexpr std::size_t kHalvesBytes = 2 * kBlockPanel;
constexpr std::size_t kBlockBytes = kCodeBytes + 2 * kHalvesBytes;

struct BlockLinear {
  std::size_t rows = 0;
  std::size_t blocks = 0;                 // of a row
  std::size_t outputs = 0;                // the last panel may have fewer than kBlockPanel
  const std::int8_t* levels = nullptr;    // [rows, blocks, kBlock], from -127 to 127
  const float* steps = nullptr;           // [rows, blocks]
  const float* sums = nullptr;            // [rows, blocks]: of each block's levels
  const std::uint8_t* weights = nullptr;  // [panels, blocks, kBlockBytes]
  const float* units = nullptr;           // [outputs]: of scales and offsets
  float* result = nullptr;                // [rows, outputs]
};

// The blocks' levels, steps and sums of `count` blocks of x: level = round(x / step), to the even
// of two neighbours, with step = max |x| / 127, at least 1e-20; not a number where x is not finite.
void quantize_blocks(const float* x, std::size_t count, std::int8_t* levels, float* steps,
                     float* sums);

// result = unit * total for the outputs of panels begin...end-1, where total starts at 0 and
// becomes, block after block,
//   fma(step, fma(sum over i of code_i * level_i, scale, offset * sum), total).
void multiply(const BlockLinear& linear, std::size_t begin, std::size_t end);

struct BlockKernel {
  const char* name;
  void (*multiply)(const BlockLinear& linear, std::size_t begin, std::size_t end);
};

// Those that this machine can run, the fastest first, the portable one last.
const std::vector<BlockKernel>& block_kernels();

}  // namespace omnidraft

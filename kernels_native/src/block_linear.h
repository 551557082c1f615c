// A linear layer with weights of 4 or 8 bits and 8-bit inputs, both in blocks of 32 along the
// inputs.
//
// Every kernel on every processor gives the same bits, whatever rows are beside a row: products
// within a block are sums of integers, exact in any order, and the blocks are added one after the
// other, as `multiply` says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace omnidraft {

// Inputs of a block.
constexpr std::size_t kBlock = 32;
// Outputs whose weights of a block lie together.
constexpr std::size_t kBlockPanel = 16;

// How weights are made of codes: weight = scale * code + offset. The forms hold what GGUF's types
// hold, without changing a value.
enum class BlockForm : std::uint8_t {
  kAffine4,  // codes 0...15, scale and offset for a block: Q4_1
  kScaled4,  // codes -8...7, held with 8 added, a scale for a block: Q4_0
  kSuper4,  // codes 0...15, scale and offset of a block as integers, of eight blocks as units: Q4_K
  kScaled8,   // codes -128...127, a scale for a block: Q8_0, Q5_0
  kAffine8,   // codes -128...127, scale and offset for a block: Q5_1
  kSuper8,    // as kSuper4, with codes -128...127: Q5_K
  kSixteen8,  // codes -128...127, a scale for 16 inputs as an integer, a unit for eight blocks:
              // Q6_K
};
constexpr std::size_t kBlockForms = 7;

// The weights of a panel are groups of blocks, one after the other:
//   kSuper4, kSuper8, kSixteen8 only: a unit of the scales for each output; not kSixteen8: a unit
//   of
//     the offsets for each output;
//   for each block of the group
//     codes. In 8 bits: byte 64 c + 4 j + k holds output j's code of input 4 c + k. In 4 bits: byte
//       64 c + 4 j + k holds output j's codes of the inputs 4 c + k, in its lower half, and
//       16 + 4 c + k, in its upper half;
//     a scale for each output, in kSixteen8 one for each output of the first 16 inputs, then of the
//       others;
//     not kScaled4, kScaled8, kSixteen8: an offset for each output.
// Units are IEEE 754 halves, little-endian. So are scales and offsets where there are no units;
// where there are, they are signed bytes to be multiplied by the unit.
struct BlockLayout {
  bool nibbles;         // codes in 4 bits
  bool offsets;         // there are some
  bool units;           // scales are integers
  std::size_t scales;   // of a block
  std::size_t group;    // blocks that share units
  int zero;             // what was added to a code to hold it
  std::size_t header;   // bytes of the units
  std::size_t codes;    // bytes of a block's codes
  std::size_t factors;  // bytes of a scale, or an offset, for each output

  constexpr std::size_t block_bytes() const { return codes + factors * (scales + offsets); }
  constexpr std::size_t group_bytes() const { return header + group * block_bytes(); }
};

constexpr BlockLayout layout_of(BlockForm form) {
  const bool nibbles = form <= BlockForm::kSuper4;
  const bool sixteen = form == BlockForm::kSixteen8;
  const bool offsets = form != BlockForm::kScaled4 && form != BlockForm::kScaled8 && !sixteen;
  const bool units = form == BlockForm::kSuper4 || form == BlockForm::kSuper8 || sixteen;
  constexpr std::size_t kHalves = 2 * kBlockPanel;
  return {nibbles,
          offsets,
          units,
          sixteen ? 2U : 1U,
          units ? 8U : 1U,
          form == BlockForm::kScaled4 ? 8 : 0,
          units ? kHalves * (1U + offsets) : 0U,
          kBlock * kBlockPanel / (nibbles ? 2 : 1),
          units ? kBlockPanel : kHalves};
}

struct BlockLinear {
  BlockForm form = BlockForm::kAffine4;
  std::size_t rows = 0;
  std::size_t blocks = 0;                 // of a row, a multiple of the form's group
  std::size_t outputs = 0;                // the last panel may have fewer than kBlockPanel
  const std::int8_t* levels = nullptr;    // [rows, blocks, kBlock], from -127 to 127
  const float* steps = nullptr;           // [rows, blocks]
  const float* sums = nullptr;            // [rows, blocks]: of each block's levels
  const float* halves = nullptr;          // kSixteen8: [rows, blocks, 2], of each 16 levels
  const std::uint8_t* weights = nullptr;  // [panels, blocks / group, group_bytes()]
  const float* units = nullptr;           // [outputs]: of scales and offsets
  float* result = nullptr;                // [rows, outputs]
};

// The blocks' levels, steps and sums of `count` blocks of x: level = round(x / step), to the even
// of two neighbours, with step = max |x| / 127, at least 1e-20; not a number where x is not finite.
void quantize_blocks(const float* x, std::size_t count, std::int8_t* levels, float* steps,
                     float* sums);

// The sums of each 16 of the levels of `count` blocks.
void sum_halves(const std::int8_t* levels, std::size_t count, float* halves);

// result = unit * total for the outputs of panels begin...end-1, where total starts at 0 and
// becomes, block after block (where there are two scales: for each after the other, over its 16
// inputs),
//   fma(step, fma(products, scale, offset * sum), total), or fma(step, products * scale, total)
// without offsets, with products = sum over i of code_i * level_i. Scales and offsets that are
// integers are multiplied by their unit first.
void multiply(const BlockLinear& linear, std::size_t begin, std::size_t end);

// An output's weights, unit * fma(code, scale, offset), of which `linear` has form, blocks, weights
// and units.
void read_weights(const BlockLinear& linear, std::size_t output, float* weights);

struct BlockKernel {
  const char* name;
  void (*multiply)(const BlockLinear& linear, std::size_t begin, std::size_t end);
};

// Those that this machine can run, the fastest first, the portable one last.
const std::vector<BlockKernel>& block_kernels();

}  // namespace omnidraft

#include "block_linear.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "block_linear_kernels.h"
#include "omnidraft/vectors.h"

namespace omnidraft {
namespace {

// Exact, as a float32 holds every half.
float half_at(const std::uint8_t* at) {
  const std::uint32_t half = at[0] | (static_cast<std::uint32_t>(at[1]) << 8);
  const std::uint32_t exponent = half >> 10 & 31;
  const std::uint32_t mantissa = half & 1023;
  float value = 0;
  if (exponent == 0) {
    value = static_cast<float>(mantissa) * 0x1p-24F;
  } else {
    const std::uint32_t bits = (exponent == 31 ? 255U : exponent + 112) << 23 | mantissa << 13;
    std::memcpy(&value, &bits, sizeof value);
  }
  return (half & 0x8000U) != 0 ? -value : value;
}

// Where a block of one panel lies.
struct Place {
  const std::uint8_t* header;
  const std::uint8_t* block;
};

template <BlockForm F>
Place place_of(const BlockLinear& linear, std::size_t panel, std::size_t b) {
  constexpr BlockLayout kLayout = layout_of(F);
  const std::uint8_t* const group =
      linear.weights +
      (panel * (linear.blocks / kLayout.group) + b / kLayout.group) * kLayout.group_bytes();
  return {group, group + kLayout.header + b % kLayout.group * kLayout.block_bytes()};
}

template <BlockForm F>
int code_at(const std::uint8_t* block, std::size_t j, std::size_t i) {
  constexpr std::size_t kHalf = kBlock / 2;
  if constexpr (layout_of(F).nibbles) {
    const int both = block[i % kHalf / 4 * 4 * kBlockPanel + j * 4 + i % 4];
    return (i < kHalf ? both & 15 : both >> 4) - layout_of(F).zero;
  } else {
    return static_cast<std::int8_t>(block[i / 4 * 4 * kBlockPanel + j * 4 + i % 4]);
  }
}

// Output j's scale, or offset: the `index`th factor of a block, in the `unit`th unit.
template <BlockForm F>
float factor_at(const Place& place, std::size_t j, std::size_t index, std::size_t unit) {
  constexpr BlockLayout kLayout = layout_of(F);
  const std::uint8_t* const factors = place.block + kLayout.codes + index * kLayout.factors;
  if constexpr (kLayout.units) {
    return half_at(place.header + 2 * (unit * kBlockPanel + j)) *
           static_cast<float>(static_cast<std::int8_t>(factors[j]));
  } else {
    return half_at(factors + 2 * j);
  }
}

// One row of one panel's block.
template <BlockForm F>
void add_block(const Place& place, const std::int8_t* levels, float step, float sum,
               float* totals) {
  constexpr BlockLayout kLayout = layout_of(F);
  constexpr std::size_t kPart = kBlock / kLayout.scales;
  for (std::size_t part = 0; part < kLayout.scales; ++part) {
    for (std::size_t j = 0; j < kBlockPanel; ++j) {
      std::int32_t products = 0;
      for (std::size_t i = part * kPart; i < (part + 1) * kPart; ++i) {
        products += code_at<F>(place.block, j, i) * levels[i];
      }
      const float scale = factor_at<F>(place, j, part, 0);
      float both = 0;
      if constexpr (kLayout.offsets) {
        both = std::fma(static_cast<float>(products), scale, factor_at<F>(place, j, 1, 1) * sum);
      } else {
        both = static_cast<float>(products) * scale;
      }
      totals[j] = std::fma(step, both, totals[j]);
    }
  }
}

template <BlockForm F>
struct MultiplyAnywhere {
  static void call(const BlockLinear& linear, std::size_t begin, std::size_t end) {
    for (std::size_t panel = begin; panel < end; ++panel) {
      const std::size_t output = panel * kBlockPanel;
      const std::size_t count = std::min(kBlockPanel, linear.outputs - output);
      for (std::size_t row = 0; row < linear.rows; ++row) {
        float totals[kBlockPanel] = {};
        for (std::size_t b = 0; b < linear.blocks; ++b) {
          const std::size_t i = row * linear.blocks + b;
          add_block<F>(place_of<F>(linear, panel, b), linear.levels + i * kBlock, linear.steps[i],
                       linear.sums[i], totals);
        }
        for (std::size_t j = 0; j < count; ++j) {
          linear.result[row * linear.outputs + output + j] = linear.units[output + j] * totals[j];
        }
      }
    }
  }
};

template <BlockForm F>
struct ReadWeights {
  static void call(const BlockLinear& linear, std::size_t output, float* weights) {
    constexpr BlockLayout kLayout = layout_of(F);
    const std::size_t j = output % kBlockPanel;
    for (std::size_t b = 0; b < linear.blocks; ++b) {
      const Place place = place_of<F>(linear, output / kBlockPanel, b);
      const float offset = kLayout.offsets ? factor_at<F>(place, j, 1, 1) : 0;
      for (std::size_t i = 0; i < kBlock; ++i) {
        const float scale = factor_at<F>(place, j, i * kLayout.scales / kBlock, 0);
        const auto code = static_cast<float>(code_at<F>(place.block, j, i));
        weights[b * kBlock + i] = linear.units[output] * std::fma(code, scale, offset);
      }
    }
  }
};

void multiply_anywhere(const BlockLinear& linear, std::size_t begin, std::size_t end) {
  for_form<MultiplyAnywhere>(linear, begin, end);
}

struct Largest {
  template <typename T>
  OMNIDRAFT_INLINE T operator()(T a, T b) const {
    return a > b ? a : b;
  }
};

struct Sum {
  template <typename T>
  OMNIDRAFT_INLINE T operator()(T a, T b) const {
    return a + b;
  }
};

// Of all lanes, half by half.
template <std::size_t W, typename Join>
OMNIDRAFT_INLINE float joined(const typename Vector<W>::Floats& floats, Join join) {
  if constexpr (W == 1) {
    return floats[0];
  } else {
    typename Vector<W / 2>::Floats halves[2];
    std::memcpy(halves, &floats, sizeof halves);
    return joined<W / 2>(join(halves[0], halves[1]), join);
  }
}

template <std::size_t W>
OMNIDRAFT_INLINE void quantize_blocks_with(const float* x, std::size_t count, std::int8_t* levels,
                                           float* steps, float* sums) {
  using Floats = typename Vector<W>::Floats;
  using Bytes __attribute__((vector_size(W))) = std::int8_t;
  constexpr std::size_t kParts = kBlock / W;
  for (std::size_t block = 0; block < count; ++block, x += kBlock, levels += kBlock) {
    Floats value[kParts];
    Floats largest{};
    Floats nothing{};  // 0, or not a number where a value is not finite
    for (std::size_t part = 0; part < kParts; ++part) {
      value[part] = load<W>(x + part * W);
      largest = Largest()(value[part] < 0.0F ? -value[part] : value[part], largest);
      nothing += value[part] * 0.0F;
    }
    const float step = joined<W>(largest, Largest()) * (1.0F / 127.0F);
    steps[block] = (step > 1e-20F ? step : 1e-20F) + joined<W>(nothing, Sum());
    Floats sum{};
    for (std::size_t part = 0; part < kParts; ++part) {
      const Floats shifted = value[part] / steps[block] + kRound;
      sum += shifted - kRound;
      typename Vector<W>::Bits bits;
      std::memcpy(&bits, &shifted, sizeof bits);
      const Bytes bytes = __builtin_convertvector(bits - kRoundBits, Bytes);
      std::memcpy(levels + part * W, &bytes, sizeof bytes);
    }
    sums[block] = joined<W>(sum, Sum());
  }
}

}  // namespace

OMNIDRAFT_DISPATCH(void, quantize_blocks,
                   (const float* x, std::size_t count, std::int8_t* levels, float* steps,
                    float* sums),
                   (x, count, levels, steps, sums), 16, 8, 4)

void sum_halves(const std::int8_t* levels, std::size_t count, float* halves) {
  constexpr std::size_t kHalf = kBlock / 2;
  for (std::size_t i = 0; i < 2 * count; ++i) {
    int sum = 0;
    for (std::size_t k = 0; k < kHalf; ++k) {
      sum += levels[i * kHalf + k];
    }
    halves[i] = static_cast<float>(sum);
  }
}

const std::vector<BlockKernel>& block_kernels() {
  static const std::vector<BlockKernel> kKernels = [] {
    std::vector<BlockKernel> kernels;
#if defined(__x86_64__)
    add_avx512(kernels);
    add_avx_vnni(kernels);
    add_avx2(kernels);
#elif defined(__aarch64__)
    add_arm(kernels);
#endif
    kernels.push_back({"portable", multiply_anywhere});
    return kernels;
  }();
  return kKernels;
}

void multiply(const BlockLinear& linear, std::size_t begin, std::size_t end) {
  static const auto kMultiply = block_kernels().front().multiply;
  kMultiply(linear, begin, end);
}

void read_weights(const BlockLinear& linear, std::size_t output, float* weights) {
  for_form<ReadWeights>(linear, output, weights);
}

}  // namespace omnidraft

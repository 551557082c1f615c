#include "quantize.h"

#include <limits>

#include "omnidraft/vectors.h"

namespace omnidraft {
namespace {

constexpr std::uint32_t kMiddle = 128;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <std::size_t W>
OMNIDRAFT_INLINE typename Vector<W>::Floats magnitude(const float* x) {
  const typename Vector<W>::Floats value = load<W>(x);
  return value < 0.0F ? -value : value;
}

template <std::size_t W>
OMNIDRAFT_INLINE void levels_of(const float* x, float step, std::uint8_t* levels) {
  using Bytes __attribute__((vector_size(W))) = std::uint8_t;
  const typename Vector<W>::Floats value = load<W>(x) / step + kRound;
  typename Vector<W>::Bits bits;
  std::memcpy(&bits, &value, sizeof bits);
  const Bytes bytes = __builtin_convertvector(bits - (kRoundBits - kMiddle), Bytes);
  std::memcpy(levels, &bytes, sizeof bytes);
}

template <std::size_t W>
OMNIDRAFT_INLINE void quantize_rows_with(const float* x, std::size_t rows, std::size_t width,
                                         std::uint8_t* levels, float* steps) {
  using Floats = typename Vector<W>::Floats;
  for (std::size_t row = 0; row < rows; ++row, x += width, levels += width) {
    Floats best{};
    typename Vector<W>::Signs bad{};
    std::size_t i = 0;
    for (; i + W <= width; i += W) {
      const Floats value = magnitude<W>(x + i);
      best = value > best ? value : best;
      bad |= value != value;
    }
    bool numbers = true;
    float largest = 0;
    for (std::size_t lane = 0; lane < W; ++lane) {
      numbers = numbers && bad[lane] == 0;
      largest = best[lane] > largest ? best[lane] : largest;
    }
    for (; i < width; ++i) {
      const float value = x[i] < 0 ? -x[i] : x[i];
      numbers = numbers && value == value;
      largest = value > largest ? value : largest;
    }
    const float step = largest * (1.0F / 127.0F);
    // What is not a number must not become one.
    steps[row] = !numbers ? kNaN : step > 1e-20F ? step : 1e-20F;
    for (i = 0; i + W <= width; i += W) {
      levels_of<W>(x + i, steps[row], levels + i);
    }
    for (; i < width; ++i) {
      levels_of<1>(x + i, steps[row], levels + i);
    }
  }
}

}  // namespace

OMNIDRAFT_DISPATCH(void, quantize_rows,
                   (const float* x, std::size_t rows, std::size_t width, std::uint8_t* levels,
                    float* steps),
                   (x, rows, width, levels, steps), 16, 8, 4)

}  // namespace omnidraft

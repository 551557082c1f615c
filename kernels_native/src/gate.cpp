#include "gate.h"

#include "omnidraft/vectors.h"

namespace omnidraft {
namespace {

constexpr float kLog2E = 1.44269504088896340736F;

template <std::size_t W, Activation A>
OMNIDRAFT_INLINE typename Vector<W>::Floats activated(typename Vector<W>::Floats x) {
  using Floats = typename Vector<W>::Floats;
  Floats u = x;
  if constexpr (A == Activation::kGelu) {
    u = x * 1.59576912F * (1.0F + 0.044715F * x * x);
  }
  // 1 / (1 + exp(-u)), by the exponential of what is not above 0.
  const Floats e = exp2_of<W, true>((u < 0.0F ? u : -u) * kLog2E);
  const Floats one = Floats{} + 1.0F;
  return x * (u < 0.0F ? e : one) / (1.0F + e);
}

template <std::size_t W, Activation A>
OMNIDRAFT_INLINE void gate_row(const float* joined, std::size_t width, float* result) {
  std::size_t i = 0;
  for (; i + W <= width; i += W) {
    store<W>(activated<W, A>(load<W>(joined + i)) * load<W>(joined + width + i), result + i);
  }
  if (i < width) {
    float gates[W] = {};
    float values[W];
    for (std::size_t k = 0; k < width - i; ++k) {
      gates[k] = joined[i + k];
    }
    store<W>(activated<W, A>(load<W>(gates)), values);
    for (std::size_t k = 0; k < width - i; ++k) {
      result[i + k] = values[k] * joined[width + i + k];
    }
  }
}

template <std::size_t W>
OMNIDRAFT_INLINE void gate_with(Activation activation, const float* joined, std::size_t rows,
                                std::size_t width, float* result) {
  for (std::size_t row = 0; row < rows; ++row, joined += 2 * width, result += width) {
    if (activation == Activation::kSilu) {
      gate_row<W, Activation::kSilu>(joined, width, result);
    } else {
      gate_row<W, Activation::kGelu>(joined, width, result);
    }
  }
}

}  // namespace

OMNIDRAFT_DISPATCH(void, gate,
                   (Activation activation, const float* joined, std::size_t rows, std::size_t width,
                    float* result),
                   (activation, joined, rows, width, result), 16, 8, 4)

}  // namespace omnidraft

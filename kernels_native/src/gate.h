// The gate of a feed-forward network: activation(gate) * up.
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnidraft {

enum class Activation : std::uint8_t {
  kSilu,  // x / (1 + exp(-x))
  kGelu,  // x / (1 + exp(-2 u)), u = sqrt(2 / pi) (x + 0.044715 x^3): its form with a tangent
};
constexpr std::size_t kActivations = 2;

// result[r][i] = activation(joined[r][i]) * joined[r][width + i], for i below `width`. A row's
// numbers do not depend on how many rows there are. They are the same bits on every processor that
// fuses multiplications and additions: 64-bit Arm, and x86 with AVX2 and FMA, but not older x86.
void gate(Activation activation, const float* joined, std::size_t rows, std::size_t width,
          float* result);

}  // namespace omnidraft

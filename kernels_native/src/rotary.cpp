#include "rotary.h"

#include <cmath>

namespace omnidraft {

void prepare_head(const AttentionShape& shape, const AttentionTensors& tensors, const float* input,
                  const float* norm, std::size_t row, float* output) {
  const std::size_t half = shape.head_size / 2;
  const auto position = static_cast<std::size_t>(tensors.positions[row]);
  const float* cosines = tensors.cosines + position * half;
  const float* sines = tensors.sines + position * half;
  if (norm != nullptr) {
    double squares = 0;
    for (std::size_t i = 0; i < shape.head_size; ++i) {
      squares += static_cast<double>(input[i]) * static_cast<double>(input[i]);
    }
    const auto mean = static_cast<float>(squares / static_cast<double>(shape.head_size));
    const float factor = 1.0F / std::sqrt(mean + shape.norm_epsilon);
    for (std::size_t i = 0; i < shape.head_size; ++i) {
      output[i] = input[i] * factor * norm[i];
    }
    input = output;
  }
  for (std::size_t i = 0; i < half; ++i) {
    const float first = input[i];
    const float second = input[half + i];
    output[i] = first * cosines[i] - second * sines[i];
    output[half + i] = second * cosines[i] + first * sines[i];
  }
}

}  // namespace omnidraft

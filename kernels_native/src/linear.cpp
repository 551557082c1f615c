#include "linear.h"

#include "linear_kernels.h"

namespace omnidraft {
namespace {

void multiply_anywhere(const IntegerLinear& linear, std::size_t begin, std::size_t end) {
  for (std::size_t panel = begin; panel < end; ++panel) {
    const std::int8_t* weights = linear.weights + panel * linear.width * kPanel;
    for (std::size_t row = 0; row < linear.rows; ++row) {
      const std::uint8_t* levels = linear.levels + row * linear.width;
      std::int32_t products[kPanel] = {};
      for (std::size_t i = 0; i < linear.width; ++i) {
        const std::int8_t* group = weights + i / kGroup * kPanel * kGroup + i % kGroup;
        for (std::size_t j = 0; j < kPanel; ++j) {
          products[j] += levels[i] * group[j * kGroup];
        }
      }
      finish(linear, row, panel * kPanel, kPanel, products, 128);
    }
  }
}

}  // namespace

const std::vector<IntegerKernel>& integer_kernels() {
  static const std::vector<IntegerKernel> kKernels = [] {
    std::vector<IntegerKernel> kernels;
#if defined(__x86_64__) || defined(__aarch64__)
    add_fast_kernels(kernels);
#endif
    kernels.push_back({"portable", multiply_anywhere});
    return kernels;
  }();
  return kKernels;
}

void multiply(const IntegerLinear& linear, std::size_t begin, std::size_t end) {
  static const auto kMultiply = integer_kernels().front().multiply;
  kMultiply(linear, begin, end);
}

}  // namespace omnidraft

#include "linear.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace omnidraft {
namespace {

constexpr std::size_t kGroup = 4;  // inputs that one instruction multiplies and adds

void finish(const IntegerLinear& linear, std::size_t row, std::size_t output,
            const std::int32_t* products) {
  float* result = linear.result + row * linear.outputs + output;
  for (std::size_t i = 0; i < kPanel; ++i) {
    const std::int32_t exact = products[i] - 128 * linear.sums[output + i];
    result[i] = static_cast<float>(exact) * linear.scales[output + i] * linear.steps[row];
  }
}

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
      finish(linear, row, panel * kPanel, products);
    }
  }
}

#if defined(__x86_64__)

#define OMNIDRAFT_VNNI __attribute__((target("avx512f,avx512vnni")))

const bool kVnni =
    __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512vnni") != 0;

// Weights come from far away, and the hardware's own prefetching ends with each page.
constexpr std::size_t kAhead = 4096;

// P panels of up to R rows; where there are fewer, the last is computed several times.
template <std::size_t R, std::size_t P>
OMNIDRAFT_VNNI void multiply_block(const IntegerLinear& linear, std::size_t panel, std::size_t row,
                                   std::size_t count) {
  const std::int8_t* weights = linear.weights + panel * linear.width * kPanel;
  const std::uint8_t* levels[R];
  __m512i products[R][P];
  for (std::size_t r = 0; r < R; ++r) {
    levels[r] = linear.levels + (row + std::min(r, count - 1)) * linear.width;
    for (std::size_t p = 0; p < P; ++p) {
      products[r][p] = _mm512_setzero_si512();
    }
  }
  for (std::size_t i = 0; i < linear.width; i += kGroup) {
    __m512i group[P];
    for (std::size_t p = 0; p < P; ++p) {
      const std::int8_t* at = weights + p * linear.width * kPanel + i * kPanel;
      group[p] = _mm512_loadu_si512(at);
      const auto ahead = reinterpret_cast<std::uintptr_t>(at) + kAhead;
      _mm_prefetch(reinterpret_cast<const char*>(ahead), _MM_HINT_T0);
    }
    for (std::size_t r = 0; r < R; ++r) {
      int four = 0;
      std::memcpy(&four, levels[r] + i, sizeof four);
      for (std::size_t p = 0; p < P; ++p) {
        products[r][p] = _mm512_dpbusd_epi32(products[r][p], _mm512_set1_epi32(four), group[p]);
      }
    }
  }
  for (std::size_t r = 0; r < count; ++r) {
    for (std::size_t p = 0; p < P; ++p) {
      alignas(64) std::int32_t stored[kPanel];
      _mm512_store_si512(stored, products[r][p]);
      finish(linear, row + r, (panel + p) * kPanel, stored);
    }
  }
}

template <std::size_t P>
OMNIDRAFT_VNNI void multiply_panels(const IntegerLinear& linear, std::size_t panel) {
  constexpr std::size_t kRows = 8;
  for (std::size_t row = 0; row < linear.rows; row += kRows) {
    const std::size_t count = std::min(kRows, linear.rows - row);
    if (count == 1) {
      multiply_block<1, P>(linear, panel, row, count);
    } else if (count == 2) {
      multiply_block<2, P>(linear, panel, row, count);
    } else if (count <= 5) {
      multiply_block<5, P>(linear, panel, row, count);
    } else {
      multiply_block<kRows, P>(linear, panel, row, count);
    }
  }
}

#endif

}  // namespace

bool has_fast_integers() {
#if defined(__x86_64__)
  return kVnni;
#else
  return false;
#endif
}

void multiply(const IntegerLinear& linear, std::size_t begin, std::size_t end) {
#if defined(__x86_64__)
  if (kVnni) {
    std::size_t panel = begin;
    for (; panel + 2 <= end; panel += 2) {
      multiply_panels<2>(linear, panel);
    }
    for (; panel < end; ++panel) {
      multiply_panels<1>(linear, panel);
    }
    return;
  }
#endif
  multiply_anywhere(linear, begin, end);
}

}  // namespace omnidraft

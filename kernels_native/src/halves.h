// Numbers in 16 bits: IEEE 754 halves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace omnidraft {

// The nearest halves, to the even of two; finite numbers beyond the largest half become that half.
// The same bits on every machine, except in what is not a number.
void narrow(const float* from, std::size_t count, std::uint16_t* to);

// Exact. `rows` rows of `width` halves, `stride` apart, one after the other. What lies `ahead`
// halves behind them is fetched from memory, to be widened next.
void widen(const std::uint16_t* from, std::size_t rows, std::size_t width, std::size_t stride,
           float* to, std::size_t ahead = 0);

struct HalfKernel {
  void (*narrow)(const float* from, std::size_t count, std::uint16_t* to);
  void (*widen)(const std::uint16_t* from, std::size_t rows, std::size_t width, std::size_t stride,
                float* to, std::size_t ahead);
};

// Those that this machine can run, the fastest first, the portable one last.
const std::vector<HalfKernel>& half_kernels();

}  // namespace omnidraft

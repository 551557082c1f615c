// Rows as 8-bit levels with a scale each, so that a row's levels depend on that row alone.
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnidraft {

// levels = 128 + round(x / step), to the even of two neighbours, with step = max |x| / 127, at
// least 1e-20, for each of `rows` rows of `width` values. The same bits on every processor.
void quantize_rows(const float* x, std::size_t rows, std::size_t width, std::uint8_t* levels,
                   float* steps);

}  // namespace omnidraft

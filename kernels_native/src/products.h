// Sums of products of a few rows with a matrix, whose rows are loaded once for all of them.
#pragma once

#include <cstddef>

#include "omnidraft/vectors.h"

namespace omnidraft {

// Rows that share what is loaded, and the vectors of columns that are summed at once: as many sums
// as registers hold.
template <std::size_t W>
constexpr std::size_t kSharedRows = W == 16 ? 4 : 2;
constexpr std::size_t kColumnVectors = 4;

// V * W columns of `add_products`, from `column` on.
template <std::size_t W, std::size_t R, std::size_t V>
OMNIDRAFT_INLINE void add_columns(const float* const (&left)[R], std::size_t width,
                                  const float* right, std::size_t stride, std::size_t column,
                                  float* const (&result)[R]) {
  using Floats = typename Vector<W>::Floats;
  Floats sums[R][V];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (std::size_t v = 0; v < V; ++v) {
      sums[r][v] = load<W>(result[r] + column + v * W);
    }
  }
  for (std::size_t i = 0; i < width; ++i) {
    Floats value[V];
#pragma GCC unroll 16
    for (std::size_t v = 0; v < V; ++v) {
      value[v] = load<W>(right + i * stride + column + v * W);
    }
#pragma GCC unroll 16
    for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (std::size_t v = 0; v < V; ++v) {
        sums[r][v] += value[v] * left[r][i];
      }
    }
  }
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (std::size_t v = 0; v < V; ++v) {
      store<W>(sums[r][v], result[r] + column + v * W);
    }
  }
}

// result[r][c] += sum over i below `width` of left[r][i] * right[i * stride + c], for `columns`
// columns of R rows, which may be the same row several times. A row's sums do not depend on R.
template <std::size_t W, std::size_t R>
OMNIDRAFT_INLINE void add_products(const float* const (&left)[R], std::size_t width,
                                   const float* right, std::size_t stride, std::size_t columns,
                                   float* const (&result)[R], std::size_t column = 0) {
  constexpr std::size_t kColumns = kColumnVectors * W;
  for (; column + kColumns <= columns; column += kColumns) {
    add_columns<W, R, kColumnVectors>(left, width, right, stride, column, result);
  }
  for (; column + W <= columns; column += W) {
    add_columns<W, R, 1>(left, width, right, stride, column, result);
  }
  if constexpr (W > 1) {
    add_products<W / 2, R>(left, width, right, stride, columns, result, column);
  }
}

}  // namespace omnidraft

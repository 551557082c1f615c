// The loops of a kernel for 8-bit weights. Included once for each set of instructions, in a
// namespace of its own, after these definitions:
//   OMNIDRAFT_TARGET  attributes of functions that may use the instructions
//   kLanes, kVectors  outputs that a vector holds, vectors whose levels are loaded once
//   kMostRows, kMostRowsAlone  rows that share the weights of kVectors vectors, or of one
//   kZero             what is added to a level - 128 before it is multiplied
//   Weights, Levels, Products
//   zero_products(), load_weights(at), load_levels(four levels)
//   dot(products, weights, levels): adds the products of each output's four weights with the levels
//   store_products(products, to)
// No include guard: this is no interface.

// R rows from `row` on, of V vectors of outputs from output `first` on.
template <std::size_t R, std::size_t V>
OMNIDRAFT_TARGET void multiply_rows(const IntegerLinear& linear, std::size_t first,
                                    std::size_t row) {
  const std::int8_t* weights[V];
  for (std::size_t v = 0; v < V; ++v) {
    const std::size_t output = first + v * kLanes;
    weights[v] =
        linear.weights + output / kPanel * kPanel * linear.width + output % kPanel * kGroup;
  }
  const std::uint8_t* levels = linear.levels + row * linear.width;
  Products products[R][V];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (std::size_t v = 0; v < V; ++v) {
      products[r][v] = zero_products();
    }
  }
  for (std::size_t i = 0; i < linear.width; i += kGroup) {
    Weights group[V];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < V; ++v) {
      const std::int8_t* at = weights[v] + i * kPanel;
      group[v] = load_weights(at);
      prefetch(at);
    }
#pragma GCC unroll 16
    for (std::size_t r = 0; r < R; ++r) {
      const Levels four = load_levels(levels + r * linear.width + i);
#pragma GCC unroll 4
      for (std::size_t v = 0; v < V; ++v) {
        products[r][v] = dot(products[r][v], group[v], four);
      }
    }
  }
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (std::size_t v = 0; v < V; ++v) {
      alignas(64) std::int32_t stored[kLanes];
      store_products(products[r][v], stored);
      finish(linear, row + r, first + v * kLanes, kLanes, stored, kZero);
    }
  }
}

// Up to R rows from `row` on.
template <std::size_t R, std::size_t V>
OMNIDRAFT_TARGET void multiply_few(const IntegerLinear& linear, std::size_t first, std::size_t row,
                                   std::size_t count) {
  if (count == R) {
    multiply_rows<R, V>(linear, first, row);
  } else if constexpr (R > 1) {
    multiply_few<R - 1, V>(linear, first, row, count);
  }
}

template <std::size_t V, std::size_t R>
OMNIDRAFT_TARGET void multiply_vectors(const IntegerLinear& linear, std::size_t first) {
  // Shared out evenly: a lone row costs nearly what several do.
  const std::size_t parts = (linear.rows + R - 1) / R;
  const std::size_t part = (linear.rows + parts - 1) / (parts == 0 ? 1 : parts);
  for (std::size_t row = 0; row < linear.rows; row += part) {
    const std::size_t count = linear.rows - row < part ? linear.rows - row : part;
    multiply_few<R, V>(linear, first, row, count);
  }
}

OMNIDRAFT_TARGET void multiply_panels(const IntegerLinear& linear, std::size_t begin,
                                      std::size_t end) {
  constexpr std::size_t kTogether = kLanes * kVectors;
  std::size_t output = begin * kPanel;
  // Where one pass through the weights does for all rows, that is worth more than loading levels
  // once for several vectors.
  const bool alone = linear.rows > kMostRows && linear.rows <= kMostRowsAlone;
  for (; !alone && output + kTogether <= end * kPanel; output += kTogether) {
    multiply_vectors<kVectors, kMostRows>(linear, output);
  }
  for (; output < end * kPanel; output += kLanes) {
    multiply_vectors<1, kMostRowsAlone>(linear, output);
  }
}

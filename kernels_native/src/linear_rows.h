// The loops of a kernel for 8-bit weights, whose products are sums of four. Included once for each
// set of instructions, in a namespace of its own, after what linear_panels.h asks for and these
// definitions:
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

#include "linear_panels.h"

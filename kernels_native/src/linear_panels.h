// How a kernel for 8-bit weights goes through rows and outputs. Included once for each set of
// instructions, in a namespace of its own, after these definitions:
//   OMNIDRAFT_TARGET  attributes of functions that may use the instructions
//   kLanes, kVectors  outputs that a vector holds, vectors whose levels are loaded once
//   kMostRows, kMostRowsAlone  rows that share the weights of kVectors vectors, or of one
//   multiply_rows<R, V>(linear, first, row): R rows from `row` on, of V vectors of outputs from
//     output `first` on
// No include guard: this is no interface.

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

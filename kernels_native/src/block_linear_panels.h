// The loops of a kernel for weights in blocks, around its sums of products. Included once for each
// set of instructions, in a namespace of its own, after these definitions:
//   OMNIDRAFT_TARGET  attributes of functions that may use the instructions
//   kLanes, kMostRows outputs that a vector holds, rows that share what is unpacked
//   Floats, Products
//   kSums<R>, kStep<R>: the vectors of products that R rows need, the chunks of codes that are
//     multiplied at once
//   zero_floats(), zero_products()
//   add_products<F, R>(codes, levels, width, c, products): adds the products of kStep<R> chunks of
//     codes, from chunk c on, of a vector of outputs to those of R rows, whose levels lie `width`
//     apart
//   row_of<F, R>(products, r): a row's sums as floats
//   kByteZero: what was added to signed codes of 8 bits
//   floats_of_halves(bytes), floats_of_integers(signed bytes), floats_at(values), all_floats(value)
//   multiply_floats(a, b), fused(a, b, c), store_floats(floats, to)
// No include guard: this is no interface.

constexpr std::size_t kVectors = kBlockPanel / kLanes;

// The factors of a vector of outputs, in their unit.
template <BlockForm F>
OMNIDRAFT_TARGET inline Floats factors_of(const std::uint8_t* factors, const std::uint8_t* units,
                                          std::size_t v) {
  if constexpr (layout_of(F).units) {
    return multiply_floats(floats_of_halves(units + v * kLanes * 2),
                           floats_of_integers(factors + v * kLanes));
  } else {
    return floats_of_halves(factors + v * kLanes * 2);
  }
}

// Writes the results of R rows from `row` on for a panel's outputs.
template <BlockForm F, std::size_t R>
OMNIDRAFT_TARGET void multiply_rows(const BlockLinear& linear, std::size_t panel, std::size_t row) {
  constexpr BlockLayout kLayout = layout_of(F);
  constexpr std::size_t kChunk = kBlockPanel * 4;
  constexpr std::size_t kParts = kLayout.scales;
  constexpr std::size_t kChunks = kLayout.codes / kChunk / kParts;
  constexpr int kZero = kLayout.nibbles ? kLayout.zero : kByteZero;
  const std::size_t width = linear.blocks * kBlock;
  const std::uint8_t* block =
      linear.weights + panel * (linear.blocks / kLayout.group) * kLayout.group_bytes();
  const std::uint8_t* header = block;
  const std::int8_t* levels = linear.levels + row * width;
  const float* steps = linear.steps + row * linear.blocks;
  const float* sums = linear.sums + row * linear.blocks;
  // Of the levels that share a scale.
  const float* parts = kParts == 1 ? sums : linear.halves + row * linear.blocks * kParts;
  Floats totals[R][kVectors];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
      totals[r][v] = zero_floats();
    }
  }
  for (std::size_t b = 0; b < linear.blocks; ++b) {
    if (kLayout.header != 0 && b % kLayout.group == 0) {
      header = block;
      block += kLayout.header;
    }
    // Weights come from far away, and the hardware's own prefetching ends with each page.
    for (std::size_t line = 0; line < kLayout.block_bytes(); line += 64) {
      prefetch(block + line);
    }
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
#pragma GCC unroll 2
      for (std::size_t part = 0; part < kParts; ++part) {
        Products products[kSums<R>];
#pragma GCC unroll 16
        for (std::size_t i = 0; i < kSums<R>; ++i) {
          products[i] = zero_products();
        }
#pragma GCC unroll 8
        for (std::size_t c = part * kChunks; c < (part + 1) * kChunks; c += kStep<R>) {
          add_products<F, R>(block + c * kChunk + v * kLanes * 4, levels + b * kBlock, width, c,
                             products);
        }
        const std::uint8_t* factors = block + kLayout.codes + part * kLayout.factors;
        const Floats scales = factors_of<F>(factors, header, v);
        Floats offsets = zero_floats();
        if constexpr (kLayout.offsets) {
          offsets = factors_of<F>(factors + kLayout.factors, header + 2 * kBlockPanel, v);
        }
#pragma GCC unroll 16
        for (std::size_t r = 0; r < R; ++r) {
          const std::size_t i = r * linear.blocks + b;
          Floats both = row_of<F, R>(products, r);
          if constexpr (kZero != 0) {  // exact: integers below 2^24
            both = fused(all_floats(-static_cast<float>(kZero)),
                         all_floats(parts[i * kParts + part]), both);
          }
          if constexpr (kLayout.offsets) {
            both = fused(both, scales, multiply_floats(offsets, all_floats(sums[i])));
          } else {
            both = multiply_floats(both, scales);
          }
          totals[r][v] = fused(all_floats(steps[i]), both, totals[r][v]);
        }
      }
    }
    block += kLayout.block_bytes();
  }
  const std::size_t output = panel * kBlockPanel;
  const bool whole = output + kBlockPanel <= linear.outputs;
  alignas(64) float units[kBlockPanel] = {};
  const std::size_t count = whole ? kBlockPanel : linear.outputs - output;
  for (std::size_t i = 0; i < count; ++i) {
    units[i] = linear.units[output + i];
  }
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; ++r) {
    float* result = linear.result + (row + r) * linear.outputs + output;
    alignas(64) float values[kBlockPanel];
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
      store_floats(multiply_floats(floats_at(units + v * kLanes), totals[r][v]),
                   (whole ? result : values) + v * kLanes);
    }
    if (!whole) {
      for (std::size_t i = 0; i < count; ++i) {
        result[i] = values[i];
      }
    }
  }
}

// Up to R rows from `row` on.
template <BlockForm F, std::size_t R>
OMNIDRAFT_TARGET void multiply_few(const BlockLinear& linear, std::size_t panel, std::size_t row,
                                   std::size_t count) {
  if (count == R) {
    multiply_rows<F, R>(linear, panel, row);
  } else if constexpr (R > 1) {
    multiply_few<F, R - 1>(linear, panel, row, count);
  }
}

template <BlockForm F>
struct MultiplyPanels {
  OMNIDRAFT_TARGET static void call(const BlockLinear& linear, std::size_t begin, std::size_t end) {
    // So many rows' levels stay in a cache while the panels pass by.
    constexpr std::size_t kNear = 60;
    for (std::size_t first = 0; first < linear.rows; first += kNear) {
      const std::size_t rows = linear.rows - first < kNear ? linear.rows - first : kNear;
      // Shared out evenly: a lone row costs nearly what several do.
      const std::size_t parts = (rows + kMostRows - 1) / kMostRows;
      const std::size_t part = (rows + parts - 1) / parts;
      for (std::size_t panel = begin; panel < end; ++panel) {
        for (std::size_t row = 0; row < rows; row += part) {
          const std::size_t count = rows - row < part ? rows - row : part;
          multiply_few<F, kMostRows>(linear, panel, first + row, count);
        }
      }
    }
  }
};

void multiply_panels(const BlockLinear& linear, std::size_t begin, std::size_t end) {
  for_form<MultiplyPanels>(linear, begin, end);
}

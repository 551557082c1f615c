// The loops of a kernel for 4-bit weights. Included once for each set of instructions, in a
// namespace of its own, after these definitions:
//   OMNIDRAFT_TARGET  attributes of functions that may use the instructions
//   kLanes, kMostRows outputs that a vector holds, rows that share what is unpacked
//   Floats, Codes, Products
//   zero_floats(), zero_products()
//   load_codes(bytes), lower(codes), upper(codes)
//   dot(products, codes, levels): adds the products of each output's four codes with four levels
//   floats_of(products), floats_of_halves(bytes), floats_at(values), all_floats(value)
//   multiply_floats(a, b), fused(a, b, c), store_floats(floats, to)
// No include guard: this is no interface.

constexpr std::size_t kVectors = kBlockPanel / kLanes;

// Writes the results of R rows from `row` on for a panel's outputs.
template <std::size_t R>
OMNIDRAFT_TARGET void multiply_rows(const BlockLinear& linear, std::size_t panel, std::size_t row) {
  constexpr std::size_t kChunk = kBlockPanel * 4;
  const std::size_t width = linear.blocks * kBlock;
  const std::uint8_t* block = linear.weights + panel * linear.blocks * kBlockBytes;
  const std::int8_t* levels = linear.levels + row * width;
  const float* steps = linear.steps + row * linear.blocks;
  const float* sums = linear.sums + row * linear.blocks;
  Floats totals[R][kVectors];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
      totals[r][v] = zero_floats();
    }
  }
  for (std::size_t b = 0; b < linear.blocks; ++b) {
    // Weights come from far away, and the hardware's own prefetching ends with each page.
    for (std::size_t line = 0; line < kBlockBytes; line += 64) {
      prefetch(block + line);
    }
#pragma GCC unroll 4
    for (std::size_t v = 0; v < kVectors; ++v) {
      Products products[R];
#pragma GCC unroll 16
      for (std::size_t r = 0; r < R; ++r) {
        products[r] = zero_products();
      }
#pragma GCC unroll 4
      for (std::size_t c = 0; c < 4; ++c) {
        const Codes codes = load_codes(block + c * kChunk + v * kLanes * 4);
        const Codes first = lower(codes);
        const Codes second = upper(codes);
#pragma GCC unroll 16
        for (std::size_t r = 0; r < R; ++r) {
          const std::int8_t* at = levels + r * width + b * kBlock + c * 4;
          products[r] = dot(products[r], first, at);
          products[r] = dot(products[r], second, at + kBlock / 2);
        }
      }
      const Floats scales = floats_of_halves(block + kCodeBytes + v * kLanes * 2);
      const Floats offsets = floats_of_halves(block + kCodeBytes + kHalvesBytes + v * kLanes * 2);
#pragma GCC unroll 16
      for (std::size_t r = 0; r < R; ++r) {
        const Floats shift = multiply_floats(offsets, all_floats(sums[r * linear.blocks + b]));
        const Floats both = fused(floats_of(products[r]), scales, shift);
        totals[r][v] = fused(all_floats(steps[r * linear.blocks + b]), both, totals[r][v]);
      }
    }
    block += kBlockBytes;
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
template <std::size_t R>
OMNIDRAFT_TARGET void multiply_few(const BlockLinear& linear, std::size_t panel, std::size_t row,
                                   std::size_t count) {
  if (count == R) {
    multiply_rows<R>(linear, panel, row);
  } else if constexpr (R > 1) {
    multiply_few<R - 1>(linear, panel, row, count);
  }
}

OMNIDRAFT_TARGET void multiply_panels(const BlockLinear& linear, std::size_t begin,
                                      std::size_t end) {
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
        multiply_few<kMostRows>(linear, panel, first + row, count);
      }
    }
  }
}

// Sums of products by an instruction that multiplies four codes with four levels and adds them.
// Included in the namespace of a set of instructions, after these definitions:
//   OMNIDRAFT_TARGET  attributes of functions that may use the instructions
//   Floats, Codes, Products
//   load_codes(bytes), lower(codes), upper(codes)
//   dot(products, codes, levels): adds the products of each output's four codes with four levels
//   floats_of(products)
// and for codes of 8 bits
//   held(codes), which adds kByteZero to signed codes
//   dot_bytes(products, held codes, levels), floats_of_bytes(products): as dot and floats_of
// No include guard: this is no interface.

template <std::size_t R>
constexpr std::size_t kSums = R;
template <std::size_t R>
constexpr std::size_t kStep = 1;

template <BlockForm F, std::size_t R>
OMNIDRAFT_TARGET inline void add_products(const std::uint8_t* codes, const std::int8_t* levels,
                                          std::size_t width, std::size_t c,
                                          Products (&products)[R]) {
  if constexpr (layout_of(F).nibbles) {
    const Codes first = lower(load_codes(codes));
    const Codes second = upper(load_codes(codes));
#pragma GCC unroll 16
    for (std::size_t r = 0; r < R; ++r) {
      const std::int8_t* at = levels + r * width + c * 4;
      products[r] = dot(products[r], first, at);
      products[r] = dot(products[r], second, at + kBlock / 2);
    }
  } else {
    const Codes all = held(load_codes(codes));
#pragma GCC unroll 16
    for (std::size_t r = 0; r < R; ++r) {
      products[r] = dot_bytes(products[r], all, levels + r * width + c * 4);
    }
  }
}

template <BlockForm F, std::size_t R>
OMNIDRAFT_TARGET inline Floats row_of(const Products (&products)[R], std::size_t r) {
  return layout_of(F).nibbles ? floats_of(products[r]) : floats_of_bytes(products[r]);
}

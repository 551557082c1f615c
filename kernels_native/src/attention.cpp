#include "attention.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "halves.h"
#include "omnidraft/vectors.h"
#include "products.h"
#include "rotary.h"

namespace omnidraft {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896340736F;

struct Path {
  const std::int64_t* slots = nullptr;
  std::size_t count = 0;
};

Path path_of(const AttentionShape& shape, const AttentionTensors& tensors, std::size_t row) {
  Path path;
  path.slots = tensors.paths + row * shape.depth;
  while (path.count < shape.depth && path.slots[path.count] >= 0) {
    ++path.count;
  }
  return path;
}

// Where a row's key and values lie.
std::size_t slot_of(const AttentionTensors& tensors, std::size_t row, const Path& path) {
  return static_cast<std::size_t>(path.count == 0 ? tensors.positions[row]
                                                  : path.slots[path.count - 1]);
}

struct Row {
  const float* query = nullptr;
  float* output = nullptr;
  float* scores = nullptr;  // from the first tile on, by slot; then the weights, by position
  std::size_t first = 0;    // the positions it sees
  std::size_t last = 0;
  std::size_t chain = 0;      // positions below this one lie in slots of the same number,
  Path path;                  // the others in these,
  std::size_t last_slot = 0;  // of which none is beyond this one

  std::size_t first_tile() const { return first / kKeyTile; }
  std::size_t last_tile() const { return last_slot / kKeyTile; }
  std::size_t tiles() const { return last_tile() + 1 - first_tile(); }
  bool sees(std::size_t tile) const { return tile >= first_tile() && tile <= last_tile(); }
  bool sees_chain(std::size_t tile) const {
    return tile >= first_tile() && tile * kKeyTile < chain;
  }
  float* tile_scores(std::size_t tile) const { return scores + (tile - first_tile()) * kKeyTile; }
  float* at(std::size_t position) const { return scores + (position - first_tile() * kKeyTile); }
};

// Of how many rows from the first on something is true, up to kSharedRows<W>.
template <std::size_t W, typename Condition>
OMNIDRAFT_INLINE std::size_t together(const Row* rows, std::size_t count,
                                      const Condition& condition) {
  std::size_t found = 0;
  while (found < std::min(count, kSharedRows<W>) && condition(rows[found])) {
    ++found;
  }
  return found;
}

// Moves the scores of a path's slots to its positions. No slot lies before its position, and both
// ascend, so none is overwritten before it has moved.
OMNIDRAFT_INLINE void order_path(const Row& row) {
  for (std::size_t i = 0; i < row.path.count; ++i) {
    if (row.chain + i >= row.first) {
      *row.at(row.chain + i) = *row.at(static_cast<std::size_t>(row.path.slots[i]));
    }
  }
}

// Calls function(rows) with their number as a constant, for 1...R rows.
template <std::size_t R, typename Function>
OMNIDRAFT_INLINE void with_count(std::size_t count, const Function& function) {
  if (count == R) {
    function(std::integral_constant<std::size_t, R>());
  } else if constexpr (R > 1) {
    with_count<R - 1>(count, function);
  }
}

// The scores of R rows in a tile. The sums of a row do not depend on R.
template <std::size_t W, std::size_t R>
OMNIDRAFT_INLINE void score(const Row* rows, std::size_t tile, const float* keys,
                            std::size_t head_size) {
  using Floats = typename Vector<W>::Floats;
  constexpr std::size_t kVectors = kKeyTile / W;
  const float* queries[R];
  Floats sums[R][kVectors];
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; ++r) {
    queries[r] = rows[r].query;
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = Floats{};
    }
  }
  for (std::size_t d = 0; d < head_size; ++d) {
    Floats column[kVectors];
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVectors; ++v) {
      column[v] = load<W>(keys + d * kKeyTile + v * W);
    }
#pragma GCC unroll 16
    for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 16
      for (std::size_t v = 0; v < kVectors; ++v) {
        sums[r][v] += column[v] * queries[r][d];
      }
    }
  }
#pragma GCC unroll 16
  for (std::size_t r = 0; r < R; ++r) {
#pragma GCC unroll 16
    for (std::size_t v = 0; v < kVectors; ++v) {
      store<W>(sums[r][v], rows[r].tile_scores(tile) + v * W);
    }
  }
}

// Scores, in base 2, with their magnitude bounded by `cap`, which is in base e.
template <std::size_t W>
OMNIDRAFT_INLINE void bound(float* scores, std::size_t count, float cap) {
  using Floats = typename Vector<W>::Floats;
  for (std::size_t i = 0; i < count; i += W) {
    const Floats x = load<W>(scores + i);
    // tanh(y) = (1 - e) / (1 + e) with e = exp(-2y), for y >= 0.
    const Floats e = exp2_of<W, true>((x < 0.0F ? x : -x) * (2.0F / cap));
    const Floats t = (1.0F - e) / (1.0F + e) * (cap * kLog2E);
    store<W>(x < 0.0F ? -t : t, scores + i);
  }
}

// Turns base-2 exponents into weights relative to the largest; returns their sum.
template <std::size_t W>
OMNIDRAFT_INLINE float softmax(float* scores, std::size_t count) {
  using Floats = typename Vector<W>::Floats;
  Floats best = Floats{} - kInfinity;
  for (std::size_t i = 0; i < count; i += W) {
    const Floats x = load<W>(scores + i);
    best = x > best ? x : best;
  }
  float maximum = best[0];
  for (std::size_t lane = 1; lane < W; ++lane) {
    maximum = std::max(maximum, static_cast<float>(best[lane]));
  }
  // As many sums whatever the width of vectors, so that it does not change their bits.
  constexpr std::size_t kSums = 16;
  static_assert(kKeyTile % kSums == 0 && kSums % W == 0);
  Floats sums[kSums / W] = {};
  for (std::size_t i = 0; i < count; i += kSums) {
#pragma GCC unroll 4
    for (std::size_t part = 0; part < kSums / W; ++part) {
      float* const at = scores + i + part * W;
      const Floats x = exp2_of<W, true>(load<W>(at) - maximum);
      store<W>(x, at);
      sums[part] += x;
    }
  }
  float sum = 0;
  for (std::size_t i = 0; i < kSums; ++i) {
    sum += sums[i / W][i % W];
  }
  return sum;
}

// Adds the values of the tile's positions from `begin` to `end` to the outputs of R rows.
template <std::size_t W, std::size_t R>
OMNIDRAFT_INLINE void add_values(const Row* rows, std::size_t tile, std::size_t begin,
                                 std::size_t end, const float* values, std::size_t stride,
                                 std::size_t head_size) {
  if (begin >= end) {
    return;
  }
  const float* weights[R];
  float* outputs[R];
  for (std::size_t r = 0; r < R; ++r) {
    weights[r] = rows[r].tile_scores(tile) + begin;
    outputs[r] = rows[r].output;
  }
  add_products<W, R>(weights, end - begin, values + begin * stride, stride, head_size, outputs);
}

// Adds what up to kSharedRows<W> rows see of the chain in a tile to their outputs, in the order of
// positions. What a row does not see is not multiplied by 0: it may be left from a sequence that
// was cut back, or belong to a later row of this pass, and be no number.
template <std::size_t W>
OMNIDRAFT_INLINE void add_seen(const Row* rows, std::size_t count, std::size_t tile,
                               const float* values, std::size_t stride, std::size_t head_size) {
  const std::size_t start = tile * kKeyTile;
  const auto first = [&](const Row& row) { return std::max(row.first, start) - start; };
  const auto end = [&](const Row& row) { return std::min(row.chain - start, kKeyTile); };
  std::size_t common_first = 0;
  std::size_t common_end = kKeyTile;
  for (std::size_t r = 0; r < count; ++r) {
    common_first = std::max(common_first, first(rows[r]));
    common_end = std::min(common_end, end(rows[r]));
  }
  common_end = std::max(common_end, common_first);
  for (std::size_t r = 0; r < count; ++r) {
    add_values<W, 1>(rows + r, tile, first(rows[r]), std::min(common_first, end(rows[r])), values,
                     stride, head_size);
  }
  with_count<kSharedRows<W>>(count, [&](auto together) __attribute__((always_inline)) {
    add_values<W, together>(rows, tile, common_first, common_end, values, stride, head_size);
  });
  for (std::size_t r = 0; r < count; ++r) {
    add_values<W, 1>(rows + r, tile, std::max(common_end, first(rows[r])), end(rows[r]), values,
                     stride, head_size);
  }
}

// `rows` rows of `width` numbers of a buffer, `stride` apart.
struct Rows {
  const float* data;
  std::size_t stride;
};

// Their floats: where they are, or in `memory`, for rows * width of them. What lies `ahead` of them
// is wanted next.
Rows floats_of(const CacheBuffer& buffer, std::size_t offset, std::size_t rows, std::size_t width,
               std::size_t stride, std::size_t ahead, float* memory) {
  if (buffer.floats != nullptr) {
    return {buffer.floats + offset, stride};
  }
  widen(buffer.halves + offset, rows, width, stride, memory, ahead);
  return {memory, width};
}

// Adds the values of a row's path to its output.
template <std::size_t W>
OMNIDRAFT_INLINE void add_path(const AttentionShape& shape, const AttentionTensors& tensors,
                               std::size_t kv_head, const Row& row, float* memory) {
  const std::size_t size = shape.head_size;
  float* const outputs[1] = {row.output};
  for (std::size_t i = 0; i < row.path.count; ++i) {
    if (row.chain + i >= row.first) {
      const float* const weights[1] = {row.at(row.chain + i)};
      const auto slot = static_cast<std::size_t>(row.path.slots[i]);
      const Rows values = floats_of(tensors.values, (slot * shape.kv_heads + kv_head) * size, 1,
                                    size, size, 0, memory);
      add_products<W, 1>(weights, 1, values.data, size, size, outputs);
    }
  }
}

template <std::size_t W>
OMNIDRAFT_INLINE void attend_with(const AttentionShape& shape, const AttentionTensors& tensors,
                                  HeadRange heads, std::size_t begin, std::size_t end) {
  const std::size_t size = shape.head_size;
  const std::size_t kv_head = heads.begin / (shape.heads / shape.kv_heads);
  const std::size_t width = (shape.heads + 2 * shape.kv_heads) * size;
  const std::size_t stride = shape.kv_heads * size;
  const std::size_t group = heads.end - heads.begin;
  const std::size_t count = (end - begin) * group;

  thread_local std::vector<Row> rows;
  thread_local std::vector<float> memory;
  rows.resize(count);  // the heads of a row, then those of the next
  std::size_t needed = count * size + kKeyTile * size;
  std::size_t first_tile = std::numeric_limits<std::size_t>::max();
  std::size_t last_tile = 0;
  for (std::size_t r = 0; r < count; ++r) {
    Row& row = rows[r];
    const std::size_t place = begin + r / group;
    row.last = static_cast<std::size_t>(tensors.positions[place]);
    const bool all = shape.window == 0 || row.last < shape.window;
    row.first = all ? 0 : row.last - shape.window + 1;
    row.path = path_of(shape, tensors, place);
    row.chain = row.last + 1 - row.path.count;
    row.last_slot = slot_of(tensors, place, row.path);
    needed += row.tiles() * kKeyTile;
    first_tile = std::min(first_tile, row.first_tile());
    last_tile = std::max(last_tile, row.last_tile());
  }
  memory.resize(needed);
  float* const widened = memory.data();
  float* query = widened + kKeyTile * size;
  float* scores = query + count * size;
  for (std::size_t r = 0; r < count; ++r, query += size) {
    Row& row = rows[r];
    const std::size_t place = begin + r / group;
    const std::size_t head = heads.begin + r % group;
    row.query = query;
    row.scores = scores;
    row.output = tensors.output + (place * shape.heads + head) * size;
    scores += row.tiles() * kKeyTile;
    prepare_head(shape, tensors, tensors.qkv + place * width + head * size, tensors.query_norm,
                 place, query);
    // In base 2, which the exponential is.
    for (std::size_t i = 0; i < size; ++i) {
      query[i] *= shape.scale * kLog2E;
    }
  }

  // Tile by tile, so that one is read from far away once for all rows.
  const std::size_t ahead = stride * kKeyTile;
  for (std::size_t tile = first_tile; tile <= last_tile; ++tile) {
    const std::size_t offset = (tile * shape.kv_heads + kv_head) * size * kKeyTile;
    const float* const keys =
        floats_of(tensors.keys, offset, 1, size * kKeyTile, size * kKeyTile, ahead, widened).data;
    for (std::size_t r = 0; r < count;) {
      const std::size_t seeing =
          together<W>(&rows[r], count - r, [&](const Row& row) { return row.sees(tile); });
      with_count<kSharedRows<W>>(seeing, [&](auto together) __attribute__((always_inline)) {
        score<W, together>(&rows[r], tile, keys, size);
      });
      r += std::max<std::size_t>(seeing, 1);
    }
  }
  for (const Row& row : rows) {
    order_path(row);
    const std::size_t start = row.first_tile() * kKeyTile;
    const std::size_t all = (row.last / kKeyTile + 1) * kKeyTile - start;
    if (shape.cap > 0) {
      bound<W>(row.scores, all, shape.cap);
    }
    std::fill(row.scores, row.scores + (row.first - start), -kInfinity);
    std::fill(row.scores + (row.last + 1 - start), row.scores + all, -kInfinity);
    const float factor = 1.0F / softmax<W>(row.scores, all);
    for (std::size_t i = 0; i < all; ++i) {
      row.scores[i] *= factor;
    }
    std::fill(row.output, row.output + size, 0.0F);
  }
  for (std::size_t tile = first_tile; tile <= last_tile; ++tile) {
    const std::size_t offset = tile * kKeyTile * stride + kv_head * size;
    const Rows values = floats_of(tensors.values, offset, kKeyTile, size, stride, ahead, widened);
    for (std::size_t r = 0; r < count;) {
      const std::size_t seeing =
          together<W>(&rows[r], count - r, [&](const Row& row) { return row.sees_chain(tile); });
      if (seeing > 0) {
        add_seen<W>(&rows[r], seeing, tile, values.data, values.stride, size);
      }
      r += std::max<std::size_t>(seeing, 1);
    }
  }
  for (const Row& row : rows) {
    add_path<W>(shape, tensors, kv_head, row, widened);
  }
}

// Writes a key at one place of a tile.
void write_column(const CacheBuffer& keys, const float* key, std::size_t size, std::size_t offset) {
  if (keys.floats != nullptr) {
    for (std::size_t i = 0; i < size; ++i) {
      keys.floats[offset + i * kKeyTile] = key[i];
    }
    return;
  }
  thread_local std::vector<std::uint16_t> halves;
  halves.resize(size);
  narrow(key, size, halves.data());
  for (std::size_t i = 0; i < size; ++i) {
    keys.halves[offset + i * kKeyTile] = halves[i];
  }
}

}  // namespace

void append(const AttentionShape& shape, const AttentionTensors& tensors, std::size_t begin,
            std::size_t end) {
  const std::size_t size = shape.head_size;
  thread_local std::vector<float> key;
  key.resize(size);
  for (std::size_t row = begin; row < end; ++row) {
    const std::size_t slot = slot_of(tensors, row, path_of(shape, tensors, row));
    const float* input =
        tensors.qkv + (row * (shape.heads + 2 * shape.kv_heads) + shape.heads) * size;
    for (std::size_t head = 0; head < shape.kv_heads; ++head, input += size) {
      prepare_head(shape, tensors, input, tensors.key_norm, row, key.data());
      write_column(tensors.keys, key.data(), size,
                   ((slot / kKeyTile) * shape.kv_heads + head) * size * kKeyTile + slot % kKeyTile);
    }
    // The row's values, all heads of them, follow its keys.
    const std::size_t width = shape.kv_heads * size;
    if (tensors.values.floats != nullptr) {
      std::copy(input, input + width, tensors.values.floats + slot * width);
    } else {
      narrow(input, width, tensors.values.halves + slot * width);
    }
  }
}

OMNIDRAFT_DISPATCH(void, attend,
                   (const AttentionShape& shape, const AttentionTensors& tensors, HeadRange heads,
                    std::size_t begin, std::size_t end),
                   (shape, tensors, heads, begin, end), 16, 8, 4)

}  // namespace omnidraft

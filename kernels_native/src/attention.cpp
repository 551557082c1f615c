#include "attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "omnidraft/vectors.h"
#include "products.h"

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

// Normalises (where `norm` is not null) and rotates one head of one row.
void prepare_head(const AttentionShape& shape, const AttentionTensors& tensors, const float* input,
                  const float* norm, std::size_t row, float* output) {
  const std::size_t half = shape.head_size / 2;
  const auto position = static_cast<std::size_t>(tensors.positions[row]);
  const float* cosines = tensors.cosines + position * half;
  const float* sines = tensors.sines + position * half;
  if (norm != nullptr) {
    double squares = 0;
    for (std::size_t i = 0; i < shape.head_size; ++i) {
      squares += static_cast<double>(input[i]) * static_cast<double>(input[i]);
    }
    const auto mean = static_cast<float>(squares / static_cast<double>(shape.head_size));
    const float factor = 1.0F / std::sqrt(mean + shape.norm_epsilon);
    for (std::size_t i = 0; i < shape.head_size; ++i) {
      output[i] = input[i] * factor * norm[i];
    }
    input = output;
  }
  for (std::size_t i = 0; i < half; ++i) {
    const float first = input[i];
    const float second = input[half + i];
    output[i] = first * cosines[i] - second * sines[i];
    output[half + i] = second * cosines[i] + first * sines[i];
  }
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

// The scores of up to R rows in a tile; where there are fewer, the last is computed several times.
// The sums of a row do not depend on R.
template <std::size_t W, std::size_t R>
OMNIDRAFT_INLINE void score(const Row* rows, std::size_t count, std::size_t tile, const float* keys,
                            std::size_t head_size) {
  using Floats = typename Vector<W>::Floats;
  constexpr std::size_t kVectors = kKeyTile / W;
  const float* queries[R];
  Floats sums[R][kVectors];
  for (std::size_t r = 0; r < R; ++r) {
    queries[r] = rows[std::min(r, count - 1)].query;
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[r][v] = Floats{};
    }
  }
  for (std::size_t d = 0; d < head_size; ++d) {
    Floats column[kVectors];
    for (std::size_t v = 0; v < kVectors; ++v) {
      column[v] = load<W>(keys + d * kKeyTile + v * W);
    }
    for (std::size_t r = 0; r < R; ++r) {
      for (std::size_t v = 0; v < kVectors; ++v) {
        sums[r][v] += column[v] * queries[r][d];
      }
    }
  }
  for (std::size_t r = 0; r < R; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      store<W>(sums[r][v], rows[std::min(r, count - 1)].tile_scores(tile) + v * W);
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
  Floats sums{};
  for (std::size_t i = 0; i < count; i += W) {
    const Floats x = exp2_of<W, true>(load<W>(scores + i) - maximum);
    store<W>(x, scores + i);
    sums += x;
  }
  float sum = 0;
  for (std::size_t lane = 0; lane < W; ++lane) {
    sum += sums[lane];
  }
  return sum;
}

// Adds the values of the tile's positions from `begin` to `end` to the outputs of up to R rows,
// like `score`.
template <std::size_t W, std::size_t R>
OMNIDRAFT_INLINE void add_values(const Row* rows, std::size_t count, std::size_t tile,
                                 std::size_t begin, std::size_t end, const float* values,
                                 std::size_t stride, std::size_t head_size) {
  if (begin >= end) {
    return;
  }
  const float* weights[R];
  float* outputs[R];
  for (std::size_t r = 0; r < R; ++r) {
    const Row& row = rows[std::min(r, count - 1)];
    weights[r] = row.tile_scores(tile) + begin;
    outputs[r] = row.output;
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
  if (count == 1) {
    add_values<W, 1>(rows, 1, tile, first(*rows), end(*rows), values, stride, head_size);
    return;
  }
  std::size_t common_first = 0;
  std::size_t common_end = kKeyTile;
  for (std::size_t r = 0; r < count; ++r) {
    common_first = std::max(common_first, first(rows[r]));
    common_end = std::min(common_end, end(rows[r]));
  }
  common_end = std::max(common_end, common_first);
  for (std::size_t r = 0; r < count; ++r) {
    add_values<W, 1>(rows + r, 1, tile, first(rows[r]), std::min(common_first, end(rows[r])),
                     values, stride, head_size);
  }
  add_values<W, kSharedRows<W>>(rows, count, tile, common_first, common_end, values, stride,
                                head_size);
  for (std::size_t r = 0; r < count; ++r) {
    add_values<W, 1>(rows + r, 1, tile, std::max(common_end, first(rows[r])), end(rows[r]), values,
                     stride, head_size);
  }
}

// Adds the values of a row's path to its output.
template <std::size_t W>
OMNIDRAFT_INLINE void add_path(const Row& row, const float* values, std::size_t stride,
                               std::size_t head_size) {
  float* const outputs[1] = {row.output};
  for (std::size_t i = 0; i < row.path.count; ++i) {
    if (row.chain + i >= row.first) {
      const float* const weights[1] = {row.at(row.chain + i)};
      const auto slot = static_cast<std::size_t>(row.path.slots[i]);
      add_products<W, 1>(weights, 1, values + slot * stride, stride, head_size, outputs);
    }
  }
}

template <std::size_t W>
OMNIDRAFT_INLINE void attend_with(const AttentionShape& shape, const AttentionTensors& tensors,
                                  std::size_t head, std::size_t begin, std::size_t end) {
  const std::size_t size = shape.head_size;
  const std::size_t kv_head = head / (shape.heads / shape.kv_heads);
  const std::size_t width = (shape.heads + 2 * shape.kv_heads) * size;
  const std::size_t stride = shape.kv_heads * size;
  const std::size_t count = end - begin;

  thread_local std::vector<Row> rows;
  thread_local std::vector<float> memory;
  rows.resize(count);
  std::size_t needed = count * size;
  std::size_t first_tile = std::numeric_limits<std::size_t>::max();
  std::size_t last_tile = 0;
  for (std::size_t r = 0; r < count; ++r) {
    Row& row = rows[r];
    row.last = static_cast<std::size_t>(tensors.positions[begin + r]);
    const bool all = shape.window == 0 || row.last < shape.window;
    row.first = all ? 0 : row.last - shape.window + 1;
    row.path = path_of(shape, tensors, begin + r);
    row.chain = row.last + 1 - row.path.count;
    row.last_slot = slot_of(tensors, begin + r, row.path);
    needed += row.tiles() * kKeyTile;
    first_tile = std::min(first_tile, row.first_tile());
    last_tile = std::max(last_tile, row.last_tile());
  }
  memory.resize(needed);
  float* query = memory.data();
  float* scores = query + count * size;
  for (std::size_t r = 0; r < count; ++r, query += size) {
    Row& row = rows[r];
    row.query = query;
    row.scores = scores;
    row.output = tensors.output + ((begin + r) * shape.heads + head) * size;
    scores += row.tiles() * kKeyTile;
    prepare_head(shape, tensors, tensors.qkv + (begin + r) * width + head * size,
                 tensors.query_norm, begin + r, query);
    // In base 2, which the exponential is.
    for (std::size_t i = 0; i < size; ++i) {
      query[i] *= shape.scale * kLog2E;
    }
  }

  // Tile by tile, so that one is read from far away once for all rows.
  for (std::size_t tile = first_tile; tile <= last_tile; ++tile) {
    const float* keys = tensors.keys + (tile * shape.kv_heads + kv_head) * size * kKeyTile;
    for (std::size_t r = 0; r < count;) {
      const std::size_t seeing =
          together<W>(&rows[r], count - r, [&](const Row& row) { return row.sees(tile); });
      if (seeing > 1) {
        score<W, kSharedRows<W>>(&rows[r], seeing, tile, keys, size);
      } else if (seeing == 1) {
        score<W, 1>(&rows[r], 1, tile, keys, size);
      }
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
    const float* values = tensors.values + tile * kKeyTile * stride + kv_head * size;
    for (std::size_t r = 0; r < count;) {
      const std::size_t seeing =
          together<W>(&rows[r], count - r, [&](const Row& row) { return row.sees_chain(tile); });
      if (seeing > 0) {
        add_seen<W>(&rows[r], seeing, tile, values, stride, size);
      }
      r += std::max<std::size_t>(seeing, 1);
    }
  }
  for (const Row& row : rows) {
    add_path<W>(row, tensors.values + kv_head * size, stride, size);
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
      float* tile = tensors.keys + ((slot / kKeyTile) * shape.kv_heads + head) * size * kKeyTile +
                    slot % kKeyTile;
      for (std::size_t i = 0; i < size; ++i) {
        tile[i * kKeyTile] = key[i];
      }
    }
    // The row's values, all heads of them, follow its keys.
    std::copy(input, input + shape.kv_heads * size, tensors.values + slot * shape.kv_heads * size);
  }
}

OMNIDRAFT_DISPATCH(void, attend,
                   (const AttentionShape& shape, const AttentionTensors& tensors, std::size_t head,
                    std::size_t begin, std::size_t end),
                   (shape, tensors, head, begin, end), 16, 8, 4)

}  // namespace omnidraft

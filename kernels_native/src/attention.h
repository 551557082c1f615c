// Attention over a KV cache, for a decoder whose rows must not depend on how many share a pass.
//
// Whatever the pass, a row's sums are taken in the order of its own keys, by the same instructions,
// and what lies where it does not see, numbers or not, never enters them. So row i of a pass over n
// tokens equals, bit for bit, a pass over that token alone. It is the same bits on the processors
// that gate.h names, too.
//
// A row may be a node of a tree of tokens: see `paths`. It equals, bit for bit, the last row of its
// path decoded as a chain: its scores are moved into the order of the path before they are summed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace omnidraft {

// Keys are kept in tiles of so many positions, each [kv_heads, head_size, kKeyTile]: the scores of
// a tile are sums over head_size of whole vectors. A buffer's length is a multiple of it.
constexpr std::size_t kKeyTile = 48;

// Keys or values, as floats or as halves (see halves.h): of both pointers one is null.
struct CacheBuffer {
  float* floats = nullptr;
  std::uint16_t* halves = nullptr;
};

struct AttentionShape {
  std::size_t rows = 0;
  std::size_t depth = 0;  // of the paths
  std::size_t heads = 0;
  std::size_t kv_heads = 0;   // divides heads
  std::size_t head_size = 0;  // even
  std::size_t window = 0;     // how many positions a row sees, its own among them; 0: all
  float scale = 1.0F;         // of the scores
  float cap = 0.0F;           // scores are cap * tanh(score / cap); 0: they are not capped
  float norm_epsilon = 0.0F;
};

struct AttentionTensors {
  const float* qkv = nullptr;               // [rows, heads + 2 * kv_heads, head_size]
  const std::int64_t* positions = nullptr;  // [rows], below the buffers' length
  // [rows, depth]: of a node of a tree the slots of its ancestors within the tree and its own, in
  // ascending order, then -1. It also sees the positions before these, which lie in the slots of
  // the same numbers: the chain. A row without a path belongs to the chain.
  const std::int64_t* paths = nullptr;
  const float* cosines = nullptr;  // [context, head_size / 2]
  const float* sines = nullptr;
  const float* query_norm = nullptr;  // [head_size]; null: queries are not normalised
  const float* key_norm = nullptr;
  CacheBuffer keys;         // [length / kKeyTile, kv_heads, head_size, kKeyTile]
  CacheBuffer values;       // [length, kv_heads, head_size]
  float* output = nullptr;  // [rows, heads, head_size]
};

// Writes the keys, normalised and rotated, and the values of rows begin...end-1 into the buffers.
void append(const AttentionShape& shape, const AttentionTensors& tensors, std::size_t begin,
            std::size_t end);

// Query heads that have the same keys and values: some, or all, of a group.
struct HeadRange {
  std::size_t begin;
  std::size_t end;
};

// The outputs of query heads for rows begin...end-1; every row's key must have been appended.
void attend(const AttentionShape& shape, const AttentionTensors& tensors, HeadRange heads,
            std::size_t begin, std::size_t end);

}  // namespace omnidraft

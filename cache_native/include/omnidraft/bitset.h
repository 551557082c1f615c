// A set of small integers with a size known at run time.
#pragma once

#include <cstdint>
#include <vector>

namespace omnidraft {

class Bitset {
 public:
  explicit Bitset(std::size_t size = 0) : words_((size + 63) / 64, 0) {}

  bool test(std::size_t i) const { return (words_[i / 64] >> (i % 64)) & 1; }
  void set(std::size_t i) { words_[i / 64] |= std::uint64_t{1} << (i % 64); }
  void reset(std::size_t i) { words_[i / 64] &= ~(std::uint64_t{1} << (i % 64)); }
  const std::vector<std::uint64_t>& words() const { return words_; }

 private:
  std::vector<std::uint64_t> words_;
};

}  // namespace omnidraft

// Takes a fuzzer's bytes apart, front to back; zeros follow the last one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace omnidraft::fuzz {

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size)
      : left_(reinterpret_cast<const char*>(data), size) {}

  bool empty() const { return left_.empty(); }
  std::string_view rest() const { return left_; }

  std::uint8_t byte() {
    if (left_.empty()) {
      return 0;
    }
    const auto value = static_cast<std::uint8_t>(left_[0]);
    left_.remove_prefix(1);
    return value;
  }
  std::size_t below(std::size_t bound) { return byte() % bound; }

 private:
  std::string_view left_;
};

// For what must hold whatever the bytes are, in builds without assertions too.
inline void demand(bool holds) {
  if (!holds) {
    __builtin_trap();
  }
}

}  // namespace omnidraft::fuzz

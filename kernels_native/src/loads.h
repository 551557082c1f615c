// How the kernels of both linears load weights and levels.
#pragma once

#include <cstdint>
#include <cstring>

namespace omnidraft {

// Asks for weights that lie behind `at`. They come from far away, and the hardware's own
// prefetching ends with each page.
inline void prefetch(const void* at) {
#if defined(__x86_64__)
  constexpr std::uintptr_t kAhead = 4096;
#else
  constexpr std::uintptr_t kAhead = 2048;
#endif
  // As a number: the place may lie behind the weights.
  const auto ahead = reinterpret_cast<std::uintptr_t>(at) + kAhead;
  __builtin_prefetch(reinterpret_cast<const void*>(ahead));
}

// Four bytes as they lie in memory.
inline std::int32_t four(const void* at) {
  std::int32_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace omnidraft

// Features of an x86 processor that not every compiler's __builtin_cpu_supports knows by name.
//
// has_f16c and has_avx_vnni use wide registers: ask for AVX2 first, by which the system is known to
// save them.
#pragma once

#include <cpuid.h>

namespace omnidraft {

inline bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1U << 29)) != 0;
}

// What the floats of kernels for vectors of 256 bits need.
inline bool has_avx2_fma_f16c() {
  return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0 && has_f16c();
}

inline bool has_avx_vnni() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1U << 4)) != 0;
}

}  // namespace omnidraft

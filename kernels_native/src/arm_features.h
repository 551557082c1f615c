// Which instructions a 64-bit Arm processor has, beside those that all have.
#pragma once

#include <cstddef>

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

// Clang 15 and earlier have no instructions of such processors but where a whole file asks for
// them: Android's NDK has a later one from r26 on.
#if defined(__clang__) && !defined(__apple_build_version__) && __clang_major__ < 16
#error "The kernels for 64-bit Arm need Clang 16 (Android's NDK r26) or later, or GCC."
#endif

namespace omnidraft {

#if defined(__linux__)

// Bits of the kernel's interface, which headers of an older one may lack.
inline bool has_dot_products() { return (getauxval(AT_HWCAP) >> 20 & 1) != 0; }  // ASIMDDP
inline bool has_matrix_products() {                                              // I8MM
  return has_dot_products() && (getauxval(AT_HWCAP2) >> 13 & 1) != 0;
}

#elif defined(__APPLE__)

inline bool has_feature(const char* name) {
  int value = 0;
  std::size_t size = sizeof value;
  return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
}

inline bool has_dot_products() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
inline bool has_matrix_products() {
  return has_dot_products() && has_feature("hw.optional.arm.FEAT_I8MM");
}

#else

inline bool has_dot_products() { return false; }
inline bool has_matrix_products() { return false; }

#endif

}  // namespace omnidraft

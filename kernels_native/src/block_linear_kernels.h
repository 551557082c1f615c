// What the files of the block-wise linear share.
#pragma once

#include <vector>

#include "block_linear.h"

namespace omnidraft {

// Each appends its kernels where this processor has the instructions.
void add_avx512(std::vector<BlockKernel>& kernels);
void add_avx_vnni(std::vector<BlockKernel>& kernels);
void add_avx2(std::vector<BlockKernel>& kernels);
void add_arm(std::vector<BlockKernel>& kernels);

// Function<F>::call(linear, arguments...) for the linear's form F.
template <template <BlockForm> class Function, typename... Arguments>
void for_form(const BlockLinear& linear, Arguments... arguments) {
  switch (linear.form) {
    case BlockForm::kAffine4:
      return Function<BlockForm::kAffine4>::call(linear, arguments...);
    case BlockForm::kScaled4:
      return Function<BlockForm::kScaled4>::call(linear, arguments...);
    case BlockForm::kSuper4:
      return Function<BlockForm::kSuper4>::call(linear, arguments...);
    case BlockForm::kScaled8:
      return Function<BlockForm::kScaled8>::call(linear, arguments...);
    case BlockForm::kAffine8:
      return Function<BlockForm::kAffine8>::call(linear, arguments...);
    case BlockForm::kSuper8:
      return Function<BlockForm::kSuper8>::call(linear, arguments...);
    case BlockForm::kSixteen8:
      return Function<BlockForm::kSixteen8>::call(linear, arguments...);
  }
}

}  // namespace omnidraft

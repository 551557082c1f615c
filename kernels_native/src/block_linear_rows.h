// The loops of a kernel for weights in blocks, whose products are sums of four. No include guard:
// see what both parts ask for.
#include "block_linear_dots.h"
#include "block_linear_panels.h"

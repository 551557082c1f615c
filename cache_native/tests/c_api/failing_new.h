// Allocations that fail when a test says so.
#pragma once

#include <cstddef>

// The allocation of this thread that fails, counted from 1; 0: none.
extern thread_local std::size_t failing;

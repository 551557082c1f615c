// The program's operator new, which its libraries use as well. Compilers warn of it where they see
// it beside what it allocates.
#include "failing_new.h"

#include <cstdlib>
#include <new>

thread_local std::size_t failing = 0;

void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return failing > 0 && --failing == 0 ? nullptr : std::malloc(size == 0 ? 1 : size);
}

void* operator new(std::size_t size) {
  if (void* memory = operator new(size, std::nothrow)) {
    return memory;
  }
  throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

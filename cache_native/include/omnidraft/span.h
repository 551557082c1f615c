// A view of contiguous values (std::span is C++20).
#pragma once

#include <cstddef>
#include <initializer_list>
#include <vector>

namespace omnidraft {

template <typename T>
class Span {
 public:
  Span() = default;
  Span(T* data, std::size_t size) : data_(data), size_(size) {}
  template <typename Container>
  Span(Container& container) : Span(container.data(), container.size()) {}  // NOLINT: a view

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* begin() const { return data_; }
  T* end() const { return data_ + size_; }
  T& operator[](std::size_t i) const { return data_[i]; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace omnidraft

// A decoder's graph in ONNX Runtime, whose library is loaded by its path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "onnxruntime_abi.h"

namespace omnidraft {

// Positions that the graphs of a converted model see at a time: see LENGTH_STEP in
// runtime/engines/onnx.py, whose passes these are.
constexpr std::size_t kLengthStep = 96;
// A longer pass is cut by whoever asks for it.
constexpr std::size_t kLongestPass = 256;

struct Libraries {
  std::string onnxruntime;
  std::string operators;
};

class Decoder {
 public:
  // Loads the graph for sequences of up to `capacity` tokens. Throws std::runtime_error, whose text
  // says which file is at fault and why.
  Decoder(const Libraries& libraries, const std::string& graph, int threads, std::size_t capacity);

  const std::string& version() const { return version_; }
  std::size_t vocabulary() const { return vocabulary_; }

  // One pass over `tokens`, at most kLongestPass, at the positions from `past` on. Of the last
  // `rows` of them logits are computed. The keys and values of these positions are overwritten.
  void pass(const std::vector<std::int64_t>& tokens, std::size_t past, std::size_t rows);

 private:
  template <typename T>
  using Owner = std::unique_ptr<T, std::function<void(T*)>>;

  struct Port {
    std::string name;
    std::vector<std::int64_t> shape;  // -1 where it is not fixed
    ONNXTensorElementDataType type = kFloat;
  };

  void check(OrtStatus* status, const std::string& what) const;
  void open(const Libraries& libraries, const std::string& graph, int threads);
  Port port(std::size_t index, bool input) const;
  void add_cache(const Port& port);
  Owner<OrtValue> tensor(void* data, std::vector<std::int64_t> shape,
                         ONNXTensorElementDataType type) const;

  const OrtApi* api_ = nullptr;
  std::string version_;
  Owner<OrtEnv> env_;
  Owner<OrtSession> session_;
  Owner<OrtMemoryInfo> memory_;
  std::size_t capacity_;
  std::size_t vocabulary_ = 0;
  // A bundle for any program is told how much of the whole buffer is filled.
  bool told_length_ = false;
  std::vector<Port> inputs_, outputs_;
  struct Cache {
    std::string name;  // without "past."
    Port port;
    // Not touched before it is used: its zeros take no memory.
    std::unique_ptr<void, void (*)(void*)> data;
  };
  std::vector<Cache> caches_;
  std::vector<std::vector<float>> results_;
};

}  // namespace omnidraft

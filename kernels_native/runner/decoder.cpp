#include "decoder.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <stdexcept>

namespace omnidraft {
namespace {

constexpr char kPast[] = "past.";
constexpr char kPresent[] = "present.";

bool begins(const std::string& name, const std::string& prefix) {
  return name.compare(0, prefix.size(), prefix) == 0;
}

std::size_t bytes_of(ONNXTensorElementDataType type) {
  switch (type) {
    case kInt64:
      return 8;
    case kFloat:
    case kInt32:
      return 4;
    case kFloat16:
      return 2;
    default:
      return 1;
  }
}

const OrtApiBase& load_library(const std::string& path) {
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw std::runtime_error(std::string("ONNX Runtime cannot be loaded: ") + dlerror());
  }
  using GetBase = const OrtApiBase* (*)();
  // Of a function, which is what POSIX's dlsym gives.
  const auto base = reinterpret_cast<GetBase>(dlsym(library, "OrtGetApiBase"));
  if (base == nullptr) {
    throw std::runtime_error(path + " is not ONNX Runtime: it has no OrtGetApiBase");
  }
  return *base();
}

}  // namespace

Decoder::Decoder(const Libraries& libraries, const std::string& graph, int threads,
                 std::size_t capacity)
    : capacity_((capacity + kLengthStep - 1) / kLengthStep * kLengthStep) {
  open(libraries, graph, threads);
  std::size_t inputs = 0;
  std::size_t outputs = 0;
  check(api_->SessionGetInputCount(session_.get(), &inputs), graph);
  check(api_->SessionGetOutputCount(session_.get(), &outputs), graph);
  for (std::size_t i = 0; i < inputs; ++i) {
    inputs_.push_back(port(i, true));
    const Port& port = inputs_.back();
    told_length_ = told_length_ || port.name == "total_length";
    if (begins(port.name, kPast)) {
      add_cache(port);
    } else if (port.name != "tokens" && port.name != "positions" && port.name != "paths" &&
               port.name != "first_row" && port.name != "last_position" &&
               port.name != "total_length") {
      throw std::runtime_error(graph + " is no decoder that omnidraft wrote: it asks for " +
                               port.name);
    }
  }
  for (std::size_t i = 0; i < outputs; ++i) {
    outputs_.push_back(port(i, false));
    if (outputs_.back().name == "logits" && outputs_.back().shape.size() == 3) {
      vocabulary_ = static_cast<std::size_t>(std::max<std::int64_t>(0, outputs_.back().shape[2]));
    }
  }
  results_.resize(outputs_.size());
  if (vocabulary_ == 0 || caches_.empty()) {
    throw std::runtime_error(graph + " is no decoder that omnidraft wrote: " +
                             (caches_.empty() ? "it has no KV cache" : "it gives no logits"));
  }
}

void Decoder::open(const Libraries& libraries, const std::string& graph, int threads) {
  const OrtApiBase& base = load_library(libraries.onnxruntime);
  version_ = base.GetVersionString();
  api_ = base.GetApi(kOrtApiVersion);
  if (api_ == nullptr) {
    throw std::runtime_error("ONNX Runtime " + version_ + " is too old: 1." +
                             std::to_string(kOrtApiVersion) + " or later is needed");
  }
  OrtEnv* env = nullptr;
  check(api_->CreateEnv(3, "omnidraft", &env), libraries.onnxruntime);  // errors only
  env_ = {env, api_->ReleaseEnv};
  OrtMemoryInfo* memory = nullptr;
  check(api_->CreateCpuMemoryInfo(0, 0, &memory), libraries.onnxruntime);
  memory_ = {memory, api_->ReleaseMemoryInfo};

  // As runtime/engines/onnx_session.py opens sessions.
  OrtSessionOptions* options = nullptr;
  check(api_->CreateSessionOptions(&options), graph);
  const Owner<OrtSessionOptions> owner(options, api_->ReleaseSessionOptions);
  constexpr int kBasic = 1;
  check(api_->SetSessionGraphOptimizationLevel(options, kBasic), graph);
  check(api_->SetIntraOpNumThreads(options, threads), graph);
  check(api_->SetInterOpNumThreads(options, 1), graph);
  check(api_->AddSessionConfigEntry(options, "session.force_spinning_stop", "1"), graph);
  check(api_->RegisterCustomOpsLibrary_V2(options, libraries.operators.c_str()),
        libraries.operators);
  OrtSession* session = nullptr;
  check(api_->CreateSession(env, graph.c_str(), options, &session), graph);
  session_ = {session, api_->ReleaseSession};
}

void Decoder::check(OrtStatus* status, const std::string& what) const {
  if (status != nullptr) {
    const std::string message = api_->GetErrorMessage(status);
    api_->ReleaseStatus(status);
    throw std::runtime_error(what + ": " + message);
  }
}

Decoder::Port Decoder::port(std::size_t index, bool input) const {
  OrtAllocator* allocator = nullptr;
  check(api_->GetAllocatorWithDefaultOptions(&allocator), "memory");
  char* name = nullptr;
  OrtTypeInfo* info = nullptr;
  if (input) {
    check(api_->SessionGetInputName(session_.get(), index, allocator, &name), "an input");
    check(api_->SessionGetInputTypeInfo(session_.get(), index, &info), "an input");
  } else {
    check(api_->SessionGetOutputName(session_.get(), index, allocator, &name), "an output");
    check(api_->SessionGetOutputTypeInfo(session_.get(), index, &info), "an output");
  }
  const Owner<OrtTypeInfo> owner(info, api_->ReleaseTypeInfo);
  Port port;
  port.name = name;
  check(api_->AllocatorFree(allocator, name), "memory");
  const OrtTensorTypeAndShapeInfo* tensor = nullptr;  // a part of `info`
  check(api_->CastTypeInfoToTensorInfo(info, &tensor), port.name);
  if (tensor == nullptr) {
    throw std::runtime_error(port.name + " is no tensor");
  }
  std::size_t dimensions = 0;
  check(api_->GetDimensionsCount(tensor, &dimensions), port.name);
  port.shape.resize(dimensions);
  check(api_->GetDimensions(tensor, port.shape.data(), dimensions), port.name);
  check(api_->GetTensorElementType(tensor, &port.type), port.name);
  return port;
}

void Decoder::add_cache(const Port& port) {
  Cache cache{port.name.substr(sizeof kPast - 1), port, {nullptr, std::free}};
  std::size_t bytes = bytes_of(port.type);
  for (const std::int64_t size : port.shape) {
    bytes *= size < 0 ? capacity_ : static_cast<std::size_t>(size);
  }
  cache.data.reset(std::calloc(bytes, 1));
  if (cache.data == nullptr) {
    throw std::runtime_error("no memory for a KV cache of " + std::to_string(capacity_) +
                             " tokens");
  }
  caches_.push_back(std::move(cache));
}

Decoder::Owner<OrtValue> Decoder::tensor(void* data, std::vector<std::int64_t> shape,
                                         ONNXTensorElementDataType type) const {
  std::size_t bytes = bytes_of(type);
  for (const std::int64_t size : shape) {
    bytes *= static_cast<std::size_t>(size);
  }
  OrtValue* value = nullptr;
  check(api_->CreateTensorWithDataAsOrtValue(memory_.get(), data, bytes, shape.data(), shape.size(),
                                             type, &value),
        "a tensor");
  return {value, api_->ReleaseValue};
}

void Decoder::pass(const std::vector<std::int64_t>& tokens, std::size_t past, std::size_t rows) {
  const std::size_t count = tokens.size();
  const std::size_t end = past + count;
  if (count == 0 || count > kLongestPass || end > capacity_ || rows == 0 || rows > count) {
    throw std::runtime_error("a pass over " + std::to_string(count) + " tokens behind " +
                             std::to_string(past) + " does not fit");
  }
  const auto signed_of = [](std::size_t size) { return static_cast<std::int64_t>(size); };
  std::vector<std::int64_t> ids = tokens;
  std::vector<std::int64_t> positions(count);
  std::iota(positions.begin(), positions.end(), signed_of(past));
  std::int64_t first_row = signed_of(count - rows);
  std::int64_t no_path = 0;
  auto last_position = static_cast<std::int32_t>(end - 1);
  auto total_length = static_cast<std::int32_t>(end);
  // What is bound of the buffers: a prefix, or all.
  const std::size_t length =
      told_length_ ? capacity_ : (end + kLengthStep - 1) / kLengthStep * kLengthStep;

  std::vector<Owner<OrtValue>> values;
  std::vector<OrtValue*> cache_values;
  for (const Cache& cache : caches_) {
    std::vector<std::int64_t> shape = cache.port.shape;
    for (std::int64_t& size : shape) {
      size = size < 0 ? signed_of(length) : size;
    }
    values.push_back(tensor(cache.data.get(), shape, cache.port.type));
    cache_values.push_back(values.back().get());
  }
  const auto cache_value = [&](const std::string& name) {
    for (std::size_t i = 0; i < caches_.size(); ++i) {
      if (caches_[i].name == name) {
        return cache_values[i];
      }
    }
    throw std::runtime_error("the graph gives " + name + " and takes none");
  };

  std::vector<const char*> input_names, output_names;
  std::vector<const OrtValue*> inputs;
  std::vector<OrtValue*> outputs;
  for (const Port& port : inputs_) {
    input_names.push_back(port.name.c_str());
    if (begins(port.name, kPast)) {
      inputs.push_back(cache_value(port.name.substr(sizeof kPast - 1)));
      continue;
    }
    if (port.name == "tokens") {
      values.push_back(tensor(ids.data(), {1, signed_of(count)}, kInt64));
    } else if (port.name == "positions") {
      values.push_back(tensor(positions.data(), {1, signed_of(count)}, kInt64));
    } else if (port.name == "paths") {
      values.push_back(tensor(&no_path, {signed_of(count), 0}, kInt64));
    } else if (port.name == "first_row") {
      values.push_back(tensor(&first_row, {1}, kInt64));
    } else if (port.name == "last_position") {
      values.push_back(tensor(&last_position, {1}, kInt32));
    } else {
      values.push_back(tensor(&total_length, {}, kInt32));
    }
    inputs.push_back(values.back().get());
  }
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const Port& port = outputs_[i];
    output_names.push_back(port.name.c_str());
    if (begins(port.name, kPresent)) {
      outputs.push_back(cache_value(port.name.substr(sizeof kPresent - 1)));
      continue;
    }
    const std::int64_t columns = port.shape.empty() ? 0 : port.shape.back();
    if (port.type != kFloat || columns <= 0) {
      throw std::runtime_error("the graph gives " + port.name + ", which is not known");
    }
    results_[i].resize(rows * static_cast<std::size_t>(columns));
    values.push_back(tensor(results_[i].data(), {1, signed_of(rows), columns}, kFloat));
    outputs.push_back(values.back().get());
  }
  check(api_->Run(session_.get(), nullptr, input_names.data(), inputs.data(), inputs.size(),
                  output_names.data(), output_names.size(), outputs.data()),
        "a pass");
}

}  // namespace omnidraft

// The kernels as operators of ONNX Runtime, in the domain "omnidraft": see the headers for what
// they compute and export/graphs/ for their use.
#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "attention.h"
#include "block_linear.h"
#include "gate.h"
#include "linear.h"
#include "low_rank.h"
#include "onnxruntime_abi.h"
#include "quantize.h"

namespace omnidraft {
namespace {

// Below so many multiplications waking the other threads costs more than they save.
constexpr std::size_t kSerialWork = 200'000;
// Rows of a long pass that one thread takes at a time.
constexpr std::size_t kRowBlock = 16;
// So many activations are computed by one thread.
constexpr std::size_t kSerialValues = 16'384;
constexpr std::size_t kLargestHead = 65'536;

// What ONNX Runtime answered; its own status is passed on as it is.
struct Failure {
  OrtStatus* status;
};

void check(OrtStatus* status) {
  if (status != nullptr) {
    throw Failure{status};
  }
}

// Runs `body`; what it throws becomes a status, as no exception may leave the library.
template <typename Body>
OrtStatus* guarded(const OrtApi& api, const Body& body) {
  try {
    body();
    return nullptr;
  } catch (const Failure& failure) {
    return failure.status;
  } catch (const std::exception& error) {
    return api.CreateStatus(kInvalidArgument, error.what());
  }
}

void require(bool condition, const char* message) {
  if (!condition) {
    throw std::invalid_argument(message);
  }
}

std::size_t elements(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (const std::int64_t size : shape) {
    count *= static_cast<std::size_t>(size);
  }
  return count;
}

template <typename T>
struct Tensor {
  T* data = nullptr;
  std::vector<std::int64_t> shape;

  std::size_t size(std::size_t axis) const { return static_cast<std::size_t>(shape.at(axis)); }
};

struct Context {
  const OrtApi& api;
  OrtKernelContext* context;

  // An empty tensor where an optional input is left out.
  template <typename T>
  Tensor<const T> input(std::size_t index) const {
    const OrtValue* value = nullptr;
    check(api.KernelContext_GetInput(context, index, &value));
    if (value == nullptr) {
      return {};
    }
    OrtTensorTypeAndShapeInfo* info = nullptr;
    check(api.GetTensorTypeAndShape(value, &info));
    const std::unique_ptr<OrtTensorTypeAndShapeInfo, void (*)(OrtTensorTypeAndShapeInfo*)> owner(
        info, api.ReleaseTensorTypeAndShapeInfo);
    std::size_t count = 0;
    check(api.GetDimensionsCount(info, &count));
    Tensor<const T> tensor;
    tensor.shape.resize(count);
    check(api.GetDimensions(info, tensor.shape.data(), count));
    tensor.data = static_cast<const T*>(data(const_cast<OrtValue*>(value)));
    return tensor;
  }

  template <typename T>
  T* output(std::size_t index, const std::vector<std::int64_t>& shape) const {
    OrtValue* value = nullptr;
    check(api.KernelContext_GetOutput(context, index, shape.data(), shape.size(), &value));
    return static_cast<T*>(data(value));
  }

  // Calls function(i) for each i below `count`, on ONNX Runtime's threads.
  template <typename Function>
  void parallel(std::size_t count, const Function& function) const {
    const auto call = [](void* data, std::size_t index) {
      (*static_cast<const Function*>(data))(index);
    };
    check(api.KernelContext_ParallelFor(context, call, count, 0, const_cast<Function*>(&function)));
  }

 private:
  void* data(OrtValue* value) const {
    void* result = nullptr;
    check(api.GetTensorMutableData(value, &result));
    return result;
  }
};

// With a KV cache of floats, or of halves.
template <typename Number>
struct Attention {
  static constexpr bool kHalves = sizeof(Number) == 2;
  static constexpr ONNXTensorElementDataType kCache = kHalves ? kFloat16 : kFloat;
  static constexpr const char* kName = "Attention";
  static constexpr ONNXTensorElementDataType kInputs[] = {kFloat, kInt64, kFloat, kFloat, kCache,
                                                          kCache, kFloat, kFloat, kInt64};
  static constexpr std::size_t kRequiredInputs = 6;
  static constexpr ONNXTensorElementDataType kOutputs[] = {kFloat, kCache, kCache};

  Attention(const OrtApi& api, const OrtKernelInfo* info) {
    const auto integer = [&](const char* name) {
      std::int64_t value = 0;
      check(api.KernelInfoGetAttribute_int64(info, name, &value));
      require(value >= 0 && value < (std::int64_t{1} << 31),
              "attributes of Attention must be from 0 to 2^31 - 1");
      return static_cast<std::size_t>(value);
    };
    shape.heads = integer("heads");
    shape.kv_heads = integer("kv_heads");
    shape.window = integer("window");
    check(api.KernelInfoGetAttribute_float(info, "scale", &shape.scale));
    check(api.KernelInfoGetAttribute_float(info, "norm_epsilon", &shape.norm_epsilon));
    if (OrtStatus* const missing = api.KernelInfoGetAttribute_float(info, "cap", &shape.cap)) {
      api.ReleaseStatus(missing);
      shape.cap = 0;
    }
    require(shape.cap >= 0, "cap must not be negative");
    require(shape.kv_heads > 0 && shape.heads > 0 && shape.heads % shape.kv_heads == 0,
            "heads must be a multiple of kv_heads");
  }

  // Inputs: qkv, positions, cosines, sines, past keys and values [length, kv_heads, head_size],
  // norms of queries and keys, paths [n, depth]. Outputs: the mix [1, n, heads * head_size],
  // present keys and values, which may be the memory of the past ones.
  void compute(const Context& context) {
    AttentionShape shape = this->shape;
    AttentionTensors tensors;
    const auto qkv = context.input<float>(0);
    const auto positions = context.input<std::int64_t>(1);
    const auto cosines = context.input<float>(2);
    const auto sines = context.input<float>(3);
    const auto keys = context.input<Number>(4);
    const auto values = context.input<Number>(5);
    const auto query_norm = context.input<float>(6);
    const auto key_norm = context.input<float>(7);
    const auto paths = context.input<std::int64_t>(8);
    require(keys.shape.size() == 3 && keys.shape == values.shape && keys.size(1) == shape.kv_heads,
            "past keys and values must be [length, kv_heads, head_size]");
    const std::size_t length = keys.size(0);
    shape.head_size = keys.size(2);
    require(length % kKeyTile == 0, "the length of the cache must be a multiple of 48");
    require(shape.head_size > 0 && shape.head_size % 2 == 0 && shape.head_size <= kLargestHead,
            "head_size must be even, and at most 65536");
    require(qkv.shape.size() == 3 && qkv.size(0) == 1 &&
                qkv.size(2) == (shape.heads + 2 * shape.kv_heads) * shape.head_size,
            "qkv must be [1, n, (heads + 2 * kv_heads) * head_size]");
    shape.rows = qkv.size(1);
    require(positions.shape == std::vector<std::int64_t>{1, qkv.shape[1]},
            "positions must be [1, n]");
    require(cosines.shape.size() == 2 && cosines.shape == sines.shape &&
                cosines.size(1) == shape.head_size / 2,
            "cosines and sines must be [context, head_size / 2]");
    tensors.positions = positions.data;
    const auto bound = static_cast<std::int64_t>(std::min(length, cosines.size(0)));
    for (std::size_t row = 0; row < shape.rows; ++row) {
      require(positions.data[row] >= 0 && positions.data[row] < bound,
              "a position lies outside the cache");
    }
    if (!paths.shape.empty()) {
      require(paths.shape.size() == 2 && paths.shape[0] == qkv.shape[1],
              "paths must be [n, depth]");
      shape.depth = paths.size(1);
      tensors.paths = paths.data;
      check_paths(shape, tensors, length);
    }
    for (const auto* norm : {&query_norm, &key_norm}) {
      require(norm->data == nullptr || norm->shape == std::vector<std::int64_t>{keys.shape[2]},
              "norms must be [head_size]");
    }
    tensors.qkv = qkv.data;
    tensors.cosines = cosines.data;
    tensors.sines = sines.data;
    tensors.query_norm = query_norm.data;
    tensors.key_norm = key_norm.data;
    tensors.output = context.output<float>(
        0, {1, qkv.shape[1], static_cast<std::int64_t>(shape.heads * shape.head_size)});
    tensors.keys = buffer(keys, context.output<Number>(1, keys.shape));
    tensors.values = buffer(values, context.output<Number>(2, values.shape));
    run(context, shape, tensors);
  }

  AttentionShape shape;

 private:
  // A present buffer, which holds what the past one does.
  static CacheBuffer buffer(const Tensor<const Number>& past, Number* present) {
    if (present != past.data) {
      std::copy(past.data, past.data + elements(past.shape), present);
    }
    if constexpr (kHalves) {
      return {nullptr, present};
    } else {
      return {present, nullptr};
    }
  }

  // Slots ascend, and none lies before its position: see `order_path`.
  static void check_paths(const AttentionShape& shape, const AttentionTensors& tensors,
                          std::size_t length) {
    for (std::size_t row = 0; row < shape.rows; ++row) {
      const std::int64_t* const path = tensors.paths + row * shape.depth;
      std::int64_t count = 0;
      while (count < static_cast<std::int64_t>(shape.depth) && path[count] >= 0) {
        require(count == 0 || path[count] > path[count - 1], "the slots of a path must ascend");
        ++count;
      }
      const std::int64_t chain = tensors.positions[row] + 1 - count;
      require(chain >= 0, "a path is longer than its last position says");
      require(
          count == 0 || (path[0] >= chain && path[count - 1] < static_cast<std::int64_t>(length)),
          "a path lies outside the cache, or in the chain");
    }
  }

  static void run(const Context& context, const AttentionShape& shape,
                  const AttentionTensors& tensors) {
    std::size_t seen = 0;
    for (std::size_t row = 0; row < shape.rows; ++row) {
      const auto all = static_cast<std::size_t>(tensors.positions[row]) + 1;
      seen += shape.window == 0 ? all : std::min(all, shape.window);
    }
    const std::size_t group = shape.heads / shape.kv_heads;
    if (2 * seen * shape.heads * shape.head_size < kSerialWork) {
      append(shape, tensors, 0, shape.rows);
      for (std::size_t head = 0; head < shape.heads; head += group) {
        attend(shape, tensors, {head, head + group}, 0, shape.rows);
      }
      return;
    }
    const std::size_t blocks = (shape.rows + kRowBlock - 1) / kRowBlock;
    if (blocks == 1) {
      append(shape, tensors, 0, shape.rows);
    } else {
      context.parallel(blocks, [&](std::size_t block) {
        append(shape, tensors, block * kRowBlock, std::min((block + 1) * kRowBlock, shape.rows));
      });
    }
    // A task has rows and heads that read the same keys and values: enough of them to be worth the
    // reading, and few enough that there are tasks for all threads.
    constexpr std::size_t kFewTasks = 3;
    std::size_t heads = std::min(group, kRowBlock);
    const std::size_t all = shape.rows * heads;
    const std::size_t most = 3 * kRowBlock;
    const std::size_t parts =
        all <= kRowBlock ? 1 : std::max<std::size_t>(2, (all + most - 1) / most);
    const std::size_t rows = (shape.rows + parts - 1) / parts;
    const std::size_t row_tasks = (shape.rows + rows - 1) / rows;
    const auto head_tasks = [&] { return (group + heads - 1) / heads; };
    while (heads > 1 && row_tasks * head_tasks() * shape.kv_heads < kFewTasks) {
      heads = (heads + 1) / 2;
    }
    context.parallel(row_tasks * head_tasks() * shape.kv_heads, [&](std::size_t task) {
      const std::size_t first = task % row_tasks * rows;
      const std::size_t part = task / row_tasks;
      const std::size_t kv_head = part / head_tasks();
      const std::size_t head = kv_head * group + part % head_tasks() * heads;
      attend(shape, tensors, {head, std::min(head + heads, (kv_head + 1) * group)}, first,
             std::min(first + rows, shape.rows));
    });
  }
};

struct QuantizeRows {
  static constexpr const char* kName = "QuantizeRows";
  static constexpr ONNXTensorElementDataType kInputs[] = {kFloat};
  static constexpr std::size_t kRequiredInputs = 1;
  static constexpr ONNXTensorElementDataType kOutputs[] = {kUint8, kFloat};

  QuantizeRows(const OrtApi& /*api*/, const OrtKernelInfo* /*info*/) {}

  // Input: x [..., width]. Outputs: levels [..., width], steps [..., 1].
  void compute(const Context& context) {
    const auto x = context.input<float>(0);
    require(!x.shape.empty(), "a scalar has no rows");
    std::vector<std::int64_t> shape = x.shape;
    auto* levels = context.output<std::uint8_t>(0, shape);
    shape.back() = 1;
    auto* steps = context.output<float>(1, shape);
    quantize_rows(x.data, elements(shape), static_cast<std::size_t>(x.shape.back()), levels, steps);
  }
};

struct Gate {
  static constexpr const char* kName = "Gate";
  static constexpr ONNXTensorElementDataType kInputs[] = {kFloat};
  static constexpr std::size_t kRequiredInputs = 1;
  static constexpr ONNXTensorElementDataType kOutputs[] = {kFloat};

  Gate(const OrtApi& api, const OrtKernelInfo* info) {
    std::int64_t number = 0;
    check(api.KernelInfoGetAttribute_int64(info, "activation", &number));
    require(number >= 0 && number < static_cast<std::int64_t>(kActivations),
            "activation must be 0 or 1");
    activation = static_cast<Activation>(number);
  }

  // Input: gates and what they gate [..., 2 * width]. Output: [..., width].
  void compute(const Context& context) {
    const auto joined = context.input<float>(0);
    require(!joined.shape.empty() && joined.shape.back() % 2 == 0, "x must be [..., 2 * width]");
    std::vector<std::int64_t> shape = joined.shape;
    const auto width = static_cast<std::size_t>(shape.back() / 2);
    shape.back() /= 2;
    auto* const result = context.output<float>(0, shape);
    const std::size_t rows = width == 0 ? 0 : elements(shape) / width;
    const std::size_t block =
        std::max<std::size_t>(1, kSerialValues / std::max<std::size_t>(1, width));
    const auto some = [&](std::size_t index) {
      const std::size_t first = index * block;
      gate(activation, joined.data + first * 2 * width, std::min(block, rows - first), width,
           result + first * width);
    };
    if (rows <= block) {
      some(0);
    } else {
      context.parallel((rows + block - 1) / block, some);
    }
  }

  Activation activation = Activation::kSilu;
};

// Into how many parts a matrix of so many bytes is cut for the threads: parts small enough to share
// out evenly, large enough to be worth waking a thread for.
std::size_t parts_of(std::size_t bytes) {
  constexpr std::size_t kPartBytes = 32 * 1024;
  constexpr std::size_t kMostParts = 64;
  return std::clamp<std::size_t>(bytes / kPartBytes, 1, kMostParts);
}

struct Linear {
  static constexpr const char* kName = "IntegerLinear";
  static constexpr ONNXTensorElementDataType kInputs[] = {kUint8, kFloat, kInt8, kFloat, kInt32};
  static constexpr std::size_t kRequiredInputs = 5;
  static constexpr ONNXTensorElementDataType kOutputs[] = {kFloat};

  Linear(const OrtApi& /*api*/, const OrtKernelInfo* /*info*/) {}

  // Inputs: levels [..., width], steps [..., 1], weights [panels, width / 4, 16, 4], scales and
  // sums [outputs]. Output: [..., outputs].
  void compute(const Context& context) {
    const auto levels = context.input<std::uint8_t>(0);
    const auto steps = context.input<float>(1);
    const auto weights = context.input<std::int8_t>(2);
    const auto scales = context.input<float>(3);
    const auto sums = context.input<std::int32_t>(4);
    require(weights.shape.size() == 4 && weights.size(2) == kPanel && weights.size(3) == 4,
            "weights must be [panels, width / 4, 16, 4]");
    IntegerLinear linear;
    linear.width = weights.size(1) * 4;
    require(linear.width > 0 && linear.width <= kWidest,
            "weights must be at most 65536 wide, and not empty");
    linear.outputs = weights.size(0) * kPanel;
    require(!levels.shape.empty() && levels.size(levels.shape.size() - 1) == linear.width,
            "levels must be [..., width]");
    std::vector<std::int64_t> shape = levels.shape;
    shape.back() = 1;
    require(steps.shape == shape, "steps must be [..., 1]");
    const std::vector<std::int64_t> outputs = {static_cast<std::int64_t>(linear.outputs)};
    require(scales.shape == outputs && sums.shape == outputs, "scales and sums must be [outputs]");
    linear.rows = elements(shape);
    linear.levels = levels.data;
    linear.steps = steps.data;
    linear.weights = weights.data;
    linear.scales = scales.data;
    linear.sums = sums.data;
    shape.back() = outputs[0];
    linear.result = context.output<float>(0, shape);
    const std::size_t panels = weights.size(0);
    const std::size_t parts = parts_of(linear.width * linear.outputs);
    // Even numbers of panels, which are multiplied two at a time.
    const std::size_t part = ((panels + parts - 1) / parts + 1) / 2 * 2;
    if (part >= panels) {
      multiply(linear, 0, panels);
      return;
    }
    context.parallel((panels + part - 1) / part, [&](std::size_t index) {
      multiply(linear, index * part, std::min(panels, (index + 1) * part));
    });
  }
};

// The form of a node's weights: see block_linear.h.
BlockForm form_of(const OrtApi& api, const OrtKernelInfo* info) {
  std::int64_t form = 0;
  if (OrtStatus* const missing = api.KernelInfoGetAttribute_int64(info, "form", &form)) {
    api.ReleaseStatus(missing);  // graphs of before have one form
    form = 0;
  }
  require(form >= 0 && form < static_cast<std::int64_t>(kBlockForms), "form must be 0...6");
  return static_cast<BlockForm>(form);
}

// A matrix of weights in blocks: weights [panels, groups, bytes of a group], units [outputs].
BlockLinear matrix_of(BlockForm form, const Tensor<const std::uint8_t>& weights,
                      const Tensor<const float>& units) {
  const BlockLayout layout = layout_of(form);
  require(weights.shape.size() == 3 && weights.size(2) == layout.group_bytes(),
          "weights must be [panels, groups, bytes of a group]");
  BlockLinear linear;
  linear.form = form;
  linear.blocks = weights.size(1) * layout.group;
  require(
      units.shape.size() == 1 && (units.size(0) + kBlockPanel - 1) / kBlockPanel == weights.size(0),
      "units must be [outputs], as many as fill the panels");
  linear.outputs = units.size(0);
  linear.weights = weights.data;
  linear.units = units.data;
  return linear;
}

struct BlockWise {
  static constexpr const char* kName = "BlockLinear";
  static constexpr ONNXTensorElementDataType kInputs[] = {kFloat, kUint8, kFloat};
  static constexpr std::size_t kRequiredInputs = 3;
  static constexpr ONNXTensorElementDataType kOutputs[] = {kFloat};

  BlockWise(const OrtApi& api, const OrtKernelInfo* info) : form(form_of(api, info)) {}

  // Inputs: x [..., 32 * blocks], weights and units as `matrix_of` has them. Output:
  // [..., outputs].
  void compute(const Context& context) {
    const auto x = context.input<float>(0);
    const auto weights = context.input<std::uint8_t>(1);
    BlockLinear linear = matrix_of(form, weights, context.input<float>(2));
    const std::size_t panels = weights.size(0);
    require(!x.shape.empty() && x.size(x.shape.size() - 1) == linear.blocks * kBlock &&
                linear.blocks > 0,
            "x must be [..., 32 * blocks], and not empty");
    std::vector<std::int64_t> shape = x.shape;
    shape.back() = 1;
    linear.rows = elements(shape);
    shape.back() = static_cast<std::int64_t>(linear.outputs);
    linear.result = context.output<float>(0, shape);
    const std::size_t blocks = linear.rows * linear.blocks;
    const bool halved = layout_of(form).scales == 2;
    // Not filled: all of it is written.
    const std::unique_ptr<std::int8_t[]> levels(new std::int8_t[blocks * kBlock]);
    const std::unique_ptr<float[]> factors(new float[(halved ? 4 : 2) * blocks]);
    float* const sums = factors.get() + blocks;
    float* const halves = halved ? sums + blocks : nullptr;
    linear.levels = levels.get();
    linear.steps = factors.get();
    linear.sums = sums;
    linear.halves = halves;
    const auto quantize = [&](std::size_t begin, std::size_t end) {
      quantize_blocks(x.data + begin * kBlock, end - begin, levels.get() + begin * kBlock,
                      factors.get() + begin, sums + begin);
      if (halved) {
        sum_halves(levels.get() + begin * kBlock, end - begin, halves + 2 * begin);
      }
    };
    const std::size_t many = kRowBlock * linear.blocks;
    if (blocks <= many) {
      quantize(0, blocks);
    } else {
      context.parallel((blocks + many - 1) / many, [&](std::size_t index) {
        quantize(index * many, std::min(blocks, (index + 1) * many));
      });
    }
    const std::size_t parts = parts_of(elements(weights.shape));
    const std::size_t part = (panels + parts - 1) / parts;
    if (part >= panels) {
      multiply(linear, 0, panels);
      return;
    }
    context.parallel((panels + part - 1) / part, [&](std::size_t index) {
      multiply(linear, index * part, std::min(panels, (index + 1) * part));
    });
  }

  BlockForm form;
};

struct BlockRows {
  static constexpr const char* kName = "BlockRows";
  static constexpr ONNXTensorElementDataType kInputs[] = {kInt64, kUint8, kFloat};
  static constexpr std::size_t kRequiredInputs = 3;
  static constexpr ONNXTensorElementDataType kOutputs[] = {kFloat};

  BlockRows(const OrtApi& api, const OrtKernelInfo* info) : form(form_of(api, info)) {}

  // Inputs: tokens [...], weights and units as `matrix_of` has them. Output: the tokens' rows of
  // the matrix [..., 32 * blocks].
  void compute(const Context& context) {
    const auto tokens = context.input<std::int64_t>(0);
    const BlockLinear linear =
        matrix_of(form, context.input<std::uint8_t>(1), context.input<float>(2));
    const std::size_t count = elements(tokens.shape);
    for (std::size_t i = 0; i < count; ++i) {
      require(tokens.data[i] >= 0 && static_cast<std::size_t>(tokens.data[i]) < linear.outputs,
              "tokens must be rows of the matrix");
    }
    const std::size_t width = linear.blocks * kBlock;
    std::vector<std::int64_t> shape = tokens.shape;
    shape.push_back(static_cast<std::int64_t>(width));
    auto* const rows = context.output<float>(0, shape);
    for (std::size_t i = 0; i < count; ++i) {
      read_weights(linear, static_cast<std::size_t>(tokens.data[i]), rows + i * width);
    }
  }

  BlockForm form;
};

struct AddLowRank {
  static constexpr const char* kName = "AddLowRank";
  static constexpr ONNXTensorElementDataType kInputs[] = {kFloat, kFloat, kFloat, kFloat};
  static constexpr std::size_t kRequiredInputs = 4;
  static constexpr ONNXTensorElementDataType kOutputs[] = {kFloat};

  AddLowRank(const OrtApi& /*api*/, const OrtKernelInfo* /*info*/) {}

  // Inputs: base [..., outputs], x [..., width], a [width, rank], b [rank, outputs]. Output: as
  // base.
  void compute(const Context& context) {
    const auto base = context.input<float>(0);
    const auto x = context.input<float>(1);
    const auto a = context.input<float>(2);
    const auto b = context.input<float>(3);
    require(a.shape.size() == 2 && b.shape.size() == 2 && a.shape[1] == b.shape[0],
            "a must be [width, rank], b [rank, outputs]");
    std::vector<std::int64_t> shape = x.shape;
    require(!shape.empty() && shape.back() == a.shape[0], "x must be [..., width]");
    shape.back() = b.shape[1];
    require(base.shape == shape, "base must be [..., outputs]");
    LowRank lora;
    lora.width = a.size(0);
    lora.rank = a.size(1);
    lora.outputs = b.size(1);
    shape.pop_back();
    const std::size_t rows = elements(shape);
    lora.x = x.data;
    lora.base = base.data;
    lora.a = a.data;
    lora.b = b.data;
    lora.result = context.output<float>(0, base.shape);
    const std::size_t blocks = (rows + kRowBlock - 1) / kRowBlock;
    if (blocks <= 1) {
      add_low_rank(lora, 0, rows);
      return;
    }
    context.parallel(blocks, [&](std::size_t block) {
      add_low_rank(lora, block * kRowBlock, std::min((block + 1) * kRowBlock, rows));
    });
  }
};

// An operator's kernel and what it needs to compute.
template <typename Kernel>
struct Held {
  const OrtApi& api;
  Kernel kernel;
};

template <typename Kernel>
const OrtCustomOp* operator_of() {
  static const OrtCustomOp kOperator = [] {
    OrtCustomOp op{};
    op.version = kOrtApiVersion;
    op.GetName = [](const OrtCustomOp*) { return Kernel::kName; };
    op.GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
    op.GetInputType = [](const OrtCustomOp*, std::size_t index) { return Kernel::kInputs[index]; };
    op.GetInputTypeCount = [](const OrtCustomOp*) { return std::size(Kernel::kInputs); };
    op.GetOutputType = [](const OrtCustomOp*, std::size_t index) {
      return Kernel::kOutputs[index];
    };
    op.GetOutputTypeCount = [](const OrtCustomOp*) { return std::size(Kernel::kOutputs); };
    op.GetInputCharacteristic = [](const OrtCustomOp*, std::size_t index) {
      return index < Kernel::kRequiredInputs ? kRequired : kOptional;
    };
    op.GetOutputCharacteristic = [](const OrtCustomOp*, std::size_t) { return kRequired; };
    op.GetInputMemoryType = [](const OrtCustomOp*, std::size_t) { return 0; };
    op.KernelDestroy = [](void* kernel) { delete static_cast<Held<Kernel>*>(kernel); };
    op.CreateKernelV2 = [](const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info,
                           void** kernel) {
      return guarded(*api, [&] { *kernel = new Held<Kernel>{*api, Kernel(*api, info)}; });
    };
    op.KernelComputeV2 = [](void* kernel, OrtKernelContext* context) {
      auto* held = static_cast<Held<Kernel>*>(kernel);
      return guarded(held->api, [&] { held->kernel.compute(Context{held->api, context}); });
    };
    return op;
  }();
  return &kOperator;
}

}  // namespace
}  // namespace omnidraft

// ONNX Runtime calls this by name: SessionOptions.register_custom_ops_library.
extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace omnidraft;  // NOLINT: of this file
  const OrtApi* const api = base->GetApi(kOrtApiVersion);
  // An older ONNX Runtime has an older table, whose first function makes the status that says so.
  const OrtApi* const any = api != nullptr ? api : base->GetApi(1);
  if (any == nullptr) {
    return nullptr;  // Nothing can make a status. The session will not know our operators.
  }
  return guarded(*any, [&] {
    if (api == nullptr) {
      throw std::runtime_error("OmniDraft's operators need ONNX Runtime 1." +
                               std::to_string(kOrtApiVersion) + " or later; this is ONNX Runtime " +
                               base->GetVersionString());
    }
    // One for all sessions, for as long as the process lives: sessions keep pointers to it.
    static OrtCustomOpDomain* const kDomain = [&] {
      OrtCustomOpDomain* domain = nullptr;
      check(api->CreateCustomOpDomain("omnidraft", &domain));
      check(api->CustomOpDomain_Add(domain, operator_of<Attention<float>>()));
      check(api->CustomOpDomain_Add(domain, operator_of<Attention<std::uint16_t>>()));
      check(api->CustomOpDomain_Add(domain, operator_of<AddLowRank>()));
      check(api->CustomOpDomain_Add(domain, operator_of<BlockRows>()));
      check(api->CustomOpDomain_Add(domain, operator_of<BlockWise>()));
      check(api->CustomOpDomain_Add(domain, operator_of<Gate>()));
      check(api->CustomOpDomain_Add(domain, operator_of<Linear>()));
      check(api->CustomOpDomain_Add(domain, operator_of<QuantizeRows>()));
      return domain;
    }();
    check(api->AddCustomOpDomain(options, kDomain));
  });
}

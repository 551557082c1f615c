// The part of ONNX Runtime's C interface that custom operators need, as of its version 17.
//
// Its packages for Python bring no header. Both tables below are promised never to change but at
// their ends (a library built against version 17 works with any later one, from ONNX Runtime 1.17
// on), so this is all there is to know of them. GetApi returns null in an older one. Tests run with
// what pyproject.toml asks for; onnx_session.py refuses what is older than that. A field's number
// is its place in ONNX Runtime's table of functions.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;
struct OrtCustomOp;

constexpr std::uint32_t kOrtApiVersion = 17;
// ONNX's numbers of element types.
enum ONNXTensorElementDataType {
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt32 = 6,
  kInt64 = 7,
  kFloat16 = 10
};
enum OrtCustomOpInputOutputCharacteristic { kRequired = 0, kOptional = 1 };
enum OrtErrorCode { kFail = 1, kInvalidArgument = 2 };

struct OrtApi {
  OrtStatus* (*CreateStatus)(OrtErrorCode code, const char* message);  // 0
  void* from_1[25];
  OrtStatus* (*CreateCustomOpDomain)(const char* domain, OrtCustomOpDomain** out);         // 26
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain* domain, const OrtCustomOp* op);      // 27
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions* options, OrtCustomOpDomain* domain);  // 28
  void* from_29[22];
  OrtStatus* (*GetTensorMutableData)(OrtValue* value, void** out);  // 51
  void* from_52[9];
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo* info, std::size_t* out);  // 61
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo* info, std::int64_t* values,
                              std::size_t count);  // 62
  void* from_63[2];
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue* value,
                                      OrtTensorTypeAndShapeInfo** out);  // 65
  void* from_66[19];
  OrtStatus* (*KernelInfoGetAttribute_float)(const OrtKernelInfo* info, const char* name,
                                             float* out);  // 85
  OrtStatus* (*KernelInfoGetAttribute_int64)(const OrtKernelInfo* info, const char* name,
                                             std::int64_t* out);  // 86
  void* from_87[3];
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext* context, std::size_t index,
                                       const OrtValue** out);  // 90
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext* context, std::size_t index,
                                        const std::int64_t* dimensions, std::size_t count,
                                        OrtValue** out);  // 91
  void* from_92[1];
  void (*ReleaseStatus)(OrtStatus* status);  // 93
  void* from_94[5];
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo* info);  // 99
  void* from_100[174];
  OrtStatus* (*KernelContext_ParallelFor)(const OrtKernelContext* context,
                                          void (*function)(void* data, std::size_t index),
                                          std::size_t total, std::size_t batches,
                                          void* data);  // 274
};
static_assert(offsetof(OrtApi, AddCustomOpDomain) == 28 * sizeof(void*));
static_assert(offsetof(OrtApi, GetTensorTypeAndShape) == 65 * sizeof(void*));
static_assert(offsetof(OrtApi, KernelContext_GetOutput) == 91 * sizeof(void*));
static_assert(offsetof(OrtApi, ReleaseStatus) == 93 * sizeof(void*));
static_assert(offsetof(OrtApi, ReleaseTensorTypeAndShapeInfo) == 99 * sizeof(void*));
static_assert(offsetof(OrtApi, KernelContext_ParallelFor) == 274 * sizeof(void*));

struct OrtApiBase {
  const OrtApi* (*GetApi)(std::uint32_t version);
  const char* (*GetVersionString)();
};

// What the functions say of an operator; fields without a name are left null.
struct OrtCustomOp {
  std::uint32_t version;
  void* CreateKernel;
  const char* (*GetName)(const OrtCustomOp*);
  const char* (*GetExecutionProviderType)(const OrtCustomOp*);
  ONNXTensorElementDataType (*GetInputType)(const OrtCustomOp*, std::size_t index);
  std::size_t (*GetInputTypeCount)(const OrtCustomOp*);
  ONNXTensorElementDataType (*GetOutputType)(const OrtCustomOp*, std::size_t index);
  std::size_t (*GetOutputTypeCount)(const OrtCustomOp*);
  void* KernelCompute;
  void (*KernelDestroy)(void* kernel);
  OrtCustomOpInputOutputCharacteristic (*GetInputCharacteristic)(const OrtCustomOp*, std::size_t);
  OrtCustomOpInputOutputCharacteristic (*GetOutputCharacteristic)(const OrtCustomOp*, std::size_t);
  int (*GetInputMemoryType)(const OrtCustomOp*, std::size_t index);
  void* variadic[4];
  // These two stand for the two above that are null.
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp*, const OrtApi* api, const OrtKernelInfo* info,
                               void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext* context);
  OrtStatus* (*InferOutputShapeFn)(const OrtCustomOp*, OrtShapeInferContext*);
  void* later[6];
};

}  // extern "C"

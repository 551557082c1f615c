// The part of ONNX Runtime's C interface that custom operators, and the program in runner/, need,
// as of its version 17.
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

struct OrtAllocator;
struct OrtEnv;
struct OrtMemoryInfo;
struct OrtRunOptions;
struct OrtSession;
struct OrtSessionOptions;
struct OrtStatus;
struct OrtTypeInfo;
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
  void* from_1[1];
  const char* (*GetErrorMessage)(const OrtStatus* status);                      // 2
  OrtStatus* (*CreateEnv)(int log_severity, const char* log_id, OrtEnv** out);  // 3
  void* from_4[3];
  OrtStatus* (*CreateSession)(const OrtEnv* env, const char* path, const OrtSessionOptions* options,
                              OrtSession** out);  // 7
  void* from_8[1];
  OrtStatus* (*Run)(OrtSession* session, const OrtRunOptions* options,
                    const char* const* input_names, const OrtValue* const* inputs,
                    std::size_t input_count, const char* const* output_names,
                    std::size_t output_count, OrtValue** outputs);  // 9
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions** out);      // 10
  void* from_11[12];
  OrtStatus* (*SetSessionGraphOptimizationLevel)(OrtSessionOptions* options, int level);   // 23
  OrtStatus* (*SetIntraOpNumThreads)(OrtSessionOptions* options, int threads);             // 24
  OrtStatus* (*SetInterOpNumThreads)(OrtSessionOptions* options, int threads);             // 25
  OrtStatus* (*CreateCustomOpDomain)(const char* domain, OrtCustomOpDomain** out);         // 26
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain* domain, const OrtCustomOp* op);      // 27
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions* options, OrtCustomOpDomain* domain);  // 28
  void* from_29[1];
  OrtStatus* (*SessionGetInputCount)(const OrtSession* session, std::size_t* out);   // 30
  OrtStatus* (*SessionGetOutputCount)(const OrtSession* session, std::size_t* out);  // 31
  void* from_32[1];
  OrtStatus* (*SessionGetInputTypeInfo)(const OrtSession* session, std::size_t index,
                                        OrtTypeInfo** out);  // 33
  OrtStatus* (*SessionGetOutputTypeInfo)(const OrtSession* session, std::size_t index,
                                         OrtTypeInfo** out);  // 34
  void* from_35[1];
  OrtStatus* (*SessionGetInputName)(const OrtSession* session, std::size_t index,
                                    OrtAllocator* allocator, char** out);  // 36
  OrtStatus* (*SessionGetOutputName)(const OrtSession* session, std::size_t index,
                                     OrtAllocator* allocator, char** out);  // 37
  void* from_38[11];
  OrtStatus* (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo* info, void* data,
                                               std::size_t bytes, const std::int64_t* shape,
                                               std::size_t dimensions,
                                               ONNXTensorElementDataType type,
                                               OrtValue** out);  // 49
  void* from_50[1];
  OrtStatus* (*GetTensorMutableData)(OrtValue* value, void** out);  // 51
  void* from_52[3];
  OrtStatus* (*CastTypeInfoToTensorInfo)(const OrtTypeInfo* type,
                                         const OrtTensorTypeAndShapeInfo** out);  // 55
  void* from_56[4];
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo* info,
                                     ONNXTensorElementDataType* out);                         // 60
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo* info, std::size_t* out);  // 61
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo* info, std::int64_t* values,
                              std::size_t count);  // 62
  void* from_63[2];
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue* value,
                                      OrtTensorTypeAndShapeInfo** out);  // 65
  void* from_66[3];
  OrtStatus* (*CreateCpuMemoryInfo)(int allocator, int memory, OrtMemoryInfo** out);  // 69
  void* from_70[6];
  OrtStatus* (*AllocatorFree)(OrtAllocator* allocator, void* memory);  // 76
  void* from_77[1];
  OrtStatus* (*GetAllocatorWithDefaultOptions)(OrtAllocator** out);  // 78
  void* from_79[6];
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
  void (*ReleaseEnv)(OrtEnv* env);                        // 92
  void (*ReleaseStatus)(OrtStatus* status);               // 93
  void (*ReleaseMemoryInfo)(OrtMemoryInfo* info);         // 94
  void (*ReleaseSession)(OrtSession* session);            // 95
  void (*ReleaseValue)(OrtValue* value);                  // 96
  void* from_97[1];
  void (*ReleaseTypeInfo)(OrtTypeInfo* type);                              // 98
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo* info);  // 99
  void (*ReleaseSessionOptions)(OrtSessionOptions* options);               // 100
  void* from_101[29];
  OrtStatus* (*AddSessionConfigEntry)(OrtSessionOptions* options, const char* key,
                                      const char* value);  // 130
  void* from_131[97];
  OrtStatus* (*RegisterCustomOpsLibrary_V2)(OrtSessionOptions* options, const char* path);  // 228
  void* from_229[45];
  OrtStatus* (*KernelContext_ParallelFor)(const OrtKernelContext* context,
                                          void (*function)(void* data, std::size_t index),
                                          std::size_t total, std::size_t batches,
                                          void* data);  // 274
};
static_assert(offsetof(OrtApi, AddCustomOpDomain) == 28 * sizeof(void*));
static_assert(offsetof(OrtApi, SessionGetOutputName) == 37 * sizeof(void*));
static_assert(offsetof(OrtApi, GetTensorTypeAndShape) == 65 * sizeof(void*));
static_assert(offsetof(OrtApi, GetAllocatorWithDefaultOptions) == 78 * sizeof(void*));
static_assert(offsetof(OrtApi, KernelContext_GetOutput) == 91 * sizeof(void*));
static_assert(offsetof(OrtApi, ReleaseStatus) == 93 * sizeof(void*));
static_assert(offsetof(OrtApi, ReleaseTensorTypeAndShapeInfo) == 99 * sizeof(void*));
static_assert(offsetof(OrtApi, AddSessionConfigEntry) == 130 * sizeof(void*));
static_assert(offsetof(OrtApi, RegisterCustomOpsLibrary_V2) == 228 * sizeof(void*));
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

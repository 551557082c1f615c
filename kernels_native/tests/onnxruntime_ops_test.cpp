#include <gtest/gtest.h>

#include <string>

#include "onnxruntime_abi.h"

extern "C" OrtStatus* RegisterCustomOps(OrtSessionOptions* options, const OrtApiBase* base);

namespace {

// An ONNX Runtime whose newest interface is version `newest`; 0: it has none at all.
std::uint32_t newest = 0;
std::string message;
int made = 0;

OrtStatus* refuse(OrtErrorCode, const char* text) {
  message = text;
  return reinterpret_cast<OrtStatus*>(&made);
}

const OrtApi* api_of(std::uint32_t version) {
  // An older table ends earlier: nothing but its first function may be called.
  static const OrtApi kApi = [] {
    OrtApi api{};
    api.CreateStatus = refuse;
    return api;
  }();
  return version >= 1 && version <= newest ? &kApi : nullptr;
}

OrtStatus* register_with(std::uint32_t version) {
  newest = version;
  message.clear();
  const OrtApiBase base{api_of, [] { return "1.16.3"; }};
  return RegisterCustomOps(nullptr, &base);
}

TEST(OnnxruntimeOps, AnOlderRuntimeIsRefusedInWords) {
  for (std::uint32_t version = 1; version < kOrtApiVersion; ++version) {
    EXPECT_EQ(register_with(version), reinterpret_cast<OrtStatus*>(&made)) << version;
    EXPECT_NE(message.find("ONNX Runtime 1.16.3"), std::string::npos) << message;
    EXPECT_NE(message.find("1." + std::to_string(kOrtApiVersion)), std::string::npos) << message;
  }
}

TEST(OnnxruntimeOps, WithoutAnyInterfaceNothingIsRegistered) {
  EXPECT_EQ(register_with(0), nullptr);
  EXPECT_TRUE(message.empty());
}

}  // namespace

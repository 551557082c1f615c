// Loading, errors, and arrays between Java and C++.
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>

#include "support.h"

namespace omnidraft::jni {
namespace {

// Native.failure(status, message), which makes the exception that is thrown.
jclass native_class = nullptr;
jmethodID failure = nullptr;

void fail(JNIEnv* env, jint status, const char* message) noexcept {
  if (env->ExceptionCheck()) {
    return;
  }
  const auto length = static_cast<jsize>(std::strlen(message));
  jbyteArray text = env->NewByteArray(length);
  if (text == nullptr) {
    return;
  }
  env->SetByteArrayRegion(text, 0, length, reinterpret_cast<const jbyte*>(message));
  auto* const error =
      static_cast<jthrowable>(env->CallStaticObjectMethod(native_class, failure, status, text));
  if (error != nullptr) {
    env->Throw(error);
  }
}

template <typename Array>
jsize length_of(JNIEnv* env, Array array) {
  return array == nullptr ? 0 : env->GetArrayLength(array);
}

template <typename Array>
Array made(Array array) {
  if (array == nullptr) {
    throw Pending();
  }
  return array;
}

}  // namespace

void check(JNIEnv* env, omnidraft_status status) {
  if (status != OMNIDRAFT_OK) {
    fail(env, status, omnidraft_last_error());
  }
  if (env->ExceptionCheck()) {
    throw Pending();
  }
}

void raise(JNIEnv* env) noexcept {
  try {
    throw;
  } catch (const Pending&) {
  } catch (const std::bad_alloc&) {
    fail(env, OMNIDRAFT_NO_MEMORY, "there is no more memory");
  } catch (const std::invalid_argument& error) {
    fail(env, OMNIDRAFT_INVALID_ARGUMENT, error.what());
  } catch (const std::exception& error) {
    fail(env, OMNIDRAFT_FAILED, error.what());
  }
}

std::vector<jint> ints(JNIEnv* env, jintArray array) {
  std::vector<jint> values(static_cast<std::size_t>(length_of(env, array)));
  if (!values.empty()) {
    env->GetIntArrayRegion(array, 0, static_cast<jsize>(values.size()), values.data());
  }
  return values;
}

std::vector<jdouble> doubles(JNIEnv* env, jdoubleArray array) {
  std::vector<jdouble> values(static_cast<std::size_t>(length_of(env, array)));
  if (!values.empty()) {
    env->GetDoubleArrayRegion(array, 0, static_cast<jsize>(values.size()), values.data());
  }
  return values;
}

std::string bytes(JNIEnv* env, jbyteArray array) {
  std::string values(static_cast<std::size_t>(length_of(env, array)), '\0');
  if (!values.empty()) {
    env->GetByteArrayRegion(array, 0, static_cast<jsize>(values.size()),
                            reinterpret_cast<jbyte*>(values.data()));
  }
  return values;
}

jintArray to_java(JNIEnv* env, const std::vector<jint>& values) {
  const auto length = static_cast<jsize>(values.size());
  jintArray array = made(env->NewIntArray(length));
  env->SetIntArrayRegion(array, 0, length, values.data());
  return array;
}

jbyteArray to_java(JNIEnv* env, const char* bytes, std::size_t size) {
  if (size > static_cast<std::size_t>(std::numeric_limits<jsize>::max())) {
    throw std::bad_alloc();
  }
  const auto length = static_cast<jsize>(size);
  jbyteArray array = made(env->NewByteArray(length));
  env->SetByteArrayRegion(array, 0, length, reinterpret_cast<const jbyte*>(bytes));
  return array;
}

void append(std::vector<jint>& values, const jint* data, std::size_t count) {
  values.insert(values.end(), data, data + count);
}

bool find_failure(JNIEnv* env, jclass native) {
  native_class = static_cast<jclass>(env->NewGlobalRef(native));
  failure = env->GetStaticMethodID(native, "failure", "(I[B)Ljava/lang/Throwable;");
  return native_class != nullptr && failure != nullptr;
}

}  // namespace omnidraft::jni

extern "C" JNIEXPORT jint JNI_OnLoad(JavaVM* machine, void*) {
  using namespace omnidraft::jni;  // NOLINT: a binding file
  JNIEnv* env = nullptr;
  if (machine->GetEnv(reinterpret_cast<void**>(&env), JNI_VERSION_1_6) != JNI_OK) {
    return JNI_ERR;
  }
  jclass native = env->FindClass("org/omnidraft/engine/core/Native");
  if (native == nullptr || !find_failure(env, native) || !find_segment(env)) {
    return JNI_ERR;
  }
  find_machine(machine);
  for (const auto& methods : {vocabulary_methods(), cache_methods(), policy_methods(),
                              speller_methods(), generation_methods()}) {
    if (env->RegisterNatives(native, methods.data(), static_cast<jint>(methods.size())) != JNI_OK) {
      return JNI_ERR;
    }
  }
  return JNI_VERSION_1_6;
}

// What all native methods of org.omnidraft.engine.core.Native have in common.
#pragma once

#include <jni.h>

#include <string>
#include <vector>

#include "omnidraft.h"

namespace omnidraft::jni {

// A Java exception is pending: back to Java.
struct Pending {};

// Throws what a call that failed says, unless a callback left its own exception.
void check(JNIEnv* env, omnidraft_status status);

// Makes Java's exception of a C++ one that is being handled.
void raise(JNIEnv* env) noexcept;

// Does what a native method is for. No C++ exception leaves it.
template <typename Work>
auto guard(JNIEnv* env, Work work) noexcept -> decltype(work()) {
  try {
    return work();
  } catch (...) {
    raise(env);
    return decltype(work())();
  }
}

// A handle as Java holds it.
template <typename T>
T* handle(jlong address) {
  return reinterpret_cast<T*>(address);
}

template <typename T>
jlong address(T* handle) {
  return reinterpret_cast<jlong>(handle);
}

// Copies of arrays; none for null.
std::vector<jint> ints(JNIEnv* env, jintArray array);
std::vector<jdouble> doubles(JNIEnv* env, jdoubleArray array);
std::string bytes(JNIEnv* env, jbyteArray array);

jintArray to_java(JNIEnv* env, const std::vector<jint>& values);
jbyteArray to_java(JNIEnv* env, const char* bytes, std::size_t size);

void append(std::vector<jint>& values, const jint* data, std::size_t count);

inline omnidraft_text text(const std::string& bytes) { return {bytes.data(), bytes.size()}; }

inline std::size_t size(jlong value) { return static_cast<std::size_t>(value); }

// Of an object array of native methods.
template <typename Function>
JNINativeMethod method(const char* name, const char* signature, Function function) {
  return {const_cast<char*>(name), const_cast<char*>(signature), reinterpret_cast<void*>(function)};
}

// The native methods, by what they are for.
std::vector<JNINativeMethod> vocabulary_methods();
std::vector<JNINativeMethod> cache_methods();
std::vector<JNINativeMethod> policy_methods();
std::vector<JNINativeMethod> speller_methods();
std::vector<JNINativeMethod> generation_methods();

// The Java side of errors, found when the library is loaded; false: an exception is pending.
bool find_failure(JNIEnv* env, jclass native);
// The method of the callback of a speller.
bool find_segment(JNIEnv* env);
void find_machine(JavaVM* machine);

}  // namespace omnidraft::jni

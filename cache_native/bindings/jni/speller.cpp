#include <algorithm>
#include <memory>
#include <stdexcept>

#include "support.h"

namespace omnidraft::jni {
namespace {

JavaVM* machine = nullptr;
jmethodID segment_method = nullptr;

// Of the thread, which a Java method called.
JNIEnv* environment() {
  JNIEnv* env = nullptr;
  machine->GetEnv(reinterpret_cast<void**>(&env), JNI_VERSION_1_6);
  return env;
}

// Asks the Segment. What it throws stays pending, until the native method returns.
std::int64_t segment(void* user, omnidraft_text text, omnidraft_token* tokens,
                     std::size_t capacity) {
  JNIEnv* env = environment();
  jbyteArray bytes = env->NewByteArray(static_cast<jsize>(text.size));
  if (bytes == nullptr) {
    return -1;
  }
  env->SetByteArrayRegion(bytes, 0, static_cast<jsize>(text.size),
                          reinterpret_cast<const jbyte*>(text.bytes));
  auto* const found = static_cast<jintArray>(
      env->CallObjectMethod(static_cast<jobject>(user), segment_method, bytes));
  env->DeleteLocalRef(bytes);
  if (env->ExceptionCheck()) {
    return -1;
  }
  if (found == nullptr) {
    return 0;
  }
  const jsize count = env->GetArrayLength(found);
  env->GetIntArrayRegion(found, 0, std::min(count, static_cast<jsize>(capacity)), tokens);
  env->DeleteLocalRef(found);
  return count;
}

void release(void* user) { environment()->DeleteGlobalRef(static_cast<jobject>(user)); }

jlong speller_new(JNIEnv* env, jclass, jlong pair, jobject callback, jbyteArray special_text,
                  jintArray special_targets, jintArray special_drafts) {
  return guard(env, [&] {
    const std::string shown = bytes(env, special_text);
    const std::vector<jint> targets = ints(env, special_targets),
                            drafts = ints(env, special_drafts);
    if (targets.size() != drafts.size()) {
      throw std::invalid_argument("each special token of the target has one of the drafter");
    }
    omnidraft_speller_options options = OMNIDRAFT_SPELLER_INIT;
    options.segment = segment;
    options.release = release;
    options.special_text = text(shown);
    options.special_targets = targets.data();
    options.special_drafts = drafts.data();
    options.special_count = targets.size();
    std::unique_ptr<void, void (*)(void*)> user(env->NewGlobalRef(callback), release);
    if (user == nullptr) {
      throw std::bad_alloc();
    }
    options.user = user.get();
    omnidraft_speller* made = nullptr;
    check(env, omnidraft_speller_new(handle<omnidraft_pair>(pair), &options, &made));
    user.release();  // NOLINT: the speller releases it
    return address(made);
  });
}

void speller_free(JNIEnv*, jclass, jlong speller) {
  omnidraft_speller_free(handle<omnidraft_speller>(speller));
}

}  // namespace

bool find_segment(JNIEnv* env) {
  jclass segment = env->FindClass("org/omnidraft/engine/core/Segment");
  if (segment == nullptr) {
    return false;
  }
  segment_method = env->GetMethodID(segment, "segment", "([B)[I");
  env->DeleteLocalRef(segment);
  return segment_method != nullptr;
}

void find_machine(JavaVM* java) { machine = java; }

std::vector<JNINativeMethod> speller_methods() {
  return {method("spellerNew", "(JLorg/omnidraft/engine/core/Segment;[B[I[I)J", speller_new),
          method("spellerFree", "(J)V", speller_free)};
}

}  // namespace omnidraft::jni

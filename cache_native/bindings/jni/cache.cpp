#include "support.h"

namespace omnidraft::jni {
namespace {

omnidraft_limits limits(jlong max_entries, jlong max_bytes, jint eviction) {
  omnidraft_limits limits = OMNIDRAFT_LIMITS_INIT;
  limits.max_entries = size(max_entries);
  limits.max_bytes = size(max_bytes);
  limits.eviction = eviction;
  return limits;
}

jlong cache_new(JNIEnv* env, jclass, jlong pair, jlong max_entries, jlong max_bytes,
                jint eviction) {
  return guard(env, [&] {
    const omnidraft_limits given = limits(max_entries, max_bytes, eviction);
    omnidraft_cache* made = nullptr;
    check(env, omnidraft_cache_new(handle<omnidraft_pair>(pair), &given, &made));
    return address(made);
  });
}

void cache_free(JNIEnv*, jclass, jlong cache) {
  omnidraft_cache_free(handle<omnidraft_cache>(cache));
}

jlong cache_size(JNIEnv* env, jclass, jlong cache) {
  return guard(env, [&] {
    std::size_t ngrams = 0;
    check(env, omnidraft_cache_size(handle<omnidraft_cache>(cache), &ngrams));
    return static_cast<jlong>(ngrams);
  });
}

jlong cache_memory(JNIEnv* env, jclass, jlong cache) {
  return guard(env, [&] {
    std::size_t bytes = 0;
    check(env, omnidraft_cache_memory(handle<omnidraft_cache>(cache), &bytes));
    return static_cast<jlong>(bytes);
  });
}

jboolean cache_observe(JNIEnv* env, jclass, jlong cache, jint target, jintArray drafts) {
  return guard(env, [&] {
    const std::vector<jint> given = ints(env, drafts);
    std::int32_t inserted = 0;
    check(env, omnidraft_cache_observe(handle<omnidraft_cache>(cache), target, given.data(),
                                       given.size(), &inserted));
    return static_cast<jboolean>(inserted != 0);
  });
}

jbyteArray cache_to_bytes(JNIEnv* env, jclass, jlong cache) {
  return guard(env, [&] {
    const std::uint8_t* bytes = nullptr;
    std::size_t size = 0;
    check(env, omnidraft_cache_to_bytes(handle<omnidraft_cache>(cache), &bytes, &size));
    return to_java(env, reinterpret_cast<const char*>(bytes), size);
  });
}

jlong cache_from_bytes(JNIEnv* env, jclass, jbyteArray given, jlong pair, jlong max_entries,
                       jlong max_bytes, jint eviction) {
  return guard(env, [&] {
    const std::string all = bytes(env, given);
    const omnidraft_limits bounds = limits(max_entries, max_bytes, eviction);
    omnidraft_cache* made = nullptr;
    check(env,
          omnidraft_cache_from_bytes(reinterpret_cast<const std::uint8_t*>(all.data()), all.size(),
                                     handle<omnidraft_pair>(pair), &bounds, &made));
    return address(made);
  });
}

void cache_save(JNIEnv* env, jclass, jlong cache, jbyteArray path) {
  guard(env, [&] {
    check(env, omnidraft_cache_save(handle<omnidraft_cache>(cache), bytes(env, path).c_str()));
  });
}

jlong cache_load(JNIEnv* env, jclass, jbyteArray path, jlong pair, jlong max_entries,
                 jlong max_bytes, jint eviction) {
  return guard(env, [&] {
    const omnidraft_limits bounds = limits(max_entries, max_bytes, eviction);
    omnidraft_cache* made = nullptr;
    check(env, omnidraft_cache_load(bytes(env, path).c_str(), handle<omnidraft_pair>(pair), &bounds,
                                    &made));
    return address(made);
  });
}

}  // namespace

std::vector<JNINativeMethod> cache_methods() {
  return {method("cacheNew", "(JJJI)J", cache_new),
          method("cacheFree", "(J)V", cache_free),
          method("cacheSize", "(J)J", cache_size),
          method("cacheMemory", "(J)J", cache_memory),
          method("cacheObserve", "(JI[I)Z", cache_observe),
          method("cacheToBytes", "(J)[B", cache_to_bytes),
          method("cacheFromBytes", "([BJJJI)J", cache_from_bytes),
          method("cacheSave", "(J[B)V", cache_save),
          method("cacheLoad", "([BJJJI)J", cache_load)};
}

}  // namespace omnidraft::jni

#include <stdexcept>

#include "support.h"

namespace omnidraft::jni {
namespace {

// Texts that lie behind one another; ends: where each does.
std::vector<omnidraft_text> texts(const std::string& joined, const std::vector<jint>& ends) {
  std::vector<omnidraft_text> texts;
  std::size_t begin = 0;
  for (const jint end : ends) {
    const auto next = static_cast<std::size_t>(end);
    if (next < begin || next > joined.size()) {
      throw std::invalid_argument("ends of texts ascend within them");
    }
    texts.push_back({joined.data() + begin, next - begin});
    begin = next;
  }
  return texts;
}

jlong vocabulary_new(JNIEnv* env, jclass, jbyteArray surfaces, jintArray surface_ends,
                     jbyteArray pieces, jintArray piece_ends, jbyteArray kinds) {
  return guard(env, [&] {
    const std::string surface_bytes = bytes(env, surfaces), piece_bytes = bytes(env, pieces);
    const auto surface_texts = texts(surface_bytes, ints(env, surface_ends));
    const auto piece_texts = texts(piece_bytes, ints(env, piece_ends));
    const std::string kind_bytes = bytes(env, kinds);
    const std::size_t count = surface_texts.size();
    if ((!piece_texts.empty() && piece_texts.size() != count) || kind_bytes.size() != count) {
      throw std::invalid_argument("pieces and kinds are as many as surfaces");
    }
    omnidraft_vocabulary* made = nullptr;
    check(env, omnidraft_vocabulary_new(
                   surface_texts.data(), piece_texts.empty() ? nullptr : piece_texts.data(),
                   reinterpret_cast<const std::uint8_t*>(kind_bytes.data()), count, &made));
    return address(made);
  });
}

void vocabulary_free(JNIEnv*, jclass, jlong vocabulary) {
  omnidraft_vocabulary_free(handle<omnidraft_vocabulary>(vocabulary));
}

jlong pair_new(JNIEnv* env, jclass, jlong drafter, jlong target, jint rule) {
  return guard(env, [&] {
    omnidraft_pair* made = nullptr;
    check(env, omnidraft_pair_new(handle<omnidraft_vocabulary>(drafter),
                                  handle<omnidraft_vocabulary>(target), rule, &made));
    return address(made);
  });
}

void pair_free(JNIEnv*, jclass, jlong pair) { omnidraft_pair_free(handle<omnidraft_pair>(pair)); }

jlong pair_fingerprint(JNIEnv* env, jclass, jlong pair) {
  return guard(env, [&] {
    std::uint64_t fingerprint = 0;
    check(env, omnidraft_pair_fingerprint(handle<omnidraft_pair>(pair), &fingerprint));
    return static_cast<jlong>(fingerprint);
  });
}

jlong pair_direct_count(JNIEnv* env, jclass, jlong pair) {
  return guard(env, [&] {
    std::size_t count = 0;
    check(env, omnidraft_pair_direct_count(handle<omnidraft_pair>(pair), &count));
    return static_cast<jlong>(count);
  });
}

jint pair_to_target(JNIEnv* env, jclass, jlong pair, jint draft) {
  return guard(env, [&] {
    jint target = OMNIDRAFT_NO_TOKEN;
    check(env, omnidraft_pair_to_target(handle<omnidraft_pair>(pair), draft, &target));
    return target;
  });
}

jint pair_to_draft(JNIEnv* env, jclass, jlong pair, jint target) {
  return guard(env, [&] {
    jint draft = OMNIDRAFT_NO_TOKEN;
    check(env, omnidraft_pair_to_draft(handle<omnidraft_pair>(pair), target, &draft));
    return draft;
  });
}

}  // namespace

std::vector<JNINativeMethod> vocabulary_methods() {
  return {method("vocabularyNew", "([B[I[B[I[B)J", vocabulary_new),
          method("vocabularyFree", "(J)V", vocabulary_free),
          method("pairNew", "(JJI)J", pair_new),
          method("pairFree", "(J)V", pair_free),
          method("pairFingerprint", "(J)J", pair_fingerprint),
          method("pairDirectCount", "(J)J", pair_direct_count),
          method("pairToTarget", "(JI)I", pair_to_target),
          method("pairToDraft", "(JI)I", pair_to_draft)};
}

}  // namespace omnidraft::jni

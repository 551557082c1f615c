#include <stdexcept>

#include "support.h"

namespace omnidraft::jni {
namespace {

// Curves behind one another, of the target by their bands, and last the drafter's; counts: points
// of each.
jlong costs_new(JNIEnv* env, jclass, jintArray bands, jintArray counts, jintArray sizes,
                jdoubleArray seconds) {
  return guard(env, [&] {
    const std::vector<jint> ends = ints(env, bands), points = ints(env, counts);
    const std::vector<jint> all = ints(env, sizes);
    const std::vector<std::size_t> tokens(all.begin(), all.end());
    const std::vector<jdouble> times = doubles(env, seconds);
    if (points.size() != ends.size() + 1 || tokens.size() != times.size()) {
      throw std::invalid_argument("a curve has a band, and a time of each size");
    }
    std::vector<omnidraft_curve> curves;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const auto count = static_cast<std::size_t>(points[i]);
      if (count > tokens.size() - begin) {
        throw std::invalid_argument("curves have as many points as there are");
      }
      curves.push_back({i < ends.size() ? static_cast<std::size_t>(ends[i]) : 0,
                        tokens.data() + begin, times.data() + begin, count});
      begin += count;
    }
    omnidraft_costs* made = nullptr;
    check(env, omnidraft_costs_new(curves.data(), ends.size(), &curves.back(), &made));
    return address(made);
  });
}

void costs_free(JNIEnv*, jclass, jlong costs) {
  omnidraft_costs_free(handle<omnidraft_costs>(costs));
}

jintArray costs_bands(JNIEnv* env, jclass, jlong costs) {
  return guard(env, [&] {
    const std::size_t* bands = nullptr;
    std::size_t count = 0;
    check(env, omnidraft_costs_bands(handle<omnidraft_costs>(costs), &bands, &count));
    std::vector<jint> ends;
    for (std::size_t i = 0; i < count; ++i) {
      ends.push_back(static_cast<jint>(bands[i]));
    }
    return to_java(env, ends);
  });
}

jdouble costs_seconds(JNIEnv* env, jclass, jlong costs, jint band, jint tokens) {
  return guard(env, [&] {
    double seconds = 0;
    check(env,
          omnidraft_costs_seconds(handle<omnidraft_costs>(costs), static_cast<std::size_t>(band),
                                  static_cast<std::size_t>(tokens), &seconds));
    return seconds;
  });
}

jboolean costs_moved(JNIEnv* env, jclass, jlong costs) {
  return guard(env, [&] {
    std::int32_t moved = 0;
    check(env, omnidraft_costs_moved(handle<omnidraft_costs>(costs), &moved));
    return static_cast<jboolean>(moved != 0);
  });
}

void costs_written(JNIEnv* env, jclass, jlong costs) {
  guard(env, [&] { check(env, omnidraft_costs_written(handle<omnidraft_costs>(costs))); });
}

jlong policy_fixed(JNIEnv* env, jclass, jint tokens, jdouble confidence) {
  return guard(env, [&] {
    omnidraft_policy* made = nullptr;
    check(env, omnidraft_policy_fixed(static_cast<std::size_t>(tokens), confidence, &made));
    return address(made);
  });
}

jlong policy_cost_aware(JNIEnv* env, jclass, jlong costs) {
  return guard(env, [&] {
    omnidraft_policy* made = nullptr;
    check(env, omnidraft_policy_cost_aware(handle<omnidraft_costs>(costs), &made));
    return address(made);
  });
}

void policy_free(JNIEnv*, jclass, jlong policy) {
  omnidraft_policy_free(handle<omnidraft_policy>(policy));
}

jlong lookup_new(JNIEnv* env, jclass, jint vocabulary_size, jint max_tokens) {
  return guard(env, [&] {
    omnidraft_lookup* made = nullptr;
    check(env, omnidraft_lookup_new(static_cast<std::size_t>(vocabulary_size),
                                    static_cast<std::size_t>(max_tokens), &made));
    return address(made);
  });
}

void lookup_free(JNIEnv*, jclass, jlong lookup) {
  omnidraft_lookup_free(handle<omnidraft_lookup>(lookup));
}

}  // namespace

std::vector<JNINativeMethod> policy_methods() {
  return {method("costsNew", "([I[I[I[D)J", costs_new),
          method("costsFree", "(J)V", costs_free),
          method("costsBands", "(J)[I", costs_bands),
          method("costsSeconds", "(JII)D", costs_seconds),
          method("costsMoved", "(J)Z", costs_moved),
          method("costsWritten", "(J)V", costs_written),
          method("policyFixed", "(ID)J", policy_fixed),
          method("policyCostAware", "(J)J", policy_cost_aware),
          method("policyFree", "(J)V", policy_free),
          method("lookupNew", "(II)J", lookup_new),
          method("lookupFree", "(J)V", lookup_free)};
}

}  // namespace omnidraft::jni

// Results are handed over as ints behind one another; Generation.kt takes them apart.
#include <stdexcept>

#include "support.h"

namespace omnidraft::jni {
namespace {

omnidraft_sampling sampling_of(jdouble temperature, jint top_k, jdouble top_p, jdouble min_p,
                               jdouble repetition_penalty) {
  omnidraft_sampling sampling = OMNIDRAFT_SAMPLING_INIT;
  sampling.temperature = temperature;
  sampling.top_k = top_k;
  sampling.top_p = top_p;
  sampling.min_p = min_p;
  sampling.repetition_penalty = repetition_penalty;
  return sampling;
}

omnidraft_generation* of(jlong generation) { return handle<omnidraft_generation>(generation); }

// A part of a direct buffer of floats, which is not copied.
const float* floats(JNIEnv* env, jobject buffer, jint offset, jint count) {
  const auto* const data = static_cast<const float*>(env->GetDirectBufferAddress(buffer));
  const jlong capacity = env->GetDirectBufferCapacity(buffer);
  if (data == nullptr || offset < 0 || count < 0 || offset > capacity - count) {
    throw std::invalid_argument("logits lie in a direct buffer, within its bounds");
  }
  return data + offset;
}

jint as_int(std::size_t value) { return static_cast<jint>(value); }

// [held, rows, count, whether it has parents, tokens…, parents…]
jintArray to_java(JNIEnv* env, const omnidraft_pass& pass) {
  std::vector<jint> all{as_int(pass.held), as_int(pass.rows), as_int(pass.count),
                        pass.parents == nullptr ? 0 : 1};
  append(all, pass.tokens, pass.count);
  if (pass.parents != nullptr) {
    append(all, pass.parents, pass.count);
  }
  return jni::to_java(env, all);
}

// [proposed, accepted, accepted drafts, merged, merged and accepted, ended, count, tokens…,
// origins…]
jintArray to_java(JNIEnv* env, const omnidraft_verdict& verdict) {
  std::vector<jint> all{
      as_int(verdict.proposed), as_int(verdict.accepted),        as_int(verdict.accepted_drafts),
      as_int(verdict.merged),   as_int(verdict.merged_accepted), verdict.ended,
      as_int(verdict.count)};
  append(all, verdict.tokens, verdict.count);
  all.insert(all.end(), verdict.origins, verdict.origins + verdict.count);
  return jni::to_java(env, all);
}

// [kind, length, count, path…]
void append_kept(std::vector<jint>& all, const omnidraft_kept& kept) {
  all.insert(all.end(), {kept.kind, as_int(kept.length), as_int(kept.count)});
  append(all, kept.path, kept.count);
}

jintArray to_java(JNIEnv* env, const std::uint32_t* values, std::size_t count) {
  return jni::to_java(env, std::vector<jint>(values, values + count));
}

void sampling_check(JNIEnv* env, jclass, jdouble temperature, jint top_k, jdouble top_p,
                    jdouble min_p, jdouble repetition_penalty) {
  guard(env, [&] {
    const auto sampling = sampling_of(temperature, top_k, top_p, min_p, repetition_penalty);
    check(env, omnidraft_sampling_check(&sampling));
  });
}

jlong generation_new(JNIEnv* env, jclass, jint vocabulary_size, jdouble temperature, jint top_k,
                     jdouble top_p, jdouble min_p, jdouble repetition_penalty, jint verification,
                     jlong seed, jintArray ends, jlong cache, jlong speller, jlong policy,
                     jlong lookup, jintArray begin, jboolean tree, jboolean scores_trees,
                     jint max_length, jintArray held) {
  return guard(env, [&] {
    const auto sampling = sampling_of(temperature, top_k, top_p, min_p, repetition_penalty);
    const std::vector<jint> end_tokens = ints(env, ends), begin_tokens = ints(env, begin),
                            held_tokens = ints(env, held);
    omnidraft_generation_options options = OMNIDRAFT_GENERATION_INIT;
    options.vocabulary_size = static_cast<std::size_t>(vocabulary_size);
    options.sampling = &sampling;
    options.verification = verification;
    options.seed = static_cast<std::uint64_t>(seed);
    options.ends = end_tokens.data();
    options.end_count = end_tokens.size();
    options.cache = handle<omnidraft_cache>(cache);
    options.speller = handle<omnidraft_speller>(speller);
    options.policy = handle<omnidraft_policy>(policy);
    options.lookup = handle<omnidraft_lookup>(lookup);
    options.begin = begin_tokens.data();
    options.begin_count = begin_tokens.size();
    options.tree = tree;
    options.scores_trees = scores_trees;
    options.max_length = static_cast<std::size_t>(max_length);
    options.held = held_tokens.data();
    options.held_count = held_tokens.size();
    omnidraft_generation* made = nullptr;
    check(env, omnidraft_generation_new(&options, &made));
    return address(made);
  });
}

void generation_free(JNIEnv*, jclass, jlong generation) {
  omnidraft_generation_free(of(generation));
}

jint generation_read(JNIEnv* env, jclass, jlong generation, jintArray prompt) {
  return guard(env, [&] {
    const std::vector<jint> tokens = ints(env, prompt);
    std::size_t inserted = 0;
    check(env, omnidraft_generation_read(of(generation), tokens.data(), tokens.size(), &inserted));
    return as_int(inserted);
  });
}

jboolean generation_begin(JNIEnv* env, jclass, jlong generation, jint room, jint length,
                          jint max_length) {
  return guard(env, [&] {
    std::int32_t drafts = 0;
    check(env, omnidraft_generation_begin(of(generation), static_cast<std::size_t>(room),
                                          static_cast<std::size_t>(length),
                                          static_cast<std::size_t>(max_length), &drafts));
    return static_cast<jboolean>(drafts != 0);
  });
}

jintArray generation_pass(JNIEnv* env, jclass, jlong generation) {
  return guard(env, [&] {
    omnidraft_pass pass = OMNIDRAFT_PASS_INIT;
    check(env, omnidraft_generation_pass(of(generation), &pass));
    return to_java(env, pass);
  });
}

jintArray generation_pass_nodes(JNIEnv* env, jclass, jlong generation) {
  return guard(env, [&] {
    const std::uint32_t* nodes = nullptr;
    std::size_t count = 0;
    check(env, omnidraft_generation_pass_nodes(of(generation), &nodes, &count));
    return to_java(env, nodes, count);
  });
}

void generation_drafted(JNIEnv* env, jclass, jlong generation, jobject logits, jint offset,
                        jint count, jdouble seconds) {
  guard(env, [&] {
    check(env, omnidraft_generation_drafted(of(generation), floats(env, logits, offset, count),
                                            static_cast<std::size_t>(count), seconds));
  });
}

jdouble generation_confidence(JNIEnv* env, jclass, jlong generation) {
  return guard(env, [&] {
    double confidence = 0;
    check(env, omnidraft_generation_confidence(of(generation), &confidence));
    return confidence;
  });
}

// A flag of a generation.
template <omnidraft_status (*Ask)(const omnidraft_generation*, std::int32_t*)>
jboolean generation_flag(JNIEnv* env, jclass, jlong generation) {
  return guard(env, [&] {
    std::int32_t flag = 0;
    check(env, Ask(of(generation), &flag));
    return static_cast<jboolean>(flag != 0);
  });
}

void generation_score_as(JNIEnv* env, jclass, jlong generation, jdouble score) {
  guard(env, [&] { check(env, omnidraft_generation_score_as(of(generation), score)); });
}

jboolean generation_draft_on(JNIEnv* env, jclass, jlong generation) {
  return guard(env, [&] {
    std::int32_t more = 0;
    check(env, omnidraft_generation_draft_on(of(generation), &more));
    return static_cast<jboolean>(more != 0);
  });
}

void generation_fail(JNIEnv* env, jclass, jlong generation) {
  guard(env, [&] { check(env, omnidraft_generation_fail(of(generation))); });
}

jintArray generation_score(JNIEnv* env, jclass, jlong generation) {
  return guard(env, [&] {
    omnidraft_pass pass = OMNIDRAFT_PASS_INIT;
    check(env, omnidraft_generation_score(of(generation), &pass));
    return to_java(env, pass);
  });
}

jintArray generation_scored(JNIEnv* env, jclass, jlong generation, jobject logits, jint offset,
                            jint count) {
  return guard(env, [&] {
    omnidraft_verdict verdict = OMNIDRAFT_VERDICT_INIT;
    check(env, omnidraft_generation_scored(of(generation), floats(env, logits, offset, count),
                                           static_cast<std::size_t>(count), &verdict));
    return to_java(env, verdict);
  });
}

jintArray generation_end_at(JNIEnv* env, jclass, jlong generation, jint end) {
  return guard(env, [&] {
    omnidraft_verdict verdict = OMNIDRAFT_VERDICT_INIT;
    check(env,
          omnidraft_generation_end_at(of(generation), static_cast<std::size_t>(end), &verdict));
    return to_java(env, verdict);
  });
}

jintArray generation_verdict(JNIEnv* env, jclass, jlong generation) {
  return guard(env, [&] {
    omnidraft_verdict verdict = OMNIDRAFT_VERDICT_INIT;
    check(env, omnidraft_generation_verdict(of(generation), &verdict));
    return to_java(env, verdict);
  });
}

jintArray generation_rows(JNIEnv* env, jclass, jlong generation) {
  return guard(env, [&] {
    const std::uint32_t* rows = nullptr;
    std::size_t count = 0;
    check(env, omnidraft_generation_rows(of(generation), &rows, &count));
    return to_java(env, rows, count);
  });
}

// [tokens…, parents…]
jintArray generation_proposed(JNIEnv* env, jclass, jlong generation) {
  return guard(env, [&] {
    const omnidraft_token* tokens = nullptr;
    const std::int32_t* parents = nullptr;
    std::size_t count = 0;
    check(env, omnidraft_generation_proposed(of(generation), &tokens, &parents, &count));
    std::vector<jint> all(tokens, tokens + count);
    append(all, parents, count);
    return jni::to_java(env, all);
  });
}

// [draft tokens, inserted, kept of the target…, of the drafter…]
jintArray generation_settle(JNIEnv* env, jclass, jlong generation, jdouble target_seconds,
                            jdouble other_seconds) {
  return guard(env, [&] {
    omnidraft_settled settled = OMNIDRAFT_SETTLED_INIT;
    check(env,
          omnidraft_generation_settle(of(generation), target_seconds, other_seconds, &settled));
    std::vector<jint> all{as_int(settled.draft_tokens), as_int(settled.inserted)};
    append_kept(all, settled.target);
    append_kept(all, settled.drafter);
    return jni::to_java(env, all);
  });
}

jint generation_show(JNIEnv* env, jclass, jlong generation) {
  return guard(env, [&] {
    std::size_t paths = 0;
    check(env, omnidraft_generation_show(of(generation), &paths));
    return as_int(paths);
  });
}

// [context, accepted, last, count, drafts, rows, nodes, then so many: tokens…, counts…, drafts…,
// rows…, nodes…]
jintArray generation_shown(JNIEnv* env, jclass, jlong generation, jint path) {
  return guard(env, [&] {
    omnidraft_shown shown = OMNIDRAFT_SHOWN_INIT;
    check(env, omnidraft_generation_shown(of(generation), static_cast<std::size_t>(path), &shown));
    std::vector<jint> all{
        as_int(shown.context),   as_int(shown.accepted),    shown.last,
        as_int(shown.count),     as_int(shown.draft_count), as_int(shown.row_count),
        as_int(shown.node_count)};
    append(all, shown.tokens, shown.count);
    all.insert(all.end(), shown.counts, shown.counts + shown.count);
    append(all, shown.drafts, shown.draft_count);
    all.insert(all.end(), shown.rows, shown.rows + shown.row_count);
    all.insert(all.end(), shown.draft_nodes, shown.draft_nodes + shown.node_count);
    return jni::to_java(env, all);
  });
}

jintArray generation_context(JNIEnv* env, jclass, jlong generation) {
  return guard(env, [&] {
    const omnidraft_token* tokens = nullptr;
    std::size_t count = 0;
    check(env, omnidraft_generation_context(of(generation), &tokens, &count));
    return jni::to_java(env, std::vector<jint>(tokens, tokens + count));
  });
}

}  // namespace

std::vector<JNINativeMethod> generation_methods() {
  return {method("samplingCheck", "(DIDDD)V", sampling_check),
          method("generationNew", "(IDIDDDIJ[IJJJJ[IZZI[I)J", generation_new),
          method("generationFree", "(J)V", generation_free),
          method("generationRead", "(J[I)I", generation_read),
          method("generationBegin", "(JIII)Z", generation_begin),
          method("generationPass", "(J)[I", generation_pass),
          method("generationPassNodes", "(J)[I", generation_pass_nodes),
          method("generationDrafted", "(JLjava/nio/FloatBuffer;IID)V", generation_drafted),
          method("generationConfidence", "(J)D", generation_confidence),
          method("generationDrew", "(J)Z", generation_flag<omnidraft_generation_drew>),
          method("generationScoreAs", "(JD)V", generation_score_as),
          method("generationDraftOn", "(J)Z", generation_draft_on),
          method("generationFail", "(J)V", generation_fail),
          method("generationDrafts", "(J)Z", generation_flag<omnidraft_generation_drafts>),
          method("generationScore", "(J)[I", generation_score),
          method("generationScored", "(JLjava/nio/FloatBuffer;II)[I", generation_scored),
          method("generationEndAt", "(JI)[I", generation_end_at),
          method("generationVerdict", "(J)[I", generation_verdict),
          method("generationRows", "(J)[I", generation_rows),
          method("generationProposed", "(J)[I", generation_proposed),
          method("generationSettle", "(JDD)[I", generation_settle),
          method("generationShow", "(J)I", generation_show),
          method("generationShown", "(JI)[I", generation_shown),
          method("generationContext", "(J)[I", generation_context)};
}

}  // namespace omnidraft::jni

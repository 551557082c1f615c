#include <limits>

#include "handles.h"

using namespace omnidraft;     // NOLINT: a binding file
using namespace omnidraft::c;  // NOLINT

namespace {

SamplingParameters sampling_of(const omnidraft_sampling* given) {
  const omnidraft_sampling& asked = options(given, "sampling");
  const SamplingParameters sampling{asked.temperature, asked.top_k, asked.top_p, asked.min_p,
                                    asked.repetition_penalty};
  sampling.validate();
  return sampling;
}

Decoding decoding_of(const omnidraft_generation_options& asked) {
  require(asked.vocabulary_size > 0 && asked.vocabulary_size <= std::numeric_limits<Token>::max(),
          "vocabulary_size lies in 1 to 2^31 - 1");
  require(asked.verification >= OMNIDRAFT_FOLLOW && asked.verification <= OMNIDRAFT_PAPER,
          "verification " + std::to_string(asked.verification) +
              " is none of enum omnidraft_verification");
  Decoding decoding;
  decoding.vocabulary_size = asked.vocabulary_size;
  if (asked.sampling != nullptr) {
    decoding.sampling = sampling_of(asked.sampling);
  }
  require(asked.verification == OMNIDRAFT_FOLLOW || !decoding.sampling.greedy(),
          "rejection sampling needs a temperature above 0: greedy decoding follows");
  decoding.verification = static_cast<Verification>(asked.verification);
  decoding.seed = asked.seed;
  decoding.ends = copied(asked.ends, asked.end_count, "ends");
  return decoding;
}

std::vector<Token> draft_tokens(const omnidraft_token* tokens, std::size_t count, const char* name,
                                const Vocabulary& vocabulary) {
  std::vector<Token> copy = copied(tokens, count, name);
  for (const Token token : copy) {
    if (token < 0 || static_cast<std::size_t>(token) >= vocabulary.size()) {
      throw std::out_of_range("token " + std::to_string(token) + " of " + name +
                              " is outside the drafter's vocabulary");
    }
  }
  return copy;
}

std::optional<Drafting> drafting_of(const omnidraft_generation_options& asked) {
  const int given =
      (asked.cache != nullptr) + (asked.speller != nullptr) + (asked.policy != nullptr);
  if (given == 0) {
    return std::nullopt;
  }
  require(given == 3, "speculative decoding needs a cache, a speller and a policy");
  const VocabularyPair& pair = asked.cache->value->pair();
  require(&pair == asked.speller->pair.get(), "cache and speller are of two pairs");
  require(pair.target().size() == asked.vocabulary_size,
          "the pair's target has " + std::to_string(pair.target().size()) +
              " tokens, but vocabulary_size is " + std::to_string(asked.vocabulary_size));
  require(asked.lookup == nullptr || asked.lookup->vocabulary_size == asked.vocabulary_size,
          "the lookup is of a vocabulary of another size");
  require(asked.max_length <= std::numeric_limits<std::int32_t>::max(),
          "max_length of the drafter is at most 2^31 - 1");
  Drafting drafting;
  drafting.cache = asked.cache->value.get();
  drafting.speller = asked.speller->value.get();
  drafting.policy = asked.policy->value.get();
  drafting.lookup = asked.lookup == nullptr ? nullptr : asked.lookup->value.get();
  drafting.begin = draft_tokens(asked.begin, asked.begin_count, "begin", pair.drafter());
  drafting.tree = asked.tree != 0;
  drafting.max_length = asked.max_length;
  drafting.scores_trees = asked.scores_trees != 0;
  drafting.held = draft_tokens(asked.held, asked.held_count, "held", pair.drafter());
  return drafting;
}

Generation& of(omnidraft_generation* generation) { return *at(generation, "generation").value; }

const Generation& of(const omnidraft_generation* generation) {
  return *at(generation, "generation").value;
}

template <typename T>
void hand_out(const std::vector<T>& values, const T** data, std::size_t* count) {
  at(count, "count");
  at(data, "the place of an array") = values.data();
  *count = values.size();
}

void give_pass(const Pass& pass, omnidraft_pass* place) {
  omnidraft_pass given = OMNIDRAFT_PASS_INIT;
  given.held = pass.held;
  hand_out(pass.tokens, &given.tokens, &given.count);
  given.parents = pass.parents.empty() ? nullptr : pass.parents.data();
  given.rows = pass.rows;
  give(place, given);
}

void give_verdict(const Generation& generation, omnidraft_verdict* place) {
  static_assert(sizeof(Origin) == sizeof(std::uint8_t));
  const Verdict& verdict = generation.verdict();
  omnidraft_verdict given = OMNIDRAFT_VERDICT_INIT;
  hand_out(verdict.tokens, &given.tokens, &given.count);
  given.origins = reinterpret_cast<const std::uint8_t*>(verdict.origins.data());
  given.proposed = verdict.proposed;
  given.accepted = verdict.accepted;
  given.accepted_drafts = verdict.accepted_drafts;
  given.merged = verdict.merged;
  given.merged_accepted = verdict.merged_accepted;
  given.ended = generation.ended() ? 1 : 0;
  give(place, given);
}

omnidraft_kept kept_of(const Kept& kept) {
  omnidraft_kept given{static_cast<std::int32_t>(kept.kind), kept.length, nullptr, 0};
  hand_out(kept.path, &given.path, &given.count);
  return given;
}

}  // namespace

omnidraft_status omnidraft_sampling_check(const omnidraft_sampling* sampling) {
  return guard([&] { sampling_of(sampling); });
}

omnidraft_status omnidraft_generation_new(const omnidraft_generation_options* given,
                                          omnidraft_generation** generation) {
  return guard([&] {
    at(generation, "generation");
    const omnidraft_generation_options& asked = options(given, "options");
    auto made = std::make_unique<omnidraft_generation>();
    made->value = std::make_unique<Generation>(decoding_of(asked), drafting_of(asked));
    if (asked.cache != nullptr) {
      made->cache = asked.cache->value;
      made->speller = asked.speller->value;
      made->policy = asked.policy->value;
    }
    if (asked.lookup != nullptr) {
      made->lookup = asked.lookup->value;
    }
    *generation = made.release();
  });
}

void omnidraft_generation_free(omnidraft_generation* generation) { delete generation; }

omnidraft_status omnidraft_generation_read(omnidraft_generation* generation,
                                           const omnidraft_token* prompt, size_t count,
                                           size_t* inserted) {
  return guard([&] {
    const std::size_t ngrams = of(generation).read(array(prompt, count, "prompt"));
    if (inserted != nullptr) {
      *inserted = ngrams;
    }
  });
}

omnidraft_status omnidraft_generation_begin(omnidraft_generation* generation, size_t room,
                                            size_t length, size_t max_length, int32_t* drafts) {
  return guard([&] {
    at(drafts, "drafts");
    require(max_length <= std::numeric_limits<std::int32_t>::max(),
            "max_length of the target is at most 2^31 - 1");
    *drafts = of(generation).begin(room, length, max_length) ? 1 : 0;
  });
}

omnidraft_status omnidraft_generation_pass(const omnidraft_generation* generation,
                                           omnidraft_pass* pass) {
  return guard([&] { give_pass(of(generation).pass(), &sized(pass, "pass")); });
}

omnidraft_status omnidraft_generation_pass_nodes(const omnidraft_generation* generation,
                                                 const uint32_t** nodes, size_t* count) {
  return guard([&] { hand_out(of(generation).pass_nodes(), nodes, count); });
}

omnidraft_status omnidraft_generation_drafted(omnidraft_generation* generation, const float* logits,
                                              size_t count, double seconds) {
  return guard([&] { of(generation).drafted(array(logits, count, "logits"), seconds); });
}

omnidraft_status omnidraft_generation_confidence(const omnidraft_generation* generation,
                                                 double* confidence) {
  return guard([&] { at(confidence, "confidence") = of(generation).confidence(); });
}

omnidraft_status omnidraft_generation_drew(const omnidraft_generation* generation, int32_t* drew) {
  return guard([&] { at(drew, "drew") = of(generation).drew() ? 1 : 0; });
}

omnidraft_status omnidraft_generation_score_as(omnidraft_generation* generation, double score) {
  return guard([&] { of(generation).score_as(score); });
}

omnidraft_status omnidraft_generation_draft_on(omnidraft_generation* generation, int32_t* more) {
  return guard([&] {
    at(more, "more");
    *more = of(generation).draft_on() ? 1 : 0;
  });
}

omnidraft_status omnidraft_generation_fail(omnidraft_generation* generation) {
  return guard([&] { of(generation).fail(); });
}

omnidraft_status omnidraft_generation_drafts(const omnidraft_generation* generation,
                                             int32_t* drafts) {
  return guard([&] { at(drafts, "drafts") = of(generation).drafts() ? 1 : 0; });
}

omnidraft_status omnidraft_generation_score(omnidraft_generation* generation,
                                            omnidraft_pass* pass) {
  return guard([&] {
    sized(pass, "pass");
    give_pass(of(generation).score(), pass);
  });
}

omnidraft_status omnidraft_generation_scored(omnidraft_generation* generation, const float* logits,
                                             size_t count, omnidraft_verdict* verdict) {
  return guard([&] {
    sized(verdict, "verdict");
    of(generation).scored(array(logits, count, "logits"));
    give_verdict(of(generation), verdict);
  });
}

omnidraft_status omnidraft_generation_end_at(omnidraft_generation* generation, size_t end,
                                             omnidraft_verdict* verdict) {
  return guard([&] {
    sized(verdict, "verdict");
    of(generation).end_at(end);
    give_verdict(of(generation), verdict);
  });
}

omnidraft_status omnidraft_generation_verdict(const omnidraft_generation* generation,
                                              omnidraft_verdict* verdict) {
  return guard([&] { give_verdict(of(generation), &sized(verdict, "verdict")); });
}

omnidraft_status omnidraft_generation_rows(omnidraft_generation* generation, const uint32_t** rows,
                                           size_t* count) {
  return guard([&] {
    generation->rows = of(generation).rows();
    hand_out(generation->rows, rows, count);
  });
}

omnidraft_status omnidraft_generation_proposed(omnidraft_generation* generation,
                                               const omnidraft_token** tokens,
                                               const int32_t** parents, size_t* count) {
  return guard([&] {
    at(parents, "parents");
    generation->parents = of(generation).parents();
    generation->proposed = of(generation).proposed();
    hand_out(generation->proposed, tokens, count);
    *parents = generation->parents.data();
  });
}

omnidraft_status omnidraft_generation_settle(omnidraft_generation* generation,
                                             double target_seconds, double other_seconds,
                                             omnidraft_settled* settled) {
  return guard([&] {
    sized(settled, "settled");
    const Settled& result = of(generation).settle(target_seconds, other_seconds);
    omnidraft_settled given = OMNIDRAFT_SETTLED_INIT;
    given.target = kept_of(result.target);
    given.drafter = kept_of(result.drafter);
    given.draft_tokens = result.draft_tokens;
    given.inserted = result.inserted;
    give(settled, given);
  });
}

omnidraft_status omnidraft_generation_show(omnidraft_generation* generation, size_t* paths) {
  return guard([&] {
    at(paths, "paths");
    generation->shown = of(generation).shown();
    *paths = generation->shown.size();
  });
}

omnidraft_status omnidraft_generation_shown(const omnidraft_generation* generation, size_t path,
                                            omnidraft_shown* shown) {
  return guard([&] {
    of(generation);
    sized(shown, "shown");
    if (path >= generation->shown.size()) {
      throw std::out_of_range("path " + std::to_string(path) + " is not one of the " +
                              std::to_string(generation->shown.size()) + " that are shown");
    }
    const Shown& from = generation->shown[path];
    omnidraft_shown given = OMNIDRAFT_SHOWN_INIT;
    given.context = from.context;
    hand_out(from.tokens, &given.tokens, &given.count);
    given.counts = from.counts.data();
    hand_out(from.drafts, &given.drafts, &given.draft_count);
    given.accepted = from.accepted;
    given.last = from.last;
    hand_out(from.rows, &given.rows, &given.row_count);
    hand_out(from.draft_nodes, &given.draft_nodes, &given.node_count);
    give(shown, given);
  });
}

omnidraft_status omnidraft_generation_context(const omnidraft_generation* generation,
                                              const omnidraft_token** tokens, size_t* count) {
  return guard([&] { hand_out(of(generation).context(), tokens, count); });
}

omnidraft_status omnidraft_generation_length(const omnidraft_generation* generation,
                                             uint64_t* length) {
  return guard([&] { at(length, "length") = of(generation).length(); });
}

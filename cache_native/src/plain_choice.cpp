#include "omnidraft/plain_choice.h"

#include "omnidraft/chance.h"

namespace omnidraft {

Token PlainChoice::operator()(Span<const float> row, const SamplingParameters& sampling,
                              const History& history, std::uint64_t seed, std::uint64_t position) {
  if (sampling.greedy()) {
    return greedy_token(row, sampling.repetition_penalty, history, scratch_);
  }
  distribution_.assign(row, sampling, history);
  return distribution_.quantile(uniform_at(seed, position));
}

}  // namespace omnidraft

// A life of a pair of vocabularies, which come from model files: a cache that observes, judges,
// drafts, is verified, saved and loaded, in any order.
#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include "bytes.h"
#include "omnidraft/lookup.h"
#include "omnidraft/verify.h"

using namespace omnidraft;  // NOLINT: a test
using fuzz::Bytes;
using fuzz::demand;

namespace {

std::shared_ptr<const Vocabulary> vocabulary(Bytes& bytes) {
  std::vector<TokenText> tokens(1 + bytes.below(12));
  for (TokenText& token : tokens) {
    const std::uint8_t shape = bytes.byte();
    for (int i = 0; i < shape % 8; ++i) {
      token.surface += static_cast<char>('a' + bytes.below(2));
    }
    token.piece = (shape & 8) != 0 ? token.surface : "";
    token.kind = static_cast<TokenKind>((shape >> 4) % 3);
  }
  return std::make_shared<Vocabulary>(tokens);
}

std::vector<Token> tokens(Bytes& bytes, std::size_t most, std::size_t vocabulary) {
  std::vector<Token> tokens(bytes.below(most + 1));
  for (Token& token : tokens) {
    token = static_cast<Token>(bytes.below(vocabulary));
  }
  return tokens;
}

// Draft tokens that spell the beginning of a target token, most often all of it.
std::vector<Token> spelling(Bytes& bytes, const VocabularyPair& pair, Token target) {
  std::vector<Token> spelling;
  std::string_view left = pair.target().surface(target);
  while (!left.empty()) {
    std::vector<Token> fitting;
    for (Token draft = 0; draft < static_cast<Token>(pair.drafter().size()); ++draft) {
      const std::string_view surface = pair.drafter().surface(draft);
      if (!surface.empty() && left.substr(0, surface.size()) == surface) {
        fitting.push_back(draft);
      }
    }
    if (fitting.empty()) {
      break;
    }
    spelling.push_back(fitting[bytes.below(fitting.size())]);
    left.remove_prefix(pair.drafter().surface(spelling.back()).size());
  }
  return spelling;
}

std::vector<float> row(Bytes& bytes, std::size_t width) {
  std::vector<float> row(width);
  for (float& value : row) {
    const std::uint8_t byte = bytes.byte();
    value = byte == 255 ? -INFINITY : static_cast<float>(byte) / 16;
  }
  return row;
}

void round(Bytes& bytes, NgramCache& cache, Lookup& lookup) {
  const std::size_t drafter = cache.pair().drafter().size(), width = cache.pair().target().size();
  const auto verification = static_cast<Verification>(bytes.below(3));
  const double temperature = verification == Verification::kGreedy ? 0 : 1;
  Generator chance(bytes.byte());
  Draft draft(cache, verification, temperature);
  const std::vector<Token> given = lookup.propose(bytes.below(4), 1);
  draft.propose({given.data(), given.size()});
  for (std::size_t left = bytes.below(6); left > 0; --left) {
    const std::vector<float> logits = row(bytes, drafter);
    if (draft.step({logits.data(), logits.size()}, chance) == kNoToken) {
      break;
    }
  }
  const Proposal proposal = draft.finish();
  std::vector<float> logits;
  for (std::size_t i = 0; i <= proposal.tokens().size(); ++i) {
    const std::vector<float> next = row(bytes, width);
    logits.insert(logits.end(), next.begin(), next.end());
  }
  SamplingParameters sampling;
  sampling.temperature = temperature;
  History history(width);
  const Verdict verdict =
      Verifier(cache).verify(proposal, {logits.data(), logits.size()}, sampling, history, chance);
  demand(!verdict.tokens.empty() && verdict.tokens.size() == verdict.origins.size());
  demand(verdict.accepted <= verdict.proposed);
  lookup.add({verdict.tokens.data(), verdict.tokens.size()});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const auto drafter = vocabulary(bytes), target = vocabulary(bytes);
  const auto rule = static_cast<MappingRule>(bytes.below(2));
  const auto pair = std::make_shared<VocabularyPair>(drafter, target, rule);
  CacheLimits limits;
  limits.max_entries = bytes.byte();
  limits.eviction = static_cast<Eviction>(bytes.below(2));
  NgramCache cache(pair, limits);
  Lookup lookup(target->size(), 2 + bytes.below(30));
  while (!bytes.empty()) {
    try {
      switch (bytes.below(5)) {
        case 0: {
          const auto token = static_cast<Token>(bytes.below(target->size()));
          const std::vector<Token> drafts = spelling(bytes, *pair, token);
          cache.observe(token, drafts);
          break;
        }
        case 1: {
          const auto token = static_cast<Token>(bytes.below(target->size()));
          const std::vector<Token> drafts = spelling(bytes, *pair, token);
          cache.judge(drafts, bytes.below(2) == 1);
          break;
        }
        case 3: {
          const auto token = static_cast<Token>(bytes.below(target->size()));
          const std::vector<Token> drafts = tokens(bytes, 8, drafter->size());
          cache.observe(token, drafts);
          break;
        }
        case 2: {
          const std::string saved = cache.to_bytes();
          cache = NgramCache::from_bytes(saved, pair, limits);
          demand(cache.to_bytes() == saved);
          break;
        }
        default:
          round(bytes, cache, lookup);
      }
    } catch (const std::domain_error&) {  // a row of -inf alone
    }
  }
  return 0;
}

// Random small worlds (vocabularies, a cache, logits that depend on the context) and the walk over
// every path that drafting and verification can take in them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "omnidraft/draft.h"
#include "omnidraft/verify.h"

namespace omnidraft::testing {

// Sanitizers make everything several times slower; a tenth of the instances finds their errors.
#if defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kShare = 10;
#else
constexpr std::uint64_t kShare = 1;
#endif

inline std::shared_ptr<const Vocabulary> vocabulary(const std::vector<std::string>& surfaces) {
  std::vector<TokenText> tokens;
  for (const std::string& surface : surfaces) {
    tokens.push_back(
        {surface, surface, surface.empty() ? TokenKind::kSpecial : TokenKind::kNormal});
  }
  return std::make_shared<Vocabulary>(tokens);
}

inline std::shared_ptr<const VocabularyPair> make_pair(const std::vector<std::string>& drafter,
                                                       const std::vector<std::string>& target) {
  return std::make_shared<VocabularyPair>(vocabulary(drafter), vocabulary(target),
                                          MappingRule::kBytes);
}

inline bool observe(NgramCache& cache, Token target, const std::vector<Token>& drafts) {
  return cache.observe(target, drafts);
}

using Context = std::vector<Token>;

// Small integers from the generator itself: the same worlds on every platform.
class World {
 public:
  explicit World(std::uint64_t seed) : seed_(seed), random_(seed) {
    const std::vector<std::string> drafter = strings(4, 2);
    const std::vector<std::string> target = strings(6, 4);
    cache = std::make_unique<NgramCache>(make_pair(drafter, target));
    for (std::size_t token = 0; token < target.size(); ++token) {
      if (!target[token].empty() && below(6) > 0) {
        spell(static_cast<Token>(token), target[token], drafter, {});
      }
    }
    drafter_size = drafter.size();
    target_size = target.size();
  }

  const std::vector<float>& logits(bool of_target, const Context& context) {
    std::vector<float>& row = rows_[{of_target, context}];
    if (row.empty()) {
      std::uint64_t seed = seed_ * 2 + (of_target ? 1 : 0);
      for (const Token token : context) {
        seed = seed * 1000003 + static_cast<std::uint64_t>(token) + 1;
      }
      Generator generator(seed);
      for (std::size_t i = 0; i < (of_target ? target_size : drafter_size); ++i) {
        row.push_back(static_cast<float>(6 * generator.uniform() - 3));
      }
    }
    return row;
  }

  std::vector<double> p(const Context& context) {
    History history(target_size);
    for (const Token token : context) {
      history.add(token);
    }
    Distribution distribution;
    const std::vector<float>& row = logits(true, context);
    distribution.assign({row.data(), row.size()}, sampling, history);
    std::vector<float> weights;
    distribution.weights(weights);
    std::vector<double> probabilities;
    for (const float weight : weights) {
      probabilities.push_back(static_cast<double>(weight) / distribution.total());
    }
    return probabilities;
  }

  Verdict round(int budget, Verification verification, Chance& chance) {
    Draft draft(*cache, verification, 1.0);
    draft.propose(given);
    Context drafts;
    for (int i = 0; i < budget; ++i) {
      const std::vector<float>& row = logits(false, drafts);
      const Token token = draft.step({row.data(), row.size()}, chance);
      if (token == kNoToken) {
        break;
      }
      drafts.push_back(token);
    }
    const Proposal proposal = draft.finish();
    const std::vector<Token> tokens = proposal.tokens();
    std::vector<float> rows;
    for (std::size_t i = 0; i <= tokens.size(); ++i) {
      const auto& row = logits(true, Context(tokens.begin(), tokens.begin() + i));
      rows.insert(rows.end(), row.begin(), row.end());
    }
    History history(target_size);
    return Verifier(*cache).verify(proposal, {rows.data(), rows.size()}, sampling, history, chance);
  }

  // Any tokens: in the trie, outside it, special ones.
  void give(std::size_t count) {
    given.clear();
    while (given.size() < count) {
      given.push_back(static_cast<Token>(below(target_size)));
    }
  }

  // Probability of every sequence a round can emit.
  std::map<Context, double> outcomes(int budget, Verification verification) {
    std::map<Context, double> found;
    std::vector<std::vector<std::size_t>> scripts{{}};
    while (!scripts.empty()) {
      const std::vector<std::size_t> script = scripts.back();
      scripts.pop_back();
      ScriptedChance chance(script);
      const Verdict verdict = round(budget, verification, chance);
      double probability = 1;
      for (std::size_t depth = 0; depth < chance.choices().size(); ++depth) {
        const std::vector<double>& outcomes = chance.probabilities()[depth];
        const std::size_t choice = chance.choices()[depth];
        probability *= outcomes[choice];
        for (std::size_t other = choice + 1; depth >= script.size() && other < outcomes.size();
             ++other) {
          if (outcomes[other] > 0) {
            scripts.emplace_back(chance.choices().begin(), chance.choices().begin() + depth);
            scripts.back().push_back(other);
          }
        }
      }
      found[verdict.tokens] += probability;
    }
    return found;
  }

  // The largest difference from the target's distribution over the first `positions` tokens. The
  // target goes on by itself where a round emits fewer.
  double deviation(int budget, Verification verification, std::size_t positions) {
    std::map<Context, double> left;
    double worst = 0;
    for (const auto& [tokens, probability] : outcomes(budget, verification)) {
      const std::size_t size = std::min(tokens.size(), positions);
      left[Context(tokens.begin(), tokens.begin() + size)] += probability;
    }
    std::map<Context, std::vector<double>> known;
    const auto next = [&](const Context& context) -> const std::vector<double>& {
      std::vector<double>& row = known[context];
      if (row.empty()) {
        row = p(context);
      }
      return row;
    };
    std::map<Context, double> emitted;
    const std::function<void(Context, double)> extend = [&](Context context, double probability) {
      if (context.size() == positions) {
        emitted[context] += probability;
        return;
      }
      const std::vector<double> row = next(context);
      for (std::size_t token = 0; token < row.size(); ++token) {
        Context longer = context;
        longer.push_back(static_cast<Token>(token));
        extend(longer, probability * row[token]);
      }
    };
    for (const auto& [tokens, probability] : left) {
      extend(tokens, probability);
    }
    for (const auto& [tokens, probability] : emitted) {
      double wanted = 1;
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        wanted *= next(Context(tokens.begin(), tokens.begin() + i))[tokens[i]];
      }
      worst = std::max(worst, std::abs(probability - wanted));
    }
    return worst;
  }

  std::unique_ptr<NgramCache> cache;
  std::size_t drafter_size = 0, target_size = 0;
  Context given;  // proposed before anything is drafted
  SamplingParameters sampling{1.0, 0, 1, 0, 1};

 private:
  std::size_t below(std::size_t n) { return random_.next() % n; }

  std::vector<std::string> strings(std::size_t count, std::size_t longest) {
    std::set<std::string> words;
    for (std::size_t i = 0; i < count; ++i) {
      std::string word;
      for (std::size_t length = 1 + below(longest); length > 0; --length) {
        word += below(2) == 0 ? 'a' : 'b';
      }
      words.insert(word);
    }
    std::vector<std::string> result(words.begin(), words.end());
    result.emplace_back();  // a special token
    return result;
  }

  void spell(Token token, const std::string& left, const std::vector<std::string>& drafter,
             const std::vector<Token>& begun) {
    if (left.empty()) {
      for (std::size_t uses = below(3); uses > 0; --uses) {
        observe(*cache, token, begun);
      }
      return;
    }
    for (std::size_t draft = 0; draft < drafter.size(); ++draft) {
      const std::string& piece = drafter[draft];
      if (!piece.empty() && left.compare(0, piece.size(), piece) == 0) {
        std::vector<Token> longer = begun;
        longer.push_back(static_cast<Token>(draft));
        spell(token, left.substr(piece.size()), drafter, longer);
      }
    }
  }

  std::uint64_t seed_;
  Generator random_;
  std::map<std::pair<bool, Context>, std::vector<float>> rows_;
};

}  // namespace omnidraft::testing

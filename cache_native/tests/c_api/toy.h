// Small made-up models and worlds behind the C interface. tests/vectors/README.md says how their
// rows are made; every language that replays its answers makes the same.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "omnidraft.h"

namespace omnidraft::toy {

using Tokens = std::vector<omnidraft_token>;

template <typename T, void (*Free)(T*)>
struct Freed {
  void operator()(T* handle) const { Free(handle); }
};
template <typename T, void (*Free)(T*)>
using Owned = std::unique_ptr<T, Freed<T, Free>>;

using Vocabulary = Owned<omnidraft_vocabulary, omnidraft_vocabulary_free>;
using Pair = Owned<omnidraft_pair, omnidraft_pair_free>;
using Cache = Owned<omnidraft_cache, omnidraft_cache_free>;
using Costs = Owned<omnidraft_costs, omnidraft_costs_free>;
using Policy = Owned<omnidraft_policy, omnidraft_policy_free>;
using Lookup = Owned<omnidraft_lookup, omnidraft_lookup_free>;
using Speller = Owned<omnidraft_speller, omnidraft_speller_free>;
using Generation = Owned<omnidraft_generation, omnidraft_generation_free>;

inline void demand(omnidraft_status status) {
  if (status != OMNIDRAFT_OK) {
    throw std::runtime_error(omnidraft_last_error());
  }
}

// What `make(..., &handle)` gives.
template <typename Handle, typename Make, typename... Arguments>
Handle made(Make make, Arguments... arguments) {
  typename Handle::pointer handle = nullptr;
  demand(make(arguments..., &handle));
  return Handle(handle);
}

// Of two models over texts of bytes.
struct World {
  std::uint64_t seed = 0;
  std::vector<std::string> drafter, target;  // surfaces; "" for a special token
  std::size_t tail = 9;                      // bytes of the text that its rows depend on

  const std::vector<std::string>& surfaces(bool of_target) const {
    return of_target ? target : drafter;
  }

  std::vector<float> row(bool of_target, const Tokens& context) const {
    const std::vector<std::string>& vocabulary = surfaces(of_target);
    std::string end;
    for (std::size_t i = context.size(); i > 0 && end.size() < tail; --i) {
      end = vocabulary[static_cast<std::size_t>(context[i - 1])] + end;
    }
    end = end.substr(end.size() - std::min(end.size(), tail));
    std::vector<float> row;
    for (const std::string& surface : vocabulary) {
      const auto both = surface.empty() ? 0 : points(2, end, surface.substr(0, 1));
      const auto own = points(of_target ? 0 : 1, end, surface);
      row.push_back(static_cast<float>(3 * both + own) / 512);
    }
    return row;
  }

  // The longest token at each place, of equals the first; none where a place has none.
  Tokens segment(std::string_view text) const {
    Tokens tokens;
    while (!text.empty()) {
      std::size_t best = drafter.size();
      for (std::size_t i = 0; i < drafter.size(); ++i) {
        const bool fits = !drafter[i].empty() && text.substr(0, drafter[i].size()) == drafter[i];
        if (fits && (best == drafter.size() || drafter[i].size() > drafter[best].size())) {
          best = i;
        }
      }
      if (best == drafter.size()) {
        return {};
      }
      tokens.push_back(static_cast<omnidraft_token>(best));
      text.remove_prefix(drafter[best].size());
    }
    return tokens;
  }

 private:
  std::uint64_t points(std::uint64_t model, const std::string& end, const std::string& text) const {
    std::uint64_t hash = 0xcbf29ce484222325;
    const auto add = [&](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
    add(seed);
    add(model);
    for (const char c : end) {
      add(static_cast<unsigned char>(c));
    }
    add(256);
    for (const char c : text) {
      add(static_cast<unsigned char>(c));
    }
    return ((hash ^ (hash >> 32)) * 0x9e3779b97f4a7c15) >> 54;
  }
};

// A model with a KV cache, which may hold a tree behind its text.
class Model {
 public:
  Model(const World& world, bool of_target) : world_(world), of_target_(of_target) {}

  std::size_t length() const { return tokens_.size(); }

  // A pass as a generation wants it: logits, rows after one another.
  std::vector<float> run(const omnidraft_pass& pass) {
    if (pass.parents == nullptr) {
      cut(pass.held);
    } else if (!chain_) {
      chain_ = tokens_.size();
    }
    std::vector<float> logits;
    for (std::size_t i = 0; i < pass.count; ++i) {
      const auto before = static_cast<std::int32_t>(tokens_.size()) - 1;
      parents_.push_back(pass.parents == nullptr ? before : pass.parents[i]);
      tokens_.push_back(pass.tokens[i]);
      if (i + pass.rows >= pass.count) {
        const std::vector<float> row = world_.row(of_target_, text(before + 1));
        logits.insert(logits.end(), row.begin(), row.end());
      }
    }
    return logits;
  }

  void keep(const omnidraft_kept& kept) {
    if (kept.kind == OMNIDRAFT_KEEP_LENGTH) {
      cut(kept.length);
    } else if (kept.kind == OMNIDRAFT_KEEP_PATH) {
      Tokens path;
      std::int32_t above = static_cast<std::int32_t>(chain_.value()) - 1;
      for (std::size_t i = 0; i < kept.count; ++i) {
        const auto slot = static_cast<std::size_t>(kept.path[i]);
        EXPECT_EQ(parents_.at(slot), above) << "a path of the tree from the text downwards";
        above = kept.path[i];
        path.push_back(tokens_[slot]);
      }
      cut(*chain_);
      for (const omnidraft_token token : path) {
        parents_.push_back(static_cast<std::int32_t>(tokens_.size()) - 1);
        tokens_.push_back(token);
      }
      EXPECT_EQ(tokens_.size(), kept.length);
    }
  }

 private:
  void cut(std::size_t length) {
    ASSERT_LE(length, chain_.value_or(tokens_.size())) << "nothing is cut within a tree";
    ASSERT_LE(length, tokens_.size());
    tokens_.resize(length);
    parents_.resize(length);
    chain_.reset();
  }

  // The tokens on the way to a slot.
  Tokens text(std::int32_t slot) const {
    Tokens text;
    for (; slot >= 0; slot = parents_.at(static_cast<std::size_t>(slot))) {
      text.insert(text.begin(), tokens_.at(static_cast<std::size_t>(slot)));
    }
    return text;
  }

  const World& world_;
  bool of_target_;
  Tokens tokens_;
  std::vector<std::int32_t> parents_;  // slots
  std::optional<std::size_t> chain_;   // slots before the tree, while one is held
};

inline Vocabulary vocabulary(const std::vector<std::string>& surfaces) {
  std::vector<omnidraft_text> texts;
  for (const std::string& surface : surfaces) {
    texts.push_back({surface.data(), surface.size()});
  }
  return made<Vocabulary>(omnidraft_vocabulary_new, texts.data(), nullptr, nullptr, texts.size());
}

inline Pair pair(const World& world) {
  const Vocabulary drafter = vocabulary(world.drafter), target = vocabulary(world.target);
  return made<Pair>(omnidraft_pair_new, drafter.get(), target.get(), OMNIDRAFT_BYTES_RULE);
}

inline std::int64_t segment(void* user, omnidraft_text text, omnidraft_token* tokens,
                            std::size_t capacity) {
  const Tokens found = static_cast<const World*>(user)->segment({text.bytes, text.size});
  EXPECT_EQ(capacity, text.size);
  std::copy(found.begin(), found.end(), tokens);
  return static_cast<std::int64_t>(found.size());
}

// The world must outlive it.
inline Speller speller(const World& world, const omnidraft_pair* pair) {
  omnidraft_speller_options options = OMNIDRAFT_SPELLER_INIT;
  options.segment = segment;
  options.user = const_cast<World*>(&world);
  return made<Speller>(omnidraft_speller_new, pair, &options);
}

}  // namespace omnidraft::toy

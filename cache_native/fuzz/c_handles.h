// The handles of a program that makes and frees them as a fuzzer's bytes say; see c_api.cpp.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bytes.h"
#include "omnidraft.h"

namespace omnidraft::fuzz {

using Tokens = std::vector<omnidraft_token>;
using Surfaces = std::vector<std::string>;

// True where a call succeeded. One that failed says why.
inline bool succeeded(omnidraft_status status) {
  demand(status >= OMNIDRAFT_OK && status <= OMNIDRAFT_CALLBACK);  // no other is met here
  demand(status == OMNIDRAFT_OK || omnidraft_last_error()[0] != '\0');
  return status == OMNIDRAFT_OK;
}

// Reads all of what was handed out.
template <typename T>
void touch(const T* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    [[maybe_unused]] const volatile T value = values[i];
  }
}

// A few handles of one kind, and what is known of each.
template <typename T, void (*Free)(T*), typename Known = std::nullptr_t>
class Some {
 public:
  ~Some() {
    for (auto& [handle, known] : all_) {
      Free(handle);
    }
  }
  // The place for a new one; the old one goes.
  T** renew(Bytes& bytes, Known known = {}, std::size_t likely = 0) {
    auto& slot = any(bytes, likely);
    Free(std::exchange(slot.first, nullptr));
    slot.second = std::move(known);
    return &slot.first;
  }
  void drop(Bytes& bytes) { renew(bytes); }
  // One of them, or none; most often the likely one.
  std::pair<T*, Known>& any(Bytes& bytes, std::size_t likely = 0) {
    const std::uint8_t byte = bytes.byte();
    return all_[byte < 192 ? likely : byte % all_.size()];
  }

 private:
  std::array<std::pair<T*, Known>, 3> all_{};
};

struct Pair {
  Surfaces drafter, target;
};

// What a speller's callback does.
struct Tokenizer {
  Surfaces drafter;
  std::uint8_t whim = 0;
};

inline std::int64_t segment(void* user, omnidraft_text text, omnidraft_token* tokens,
                            std::size_t capacity) {
  const auto& tokenizer = *static_cast<Tokenizer*>(user);
  demand(capacity == text.size && capacity > 0);
  switch (tokenizer.whim) {
    case 1:
      return -1;
    case 2:
      return static_cast<std::int64_t>(capacity) + 1;
    case 3:
      tokens[0] = 99;
      return 1;
    case 4:
      return text.size % 2 == 0 ? -1 : 0;
    default:
      break;
  }
  std::size_t count = 0;
  std::string_view left(text.bytes, text.size);
  while (!left.empty()) {
    std::size_t best = tokenizer.drafter.size();
    for (std::size_t i = 0; i < tokenizer.drafter.size(); ++i) {
      const std::string& surface = tokenizer.drafter[i];
      if (!surface.empty() && left.substr(0, surface.size()) == surface) {
        best = i;
      }
    }
    if (best == tokenizer.drafter.size()) {
      return 0;
    }
    tokens[count++] = static_cast<omnidraft_token>(best);
    left.remove_prefix(tokenizer.drafter[best].size());
  }
  return static_cast<std::int64_t>(count);
}

inline void release(void* user) { delete static_cast<Tokenizer*>(user); }

// What a generation was made with, and how long its target's KV cache is.
struct Known {
  std::size_t drafter = 0, target = 0, length = 0;
};

class Handles {
 public:
  // With one of each to begin with, most often.
  explicit Handles(Bytes& bytes) : bytes_(bytes) {
    make_vocabulary(0);
    make_vocabulary(1);
    make_pair();
    make_cache();
    make_policy();
    make_speller();
    make_generation();
  }

 protected:
  Tokens tokens(std::size_t most, std::size_t vocabulary) {
    Tokens tokens(bytes_.below(most + 1));
    for (omnidraft_token& token : tokens) {
      token = static_cast<omnidraft_token>(bytes_.below(vocabulary + 2)) - 1;
      token = bytes_.below(16) == 0 || vocabulary == 0
                  ? token
                  : static_cast<omnidraft_token>(static_cast<std::size_t>(token + 1) % vocabulary);
    }
    return tokens;
  }

  double number() {
    const double numbers[] = {0, 1, 0.5, -1, 1e-3, 1e300, NAN, HUGE_VAL};
    const std::uint8_t byte = bytes_.byte();
    return byte < 200 ? byte / 128.0 : numbers[byte % 8];
  }

  std::vector<float> logits(std::size_t count) {
    std::vector<float> logits(count);
    for (float& logit : logits) {
      const std::uint8_t byte = bytes_.byte();
      logit = byte == 255   ? NAN
              : byte == 254 ? HUGE_VALF
              : byte == 253 ? -HUGE_VALF
                            : static_cast<float>(byte) / 16;
    }
    return logits;
  }

  void make_vocabulary(std::size_t likely) {
    Surfaces surfaces(bytes_.below(10));
    std::vector<omnidraft_text> texts;
    std::vector<std::uint8_t> kinds;
    for (std::string& surface : surfaces) {
      const std::uint8_t shape = bytes_.byte();
      for (int i = 0; i < shape % 5; ++i) {
        surface += "ab\n"[bytes_.below(3)];
      }
      if (likely == 0 && texts.size() < 3) {  // a drafter knows most bytes
        surface = "ab\n"[texts.size()];
      }
      texts.push_back({surface.data(), surface.size()});
      kinds.push_back(shape < 224 ? shape / 32 % 3 == 1 ? 1 : 0 : shape % 4);
    }
    auto** place = vocabularies_.renew(bytes_, surfaces, likely);
    const bool named = bytes_.below(2) == 1;
    std::size_t size = 0;
    if (succeeded(omnidraft_vocabulary_new(texts.data(), named ? texts.data() : nullptr,
                                           kinds.data(), texts.size(), place)) &&
        succeeded(omnidraft_vocabulary_size(*place, &size))) {
      demand(size == surfaces.size());
    }
  }

  void make_pair() {
    const auto& drafter = vocabularies_.any(bytes_, 0);
    const auto& target = vocabularies_.any(bytes_, 1);
    auto** place = pairs_.renew(bytes_, {drafter.second, target.second});
    if (succeeded(omnidraft_pair_new(drafter.first, target.first,
                                     static_cast<std::int32_t>(bytes_.below(3)), place))) {
      std::uint64_t fingerprint = 0;
      std::size_t count = 0;
      omnidraft_token token = 0;
      demand(succeeded(omnidraft_pair_fingerprint(*place, &fingerprint)));
      demand(succeeded(omnidraft_pair_direct_count(*place, &count)));
      demand(count <= drafter.second.size());
      const auto asked = static_cast<omnidraft_token>(bytes_.below(12)) - 1;
      if (succeeded(omnidraft_pair_to_target(*place, asked, &token)) && token >= 0) {
        demand(succeeded(omnidraft_pair_to_draft(*place, token, &token)));
      }
    }
  }

  omnidraft_limits limits() {
    omnidraft_limits limits = OMNIDRAFT_LIMITS_INIT;
    limits.max_entries = bytes_.byte();
    limits.eviction = static_cast<std::int32_t>(bytes_.below(3));
    limits.max_bytes = bytes_.below(2) == 0 ? limits.max_bytes : bytes_.byte();
    return limits;
  }

  void make_cache() {
    const auto& pair = pairs_.any(bytes_);
    const omnidraft_limits bounds = limits();
    auto** place = caches_.renew(bytes_, pair.second);
    std::size_t size = 0;
    if (succeeded(
            omnidraft_cache_new(pair.first, bytes_.below(2) == 0 ? nullptr : &bounds, place))) {
      demand(succeeded(omnidraft_cache_memory(*place, &size)) && size > 0);
      demand(succeeded(omnidraft_cache_size(*place, &size)) && size == 0);
    }
  }

  void change_cache() {
    auto& [cache, known] = caches_.any(bytes_);
    if (bytes_.below(2) == 0) {
      const Tokens drafts = tokens(6, known.drafter.size());
      const auto target = static_cast<omnidraft_token>(bytes_.below(12)) - 1;
      succeeded(omnidraft_cache_observe(cache, target, drafts.data(), drafts.size(), nullptr));
      return;
    }
    const std::uint8_t* data = nullptr;
    std::size_t size = 0;
    if (!succeeded(omnidraft_cache_to_bytes(cache, &data, &size))) {
      return;
    }
    std::string copy(reinterpret_cast<const char*>(data), size);
    for (std::size_t i = bytes_.below(4); i > 1; --i) {
      copy[bytes_.byte() % copy.size()] = static_cast<char>(bytes_.byte());
    }
    copy.resize(bytes_.below(8) == 0 ? bytes_.below(copy.size()) : copy.size());
    const auto& pair = pairs_.any(bytes_);
    const omnidraft_limits bounds = limits();
    auto** place = caches_.renew(bytes_, pair.second);
    succeeded(omnidraft_cache_from_bytes(reinterpret_cast<const std::uint8_t*>(copy.data()),
                                         copy.size(), pair.first, &bounds, place));
  }

  void make_policy() {
    const std::size_t sizes[] = {1, 1 + bytes_.below(200)};
    const double seconds[] = {number(), number()};
    const omnidraft_curve curve{bytes_.below(2) == 0 ? std::size_t{256} : bytes_.byte(), sizes,
                                seconds, 1 + bytes_.below(2)};
    auto** costs = costs_.renew(bytes_);
    const bool made = succeeded(omnidraft_costs_new(&curve, bytes_.below(2), &curve, costs));
    auto** place = policies_.renew(bytes_);
    if (!made || bytes_.below(2) == 0) {
      succeeded(omnidraft_policy_fixed(bytes_.below(16) == 0 ? SIZE_MAX : bytes_.below(20),
                                       bytes_.below(2) == 0 ? 0 : number(), place));
    } else {
      demand(succeeded(omnidraft_policy_cost_aware(*costs, place)));
      const std::size_t* bands = nullptr;
      std::size_t count = 0;
      std::int32_t moved = 0;
      double time = 0;
      demand(succeeded(omnidraft_costs_bands(*costs, &bands, &count)));
      touch(bands, count);
      demand(succeeded(omnidraft_costs_moved(*costs, &moved)));
      demand(succeeded(omnidraft_costs_written(*costs)));
      succeeded(omnidraft_costs_seconds(*costs, curve.band, bytes_.byte(), &time));
    }
    const std::size_t width = bytes_.below(10);
    succeeded(omnidraft_lookup_new(width, bytes_.byte(), lookups_.renew(bytes_)));
  }

  void make_speller() {
    const auto& pair = pairs_.any(bytes_);
    omnidraft_speller_options options = OMNIDRAFT_SPELLER_INIT;
    auto tokenizer = std::make_unique<Tokenizer>();
    tokenizer->drafter = pair.second.drafter;
    tokenizer->whim = static_cast<std::uint8_t>(bytes_.below(8) == 0 ? bytes_.below(5) : 0);
    options.segment = segment;
    options.release = release;
    options.user = tokenizer.get();
    options.special_text.size = bytes_.below(2);
    const Tokens targets = tokens(2, pair.second.target.size());
    const Tokens drafts(targets.size(), 0);
    options.special_targets = targets.data();
    options.special_drafts = drafts.data();
    options.special_count = targets.size();
    if (succeeded(
            omnidraft_speller_new(pair.first, &options, spellers_.renew(bytes_, pair.second)))) {
      Tokenizer* kept = tokenizer.release();
      kept->whim = static_cast<std::uint8_t>(bytes_.below(8) == 0 ? bytes_.below(5) : kept->whim);
    }
  }

  void make_generation() {
    auto& [cache, pair] = caches_.any(bytes_);
    omnidraft_sampling sampling = OMNIDRAFT_SAMPLING_INIT;
    if (bytes_.below(2) == 1) {
      sampling.temperature = number();
      sampling.top_k = static_cast<std::int32_t>(bytes_.below(8)) - 1;
      sampling.top_p = number();
      sampling.repetition_penalty = number();
    }
    omnidraft_generation_options options = OMNIDRAFT_GENERATION_INIT;
    options.sampling = &sampling;
    options.vocabulary_size = bytes_.below(8) == 0 ? bytes_.below(10) : pair.target.size();
    options.verification = static_cast<std::int32_t>(bytes_.below(4));
    options.seed = bytes_.byte();
    const Tokens ends = tokens(2, options.vocabulary_size);
    options.ends = ends.data();
    options.end_count = ends.size();
    if (bytes_.below(8) != 0) {
      options.cache = cache;
      options.speller = spellers_.any(bytes_).first;
      options.policy = policies_.any(bytes_).first;
      options.lookup = bytes_.below(2) == 0 ? nullptr : lookups_.any(bytes_).first;
    }
    const Tokens begin = tokens(2, pair.drafter.size()), held = tokens(5, pair.drafter.size());
    options.begin = begin.data();
    options.begin_count = begin.size();
    options.held = held.data();
    options.held_count = held.size();
    options.tree = bytes_.below(2) == 1 ? 1 : 0;
    options.scores_trees = bytes_.below(2) == 1 ? 1 : 0;
    options.max_length = bytes_.below(64);
    const Known known{pair.drafter.size(), options.vocabulary_size, bytes_.below(4)};
    succeeded(omnidraft_generation_new(&options, generations_.renew(bytes_, known)));
  }

  void free_one() {
    switch (bytes_.below(8)) {
      case 0:
        return vocabularies_.drop(bytes_);
      case 1:
        return pairs_.drop(bytes_);
      case 2:
        return caches_.drop(bytes_);
      case 3:
        return costs_.drop(bytes_);
      case 4:
        return policies_.drop(bytes_);
      case 5:
        return lookups_.drop(bytes_);
      case 6:
        return spellers_.drop(bytes_);
      default:
        return generations_.drop(bytes_);
    }
  }

  Bytes& bytes_;
  Some<omnidraft_vocabulary, omnidraft_vocabulary_free, Surfaces> vocabularies_;
  Some<omnidraft_pair, omnidraft_pair_free, Pair> pairs_;
  Some<omnidraft_cache, omnidraft_cache_free, Pair> caches_;
  Some<omnidraft_costs, omnidraft_costs_free> costs_;
  Some<omnidraft_policy, omnidraft_policy_free> policies_;
  Some<omnidraft_lookup, omnidraft_lookup_free> lookups_;
  Some<omnidraft_speller, omnidraft_speller_free, Pair> spellers_;
  Some<omnidraft_generation, omnidraft_generation_free, Known> generations_;
};

}  // namespace omnidraft::fuzz

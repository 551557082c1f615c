// Where randomness comes from. Drafting and verification make every random decision through
// Chance, so that a test can enumerate all of them and compare probabilities exactly.
#pragma once

#include <cstdint>
#include <vector>

#include "omnidraft/span.h"

namespace omnidraft {

class Chance {
 public:
  virtual ~Chance() = default;
  // True with the given probability; certain outcomes make no decision.
  virtual bool accept(double probability) = 0;
  // An index drawn in proportion to the weights (none negative, at least one positive).
  virtual std::size_t draw(Span<const double> weights) = 0;
};

// The number in [0, 1), of 53 bits, that belongs to a place: output `position` of SplitMix64 seeded
// with the scrambled seed. Nothing is drawn before or after it, so whoever asks, in whatever order,
// gets the same number, on every platform.
double uniform_at(std::uint64_t seed, std::uint64_t position);

// xoshiro256** seeded through SplitMix64: the same stream on every platform.
class Generator final : public Chance {
 public:
  explicit Generator(std::uint64_t seed);
  std::uint64_t next();
  double uniform();  // in [0, 1), 53 bits
  bool accept(double probability) override;
  std::size_t draw(Span<const double> weights) override;

 private:
  std::uint64_t state_[4];
};

// Replays a script of choices (accept: 1 or 0; draw: the index) and, past its end, takes the first
// possible one. Records the choices made and the probabilities of each decision.
class ScriptedChance final : public Chance {
 public:
  explicit ScriptedChance(std::vector<std::size_t> script) : script_(std::move(script)) {}
  bool accept(double probability) override;
  std::size_t draw(Span<const double> weights) override;

  const std::vector<std::size_t>& choices() const { return choices_; }
  const std::vector<std::vector<double>>& probabilities() const { return probabilities_; }

 private:
  std::size_t choose(std::vector<double> probabilities);

  std::vector<std::size_t> script_, choices_;
  std::vector<std::vector<double>> probabilities_;
};

}  // namespace omnidraft

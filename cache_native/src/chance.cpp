#include "omnidraft/chance.h"

#include <array>
#include <numeric>
#include <stdexcept>

namespace omnidraft {
namespace {

// SplitMix64 (Steele, Lea and Flood, 2014): a state that grows by kGamma, and its scrambling.
constexpr std::uint64_t kGamma = 0x9e3779b97f4a7c15ULL;

std::uint64_t scramble(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

double unit(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1.0p-53; }

std::uint64_t rotate_left(std::uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

double total_of(Span<const double> weights) {
  std::array<double, 8> lanes{};
  std::size_t i = 0;
  for (; i + lanes.size() <= weights.size(); i += lanes.size()) {
    for (std::size_t j = 0; j < lanes.size(); ++j) {
      lanes[j] += weights[i + j];
    }
  }
  for (std::size_t j = 0; i < weights.size(); ++i, ++j) {
    lanes[j] += weights[i];
  }
  const double total = std::accumulate(lanes.begin(), lanes.end(), 0.0);
  if (!(total > 0)) {
    throw std::domain_error("nothing to draw from: all weights are zero or not a number");
  }
  return total;
}

}  // namespace

double uniform_at(std::uint64_t seed, std::uint64_t position) {
  // The seed is scrambled first: neighbouring seeds would share their numbers, one place apart.
  return unit(scramble(scramble(seed + kGamma) + kGamma * (position + 1)));
}

Generator::Generator(std::uint64_t seed) {
  for (std::uint64_t& word : state_) {
    seed += kGamma;
    word = scramble(seed);
  }
}

std::uint64_t Generator::next() {
  const std::uint64_t result = rotate_left(state_[1] * 5, 7) * 9;
  const std::uint64_t t = state_[1] << 17;
  state_[2] ^= state_[0];
  state_[3] ^= state_[1];
  state_[1] ^= state_[2];
  state_[0] ^= state_[3];
  state_[2] ^= t;
  state_[3] = rotate_left(state_[3], 45);
  return result;
}

double Generator::uniform() { return unit(next()); }

bool Generator::accept(double probability) {
  return probability >= 1 || (probability > 0 && uniform() < probability);
}

std::size_t Generator::draw(Span<const double> weights) {
  double left = uniform() * total_of(weights);
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] > 0) {
      if (left < weights[i]) {
        return i;
      }
      left -= weights[i];
      last = i;
    }
  }
  return last;  // rounding carried us past the end
}

bool ScriptedChance::accept(double probability) {
  if (probability >= 1 || probability <= 0) {
    return probability >= 1;
  }
  return choose({1 - probability, probability}) == 1;
}

std::size_t ScriptedChance::draw(Span<const double> weights) {
  const double total = total_of(weights);
  std::vector<double> probabilities;
  probabilities.reserve(weights.size());
  for (const double weight : weights) {
    probabilities.push_back(weight / total);
  }
  return choose(std::move(probabilities));
}

std::size_t ScriptedChance::choose(std::vector<double> probabilities) {
  std::size_t choice = 0;
  if (choices_.size() < script_.size()) {
    choice = script_[choices_.size()];
    if (choice >= probabilities.size()) {
      throw std::out_of_range("the script chooses an outcome that does not exist");
    }
  } else {
    while (!(probabilities[choice] > 0)) {
      ++choice;
    }
  }
  choices_.push_back(choice);
  probabilities_.push_back(std::move(probabilities));
  return choice;
}

}  // namespace omnidraft

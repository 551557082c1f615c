#include "omnidraft/policy.h"

#include <algorithm>

namespace omnidraft {

std::size_t Fixed::begin(std::size_t room, std::size_t space, std::size_t, std::size_t,
                         std::size_t) {
  return room > 0 ? std::min(nodes_, space) : 0;
}

double Fixed::found(std::size_t) const { return 0; }

std::size_t Fixed::layer(const std::vector<double>& open_nodes, const std::vector<double>& gains,
                         std::size_t limit) {
  const double least = limit > 0 && gains.size() >= limit ? gains[limit - 1] : 0;
  return static_cast<std::size_t>(
      std::count_if(open_nodes.begin(), open_nodes.end(),
                    [&](double p) { return p * kLikely > least && p >= confidence_; }));
}

std::size_t Fixed::count(const std::vector<double>&, std::size_t limit) const { return limit; }

}  // namespace omnidraft

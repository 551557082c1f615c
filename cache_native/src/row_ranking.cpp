#include "omnidraft/row_ranking.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <stdexcept>

#include "rows.h"

namespace omnidraft {

void RowRanking::assign(Span<const float> logits) {
  logits_ = logits;
  const std::size_t blocks = (logits.size() + rows::kMaximaBlock - 1) / rows::kMaximaBlock;
  maxima_.resize(blocks * rows::kLanes);
  rows::lane_maxima(logits.data(), logits.size(), maxima_.data());
  maximum_ = rows::max(maxima_.data(), maxima_.size());
  if (maximum_ == std::numeric_limits<float>::infinity()) {
    throw std::domain_error("the model returned logits that are not numbers");
  }
}

void RowRanking::top(std::size_t count, std::vector<Token>& result) {
  // As many logits as maxima are not below the count-th largest maximum.
  float threshold = std::numeric_limits<float>::lowest();
  if (count <= maxima_.size()) {
    order_ = maxima_;
    while (order_.size() / 2 > 8 * count) {  // the same is true of the maxima of pairs
      const std::size_t half = order_.size() / 2;
      for (std::size_t i = 0; i < half; ++i) {
        order_[i] = std::max(order_[i], order_[i + half]);
      }
      order_.resize(half);  // without the last of an odd number
    }
    const auto nth = order_.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(order_.begin(), nth, order_.end(), std::greater<>());
    threshold = std::max(threshold, *nth);
  }
  result.clear();
  for (std::size_t lane = 0; lane < maxima_.size(); ++lane) {
    if (maxima_[lane] < threshold) {
      continue;
    }
    const std::size_t begin = lane / rows::kLanes * rows::kMaximaBlock;
    const std::size_t end = std::min(begin + rows::kMaximaBlock, logits_.size());
    for (std::size_t i = begin + lane % rows::kLanes; i < end; i += rows::kLanes) {
      if (logits_[i] >= threshold) {
        result.push_back(static_cast<Token>(i));
      }
    }
  }
  std::sort(result.begin(), result.end(), [&](Token a, Token b) {
    const float first = logits_[static_cast<std::size_t>(a)];
    const float second = logits_[static_cast<std::size_t>(b)];
    return first != second ? first > second : a < b;
  });
}

}  // namespace omnidraft

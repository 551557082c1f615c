#include "omnidraft/account.h"

#include <algorithm>
#include <cmath>

namespace omnidraft {

bool Account::try_drafting(double price, double reading) {
  const bool free = drafted_ < kFreeTrials && price <= kDearestTrial;
  const double refund = free ? reading : 0;
  if (balance_ + refund < kLeastProbe + price) {
    return false;
  }
  balance_ += refund;
  probing_ = !drafting_;
  drafting_ = true;
  return true;
}

void Account::allow() {
  const double allowance = std::max(kLeastAllowance, std::ldexp(kAllowance, -failures_));
  credit_ += allowance;
  earn(allowance);
}

void Account::drafted(double gain, double without_reading, double reading) {
  ++drafted_;
  credit_ += gain;
  if (!probing_) {
    reading = std::max(0.0, std::min(reading, balance_ - kReserve));
  }
  earn(without_reading - reading);
  if (balance_ <= 0) {
    drafting_ = false;
    ++failures_;
  }
}

void Account::earn(double steps) {
  balance_ = std::min(kCap, balance_ + steps);
  if (balance_ == kCap) {
    failures_ = 0;
  }
}

}  // namespace omnidraft

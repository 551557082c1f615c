// What drafting may lose against plain decoding: a credit and a balance, in plain steps.
//
//   Account account;
//   account.open_round();
//   if (account.drafting() || account.try_drafting(price, reading)) {
//     ...                                              // the round drafts
//     account.drafted(gain, gain_without_reading, reading);
//   }
//   account.allow();
//
// A plain step is the time that one token takes in plain decoding. A round that makes three tokens
// in the time of two plain steps has gained one.
//
// The credit bounds the loss. It begins at kCredit, every round adds a small allowance, and every
// round that drafted or looked up adds what it gained, or takes what it lost. Rounds that could
// lose more than the credit are not made.
//
// The balance decides whether to draft at all. The same gains and losses go in, but it never grows
// beyond kCap, so that it falls to 0 soon after drafting stops paying. Rounds draft while there is
// a balance. Then they are plain until the allowance has saved up enough for another try. Each try
// in vain makes the allowance smaller.
#pragma once

namespace omnidraft {

class Account {
 public:
  // Share of the time that may be lost on finding out whether drafting pays.
  static constexpr double kAllowance = 0.015;
  // The same after tries in vain, each of which halves it.
  static constexpr double kLeastAllowance = kAllowance / 4;
  // Further plain steps that may be lost before rounds have gained any.
  static constexpr double kCredit = 10;
  // The balance at first and at most, in plain steps.
  static constexpr double kStart = 2, kCap = 10;
  // A try needs a balance of so many plain steps beyond its price.
  static constexpr double kLeastProbe = 1;
  // Plain steps of the balance that reading a prompt into the drafter may not use up.
  static constexpr double kReserve = 1;
  // Of the first drafted rounds, so many read for free: before them nothing is known.
  static constexpr int kFreeTrials = 8;
  // A free round may cost at most so many plain steps. Reading half of the default drafter's
  // context takes two to three.
  static constexpr double kDearestTrial = 5;

  // Plain steps that may still be lost.
  double credit() const { return credit_; }
  // Whether there was a balance after the last round.
  bool drafting() const { return drafting_; }

  // A round begins, and nothing is known of it yet.
  void open_round() { probing_ = false; }

  // Whether the round may draft, although it is not known that this pays. price: what the round
  // costs if nothing is accepted; reading: the part of it that the drafter needs to read the text.
  bool try_drafting(double price, double reading);

  // A round has ended: add the allowance.
  void allow();

  // A round has proposed what lookup found.
  void looked_up(double gain) { credit_ += gain; }

  // A round has drafted. A try pays for its reading in full. Elsewhere reading is an investment:
  // the balance pays for it, but keeps a reserve. gain: of the whole round; without_reading: what
  // it would have gained if nothing had been left to read; reading: what that cost.
  void drafted(double gain, double without_reading, double reading);

 private:
  void earn(double steps);

  double credit_ = kCredit, balance_ = kStart;
  int failures_ = 0, drafted_ = 0;
  bool drafting_ = false;
  bool probing_ = false;  // the round under way is a try
};

}  // namespace omnidraft

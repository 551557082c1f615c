// What a pass costs: seconds by tokens, measured on a machine and followed online.
//
//   CostCurve curve({{1, 0.010}, {8, 0.017}});   // measured, seconds
//   curve.seconds(5);                            // a pass over five tokens
//   curve.observe(5, 0.0132);                    // what one took
//
// Measured times are noisy, and hiccups make them longer, never shorter. So an observation moves a
// curve by a bounded step, which makes it a running median rather than a mean.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <vector>

namespace omnidraft {

// Seconds of a pass over n tokens: monotone, linear between measured sizes and beyond.
class CostCurve {
 public:
  static constexpr std::size_t kMaxSize = 65536;

  // seconds: of passes over some numbers of tokens, 1 among them. Throws std::invalid_argument when
  // that is missing, for another number than 1 … kMaxSize, and for a time that is not positive and
  // finite.
  explicit CostCurve(const std::map<std::size_t, double>& seconds);

  // Expected seconds of a pass over so many tokens, which may be a fraction (an average).
  double seconds(double tokens) const;

  // Follows a pass over so many tokens, at least one, which took `seconds`.
  void observe(std::size_t tokens, double seconds);

  // Whether it has moved so far that it is worth writing down again; new ones are.
  bool has_moved() const { return has_moved_; }
  void written() { has_moved_ = false; }

 private:
  std::vector<double> table_;  // by tokens; a pass over none costs nothing
  std::size_t tail_from_ = 0;
  double level_ = 1, drift_ = 0;
  bool has_moved_ = true;
};

// The curves of a target, by context, and of a drafter.
class Costs {
 public:
  // Upper ends of the bands of context, in tokens; the last one has no end.
  static constexpr std::array<std::size_t, 3> kBands{256, 1024, 4096};

  // target: by a band's upper end; at least one. Throws std::invalid_argument for none, or for an
  // end that is not among kBands.
  Costs(std::map<std::size_t, CostCurve> target, CostCurve drafter);

  // The target's curve at a context length. That of a new band begins as the nearest one. It stays
  // where it is.
  CostCurve& target(std::size_t context);
  CostCurve& drafter() { return drafter_; }
  std::map<std::size_t, CostCurve>& bands() { return target_; }

 private:
  std::map<std::size_t, CostCurve> target_;
  CostCurve drafter_;
};

}  // namespace omnidraft

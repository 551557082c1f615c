// What the rounds of chains and of trees have in common: the drafter's side of them.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "omnidraft/generation.h"

namespace omnidraft {

// What one round was told and asked, beside the drafter's passes.
struct Scoring {
  const Decoding* decoding;
  History* history;
  std::uint64_t position;  // of the first token that it makes, from the beginning of the answer
};

// A generation's rounds, one after the other; see Generation, whose methods these serve.
class Rounds {
 public:
  explicit Rounds(std::optional<Drafting> drafting);
  virtual ~Rounds() = default;

  std::size_t read(Span<const Token> prompt);

  // room, length, space: see Policy::begin.
  virtual bool begin(std::size_t room, std::size_t length, std::size_t space) = 0;
  virtual void drafted(Span<const float> rows) = 0;
  virtual bool draft_on() = 0;
  // Ends drafting: what is proposed now stands in proposed() and parents().
  virtual void propose() = 0;
  virtual std::vector<Token> proposed() const = 0;
  virtual std::vector<std::int32_t> parents() const = 0;  // −1: the text
  virtual Verdict& verify(Span<const float> logits, const Scoring& scoring) = 0;
  virtual const Verdict& verdict() const = 0;
  virtual void end_at(std::size_t end) = 0;
  virtual std::vector<std::uint32_t> rows() const = 0;  // of the verdict's tokens
  // What the drafter keeps, the n-grams inserted, and the draft tokens.
  virtual void settle(double target_seconds, double other_seconds, Settled& settled) = 0;
  virtual std::vector<Shown> shown() const = 0;
  virtual double confidence() const { return 0; }
  virtual bool drew() const { return false; }
  virtual void score_as(double) {}

  const Pass& pass() const { return pass_; }
  const std::vector<std::uint32_t>& pass_nodes() const { return pass_nodes_; }
  // Throws std::invalid_argument for rows that are not those of the pass.
  void check(Span<const float> rows) const;
  // The pass gave logits.
  void took(double seconds) { passes_.emplace_back(pass_.tokens.size(), seconds); }
  void fail() { failing_ = true; }
  bool drafts() const { return active_; }
  // Whether the round under way began with a drafter.
  bool shows() const { return shows_; }
  const std::vector<Token>& context() const;

 protected:
  // How many tokens at the beginning of the context the drafter's KV cache holds; at least one is
  // left to read.
  std::size_t agreed();
  // Begins a round: looks up, and asks the policy for the most nodes it may score.
  std::size_t open(std::size_t room, std::size_t length, std::size_t space);
  // Makes pass_ the drafter's first: it reads what the target has said since the last.
  void catch_up();
  // Makes pass_ one over tokens that were drawn. held: see Pass.
  void run_on(std::size_t held, std::vector<Token> tokens, std::vector<std::int32_t> parents);
  // Ends a round: its tokens join the context, and the policy is told. rows: of the target's pass.
  std::size_t close(std::size_t rows, const Verdict& verdict,
                    const std::vector<std::vector<Token>>& spellings, std::vector<Judged> judged,
                    double target_seconds, double other_seconds);
  // Appends the tokens of a verdict behind the shown path, each by itself. spellings: of the
  // accepted tokens, as they were drafted; rows: of each of the verdict's tokens.
  void show_rest(const Verdict& verdict, const std::vector<std::vector<Token>>& spellings,
                 const std::vector<std::uint32_t>& rows, std::vector<Shown>& shown) const;

  std::optional<Drafting> drafting_;
  std::optional<DraftContext> context_;
  std::vector<Token> fed_;  // what the drafter's KV cache holds of the context
  bool active_;             // there is a drafter that can go on
  bool failing_ = false;    // it cannot: what it drafted in this round is still to be settled
  std::size_t agreed_ = 0;  // tokens of fed_ that are known to agree with the context
  // Of the round under way.
  bool shows_ = false;
  Pass pass_;
  std::vector<std::uint32_t> pass_nodes_;
  std::vector<std::pair<std::size_t, double>> passes_;  // that gave logits
  std::vector<Token> found_;                            // what lookup would propose
  std::size_t match_ = 0;
  std::size_t before_ = 0;  // draft tokens of the context before the round's
};

}  // namespace omnidraft

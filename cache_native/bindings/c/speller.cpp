#include <map>

#include "handles.h"

using namespace omnidraft;     // NOLINT: a binding file
using namespace omnidraft::c;  // NOLINT

namespace {

// A caller's function, which is released with the last speller that may call it.
class Callback {
 public:
  Callback(omnidraft_segment segment, void* user) : segment_(segment), user_(user) {}
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;
  ~Callback() {
    if (release_ != nullptr) {
      release_(user_);
    }
  }

  void release_by(void (*release)(void* user)) { release_ = release; }

  std::vector<Token> operator()(std::string_view bytes) const {
    std::vector<Token> tokens(bytes.size());
    if (bytes.empty()) {
      return tokens;
    }
    const std::int64_t count =
        segment_(user_, {bytes.data(), bytes.size()}, tokens.data(), tokens.size());
    if (count < 0) {
      throw CallbackError("segment failed with " + std::to_string(count));
    }
    if (static_cast<std::uint64_t>(count) > tokens.size()) {
      throw CallbackError("segment gives " + std::to_string(count) + " draft tokens for " +
                          std::to_string(tokens.size()) + " bytes, more than there was room for");
    }
    tokens.resize(static_cast<std::size_t>(count));
    return tokens;
  }

 private:
  omnidraft_segment segment_;
  void* user_;
  void (*release_)(void* user) = nullptr;
};

}  // namespace

omnidraft_status omnidraft_speller_new(const omnidraft_pair* pair,
                                       const omnidraft_speller_options* given,
                                       omnidraft_speller** speller) {
  return guard([&] {
    at(speller, "speller");
    const omnidraft_speller_options& asked = options(given, "options");
    at(asked.segment, "segment");
    const auto targets = array(asked.special_targets, asked.special_count, "special_targets");
    const auto drafts = array(asked.special_drafts, asked.special_count, "special_drafts");
    std::map<Token, Token> specials;
    for (std::size_t i = 0; i < targets.size(); ++i) {
      specials[targets[i]] = drafts[i];
    }
    const auto& known = at(pair, "pair").value;
    const auto callback = std::make_shared<Callback>(asked.segment, asked.user);
    const auto segment = [callback](std::string_view bytes) { return (*callback)(bytes); };
    *speller = new omnidraft_speller{
        std::make_shared<Speller>(known, segment, view(asked.special_text, "special_text"),
                                  specials),
        known};
    callback->release_by(asked.release);
  });
}

void omnidraft_speller_free(omnidraft_speller* speller) { delete speller; }

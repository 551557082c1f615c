// A program that uses the C interface as it likes: any handles, any arguments, calls in and out of
// order, callbacks that fail, logits that are no numbers, damaged caches, frees in any order.
#include "c_handles.h"

using namespace omnidraft::fuzz;  // NOLINT: a test

namespace {

class Program : Handles {
 public:
  using Handles::Handles;

  void step() {
    switch (bytes_.below(12)) {
      case 0:
        return make_vocabulary(bytes_.below(2));
      case 1:
        return make_pair();
      case 2:
        return make_cache();
      case 3:
        return change_cache();
      case 4:
        return make_policy();
      case 5:
        return make_speller();
      case 6:
        return make_generation();
      case 7:
        return free_one();
      case 8:
        return call_generation();
      default:
        return play_round();
    }
  }

 private:
  void look(const omnidraft_pass& pass, std::size_t vocabulary) {
    demand(pass.rows >= 1 && pass.rows <= pass.count);
    for (std::size_t i = 0; i < pass.count; ++i) {
      demand(pass.tokens[i] >= 0 && static_cast<std::size_t>(pass.tokens[i]) < vocabulary);
    }
    if (pass.parents != nullptr) {
      touch(pass.parents, pass.count);
    }
  }

  void look(const omnidraft_verdict& verdict, std::size_t vocabulary) {
    demand(verdict.count == verdict.accepted + 1 && verdict.accepted <= verdict.proposed);
    for (std::size_t i = 0; i < verdict.count; ++i) {
      demand(verdict.tokens[i] >= 0 && static_cast<std::size_t>(verdict.tokens[i]) < vocabulary);
      demand(verdict.origins[i] <= OMNIDRAFT_LOOKED_UP);
    }
  }

  // One call of a generation, whether it is its turn or not.
  void call_generation() {
    auto& [g, known] = generations_.any(bytes_);
    omnidraft_pass pass = OMNIDRAFT_PASS_INIT;
    omnidraft_verdict verdict = OMNIDRAFT_VERDICT_INIT;
    omnidraft_settled settled = OMNIDRAFT_SETTLED_INIT;
    std::int32_t flag = 0;
    std::size_t count = 0;
    double real = 0;
    switch (bytes_.below(16)) {
      case 0: {
        const Tokens prompt = tokens(8, known.target);
        succeeded(omnidraft_generation_read(g, prompt.data(), prompt.size(), nullptr));
        return;
      }
      case 1:
        succeeded(
            omnidraft_generation_begin(g, bytes_.byte(), bytes_.byte(), bytes_.byte(), &flag));
        return;
      case 2:
        succeeded(omnidraft_generation_pass(g, &pass));
        touch(pass.tokens, pass.count);
        return;
      case 3: {
        const std::vector<float> rows = logits(bytes_.below(3) * known.drafter);
        succeeded(omnidraft_generation_drafted(g, rows.data(), rows.size(), number()));
        return;
      }
      case 4:
        succeeded(omnidraft_generation_score_as(g, number()));
        succeeded(omnidraft_generation_confidence(g, &real));
        succeeded(omnidraft_generation_drew(g, &flag));
        return;
      case 5:
        succeeded(omnidraft_generation_draft_on(g, &flag));
        return;
      case 6:
        succeeded(omnidraft_generation_fail(g));
        succeeded(omnidraft_generation_drafts(g, &flag));
        return;
      case 7:
        if (succeeded(omnidraft_generation_score(g, &pass))) {
          look(pass, known.target);
        }
        return;
      case 8: {
        const std::vector<float> rows = logits(bytes_.below(4) * known.target);
        if (succeeded(omnidraft_generation_scored(g, rows.data(), rows.size(), &verdict))) {
          look(verdict, known.target);
        }
        return;
      }
      case 9:
        if (succeeded(omnidraft_generation_end_at(g, bytes_.below(4), &verdict))) {
          look(verdict, known.target);
        }
        return;
      case 10:
        succeeded(omnidraft_generation_verdict(g, &verdict));
        touch(verdict.tokens, verdict.count);
        return;
      case 11:
        succeeded(omnidraft_generation_settle(g, number(), number(), &settled));
        return;
      case 12:
        return show(g);
      default: {
        const std::uint32_t* numbers = nullptr;
        const omnidraft_token* ids = nullptr;
        const std::int32_t* parents = nullptr;
        std::uint64_t length = 0;
        if (succeeded(omnidraft_generation_rows(g, &numbers, &count))) {
          touch(numbers, count);
        }
        if (succeeded(omnidraft_generation_pass_nodes(g, &numbers, &count))) {
          touch(numbers, count);
        }
        if (succeeded(omnidraft_generation_proposed(g, &ids, &parents, &count))) {
          touch(ids, count);
          touch(parents, count);
        }
        if (succeeded(omnidraft_generation_context(g, &ids, &count))) {
          touch(ids, count);
        }
        succeeded(omnidraft_generation_length(g, &length));
      }
    }
  }

  void show(omnidraft_generation* g) {
    std::size_t paths = 0;
    if (!succeeded(omnidraft_generation_show(g, &paths))) {
      return;
    }
    for (std::size_t i = 0; i < paths; ++i) {
      omnidraft_shown shown = OMNIDRAFT_SHOWN_INIT;
      demand(succeeded(omnidraft_generation_shown(g, i, &shown)));
      demand(shown.row_count == shown.count + 1 && shown.accepted <= shown.count);
      touch(shown.tokens, shown.count);
      touch(shown.counts, shown.count);
      touch(shown.drafts, shown.draft_count);
      touch(shown.rows, shown.row_count);
      touch(shown.draft_nodes, shown.node_count);
    }
  }

  // A round as it should be, unless a call fails.
  void play_round() {
    auto& [g, known] = generations_.any(bytes_);
    const std::size_t most = known.length + 1 + bytes_.below(40);
    std::int32_t more = 0;
    const Tokens prompt = tokens(6, known.target);
    std::uint64_t length = 0;
    if (!succeeded(omnidraft_generation_length(g, &length))) {
      return;
    }
    if (length == 0) {
      succeeded(omnidraft_generation_read(g, prompt.data(), prompt.size(), nullptr));
    }
    if (!succeeded(omnidraft_generation_begin(g, bytes_.below(30), known.length, most, &more))) {
      return;
    }
    omnidraft_pass pass = OMNIDRAFT_PASS_INIT;
    while (more != 0) {
      demand(succeeded(omnidraft_generation_pass(g, &pass)));
      look(pass, known.drafter);
      const std::vector<float> rows = logits(pass.rows * known.drafter);
      if (!succeeded(omnidraft_generation_drafted(g, rows.data(), rows.size(), number())) ||
          !succeeded(omnidraft_generation_draft_on(g, &more))) {
        demand(succeeded(omnidraft_generation_fail(g)));
        break;
      }
    }
    if (!succeeded(omnidraft_generation_score(g, &pass))) {
      return;
    }
    look(pass, known.target);
    demand(pass.held == known.length && pass.held + pass.count <= most);
    const std::vector<float> rows = logits(pass.rows * known.target);
    omnidraft_verdict verdict = OMNIDRAFT_VERDICT_INIT;
    if (!succeeded(omnidraft_generation_scored(g, rows.data(), rows.size(), &verdict))) {
      return;
    }
    look(verdict, known.target);
    omnidraft_settled settled = OMNIDRAFT_SETTLED_INIT;
    if (!succeeded(omnidraft_generation_settle(g, number(), number(), &settled))) {
      return;
    }
    demand(settled.target.length == known.length + verdict.count);
    known.length = settled.target.length;
    touch(settled.target.path, settled.target.count);
    touch(settled.drafter.path, settled.drafter.count);
    show(g);
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  Program program(bytes);
  while (!bytes.empty()) {
    program.step();
  }
  return 0;
}

// The Python face of the core: converts and documents, nothing else.
#include <pybind11/native_enum.h>
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/stl/filesystem.h>

#include <optional>
#include <string>

#include "omnidraft/acceptance.h"
#include "omnidraft/chance.h"
#include "omnidraft/cost_aware.h"
#include "omnidraft/costs.h"
#include "omnidraft/draft.h"
#include "omnidraft/generation.h"
#include "omnidraft/lookup.h"
#include "omnidraft/ngram_cache.h"
#include "omnidraft/policy.h"
#include "omnidraft/sampling.h"
#include "omnidraft/speller.h"
#include "omnidraft/tree_draft.h"
#include "omnidraft/verify.h"
#include "omnidraft/vocabulary.h"
#include "omnidraft/vocabulary_pair.h"
#include "omnidraft/walk.h"

namespace py = pybind11;
using namespace omnidraft;  // NOLINT: a binding file

namespace {

// No conversion: a silent copy of a row of logits would cost more than all the work on it.
using Logits = py::array_t<float, py::array::c_style>;

Span<const float> view(const Logits& logits) {
  return {logits.data(), static_cast<std::size_t>(logits.size())};
}

template <typename T>
Span<const T> view(const std::vector<T>& values) {
  return {values.data(), values.size()};
}

std::shared_ptr<Vocabulary> make_vocabulary(const std::vector<std::optional<py::bytes>>& surfaces,
                                            const std::vector<std::string>& pieces,
                                            const std::vector<Token>& byte_tokens) {
  if (!pieces.empty() && pieces.size() != surfaces.size()) {
    throw std::invalid_argument("pieces must be empty or as many as surfaces");
  }
  std::vector<TokenText> tokens(surfaces.size());
  for (std::size_t i = 0; i < surfaces.size(); ++i) {
    if (surfaces[i]) {
      tokens[i].surface = std::string(*surfaces[i]);
    } else {
      tokens[i].kind = TokenKind::kSpecial;
    }
    if (!pieces.empty()) {
      tokens[i].piece = pieces[i];
    }
  }
  for (const Token token : byte_tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= tokens.size()) {
      throw std::out_of_range("byte token " + std::to_string(token) + " is outside the vocabulary");
    }
    if (tokens[static_cast<std::size_t>(token)].kind == TokenKind::kNormal) {
      tokens[static_cast<std::size_t>(token)].kind = TokenKind::kByte;
    }
  }
  return std::make_shared<Vocabulary>(tokens);
}

using CalibrationPairs = std::vector<std::pair<double, double>>;

std::vector<Calibration> make_calibration(const CalibrationPairs& pairs) {
  std::vector<Calibration> calibration;
  for (const auto& [slope, offset] : pairs) {
    calibration.push_back({slope, offset});
  }
  return calibration;
}

CalibrationPairs calibration_pairs(const std::vector<Calibration>& lines) {
  CalibrationPairs pairs;
  for (const Calibration& line : lines) {
    pairs.emplace_back(line.slope, line.offset);
  }
  return pairs;
}

// A policy that Python defines, or changes.
template <typename Base>
class PythonPolicy : public Base, public py::trampoline_self_life_support {
 public:
  using Base::Base;

  std::vector<Calibration> calibration() const override {
    const py::gil_scoped_acquire acquire;
    const py::object self = py::cast(static_cast<const Base*>(this));
    return make_calibration(self.attr("calibration").cast<CalibrationPairs>());
  }
  std::size_t begin(std::size_t room, std::size_t space, std::size_t context, std::size_t unread,
                    std::size_t found) override {
    if constexpr (std::is_abstract_v<Base>) {
      PYBIND11_OVERRIDE_PURE(std::size_t, Base, begin, room, space, context, unread, found);
    } else {
      PYBIND11_OVERRIDE(std::size_t, Base, begin, room, space, context, unread, found);
    }
  }
  double found(std::size_t match) const override {
    if constexpr (std::is_abstract_v<Base>) {
      PYBIND11_OVERRIDE_PURE(double, Base, found, match);
    } else {
      PYBIND11_OVERRIDE(double, Base, found, match);
    }
  }
  std::size_t layer(const std::vector<double>& open_nodes, const std::vector<double>& gains,
                    std::size_t limit) override {
    if constexpr (std::is_abstract_v<Base>) {
      PYBIND11_OVERRIDE_PURE(std::size_t, Base, layer, open_nodes, gains, limit);
    } else {
      PYBIND11_OVERRIDE(std::size_t, Base, layer, open_nodes, gains, limit);
    }
  }
  std::size_t count(const std::vector<double>& gains, std::size_t limit) const override {
    if constexpr (std::is_abstract_v<Base>) {
      PYBIND11_OVERRIDE_PURE(std::size_t, Base, count, gains, limit);
    } else {
      PYBIND11_OVERRIDE(std::size_t, Base, count, gains, limit);
    }
  }
  void observe(const Outcome& outcome) override {
    if constexpr (std::is_abstract_v<Base>) {
      PYBIND11_OVERRIDE_PURE(void, Base, observe, outcome);
    } else {
      PYBIND11_OVERRIDE(void, Base, observe, outcome);
    }
  }
};

// One value of each node of a tree.
template <auto Member>
auto column(const TreeProposal& proposal) {
  std::vector<std::decay_t<decltype(TreeProposal::Node().*Member)>> values;
  values.reserve(proposal.nodes.size());
  for (const TreeProposal::Node& node : proposal.nodes) {
    values.push_back(node.*Member);
  }
  return values;
}

Token checked(Token token, const Vocabulary& vocabulary) {
  if (token < 0 || static_cast<std::size_t>(token) >= vocabulary.size()) {
    throw std::out_of_range("token " + std::to_string(token) + " is outside the vocabulary");
  }
  return token;
}

}  // namespace

PYBIND11_MODULE(_native, m) {
  m.doc() = "The native core of OmniDraft; see the type stubs for its interface.";

  py::native_enum<MappingRule>(m, "MappingRule", "enum.IntEnum")
      .value("BYTES", MappingRule::kBytes)
      .value("PAPER", MappingRule::kPaper)
      .finalize();
  py::native_enum<Eviction>(m, "Eviction", "enum.IntEnum")
      .value("LRU", Eviction::kLru)
      .value("LFU", Eviction::kLfu)
      .finalize();
  py::native_enum<Verification>(m, "Verification", "enum.IntEnum")
      .value("GREEDY", Verification::kGreedy)
      .value("EXACT", Verification::kExact)
      .value("PAPER", Verification::kPaper)
      .finalize();
  py::native_enum<Origin>(m, "Origin", "enum.IntEnum")
      .value("DIRECT", Origin::kDirect)
      .value("MERGED", Origin::kMerged)
      .value("CORRECTED", Origin::kCorrected)
      .value("FREE", Origin::kFree)
      .value("LOOKUP", Origin::kLookup)
      .finalize();

  py::native_enum<Judgement>(m, "Judgement", "enum.IntEnum")
      .value("NONE", Judgement::kNone)
      .value("WRONG", Judgement::kWrong)
      .value("RIGHT", Judgement::kRight)
      .finalize();

  py::register_exception<CacheDamagedError>(m, "CacheDamagedError", PyExc_ValueError);
  py::register_exception<CacheMismatchError>(m, "CacheMismatchError", PyExc_ValueError);
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      std::rethrow_exception(error);
    } catch (const std::filesystem::filesystem_error& e) {
      // With the number, Python raises FileNotFoundError and the like.
      py::set_error(PyExc_OSError, py::make_tuple(e.code().value(), e.what()));
    }
  });

  py::class_<Vocabulary, std::shared_ptr<Vocabulary>>(m, "Vocabulary")
      .def(py::init(&make_vocabulary), py::arg("surfaces"),
           py::arg("pieces") = std::vector<std::string>{},
           py::arg("byte_tokens") = std::vector<Token>{})
      .def("__len__", &Vocabulary::size)
      .def("surface",
           [](const Vocabulary& self, Token token) -> std::optional<py::bytes> {
             checked(token, self);
             if (self.is_special(token)) {
               return std::nullopt;
             }
             return py::bytes(std::string(self.surface(token)));
           })
      .def_property_readonly("fingerprint", &Vocabulary::fingerprint);

  py::class_<VocabularyPair, std::shared_ptr<VocabularyPair>>(m, "VocabularyPair")
      .def(py::init([](std::shared_ptr<Vocabulary> drafter, std::shared_ptr<Vocabulary> target,
                       MappingRule rule) {
             return std::make_shared<VocabularyPair>(std::move(drafter), std::move(target), rule);
           }),
           py::arg("drafter"), py::arg("target"), py::arg("rule") = MappingRule::kBytes)
      .def_property_readonly("direct_count", &VocabularyPair::direct_count)
      .def_property_readonly("rule", &VocabularyPair::rule)
      .def_property_readonly("fingerprint", &VocabularyPair::fingerprint)
      .def("to_target", [](const VocabularyPair& self,
                           Token draft) { return self.to_target(checked(draft, self.drafter())); })
      .def("to_draft", [](const VocabularyPair& self, Token target) {
        return self.to_draft(checked(target, self.target()));
      });

  py::class_<NgramCache>(m, "NgramCache")
      .def(py::init([](std::shared_ptr<VocabularyPair> pair, std::size_t max_entries,
                       std::size_t max_bytes, Eviction eviction) {
             return NgramCache(std::move(pair), {max_entries, max_bytes, eviction});
           }),
           py::arg("pair"), py::arg("max_entries") = CacheLimits{}.max_entries,
           py::arg("max_bytes") = CacheLimits{}.max_bytes, py::arg("eviction") = Eviction::kLru)
      .def("observe",
           [](NgramCache& self, Token target, const std::vector<Token>& drafts) {
             return self.observe(target, view(drafts));
           })
      .def("judge", [](NgramCache& self, const std::vector<Token>& drafts,
                       bool merged) { self.judge(view(drafts), merged); })
      .def("__len__", &NgramCache::size)
      .def_property_readonly("memory_bytes", &NgramCache::memory_bytes)
      .def_property_readonly("evictions", &NgramCache::evictions)
      .def_property_readonly("version", &NgramCache::version)
      .def("ngrams",
           [](const NgramCache& self) {
             py::list all;
             for (std::size_t i = 0; i < self.size(); ++i) {
               const NgramCache::Ngram ngram = self.ngram(i);
               all.append(py::make_tuple(
                   ngram.target, std::vector<Token>(ngram.drafts.begin(), ngram.drafts.end()),
                   ngram.uses, ngram.primary));
             }
             return all;
           })
      .def("to_bytes", [](const NgramCache& self) { return py::bytes(self.to_bytes()); })
      .def_static(
          "from_bytes",
          [](const py::bytes& data, std::shared_ptr<VocabularyPair> pair, std::size_t max_entries,
             std::size_t max_bytes, Eviction eviction) {
            return NgramCache::from_bytes(std::string_view(data), std::move(pair),
                                          {max_entries, max_bytes, eviction});
          },
          py::arg("data"), py::arg("pair"), py::arg("max_entries") = CacheLimits{}.max_entries,
          py::arg("max_bytes") = CacheLimits{}.max_bytes, py::arg("eviction") = Eviction::kLru)
      .def("save", &NgramCache::save, py::arg("path"))
      .def_static(
          "load",
          [](const std::filesystem::path& path, std::shared_ptr<VocabularyPair> pair,
             std::size_t max_entries, std::size_t max_bytes, Eviction eviction) {
            return NgramCache::load(path, std::move(pair), {max_entries, max_bytes, eviction});
          },
          py::arg("path"), py::arg("pair"), py::arg("max_entries") = CacheLimits{}.max_entries,
          py::arg("max_bytes") = CacheLimits{}.max_bytes, py::arg("eviction") = Eviction::kLru);

  py::class_<Chance>(m, "Chance");
  py::class_<Generator, Chance>(m, "Generator")
      .def(py::init<std::uint64_t>(), py::arg("seed"))
      .def("next", &Generator::next)
      .def("uniform", &Generator::uniform)
      .def("draw",
           [](Generator& self, const std::vector<double>& w) { return self.draw(view(w)); });
  py::class_<ScriptedChance, Chance>(m, "ScriptedChance")
      .def(py::init<std::vector<std::size_t>>(), py::arg("script"))
      .def_property_readonly("choices", &ScriptedChance::choices)
      .def_property_readonly("probabilities", &ScriptedChance::probabilities);

  py::class_<SamplingParameters>(
      m, "SamplingParameters",
      "How the target's distribution is shaped; temperature 0 is greedy decoding.")
      .def(py::init([](double temperature, std::int32_t top_k, double top_p, double min_p,
                       double repetition_penalty) {
             const SamplingParameters parameters{temperature, top_k, top_p, min_p,
                                                 repetition_penalty};
             parameters.validate();
             return parameters;
           }),
           py::arg("temperature") = 0.0, py::arg("top_k") = 0, py::arg("top_p") = 1.0,
           py::arg("min_p") = 0.0, py::arg("repetition_penalty") = 1.0)
      .def_readonly("temperature", &SamplingParameters::temperature)
      .def_readonly("top_k", &SamplingParameters::top_k)
      .def_readonly("top_p", &SamplingParameters::top_p)
      .def_readonly("min_p", &SamplingParameters::min_p)
      .def_readonly("repetition_penalty", &SamplingParameters::repetition_penalty)
      .def_property_readonly("greedy", &SamplingParameters::greedy);

  py::class_<History>(m, "History")
      .def(py::init<std::size_t>(), py::arg("vocabulary_size"))
      .def("add", [](History& self, const std::vector<Token>& tokens) {
        for (const Token token : tokens) {
          self.add(token);
        }
      });

  m.def(
      "shape",
      [](const Logits& logits, const SamplingParameters& sampling, const History& history) {
        Distribution distribution;
        distribution.assign(view(logits), sampling, history);
        std::vector<float> weights;
        distribution.weights(weights);
        py::array_t<double> probabilities(static_cast<py::ssize_t>(weights.size()));
        for (std::size_t i = 0; i < weights.size(); ++i) {
          probabilities.mutable_data()[i] = static_cast<double>(weights[i]) / distribution.total();
        }
        return probabilities;
      },
      py::arg("logits").noconvert(), py::arg("sampling"), py::arg("history"));

  m.def("uniform_at", &uniform_at, py::arg("seed"), py::arg("position"));
  m.def(
      "quantile",
      [](const Logits& logits, const SamplingParameters& sampling, const History& history,
         double uniform) {
        if (!(uniform >= 0 && uniform < 1)) {
          throw std::invalid_argument("a quantile is asked for at a number in [0, 1)");
        }
        Distribution distribution;
        distribution.assign(view(logits), sampling, history);
        return distribution.quantile(uniform);
      },
      py::arg("logits").noconvert(), py::arg("sampling"), py::arg("history"), py::arg("uniform"));

  py::class_<Proposal>(m, "Proposal")
      .def_readonly("drafts", &Proposal::drafts)
      .def_property_readonly("tokens", &Proposal::tokens)
      .def_property_readonly("draft_counts", [](const Proposal& self) {
        std::vector<std::uint32_t> counts;
        for (const Proposal::Position& position : self.positions) {
          if (position.token != kNoToken) {
            counts.push_back(position.draft_count);
          }
        }
        return counts;
      });

  py::class_<Draft>(m, "Draft")
      .def(py::init<const NgramCache&, Verification, double>(), py::arg("cache"),
           py::arg("verification"), py::arg("temperature") = 1.0, py::keep_alive<1, 2>())
      .def(
          "propose",
          [](Draft& self, const std::vector<Token>& tokens) { self.propose(view(tokens)); },
          py::arg("tokens"))
      .def(
          "step",
          [](Draft& self, const Logits& logits, Chance& chance) {
            const auto row = view(logits);
            const py::gil_scoped_release release;
            return self.step(row, chance);
          },
          py::arg("logits").noconvert(), py::arg("chance"))
      .def_property_readonly("confidence", &Draft::confidence)
      .def("finish", &Draft::finish);

  py::class_<Lookup>(m, "Lookup")
      .def(py::init<std::size_t, std::size_t>(), py::arg("vocabulary_size"),
           py::arg("max_tokens") = std::size_t{1} << 16)
      .def(
          "add", [](Lookup& self, const std::vector<Token>& tokens) { self.add(view(tokens)); },
          py::arg("tokens"))
      .def("propose", &Lookup::propose, py::arg("max_tokens"), py::arg("min_match") = 2)
      .def_property_readonly("match_length", &Lookup::match_length)
      .def("__len__", &Lookup::size)
      .def_property_readonly("memory_bytes", &Lookup::memory_bytes)
      .def("clear", &Lookup::clear);

  py::class_<Verdict>(m, "Verdict")
      .def_readonly("tokens", &Verdict::tokens)
      .def_readonly("origins", &Verdict::origins)
      .def_readonly("proposed", &Verdict::proposed)
      .def_readonly("accepted", &Verdict::accepted)
      .def_readonly("accepted_drafts", &Verdict::accepted_drafts)
      .def_readonly("merged", &Verdict::merged)
      .def_readonly("merged_accepted", &Verdict::merged_accepted);

  m.def("end_round", py::overload_cast<Proposal&, Verdict&, std::size_t>(&end_round),
        py::arg("proposal"), py::arg("verdict"), py::arg("end"));

  py::class_<Verifier>(m, "Verifier")
      .def(py::init<const NgramCache&>(), py::arg("cache"), py::keep_alive<1, 2>())
      .def(
          "verify",
          [](Verifier& self, const Proposal& proposal, const Logits& logits,
             const SamplingParameters& sampling, History& history, Chance& chance) {
            const auto rows = view(logits);
            const py::gil_scoped_release release;
            return self.verify(proposal, rows, sampling, history, chance);
          },
          py::arg("proposal"), py::arg("logits").noconvert(), py::arg("sampling"),
          py::arg("history"), py::arg("chance"))
      .def(
          "follow",
          [](Verifier& self, const Proposal& proposal, const Logits& logits,
             const SamplingParameters& sampling, History& history, std::uint64_t seed,
             std::uint64_t position) {
            const auto rows = view(logits);
            const py::gil_scoped_release release;
            return self.follow(proposal, rows, sampling, history, seed, position);
          },
          py::arg("proposal"), py::arg("logits").noconvert(), py::arg("sampling"),
          py::arg("history"), py::arg("seed"), py::arg("position"));

  using TreeNode = TreeProposal::Node;
  py::class_<TreeProposal>(m, "TreeProposal")
      .def(py::init<>())
      .def("__len__", [](const TreeProposal& self) { return self.nodes.size(); })
      .def_property_readonly("tokens", &column<&TreeNode::token>)
      .def_property_readonly("parents", &column<&TreeNode::parent>)
      .def_property_readonly("depths", &column<&TreeNode::depth>)
      .def_property_readonly("origins", &column<&TreeNode::origin>)
      .def_property_readonly("probabilities", &column<&TreeNode::probability>)
      .def_property_readonly("confidences", &column<&TreeNode::confidence>)
      .def_property_readonly("ranks", &column<&TreeNode::rank>)
      .def_property_readonly("draft_nodes", &column<&TreeNode::draft>)
      .def_property_readonly("drafts", &column<&TreeNode::drafts>);

  py::class_<TreeDraft>(m, "TreeDraft")
      .def(py::init([](const NgramCache& cache, std::size_t width, double floor,
                       double shorter_share, const CalibrationPairs& calibration) {
             return TreeDraft(cache, {width, floor, shorter_share, make_calibration(calibration)});
           }),
           py::arg("cache"), py::arg("width") = TreeOptions{}.width,
           py::arg("floor") = TreeOptions{}.floor,
           py::arg("shorter_share") = TreeOptions{}.shorter_share,
           py::arg("calibration") = CalibrationPairs{}, py::keep_alive<1, 2>())
      .def(
          "calibrate",
          [](TreeDraft& self, const CalibrationPairs& calibration) {
            self.calibrate(make_calibration(calibration));
          },
          py::arg("calibration"))
      .def(
          "expand",
          [](TreeDraft& self, std::uint32_t node, const Logits& logits) {
            const auto row = view(logits);
            const py::gil_scoped_release release;
            self.expand(node, row);
          },
          py::arg("node"), py::arg("logits").noconvert())
      .def(
          "frontier",
          [](const TreeDraft& self, std::size_t limit, double floor) {
            py::list open;
            for (const std::uint32_t node : self.frontier(limit, floor)) {
              open.append(py::make_tuple(node, self.token(node), self.parent(node),
                                         self.probability(node)));
            }
            return open;
          },
          py::arg("limit"), py::arg("floor") = 0.0)
      .def(
          "add_path",
          [](TreeDraft& self, const std::vector<Token>& tokens, double probability) {
            self.add_path(view(tokens), probability);
          },
          py::arg("tokens"), py::arg("probability"))
      .def("gains", &TreeDraft::gains)
      .def("finish", &TreeDraft::finish, py::arg("count"));

  py::class_<TreeVerdict, Verdict>(m, "TreeVerdict")
      .def_readonly("path", &TreeVerdict::path)
      .def_readonly("judgements", &TreeVerdict::judgements);

  m.def("end_round", py::overload_cast<const TreeProposal&, TreeVerdict&, std::size_t>(&end_round),
        py::arg("proposal"), py::arg("verdict"), py::arg("end"));

  py::class_<Walker>(m, "Walker")
      .def(py::init<>())
      .def(
          "walk",
          [](Walker& self, const TreeProposal& proposal, const Logits& logits,
             const SamplingParameters& sampling, History& history, std::uint64_t seed,
             std::uint64_t position) {
            const auto rows = view(logits);
            const py::gil_scoped_release release;
            return self.walk(proposal, rows, sampling, history, seed, position);
          },
          py::arg("proposal"), py::arg("logits").noconvert(), py::arg("sampling"),
          py::arg("history"), py::arg("seed"), py::arg("position"));

  py::class_<CostCurve>(m, "CostCurve")
      .def(py::init<const std::map<std::size_t, double>&>(), py::arg("seconds"))
      .def("seconds", &CostCurve::seconds, py::arg("tokens"))
      .def("observe", &CostCurve::observe, py::arg("tokens"), py::arg("seconds"))
      .def("written", &CostCurve::written)
      .def_property_readonly("has_moved", &CostCurve::has_moved);

  py::class_<Costs, std::shared_ptr<Costs>> costs(m, "Costs");
  costs.attr("BANDS") =
      py::cast(std::vector<std::size_t>(Costs::kBands.begin(), Costs::kBands.end()));
  costs
      .def(py::init<std::map<std::size_t, CostCurve>, CostCurve>(), py::arg("target"),
           py::arg("drafter"))
      .def("target", &Costs::target, py::arg("context"),
           py::return_value_policy::reference_internal)
      .def_property_readonly("drafter", &Costs::drafter,
                             py::return_value_policy::reference_internal)
      .def_property_readonly("bands", [](Costs& self) {
        py::dict bands;
        for (auto& [end, curve] : self.bands()) {
          bands[py::int_(end)] =
              py::cast(&curve, py::return_value_policy::reference_internal, py::cast(&self));
        }
        return bands;
      });

  py::class_<Judged>(m, "Judged")
      .def(py::init<std::size_t, double, bool>(), py::arg("rank"), py::arg("score"),
           py::arg("right"))
      .def_readonly("rank", &Judged::rank)
      .def_readonly("score", &Judged::score)
      .def_readonly("right", &Judged::right);

  py::class_<Outcome>(m, "Outcome")
      .def(py::init<std::size_t, std::size_t, std::vector<std::pair<std::size_t, double>>,
                    std::vector<Judged>, double, double, std::size_t, std::size_t, std::size_t>(),
           py::arg("rows"), py::arg("tokens"), py::arg("passes"), py::arg("judged"),
           py::arg("target_seconds"), py::arg("other_seconds"), py::arg("match") = 0,
           py::arg("found_judged") = 0, py::arg("found_right") = 0)
      .def_readonly("rows", &Outcome::rows)
      .def_readonly("tokens", &Outcome::tokens)
      .def_readonly("passes", &Outcome::passes)
      .def_readonly("judged", &Outcome::judged)
      .def_readonly("target_seconds", &Outcome::target_seconds)
      .def_readonly("other_seconds", &Outcome::other_seconds)
      .def_readonly("match", &Outcome::match)
      .def_readonly("found_judged", &Outcome::found_judged)
      .def_readonly("found_right", &Outcome::found_right);

  m.def("calibrated", &calibrated, py::arg("score"), py::arg("slope"), py::arg("offset"));

  py::class_<Policy, PythonPolicy<Policy>, py::smart_holder>(m, "Policy")
      .def(py::init<>())
      .def("begin", &Policy::begin, py::arg("room"), py::arg("space"), py::arg("context"),
           py::arg("unread"), py::arg("found"))
      .def("found", &Policy::found, py::arg("match"))
      .def("layer", &Policy::layer, py::arg("open_nodes"), py::arg("gains"), py::arg("limit"))
      .def("count", &Policy::count, py::arg("gains"), py::arg("limit"))
      .def("observe", &Policy::observe, py::arg("outcome"));

  py::class_<Fixed, Policy, PythonPolicy<Fixed>, py::smart_holder>(m, "Fixed")
      .def(py::init<std::size_t, double>(), py::arg("nodes"), py::arg("confidence") = 0.0)
      .def_property_readonly("calibration", [](const Fixed&) { return CalibrationPairs{}; })
      .def("begin", &Fixed::begin, py::arg("room"), py::arg("space"), py::arg("context"),
           py::arg("unread"), py::arg("found"))
      .def("found", &Fixed::found, py::arg("match"))
      .def("layer", &Fixed::layer, py::arg("open_nodes"), py::arg("gains"), py::arg("limit"))
      .def("count", &Fixed::count, py::arg("gains"), py::arg("limit"))
      .def("observe", &Fixed::observe, py::arg("outcome"));

  py::class_<CostAware, Policy, py::smart_holder> cost_aware(m, "CostAware");
  cost_aware.attr("MAX_NODES") = CostAware::kMaxNodes;
  cost_aware.attr("MAX_PASSES") = CostAware::kMaxPasses;
  cost_aware.attr("MAX_LAYER") = CostAware::kMaxLayer;
  cost_aware.attr("ALLOWANCE") = Account::kAllowance;
  cost_aware.attr("CREDIT") = Account::kCredit;
  cost_aware.def(py::init<std::shared_ptr<Costs>>(), py::arg("costs"))
      .def_property_readonly("calibration", [](const CostAware& self) {
        return calibration_pairs(self.calibration());
      });

  py::class_<Speller>(m, "Speller")
      .def(py::init([](std::shared_ptr<VocabularyPair> pair, const py::function& segment,
                       const std::string& special_text, const std::map<Token, Token>& specials) {
             const auto call = [segment](std::string_view bytes) {
               const py::object drafts = segment(py::bytes(bytes.data(), bytes.size()));
               return drafts.is_none() ? std::vector<Token>() : drafts.cast<std::vector<Token>>();
             };
             return Speller(std::move(pair), call, special_text, specials);
           }),
           py::arg("pair"), py::arg("segment"), py::arg("special_text") = "\n",
           py::arg("specials") = std::map<Token, Token>{})
      .def("spell", &Speller::spell, py::arg("token"));

  py::class_<DraftContext>(m, "DraftContext")
      .def(py::init<Speller&, NgramCache&, std::vector<Token>>(), py::arg("speller"),
           py::arg("cache"), py::arg("begin") = std::vector<Token>{}, py::keep_alive<1, 2>(),
           py::keep_alive<1, 3>())
      .def_property_readonly("tokens", &DraftContext::tokens)
      .def(
          "extend",
          [](DraftContext& self, const std::vector<Token>& targets,
             const std::vector<std::vector<Token>>& spellings,
             bool said) { return self.extend(view(targets), spellings, said); },
          py::arg("targets"), py::arg("spellings") = std::vector<std::vector<Token>>{},
          py::kw_only(), py::arg("said") = false)
      .def(
          "refuse",
          [](DraftContext& self, const std::vector<Token>& proposed, Token said) {
            self.refuse(view(proposed), said);
          },
          py::arg("proposed"), py::arg("said"));

  py::class_<Pass>(m, "Pass")
      .def_readonly("held", &Pass::held)
      .def_readonly("tokens", &Pass::tokens)
      .def_readonly("parents", &Pass::parents)
      .def_readonly("rows", &Pass::rows);

  py::class_<Kept>(m, "Kept")
      .def_property_readonly("length",
                             [](const Kept& self) -> std::optional<std::size_t> {
                               return self.kind == Kept::Kind::kLength ? std::optional(self.length)
                                                                       : std::nullopt;
                             })
      .def_property_readonly(
          "path", [](const Kept& self) -> std::optional<std::vector<std::int32_t>> {
            return self.kind == Kept::Kind::kPath ? std::optional(self.path) : std::nullopt;
          });

  py::class_<Settled>(m, "Settled")
      .def_readonly("target", &Settled::target)
      .def_readonly("drafter", &Settled::drafter)
      .def_readonly("draft_tokens", &Settled::draft_tokens)
      .def_readonly("inserted", &Settled::inserted);

  py::class_<Shown>(m, "Shown")
      .def_readonly("context", &Shown::context)
      .def_readonly("tokens", &Shown::tokens)
      .def_readonly("drafts", &Shown::drafts)
      .def_readonly("counts", &Shown::counts)
      .def_readonly("accepted", &Shown::accepted)
      .def_readonly("last", &Shown::last)
      .def_readonly("rows", &Shown::rows)
      .def_readonly("draft_nodes", &Shown::draft_nodes);

  py::class_<Generation>(m, "Generation")
      .def(py::init([](std::size_t vocabulary_size, const SamplingParameters& sampling,
                       Verification verification, std::uint64_t seed, std::vector<Token> ends,
                       NgramCache* cache, Speller* speller, Policy* policy, Lookup* lookup,
                       std::vector<Token> begin, bool tree, std::size_t max_length,
                       bool scores_trees, std::vector<Token> held) {
             Decoding decoding{vocabulary_size, sampling, verification, seed, std::move(ends)};
             std::optional<Drafting> drafting;
             if (cache != nullptr && speller != nullptr && policy != nullptr) {
               drafting =
                   Drafting{cache, speller,    policy,       lookup,         std::move(begin),
                            tree,  max_length, scores_trees, std::move(held)};
             }
             return std::make_unique<Generation>(std::move(decoding), std::move(drafting));
           }),
           py::arg("vocabulary_size"), py::arg("sampling"), py::kw_only(),
           py::arg("verification") = Verification::kGreedy, py::arg("seed") = 0,
           py::arg("ends") = std::vector<Token>{}, py::arg("cache") = nullptr,
           py::arg("speller") = nullptr, py::arg("policy") = nullptr, py::arg("lookup") = nullptr,
           py::arg("begin") = std::vector<Token>{}, py::arg("tree") = false,
           py::arg("max_length") = 0, py::arg("scores_trees") = false,
           py::arg("held") = std::vector<Token>{}, py::keep_alive<1, 7>(), py::keep_alive<1, 8>(),
           py::keep_alive<1, 9>(), py::keep_alive<1, 10>())
      .def(
          "read",
          [](Generation& self, const std::vector<Token>& prompt) {
            return self.read(view(prompt));
          },
          py::arg("prompt"))
      .def("begin", &Generation::begin, py::arg("room"), py::arg("length"), py::arg("max_length"))
      .def_property_readonly("drafter_pass", &Generation::pass)
      .def_property_readonly("pass_nodes", &Generation::pass_nodes)
      .def(
          "drafted",
          [](Generation& self, const Logits& logits, double seconds) {
            const auto rows = view(logits);
            const py::gil_scoped_release release;
            self.drafted(rows, seconds);
          },
          py::arg("logits").noconvert(), py::arg("seconds"))
      .def_property_readonly("confidence", &Generation::confidence)
      .def_property_readonly("drew", &Generation::drew)
      .def("score_as", &Generation::score_as, py::arg("score"))
      .def("draft_on", &Generation::draft_on)
      .def("fail", &Generation::fail)
      .def_property_readonly("drafts", &Generation::drafts)
      .def("score", &Generation::score, py::return_value_policy::reference_internal)
      .def(
          "scored",
          [](Generation& self, const Logits& logits) -> const Verdict& {
            const auto rows = view(logits);
            const py::gil_scoped_release release;
            return self.scored(rows);
          },
          py::arg("logits").noconvert(), py::return_value_policy::reference_internal)
      .def_property_readonly("ended", &Generation::ended)
      .def("end_at", &Generation::end_at, py::arg("end"))
      .def_property_readonly("verdict", &Generation::verdict)
      .def_property_readonly("rows", &Generation::rows)
      .def_property_readonly("proposed", &Generation::proposed)
      .def_property_readonly("parents", &Generation::parents)
      .def("settle", &Generation::settle, py::arg("target_seconds"), py::arg("other_seconds"),
           py::return_value_policy::reference_internal)
      .def("shown", &Generation::shown)
      .def_property_readonly("context", [](const py::object& self) {
        const std::vector<Token>& tokens = self.cast<const Generation&>().context();
        return py::array_t<Token>(static_cast<py::ssize_t>(tokens.size()), tokens.data(), self);
      });
}

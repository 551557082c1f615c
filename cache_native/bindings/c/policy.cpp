// Costs, policies and lookup: what decides how much is drafted.
#include <algorithm>
#include <limits>
#include <map>

#include "handles.h"
#include "omnidraft/cost_aware.h"

using namespace omnidraft;     // NOLINT: a binding file
using namespace omnidraft::c;  // NOLINT

namespace {

CostCurve curve_of(const omnidraft_curve& given) {
  const auto sizes = array(given.sizes, given.count, "sizes of a curve");
  const auto seconds = array(given.seconds, given.count, "seconds of a curve");
  std::map<std::size_t, double> points;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    require(points.emplace(sizes[i], seconds[i]).second,
            "a curve has two times of " + std::to_string(sizes[i]) + " tokens");
  }
  return CostCurve(points);
}

const CostCurve& curve_at(Costs& costs, std::size_t band) {
  if (band == 0) {
    return costs.drafter();
  }
  const auto found = costs.bands().find(band);
  require(found != costs.bands().end(),
          "there is no curve of contexts up to " + std::to_string(band) + " tokens");
  return found->second;
}

}  // namespace

omnidraft_status omnidraft_costs_new(const omnidraft_curve* target, size_t count,
                                     const omnidraft_curve* drafter, omnidraft_costs** costs) {
  return guard([&] {
    at(costs, "costs");
    std::map<std::size_t, CostCurve> bands;
    for (const omnidraft_curve& curve : array(target, count, "curves of the target")) {
      require(bands.emplace(curve.band, curve_of(curve)).second,
              "there are two curves of contexts up to " + std::to_string(curve.band) + " tokens");
    }
    *costs = new omnidraft_costs{
        std::make_shared<Costs>(std::move(bands), curve_of(at(drafter, "drafter"))), {}};
  });
}

void omnidraft_costs_free(omnidraft_costs* costs) { delete costs; }

omnidraft_status omnidraft_costs_bands(omnidraft_costs* costs, const size_t** bands,
                                       size_t* count) {
  return guard([&] {
    std::vector<std::size_t> ends;
    for (const auto& [end, curve] : at(costs, "costs").value->bands()) {
      ends.push_back(end);
    }
    at(bands, "bands");
    at(count, "count") = ends.size();
    costs->bands = std::move(ends);
    *bands = costs->bands.data();
  });
}

omnidraft_status omnidraft_costs_seconds(const omnidraft_costs* costs, size_t band, size_t tokens,
                                         double* seconds) {
  return guard([&] {
    at(seconds, "seconds") =
        curve_at(*at(costs, "costs").value, band).seconds(static_cast<double>(tokens));
  });
}

omnidraft_status omnidraft_costs_moved(const omnidraft_costs* costs, int32_t* moved) {
  return guard([&] {
    Costs& known = *at(costs, "costs").value;
    const auto has_moved = [](const auto& band) { return band.second.has_moved(); };
    const bool any = std::any_of(known.bands().begin(), known.bands().end(), has_moved);
    at(moved, "moved") = any || known.drafter().has_moved() ? 1 : 0;
  });
}

omnidraft_status omnidraft_costs_written(omnidraft_costs* costs) {
  return guard([&] {
    Costs& known = *at(costs, "costs").value;
    for (auto& [end, curve] : known.bands()) {
      curve.written();
    }
    known.drafter().written();
  });
}

omnidraft_status omnidraft_policy_fixed(size_t tokens, double confidence,
                                        omnidraft_policy** policy) {
  return guard([&] {
    at(policy, "policy");
    require(confidence >= 0 && confidence <= 1, "confidence lies in 0 to 1");
    *policy = new omnidraft_policy{std::make_shared<Fixed>(tokens, confidence)};
  });
}

omnidraft_status omnidraft_policy_cost_aware(const omnidraft_costs* costs,
                                             omnidraft_policy** policy) {
  return guard([&] {
    at(policy, "policy");
    *policy = new omnidraft_policy{std::make_shared<CostAware>(at(costs, "costs").value)};
  });
}

void omnidraft_policy_free(omnidraft_policy* policy) { delete policy; }

omnidraft_status omnidraft_lookup_new(size_t vocabulary_size, size_t max_tokens,
                                      omnidraft_lookup** lookup) {
  return guard([&] {
    at(lookup, "lookup");
    require(vocabulary_size <= std::numeric_limits<Token>::max(),
            "a vocabulary has fewer than 2^31 tokens");
    *lookup = new omnidraft_lookup{std::make_shared<Lookup>(vocabulary_size, max_tokens),
                                   vocabulary_size};
  });
}

void omnidraft_lookup_free(omnidraft_lookup* lookup) { delete lookup; }

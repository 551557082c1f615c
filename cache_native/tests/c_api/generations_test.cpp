// Replays tests/vectors/generations.txt, which README.md there describes.
#include <fstream>
#include <map>
#include <sstream>

#include "answers.h"

namespace omnidraft::toy {
namespace {

using Words = std::vector<std::string>;
using Block = std::map<std::string, Words>;

std::vector<Block> read() {
  std::ifstream file(OMNIDRAFT_VECTORS "/generations.txt");
  std::vector<Block> blocks(1);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key == "end") {
      blocks.emplace_back();
    } else if (key != "#") {
      blocks.back()[key] = {std::istream_iterator<std::string>(words), {}};
    }
  }
  blocks.pop_back();
  return blocks;
}

std::vector<std::string> surfaces(const Words& words) {
  std::vector<std::string> surfaces;
  for (const std::string& word : words) {
    std::string bytes;
    for (std::size_t i = 0; word != "-" && i < word.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(word.substr(i, 2), nullptr, 16));
    }
    surfaces.push_back(bytes);
  }
  return surfaces;
}

template <typename Number = omnidraft_token>
std::vector<Number> numbers(const Words& words) {
  std::vector<Number> numbers;
  for (const std::string& word : words) {
    numbers.push_back(static_cast<Number>(std::stoull(word)));
  }
  return numbers;
}

Asked asked(Block& block) {
  Asked asked;
  asked.prompt = numbers(block["prompt"]);
  asked.ends = numbers(block["ends"]);
  asked.begin = numbers(block["begin"]);
  const auto limits = numbers<std::size_t>(block["limits"]);
  asked.max_new = limits[0];
  asked.target_max = limits[1];
  asked.drafter_max = limits[2];
  const Words& sampling = block["sampling"];
  asked.sampling.temperature = std::stod(sampling[0]);
  asked.sampling.top_k = std::stoi(sampling[1]);
  asked.sampling.top_p = std::stod(sampling[2]);
  asked.sampling.min_p = std::stod(sampling[3]);
  asked.sampling.repetition_penalty = std::stod(sampling[4]);
  asked.seed = std::stoull(block["seed"][0]);
  const std::map<std::string, std::int32_t> verifications{
      {"follow", OMNIDRAFT_FOLLOW}, {"exact", OMNIDRAFT_EXACT}, {"paper", OMNIDRAFT_PAPER}};
  asked.verification = verifications.at(block["verification"][0]);
  asked.tree = block["draft"][0] == "tree";
  asked.scores_trees = block["draft"][1] == "1";
  return asked;
}

Policy policy(const Words& words) {
  if (words[0] == "fixed") {
    return made<Policy>(omnidraft_policy_fixed, std::stoull(words[1]), std::stod(words[2]));
  }
  const std::size_t sizes[] = {1, 8};
  const double target[] = {target_seconds(1), target_seconds(8)};
  const double drafter[] = {drafter_seconds(1), drafter_seconds(8)};
  const omnidraft_curve of_target{256, sizes, target, 2}, of_drafter{0, sizes, drafter, 2};
  const Costs costs = made<Costs>(omnidraft_costs_new, &of_target, std::size_t{1}, &of_drafter);
  return made<Policy>(omnidraft_policy_cost_aware, costs.get());
}

std::string hex(omnidraft_cache* cache) {
  const std::uint8_t* bytes = nullptr;
  std::size_t size = 0;
  demand(omnidraft_cache_to_bytes(cache, &bytes, &size));
  std::string text;
  for (std::size_t i = 0; i < size; ++i) {
    text += "0123456789abcdef"[bytes[i] / 16];
    text += "0123456789abcdef"[bytes[i] % 16];
  }
  return text;
}

void replay(Block& block) {
  const World world{std::stoull(block["world"][0]), surfaces(block["drafter"]),
                    surfaces(block["target"]), std::stoull(block["world"][1])};
  const Pair pair = toy::pair(world);
  const Cache cache = made<Cache>(omnidraft_cache_new, pair.get(), nullptr);
  const Speller speller = toy::speller(world, pair.get());
  Policy policy;
  Lookup lookup;
  Parts parts;
  if (block["policy"][0] != "none") {
    policy = toy::policy(block["policy"]);
    parts = {cache.get(), speller.get(), policy.get(), nullptr};
    if (!block["lookup"].empty()) {
      lookup = made<Lookup>(omnidraft_lookup_new, world.target.size(),
                            numbers<std::size_t>(block["lookup"])[0]);
      parts.lookup = lookup.get();
    }
  }
  const Answer answer = toy::answer(world, asked(block), parts);
  EXPECT_EQ(answer.tokens, numbers(block["tokens"]));
  const Words names{"direct", "merged", "corrected", "free", "lookup"};
  Words origins;
  for (const int origin : answer.origins) {
    origins.push_back(names[static_cast<std::size_t>(origin)]);
  }
  EXPECT_EQ(origins, block["origins"]);
  EXPECT_EQ(answer.rows, numbers<std::size_t>(block["rows"]));
  EXPECT_EQ(answer.passes, numbers<std::size_t>(block["passes"]));
  EXPECT_EQ(answer.inserted, numbers<std::size_t>(block["inserted"])[0]);
  EXPECT_EQ(hex(cache.get()), block["cache"][0]);
}

TEST(Vectors, ReplayTheRecordedAnswers) {
  std::vector<Block> blocks = read();
  ASSERT_EQ(blocks.size(), 72U);
  for (Block& block : blocks) {
    SCOPED_TRACE(block["answer"][0]);
    replay(block);
  }
}

}  // namespace
}  // namespace omnidraft::toy

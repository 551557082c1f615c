// Replays tests/vectors, whose README.md describes them.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "worlds.h"

namespace omnidraft {
namespace {

using Words = std::vector<std::string>;
using Block = std::map<std::string, std::vector<Words>>;

std::vector<Block> read_rounds() {
  std::ifstream file(OMNIDRAFT_VECTORS "/rounds.txt");
  std::vector<Block> blocks;
  Block block;
  for (std::string text; std::getline(file, text);) {
    std::istringstream words(text);
    std::string key;
    words >> key;
    if (key == "end") {
      blocks.push_back(std::move(block));
      block.clear();
    } else if (!key.empty() && key != "#") {
      block[key].emplace_back(std::istream_iterator<std::string>(words),
                              std::istream_iterator<std::string>());
    }
  }
  return blocks;
}

std::vector<std::string> surfaces(const Words& words) {
  std::vector<std::string> result;
  for (const std::string& word : words) {
    std::string bytes;
    for (std::size_t i = 0; word != "-" && i < word.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(word.substr(i, 2), nullptr, 16));
    }
    result.push_back(bytes);
  }
  return result;
}

std::vector<Token> tokens(const Words& words, std::size_t from = 0) {
  std::vector<Token> result;
  for (std::size_t i = from; i < words.size(); ++i) {
    result.push_back(std::stoi(words[i]));
  }
  return result;
}

void append(std::vector<float>& row, const Words& words) {
  for (const std::string& word : words) {
    row.push_back(std::strtof(word.c_str(), nullptr));
  }
}

void replay(Block& block) {
  NgramCache cache(testing::make_pair(surfaces(block["drafter"][0]), surfaces(block["target"][0])));
  for (const Words& words : block["ngram"]) {
    for (int uses = std::stoi(words[1]); uses > 0; --uses) {
      testing::observe(cache, std::stoi(words[0]), tokens(words, 2));
    }
  }
  const std::map<std::string, Verification> verifications{{"greedy", Verification::kGreedy},
                                                          {"exact", Verification::kExact},
                                                          {"paper", Verification::kPaper}};
  const Words& s = block["sampling"][0];
  const SamplingParameters sampling{std::stod(s[0]), std::stoi(s[1]), std::stod(s[2]),
                                    std::stod(s[3]), std::stod(s[4])};
  Generator chance(std::stoull(block["seed"][0][0]));
  History history(block["target"][0].size());
  for (const Token token : tokens(block["history"][0])) {
    history.add(token);
  }
  Draft draft(cache, verifications.at(block["verification"][0][0]), sampling.temperature);
  for (const Words& words : block["given"]) {
    const std::vector<Token> given = tokens(words);
    draft.propose(given);
  }
  for (const Words& words : block["q"]) {
    std::vector<float> row;
    append(row, words);
    draft.step({row.data(), row.size()}, chance);
  }
  const Proposal proposal = draft.finish();
  EXPECT_EQ(proposal.drafts, tokens(block["drafts"][0]));
  EXPECT_EQ(proposal.tokens(), tokens(block["proposal"][0]));
  std::vector<float> rows;
  for (const Words& words : block["p"]) {
    append(rows, words);
  }
  const Verdict verdict =
      Verifier(cache).verify(proposal, {rows.data(), rows.size()}, sampling, history, chance);
  EXPECT_EQ(verdict.tokens, tokens(block["emitted"][0]));
  const Words names{"direct", "merged", "corrected", "free", "lookup"};
  Words origins;
  for (const Origin origin : verdict.origins) {
    origins.push_back(names[static_cast<std::size_t>(origin)]);
  }
  EXPECT_EQ(origins, block["origins"][0]);
}

TEST(Vectors, NumbersOfPlacesAreTheRecordedOnes) {
  std::ifstream file(OMNIDRAFT_VECTORS "/uniform.txt");
  std::string comment;
  std::getline(file, comment);
  std::uint64_t seed = 0, position = 0, number = 0;
  int count = 0;
  for (; file >> seed >> position >> number; ++count) {
    EXPECT_EQ(uniform_at(seed, position) * 0x1.0p53, static_cast<double>(number));
  }
  EXPECT_EQ(count, 49);
}

TEST(Vectors, ReplayTheRecordedRounds) {
  std::vector<Block> blocks = read_rounds();
  ASSERT_GE(blocks.size(), 60U);
  for (Block& block : blocks) {
    SCOPED_TRACE(block["round"][0][0]);
    replay(block);
  }
}

}  // namespace
}  // namespace omnidraft

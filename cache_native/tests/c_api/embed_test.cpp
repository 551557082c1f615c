// The program of docs/embedding.md, which a C compiler compiled, answers as its target alone does.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <vector>

extern "C" int embed_main();

namespace {

TEST(Embedding, TheProgramAnswersAsItsTargetAlone) {
  ::testing::internal::CaptureStdout();
  ASSERT_EQ(embed_main(), 0);
  std::istringstream said(::testing::internal::GetCapturedStdout());
  const std::vector<int> tokens{std::istream_iterator<int>(said), {}};
  std::vector<int> text{0, 2, 1}, plain;
  while (plain.empty() || plain.back() != 3) {
    const int place = static_cast<int>(text.size()) - 1;
    std::vector<int> row;
    for (int token = 0; token < 4; ++token) {
      row.push_back((text.back() * 20 + place * 4 + token * 4 + 4) % 13);
    }
    plain.push_back(static_cast<int>(std::max_element(row.begin(), row.end()) - row.begin()));
    text.push_back(plain.back());
  }
  EXPECT_EQ(tokens, plain);
}

}  // namespace

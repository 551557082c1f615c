// Caches in files and bytes.
#include <filesystem>
#include <fstream>

#include "everything.h"

namespace omnidraft::toy {
namespace {

class Files : public ::testing::Test {
 protected:
  Files() { std::filesystem::create_directories(folder_); }
  ~Files() override { std::filesystem::remove_all(folder_); }

  Everything all_;
  const std::filesystem::path folder_ =
      std::filesystem::path(::testing::TempDir()) /
      ("omnidraft-c-" +
       std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()));
  const std::string file_ = (folder_ / "ngrams").string();
  omnidraft_cache* cache_ = nullptr;
};

TEST_F(Files, BringBackACache) {
  const omnidraft_token drafts[] = {0, 1};
  demand(omnidraft_cache_observe(all_.cache.get(), 2, drafts, 2, nullptr));
  demand(omnidraft_cache_save(all_.cache.get(), file_.c_str()));
  const Cache cache = made<Cache>(omnidraft_cache_load, file_.c_str(), all_.pair.get(), nullptr);
  std::size_t ngrams = 0, memory = 0;
  demand(omnidraft_cache_size(cache.get(), &ngrams));
  demand(omnidraft_cache_memory(cache.get(), &memory));
  EXPECT_EQ(ngrams, 1U);
  EXPECT_GT(memory, 0U);
  const std::uint8_t* bytes = nullptr;
  std::size_t size = 0;
  demand(omnidraft_cache_to_bytes(cache.get(), &bytes, &size));
  const Cache again =
      made<Cache>(omnidraft_cache_from_bytes, bytes, size, all_.pair.get(), nullptr);
  demand(omnidraft_cache_size(again.get(), &ngrams));
  EXPECT_EQ(ngrams, 1U);
}

TEST_F(Files, SayWhatIsWrongWithThem) {
  const std::string missing = (folder_ / "none" / "ngrams").string();
  const omnidraft_pair* pair = all_.pair.get();
  EXPECT_TRUE(fails(omnidraft_cache_load(missing.c_str(), pair, nullptr, &cache_), OMNIDRAFT_FILE));
  EXPECT_TRUE(fails(omnidraft_cache_save(all_.cache.get(), missing.c_str()), OMNIDRAFT_FILE));
  std::ofstream(file_) << "no cache";
  EXPECT_TRUE(
      fails(omnidraft_cache_load(file_.c_str(), pair, nullptr, &cache_), OMNIDRAFT_DAMAGED, file_));
  const World world{1, {"x", ""}, {"xx", ""}};
  const Pair other = toy::pair(world);
  demand(omnidraft_cache_save(all_.cache.get(), file_.c_str()));
  EXPECT_TRUE(fails(omnidraft_cache_load(file_.c_str(), other.get(), nullptr, &cache_),
                    OMNIDRAFT_MISMATCH));
  EXPECT_EQ(cache_, nullptr);
}

}  // namespace
}  // namespace omnidraft::toy

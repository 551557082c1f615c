// The n-gram cache's file: any bytes give a sound cache or one of its two errors.
#include "omnidraft/ngram_cache.h"

#include <algorithm>
#include <memory>
#include <string>

#include "bytes.h"
#include "omnidraft/fnv.h"

using namespace omnidraft;  // NOLINT: a test
using fuzz::Bytes;
using fuzz::demand;

namespace {

std::shared_ptr<const Vocabulary> vocabulary(std::initializer_list<const char*> surfaces) {
  std::vector<TokenText> tokens;
  for (const std::string surface : surfaces) {
    const TokenKind kind = surface.empty() ? TokenKind::kSpecial : TokenKind::kNormal;
    tokens.push_back({surface, surface, kind});
  }
  return std::make_shared<Vocabulary>(tokens);
}

std::shared_ptr<const VocabularyPair> pair() {
  static const auto pair = std::make_shared<VocabularyPair>(
      vocabulary({"a", "b", "ab", ""}),
      vocabulary({"a", "aab", "abab", "bab", "", "bab", "aaaaaaaa"}), MappingRule::kBytes);
  return pair;
}

// The same bytes as the body of a file that is intact and belongs to this pair.
std::string sealed(std::string_view body, std::uint8_t version) {
  std::string bytes("ODNGRAM\n");
  const auto put = [&](std::uint64_t value, int width) {
    for (int i = 0; i < width; ++i) {
      bytes.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
    }
  };
  put(version, 4);
  put(pair()->fingerprint(), 8);
  bytes += body;
  Fnv1a checksum;
  checksum.update(bytes);
  put(checksum.value(), 8);
  return bytes;
}

void check(const NgramCache& cache) {
  demand(cache.size() <= cache.limits().max_entries);
  demand(cache.size() == 0 || cache.memory_bytes() <= cache.limits().max_bytes);
  for (std::size_t i = 0; i < cache.size(); ++i) {
    const NgramCache::Ngram ngram = cache.ngram(i);
    std::string spelled;
    for (const Token draft : ngram.drafts) {
      spelled += cache.pair().drafter().surface(draft);
    }
    demand(ngram.drafts.size() >= 2 && spelled == cache.pair().target().surface(ngram.target));
    if (i > 0) {
      const NgramCache::Ngram before = cache.ngram(i - 1);
      demand(std::lexicographical_compare(before.drafts.begin(), before.drafts.end(),
                                          ngram.drafts.begin(), ngram.drafts.end()));
    }
    const auto first = static_cast<std::size_t>(ngram.drafts[0]);
    demand(!ngram.trusted || cache.starts().test(first));
  }
}

void load(std::string_view bytes, const CacheLimits& limits) {
  try {
    const NgramCache cache = NgramCache::from_bytes(bytes, pair(), limits);
    check(cache);
    // In full; the limits may have no room for what grew when something else had been evicted.
    const std::string saved = cache.to_bytes();
    demand(NgramCache::from_bytes(saved, pair()).to_bytes() == saved);
    check(NgramCache::from_bytes(saved, pair(), limits));
  } catch (const CacheDamagedError&) {
  } catch (const CacheMismatchError&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  const std::uint8_t how = bytes.byte();
  CacheLimits limits;
  if ((how & 1) != 0) {
    limits.max_entries = bytes.byte();
    limits.max_bytes = static_cast<std::size_t>(bytes.byte()) * 16;
  }
  limits.eviction = (how & 2) != 0 ? Eviction::kLfu : Eviction::kLru;
  load((how & 4) != 0 ? std::string(bytes.rest()) : sealed(bytes.rest(), how >> 3), limits);
  return 0;
}

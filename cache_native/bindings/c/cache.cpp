#include <filesystem>

#include "handles.h"

using namespace omnidraft;     // NOLINT: a binding file
using namespace omnidraft::c;  // NOLINT

namespace {

CacheLimits limits_of(const omnidraft_limits* given) {
  if (given == nullptr) {
    return {};
  }
  const omnidraft_limits& limits = options(given, "limits");
  require(limits.eviction == OMNIDRAFT_LRU || limits.eviction == OMNIDRAFT_LFU,
          "eviction " + std::to_string(limits.eviction) + " is none of enum omnidraft_eviction");
  return {limits.max_entries, limits.max_bytes, static_cast<Eviction>(limits.eviction)};
}

omnidraft_cache* handle(NgramCache cache) {
  return new omnidraft_cache{std::make_shared<NgramCache>(std::move(cache)), {}};
}

}  // namespace

omnidraft_status omnidraft_cache_new(const omnidraft_pair* pair, const omnidraft_limits* limits,
                                     omnidraft_cache** cache) {
  return guard([&] {
    at(cache, "cache");
    *cache = handle(NgramCache(at(pair, "pair").value, limits_of(limits)));
  });
}

void omnidraft_cache_free(omnidraft_cache* cache) { delete cache; }

omnidraft_status omnidraft_cache_size(const omnidraft_cache* cache, size_t* ngrams) {
  return guard([&] { at(ngrams, "ngrams") = at(cache, "cache").value->size(); });
}

omnidraft_status omnidraft_cache_memory(const omnidraft_cache* cache, size_t* bytes) {
  return guard([&] { at(bytes, "bytes") = at(cache, "cache").value->memory_bytes(); });
}

omnidraft_status omnidraft_cache_observe(omnidraft_cache* cache, omnidraft_token target,
                                         const omnidraft_token* drafts, size_t count,
                                         int32_t* inserted) {
  return guard([&] {
    const bool is_new = at(cache, "cache").value->observe(target, array(drafts, count, "drafts"));
    if (inserted != nullptr) {
      *inserted = is_new ? 1 : 0;
    }
  });
}

omnidraft_status omnidraft_cache_to_bytes(omnidraft_cache* cache, const uint8_t** bytes,
                                          size_t* size) {
  return guard([&] {
    std::string& kept = at(cache, "cache").bytes;
    at(bytes, "bytes");
    at(size, "size");
    kept = cache->value->to_bytes();
    *bytes = reinterpret_cast<const std::uint8_t*>(kept.data());
    *size = kept.size();
  });
}

omnidraft_status omnidraft_cache_from_bytes(const uint8_t* bytes, size_t size,
                                            const omnidraft_pair* pair,
                                            const omnidraft_limits* limits,
                                            omnidraft_cache** cache) {
  return guard([&] {
    at(cache, "cache");
    const auto given = array(bytes, size, "bytes");
    *cache =
        handle(NgramCache::from_bytes({reinterpret_cast<const char*>(given.data()), given.size()},
                                      at(pair, "pair").value, limits_of(limits)));
  });
}

omnidraft_status omnidraft_cache_save(const omnidraft_cache* cache, const char* path) {
  return guard([&] { at(cache, "cache").value->save(&at(path, "path")); });
}

omnidraft_status omnidraft_cache_load(const char* path, const omnidraft_pair* pair,
                                      const omnidraft_limits* limits, omnidraft_cache** cache) {
  return guard([&] {
    at(cache, "cache");
    *cache = handle(NgramCache::load(&at(path, "path"), at(pair, "pair").value, limits_of(limits)));
  });
}

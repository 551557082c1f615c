#include "omnidraft/ngram_cache.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>

#include "omnidraft/fnv.h"

namespace omnidraft {
namespace {

constexpr char kMagic[8] = {'O', 'D', 'N', 'G', 'R', 'A', 'M', '\n'};
// Version 1 knew no doubt: its second word held the length only.
constexpr std::uint32_t kVersion = 2;
constexpr std::uint32_t kMaxUses = (1U << 22) - 1;

int compare(Span<const Token> a, Span<const Token> b) {
  const std::size_t n = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < n; ++i) {
    if (a[i] != b[i]) {
      return a[i] < b[i] ? -1 : 1;
    }
  }
  return a.size() == b.size() ? 0 : (a.size() < b.size() ? -1 : 1);
}

// Vectors grow by an eighth: doubling would spend up to half of the memory on air.
std::size_t grown(std::size_t size) { return size + size / 8 + 8; }

template <typename T>
void reserve_for(std::vector<T>& values, std::size_t size) {
  if (size > values.capacity()) {
    values.reserve(grown(size));
  }
}

std::size_t bytes_for(std::size_t size, std::size_t capacity, std::size_t width) {
  return (size > capacity ? grown(size) : capacity) * width;
}

void put32(std::string& out, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) {
    out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
  }
}

void put64(std::string& out, std::uint64_t value) {
  put32(out, static_cast<std::uint32_t>(value));
  put32(out, static_cast<std::uint32_t>(value >> 32));
}

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  std::uint32_t get32() {
    if (left() < 4) {
      throw CacheDamagedError(name_ + " ends too early");
    }
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) {
      value |= static_cast<std::uint32_t>(static_cast<unsigned char>(bytes_[position_++]))
               << (8 * i);
    }
    return value;
  }
  std::uint64_t get64() {
    const std::uint64_t low = get32();
    return low | (static_cast<std::uint64_t>(get32()) << 32);
  }
  std::size_t left() const { return bytes_.size() - position_; }

 private:
  std::string_view bytes_;
  const std::string& name_;
  std::size_t position_ = 0;
};

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, FileCloser>;

[[noreturn]] void fail(const char* what, const std::filesystem::path& path) {
  throw std::filesystem::filesystem_error(what, path,
                                          std::error_code(errno, std::generic_category()));
}

std::string read_file(const std::filesystem::path& path) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) {
    fail("cannot open the n-gram cache", path);
  }
  std::string bytes;
  char block[1 << 16];
  while (const std::size_t n = std::fread(block, 1, sizeof block, file.get())) {
    bytes.append(block, n);
  }
  if (std::ferror(file.get())) {
    fail("cannot read the n-gram cache", path);
  }
  return bytes;
}

void check(const VocabularyPair& pair, Token target, Span<const Token> drafts) {
  const auto inside = [](Token token, const Vocabulary& vocabulary) {
    return token >= 0 && static_cast<std::size_t>(token) < vocabulary.size();
  };
  if (!inside(target, pair.target())) {
    throw std::out_of_range("target token " + std::to_string(target) +
                            " is outside the target's vocabulary");
  }
  for (const Token draft : drafts) {
    if (!inside(draft, pair.drafter())) {
      throw std::out_of_range("draft token " + std::to_string(draft) +
                              " is outside the drafter's vocabulary");
    }
  }
}

}  // namespace

NgramCache::NgramCache(std::shared_ptr<const VocabularyPair> pair, CacheLimits limits)
    : pair_(std::move(pair)),
      limits_(limits),
      starts_(pair_->drafter().size()),
      primary_starts_(pair_->drafter().size()) {}

std::size_t NgramCache::memory_bytes() const {
  return entries_.capacity() * sizeof(Entry) + pool_.capacity() * sizeof(Token) +
         (by_drafts_.capacity() + by_target_.capacity()) * sizeof(std::uint32_t) + fixed_bytes();
}

NgramCache::Ngram NgramCache::ngram(std::size_t i) const {
  const Entry& entry = entries_[by_drafts_[i]];
  return {entry.target, drafts(entry), entry.uses, entry.primary != 0, entry.doubt < kDoubted};
}

std::pair<std::uint32_t, std::uint32_t> NgramCache::narrow(std::uint32_t begin, std::uint32_t end,
                                                           std::size_t depth, Token draft) const {
  // The token at `depth`; an n-gram that ends there sorts first.
  const auto at = [&](std::uint32_t entry) {
    const Entry& e = entries_[entry];
    return depth < e.length ? pool_[e.offset + depth] : std::numeric_limits<Token>::min();
  };
  const auto first = by_drafts_.begin() + begin;
  const auto last = by_drafts_.begin() + end;
  const auto low = std::lower_bound(
      first, last, draft, [&](std::uint32_t entry, Token token) { return at(entry) < token; });
  const auto high = std::upper_bound(
      low, last, draft, [&](Token token, std::uint32_t entry) { return token < at(entry); });
  return {static_cast<std::uint32_t>(low - by_drafts_.begin()),
          static_cast<std::uint32_t>(high - by_drafts_.begin())};
}

bool NgramCache::spells(Token target, Span<const Token> drafts) const {
  std::string_view left = pair_->target().surface(target);
  for (const Token draft : drafts) {
    const std::string_view surface = pair_->drafter().surface(draft);
    if (surface.empty() || left.substr(0, surface.size()) != surface) {
      return false;
    }
    left.remove_prefix(surface.size());
  }
  return left.empty();
}

std::size_t NgramCache::lower_bound(Span<const Token> wanted) const {
  const auto found = std::lower_bound(by_drafts_.begin(), by_drafts_.end(), wanted,
                                      [&](std::uint32_t entry, Span<const Token> value) {
                                        return compare(drafts(entries_[entry]), value) < 0;
                                      });
  return static_cast<std::size_t>(found - by_drafts_.begin());
}

std::pair<std::size_t, std::size_t> NgramCache::spellings(Token target) const {
  const auto before = [&](std::uint32_t entry, Token token) {
    return entries_[entry].target < token;
  };
  const auto low = std::lower_bound(by_target_.begin(), by_target_.end(), target, before);
  auto high = low;
  while (high != by_target_.end() && entries_[*high].target == target) {
    ++high;
  }
  return {low - by_target_.begin(), high - by_target_.begin()};
}

bool NgramCache::observe(Token target, Span<const Token> wanted) {
  check(*pair_, target, wanted);
  const std::size_t at = lower_bound(wanted);
  if (is_at(at, wanted)) {
    if (entries_[by_drafts_[at]].target == target) {
      use(by_drafts_[at]);
    }
    return false;
  }
  if (!can_hold(target, wanted)) {
    return false;
  }
  make_room(wanted.size());
  insert(target, wanted);
  return true;
}

void NgramCache::judge(Span<const Token> wanted, bool merged) {
  const std::size_t at = lower_bound(wanted);
  if (!is_at(at, wanted)) {
    return;
  }
  Entry& entry = entries_[by_drafts_[at]];
  const std::uint32_t before = entry.doubt;
  if (merged ? before > 0 : before < kDoubted) {
    entry.doubt = (merged ? before - 1 : before + 1) & 3;
  }
  if ((entry.doubt < kDoubted) != (before < kDoubted)) {
    update_start(pool_[entry.offset]);
    choose_primary(entry.target);
    ++version_;
  }
}

bool NgramCache::is_at(std::size_t at, Span<const Token> wanted) const {
  return at < by_drafts_.size() && compare(drafts(entries_[by_drafts_[at]]), wanted) == 0;
}

bool NgramCache::can_hold(Token target, Span<const Token> wanted) const {
  return wanted.size() >= 2 && wanted.size() <= kMaxLength && !pair_->target().is_special(target) &&
         pair_->to_draft(target) == kNoToken && spells(target, wanted) && fits_alone(wanted.size());
}

void NgramCache::insert(Token target, Span<const Token> wanted) {
  next_tick();
  const auto id = static_cast<std::uint32_t>(entries_.size());
  reserve_for(pool_, pool_.size() + wanted.size());
  reserve_for(entries_, entries_.size() + 1);
  reserve_for(by_drafts_, by_drafts_.size() + 1);
  reserve_for(by_target_, by_target_.size() + 1);
  const std::size_t at = lower_bound(wanted);
  const std::size_t at_target = spellings(target).second;
  Entry entry{};
  entry.offset = static_cast<std::uint32_t>(pool_.size());
  entry.target = target;
  entry.length = wanted.size() & 0x7f;
  entry.uses = 1;
  entry.tick = tick_;
  pool_.insert(pool_.end(), wanted.begin(), wanted.end());
  entries_.push_back(entry);
  by_drafts_.insert(by_drafts_.begin() + static_cast<std::ptrdiff_t>(at), id);
  by_target_.insert(by_target_.begin() + static_cast<std::ptrdiff_t>(at_target), id);
  starts_.set(static_cast<std::size_t>(wanted[0]));
  choose_primary(target);
  ++version_;
}

void NgramCache::use(std::uint32_t id) {
  next_tick();
  Entry& entry = entries_[id];
  entry.tick = tick_;
  if (entry.uses < kMaxUses) {
    entry.uses = (entry.uses + 1) & kMaxUses;
  }
  choose_primary(entry.target);
}

void NgramCache::choose_primary(Token target) {
  const auto [begin, end] = spellings(target);
  const std::size_t best = best_spelling(begin, end);
  for (std::size_t i = begin; i < end; ++i) {
    set_primary(by_target_[i], i == best);
  }
}

// The most used of [begin, end) in by_target_, of the trusted ones if there are any.
std::size_t NgramCache::best_spelling(std::size_t begin, std::size_t end) const {
  std::size_t best = begin;
  for (std::size_t i = begin; i < end; ++i) {
    // Of equally used ones the one whose last use is longer ago: a newcomer has to be used more
    // often than the present choice. A function of what a saved cache keeps.
    const Entry& candidate = entries_[by_target_[i]];
    const Entry& so_far = entries_[by_target_[best]];
    const bool trusted = candidate.doubt < kDoubted;
    if (trusted != (so_far.doubt < kDoubted)) {
      best = trusted ? i : best;
    } else if (candidate.uses > so_far.uses ||
               (candidate.uses == so_far.uses && candidate.tick < so_far.tick)) {
      best = i;
    }
  }
  return best;
}

void NgramCache::set_primary(std::uint32_t id, bool primary) {
  Entry& entry = entries_[id];
  if ((entry.primary != 0) != primary) {
    entry.primary = primary ? 1 : 0;
    update_start(pool_[entry.offset]);
    ++version_;
  }
}

void NgramCache::update_start(Token draft) {
  const auto [begin, end] = narrow(0, static_cast<std::uint32_t>(by_drafts_.size()), 0, draft);
  bool any = false, any_primary = false;
  for (std::uint32_t i = begin; i < end && !any_primary; ++i) {
    const Entry& entry = entries_[by_drafts_[i]];
    any = any || entry.doubt < kDoubted;
    any_primary = entry.doubt < kDoubted && entry.primary != 0;
  }
  const auto bit = static_cast<std::size_t>(draft);
  any ? starts_.set(bit) : starts_.reset(bit);
  any_primary ? primary_starts_.set(bit) : primary_starts_.reset(bit);
}

std::size_t NgramCache::fixed_bytes() const {
  return (starts_.words().size() + primary_starts_.words().size()) * sizeof(std::uint64_t);
}

bool NgramCache::fits(std::size_t entries, std::size_t pool) const {
  const std::size_t bytes = bytes_for(entries, entries_.capacity(), sizeof(Entry)) +
                            bytes_for(entries, by_drafts_.capacity(), sizeof(std::uint32_t)) +
                            bytes_for(entries, by_target_.capacity(), sizeof(std::uint32_t)) +
                            bytes_for(pool, pool_.capacity(), sizeof(Token)) + fixed_bytes();
  return entries <= limits_.max_entries && bytes <= limits_.max_bytes;
}

bool NgramCache::fits_alone(std::size_t length) const {
  const std::size_t bytes = bytes_for(1, 0, sizeof(Entry) + 2 * sizeof(std::uint32_t)) +
                            bytes_for(length, 0, sizeof(Token)) + fixed_bytes();
  return limits_.max_entries > 0 && bytes <= limits_.max_bytes;
}

// For an n-gram that fits alone.
void NgramCache::make_room(std::size_t length) {
  const auto slack = [](const auto& values) { return values.size() * 4 < values.capacity() * 3; };
  while (!fits(entries_.size() + 1, pool_.size() + length)) {
    if (entries_.size() >= limits_.max_entries) {
      evict_one();
    } else if (pool_garbage_ > 0) {
      compact_pool();
    } else if (slack(entries_) || slack(pool_)) {
      // N-grams have become longer or shorter: what one structure reserved, another one needs.
      entries_.shrink_to_fit();
      by_drafts_.shrink_to_fit();
      by_target_.shrink_to_fit();
      pool_.shrink_to_fit();
    } else {
      evict_one();
    }
  }
}

void NgramCache::evict_one() {
  const auto worse = [&](const Entry& a, const Entry& b) {
    if (limits_.eviction == Eviction::kLfu && a.uses != b.uses) {
      return a.uses < b.uses;
    }
    return a.tick < b.tick;
  };
  const auto victim = static_cast<std::uint32_t>(
      std::min_element(entries_.begin(), entries_.end(), worse) - entries_.begin());
  const Entry gone = entries_[victim];
  const auto last = static_cast<std::uint32_t>(entries_.size() - 1);
  const auto erase = [](std::vector<std::uint32_t>& order, std::size_t at) {
    order.erase(order.begin() + static_cast<std::ptrdiff_t>(at));
  };
  const auto place_of = [&](std::uint32_t id) {
    const auto [begin, end] = spellings(entries_[id].target);
    const auto found = std::find(by_target_.begin() + static_cast<std::ptrdiff_t>(begin),
                                 by_target_.begin() + static_cast<std::ptrdiff_t>(end), id);
    return static_cast<std::size_t>(found - by_target_.begin());
  };
  erase(by_drafts_, lower_bound(drafts(gone)));
  erase(by_target_, place_of(victim));
  if (victim != last) {  // the last entry moves into the gap
    by_drafts_[lower_bound(drafts(entries_[last]))] = victim;
    by_target_[place_of(last)] = victim;
    entries_[victim] = entries_[last];
  }
  entries_.pop_back();
  pool_garbage_ += gone.length;
  if (gone.primary) {
    choose_primary(gone.target);
  }
  update_start(pool_[gone.offset]);
  if (pool_garbage_ * 8 > pool_.size()) {
    compact_pool();
  }
  ++evictions_;
  ++version_;
}

void NgramCache::compact_pool() {
  std::vector<std::uint32_t> order(entries_.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return entries_[a].offset < entries_[b].offset;
  });
  std::uint32_t end = 0;
  for (const std::uint32_t id : order) {
    Entry& entry = entries_[id];
    std::copy_n(pool_.begin() + entry.offset, entry.length, pool_.begin() + end);
    entry.offset = end;
    end += entry.length;
  }
  pool_.resize(end);
  pool_garbage_ = 0;
}

void NgramCache::next_tick() {
  if (++tick_ != 0) {
    return;
  }
  // After four billion uses: keep the order, start the count again.
  std::vector<std::uint32_t> order(entries_.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) {
    order[i] = i;
  }
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return entries_[a].tick < entries_[b].tick; });
  for (const std::uint32_t id : order) {
    entries_[id].tick = tick_++;
  }
}

// As if each entry were observed as often as it was used, oldest first.
void NgramCache::fill(const std::vector<Entry>& entries, const std::vector<Token>& pool) {
  if (fill_at_once(entries, pool)) {
    return;
  }
  for (const Entry& entry : entries) {
    const Span<const Token> spelling(pool.data() + entry.offset, entry.length);
    if (observe(entry.target, spelling)) {
      Entry& filled = entries_[by_drafts_[lower_bound(spelling)]];
      filled.uses = entry.uses;
      filled.doubt = entry.doubt;
      update_start(spelling[0]);
      choose_primary(entry.target);
      ++version_;
    }
  }
}

// The same with every order sorted once. False, and nothing is done, when that does not amount to
// the same: something would be refused, evicted or met twice.
bool NgramCache::fill_at_once(const std::vector<Entry>& entries, const std::vector<Token>& pool) {
  struct Key {
    std::uint64_t first_two;
    std::uint32_t id;
  };
  const auto spelling = [&](std::uint32_t id) {
    return Span<const Token>(pool.data() + entries[id].offset, entries[id].length);
  };
  std::vector<Key> order;
  std::vector<std::uint64_t> targets;
  order.reserve(entries.size());
  targets.reserve(entries.size());
  std::size_t capacity = 0, pool_capacity = 0;  // as they would have grown
  for (std::uint32_t id = 0; id < entries.size(); ++id) {
    const auto drafts = spelling(id);
    check(*pair_, entries[id].target, drafts);
    if (!can_hold(entries[id].target, drafts)) {
      return false;
    }
    order.push_back({static_cast<std::uint64_t>(drafts[0]) << 32 | drafts[1], id});
    targets.push_back(static_cast<std::uint64_t>(entries[id].target) << 32 | id);
    const std::size_t used = entries[id].offset + drafts.size();
    capacity = id + 1 > capacity ? grown(id + 1) : capacity;
    pool_capacity = used > pool_capacity ? grown(used) : pool_capacity;
  }
  const std::size_t bytes = capacity * (sizeof(Entry) + 2 * sizeof(std::uint32_t)) +
                            pool_capacity * sizeof(Token) + fixed_bytes();
  if (entries.size() > limits_.max_entries || bytes > limits_.max_bytes) {
    return false;
  }
  std::sort(order.begin(), order.end(), [&](const Key& a, const Key& b) {
    return a.first_two != b.first_two ? a.first_two < b.first_two
                                      : compare(spelling(a.id), spelling(b.id)) < 0;
  });
  const auto same = [&](const Key& a, const Key& b) {
    return a.first_two == b.first_two && compare(spelling(a.id), spelling(b.id)) == 0;
  };
  if (std::adjacent_find(order.begin(), order.end(), same) != order.end()) {
    return false;
  }
  std::sort(targets.begin(), targets.end());

  entries_.reserve(capacity);
  by_drafts_.reserve(capacity);
  by_target_.reserve(capacity);
  pool_.reserve(pool_capacity);
  pool_ = pool;
  for (const Entry& entry : entries) {
    entries_.push_back(entry);
    next_tick();
    entries_.back().tick = tick_;
    if (entry.doubt < kDoubted) {
      starts_.set(static_cast<std::size_t>(pool_[entry.offset]));
    }
  }
  for (const Key& key : order) {
    by_drafts_.push_back(key.id);
  }
  for (const std::uint64_t target : targets) {
    by_target_.push_back(static_cast<std::uint32_t>(target));
  }
  for (std::size_t begin = 0, end = 0; begin < by_target_.size(); begin = end) {
    const Token target = entries_[by_target_[begin]].target;
    while (end < by_target_.size() && entries_[by_target_[end]].target == target) {
      ++end;
    }
    Entry& best = entries_[by_target_[best_spelling(begin, end)]];
    best.primary = 1;
    if (best.doubt < kDoubted) {
      primary_starts_.set(static_cast<std::size_t>(pool_[best.offset]));
    }
  }
  ++version_;
  return true;
}

std::string NgramCache::to_bytes() const {
  std::string bytes(kMagic, sizeof kMagic);
  put32(bytes, kVersion);
  put64(bytes, pair_->fingerprint());
  put32(bytes, static_cast<std::uint32_t>(entries_.size()));
  // Oldest first, so that loading restores the order of use.
  std::vector<const Entry*> order;
  order.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(),
            [](const Entry* a, const Entry* b) { return a->tick < b->tick; });
  for (const Entry* entry : order) {
    put32(bytes, static_cast<std::uint32_t>(entry->target));
    put32(bytes, entry->length | entry->doubt << 8);
    put32(bytes, entry->uses);
    for (const Token draft : drafts(*entry)) {
      put32(bytes, static_cast<std::uint32_t>(draft));
    }
  }
  Fnv1a checksum;
  checksum.update(bytes);
  put64(bytes, checksum.value());
  return bytes;
}

NgramCache NgramCache::from_bytes(std::string_view bytes,
                                  std::shared_ptr<const VocabularyPair> pair, CacheLimits limits,
                                  const std::string& name) {
  if (bytes.size() < sizeof kMagic + 24 || bytes.compare(0, sizeof kMagic, kMagic, sizeof kMagic)) {
    throw CacheDamagedError(name + " is no n-gram cache, or it is truncated");
  }
  const std::string_view body = bytes.substr(0, bytes.size() - 8);
  Fnv1a checksum;
  checksum.update(body);
  if (Reader(bytes.substr(body.size()), name).get64() != checksum.value()) {
    throw CacheDamagedError(name + " fails its checksum");
  }
  Reader reader(body.substr(sizeof kMagic), name);
  const std::uint32_t version = reader.get32();
  if (version == 0 || version > kVersion) {
    throw CacheMismatchError(name + " has format version " + std::to_string(version) +
                             "; this program reads versions 1 to " + std::to_string(kVersion));
  }
  if (reader.get64() != pair->fingerprint()) {
    throw CacheMismatchError(name + " belongs to another pair of drafter and target");
  }
  std::vector<Entry> entries;
  std::vector<Token> pool;
  pool.reserve(reader.left() / 4);
  for (std::uint32_t left = reader.get32(); left > 0; --left) {
    Entry entry{};
    entry.target = static_cast<Token>(reader.get32());
    const std::uint32_t word = reader.get32();
    const std::uint32_t length = version == 1 ? word : word & 0xff;
    if (length > kMaxLength || (word - length) >> 8 > kDoubted) {
      throw CacheDamagedError(name + " holds an impossible n-gram");
    }
    entry.length = length & 0x7f;
    entry.doubt = ((word - length) >> 8) & 3;
    entry.uses = std::min(std::max(reader.get32(), 1U), kMaxUses) & kMaxUses;
    entry.offset = static_cast<std::uint32_t>(pool.size());
    for (std::uint32_t i = 0; i < length; ++i) {
      pool.push_back(static_cast<Token>(reader.get32()));
    }
    entries.push_back(entry);
  }
  if (reader.left() > 0) {
    throw CacheDamagedError(name + " has bytes after its last n-gram");
  }
  NgramCache cache(std::move(pair), limits);
  try {
    cache.fill(entries, pool);
  } catch (const std::out_of_range& error) {
    throw CacheDamagedError(name + ": " + error.what());
  }
  return cache;
}

void NgramCache::save(const std::filesystem::path& path) const {
  const std::string bytes = to_bytes();
  std::filesystem::path temporary = path;
  temporary += ".tmp" + std::to_string(::getpid());
  try {
    File file(std::fopen(temporary.c_str(), "wb"));
    if (!file) {
      fail("cannot write the n-gram cache", temporary);
    }
    if (std::fwrite(bytes.data(), 1, bytes.size(), file.get()) != bytes.size() ||
        std::fflush(file.get()) != 0 || ::fsync(::fileno(file.get())) != 0) {
      fail("cannot write the n-gram cache", temporary);
    }
    file.reset();
    std::filesystem::rename(temporary, path);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
}

NgramCache NgramCache::load(const std::filesystem::path& path,
                            std::shared_ptr<const VocabularyPair> pair, CacheLimits limits) {
  return from_bytes(read_file(path), std::move(pair), limits, "n-gram cache " + path.string());
}

}  // namespace omnidraft

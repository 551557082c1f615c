// What the handles of omnidraft.h hold, and what all its calls have in common.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "omnidraft.h"
#include "omnidraft/costs.h"
#include "omnidraft/generation.h"
#include "omnidraft/lookup.h"
#include "omnidraft/ngram_cache.h"
#include "omnidraft/policy.h"
#include "omnidraft/speller.h"

struct omnidraft_vocabulary {
  std::shared_ptr<const omnidraft::Vocabulary> value;
};

struct omnidraft_pair {
  std::shared_ptr<const omnidraft::VocabularyPair> value;
};

struct omnidraft_cache {
  std::shared_ptr<omnidraft::NgramCache> value;
  std::string bytes;  // handed out
};

struct omnidraft_costs {
  std::shared_ptr<omnidraft::Costs> value;
  std::vector<std::size_t> bands;  // handed out
};

struct omnidraft_policy {
  std::shared_ptr<omnidraft::Policy> value;
};

struct omnidraft_lookup {
  std::shared_ptr<omnidraft::Lookup> value;
  std::size_t vocabulary_size;
};

struct omnidraft_speller {
  std::shared_ptr<omnidraft::Speller> value;
  std::shared_ptr<const omnidraft::VocabularyPair> pair;
};

struct omnidraft_generation {
  // What the generation only points to.
  std::shared_ptr<omnidraft::NgramCache> cache;
  std::shared_ptr<omnidraft::Speller> speller;
  std::shared_ptr<omnidraft::Policy> policy;
  std::shared_ptr<omnidraft::Lookup> lookup;
  std::unique_ptr<omnidraft::Generation> value;
  // Handed out.
  std::vector<std::uint32_t> rows;
  std::vector<omnidraft::Token> proposed;
  std::vector<std::int32_t> parents;
  std::vector<omnidraft::Shown> shown;
};

namespace omnidraft::c {

// A callback failed.
class CallbackError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Keeps the message of the exception that is being handled, and names its status.
omnidraft_status failed() noexcept;

// Does what a call is for.
template <typename Work>
omnidraft_status guard(Work work) noexcept {
  try {
    work();
    return OMNIDRAFT_OK;
  } catch (...) {
    return failed();
  }
}

inline void require(bool condition, const std::string& message) {
  if (!condition) {
    throw std::invalid_argument(message);
  }
}

// What a pointer points to.
template <typename T>
T& at(T* pointer, const char* name) {
  if (pointer == nullptr) {
    throw std::invalid_argument(std::string(name) + " is NULL");
  }
  return *pointer;
}

template <typename T>
Span<const T> array(const T* values, std::size_t count, const char* name) {
  if (values == nullptr && count > 0) {
    throw std::invalid_argument(std::string(name) + " is NULL, of which there are " +
                                std::to_string(count));
  }
  require(count <= PTRDIFF_MAX / sizeof(T), std::string(name) + " are too many");
  return {values, count};
}

template <typename T>
std::vector<T> copied(const T* values, std::size_t count, const char* name) {
  const Span<const T> given = array(values, count, name);
  return {given.begin(), given.end()};
}

inline std::string_view view(const omnidraft_text& text, const char* name) {
  const Span<const char> bytes = array(text.bytes, text.size, name);
  return {bytes.data(), bytes.size()};
}

// A struct that may be larger than this library's, of a size that can be. All have been as large as
// now since the first version.
template <typename T>
T& sized(T* given, const char* name) {
  constexpr std::size_t kLargest = 4096;
  T& value = at(given, name);
  require(value.struct_size >= sizeof(T) && value.struct_size <= kLargest,
          std::string(name) + " has a struct_size of " + std::to_string(value.struct_size) +
              ", not of " + std::to_string(sizeof(T)) + " or more: begin it with its INIT macro");
  return value;
}

// Options, of which all that this library does not know must be zero.
template <typename T>
const T& options(const T* given, const char* name) {
  const T& value = sized(given, name);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(given);
  for (std::size_t i = sizeof(T); i < value.struct_size; ++i) {
    require(bytes[i] == 0, std::string(name) +
                               " asks for what this library does not know: use a "
                               "newer one");
  }
  return value;
}

// Writes a result, whose place was checked by sized().
template <typename T>
void give(T* place, T result) {
  result.struct_size = place->struct_size;
  *place = result;
}

}  // namespace omnidraft::c

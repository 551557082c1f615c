// Times passes of a decoder on a device: see usage(). It prints one JSON object, which
// runtime/profiling/adb.py reads.
#include <sys/utsname.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "decoder.h"
#include "system.h"

namespace {

using omnidraft::Decoder;
using Clock = std::chrono::steady_clock;

constexpr int kFormat = 1;
// Passes before those that count: caches fill, threads start, the clock rises.
constexpr int kWarmUp = 3;

const char* usage() {
  return "usage: omnidraft_run --onnxruntime LIBRARY --operators LIBRARY --graph MODEL.onnx\n"
         "  [--threads N] [--context N] [--tokens N,N,...] [--repeats N] [--rows all|last]\n"
         "Times passes over so many tokens each behind a text of --context tokens. Logits are\n"
         "computed of all tokens of a pass, as to verify a draft, or of the last.\n";
}

struct Settings {
  omnidraft::Libraries libraries;
  std::string graph;
  int threads = 1;
  std::size_t context = 256;
  std::vector<std::size_t> tokens = {1};
  int repeats = 20;
  bool all_rows = true;
};

std::size_t whole(const std::string& text, std::size_t least, std::size_t most) {
  std::size_t used = 0;
  unsigned long long value = 0;
  try {
    value = std::stoull(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || text[0] == '-' || value < least || value > most) {
    throw std::invalid_argument(text + " is no whole number from " + std::to_string(least) +
                                " to " + std::to_string(most));
  }
  return static_cast<std::size_t>(value);
}

Settings read(const std::vector<std::string>& words) {
  Settings settings;
  for (std::size_t i = 0; i < words.size(); i += 2) {
    if (i + 1 == words.size()) {
      throw std::invalid_argument(words[i] + " needs a value");
    }
    const std::string& value = words[i + 1];
    if (words[i] == "--onnxruntime") {
      settings.libraries.onnxruntime = value;
    } else if (words[i] == "--operators") {
      settings.libraries.operators = value;
    } else if (words[i] == "--graph") {
      settings.graph = value;
    } else if (words[i] == "--threads") {
      settings.threads = static_cast<int>(whole(value, 1, 256));
    } else if (words[i] == "--context") {
      settings.context = whole(value, 0, 1'000'000);
    } else if (words[i] == "--repeats") {
      settings.repeats = static_cast<int>(whole(value, 1, 1'000'000));
    } else if (words[i] == "--tokens") {
      settings.tokens.clear();
      std::istringstream list(value);
      for (std::string each; std::getline(list, each, ',');) {
        settings.tokens.push_back(whole(each, 1, omnidraft::kLongestPass));
      }
    } else if (words[i] == "--rows" && (value == "all" || value == "last")) {
      settings.all_rows = value == "all";
    } else {
      throw std::invalid_argument(words[i] + " " + value + " is not understood");
    }
  }
  if (settings.libraries.onnxruntime.empty() || settings.libraries.operators.empty() ||
      settings.graph.empty() || settings.tokens.empty()) {
    throw std::invalid_argument("--onnxruntime, --operators, --graph and --tokens are needed");
  }
  return settings;
}

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Between two samples interpolated, as NumPy does.
double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (values[above] - values[below]) * (place - std::floor(place));
}

// Any tokens do: what a pass costs does not depend on them.
std::vector<std::int64_t> some_tokens(std::size_t count, std::size_t vocabulary) {
  std::vector<std::int64_t> tokens(count);
  for (std::size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<std::int64_t>((i * 7919 + 13) % vocabulary);
  }
  return tokens;
}

double read_context(Decoder& decoder, std::size_t length) {
  const auto start = Clock::now();
  for (std::size_t past = 0; past < length; past += omnidraft::kLongestPass) {
    const std::size_t count = std::min(omnidraft::kLongestPass, length - past);
    decoder.pass(some_tokens(count, decoder.vocabulary()), past, 1);
  }
  return milliseconds_since(start);
}

std::vector<double> time_passes(Decoder& decoder, const Settings& settings, std::size_t count) {
  const auto tokens = some_tokens(count, decoder.vocabulary());
  const std::size_t rows = settings.all_rows ? count : 1;
  std::vector<double> each;
  for (int i = 0; i < kWarmUp + settings.repeats; ++i) {
    const auto start = Clock::now();
    decoder.pass(tokens, settings.context, rows);
    if (i >= kWarmUp) {
      each.push_back(milliseconds_since(start));
    }
  }
  return each;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
    }
    // Other bytes below a space have no place in a name.
    result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return result + '"';
}

std::string list_of(const std::vector<double>& values) {
  std::ostringstream text;
  text << '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    text << (i == 0 ? "" : ", ") << values[i];
  }
  text << ']';
  return text.str();
}

std::string bytes(std::int64_t size) { return size < 0 ? "null" : std::to_string(size); }

void measure(const Settings& settings) {
  const std::size_t longest = *std::max_element(settings.tokens.begin(), settings.tokens.end());
  const auto start = Clock::now();
  Decoder decoder(settings.libraries, settings.graph, settings.threads, settings.context + longest);
  const double load = milliseconds_since(start);
  const double prompt = read_context(decoder, settings.context);
  std::ostringstream passes;
  for (const std::size_t count : settings.tokens) {
    const std::vector<double> each = time_passes(decoder, settings, count);
    passes << (passes.tellp() == 0 ? "" : ", ") << "{\"tokens\": " << count
           << ", \"median_ms\": " << percentile(each, 0.5)
           << ", \"p95_ms\": " << percentile(each, 0.95) << ", \"each_ms\": " << list_of(each)
           << '}';
  }
  utsname system{};
  uname(&system);
  std::cout << "{\"format\": " << kFormat
            << ", \"processor\": " << quoted(omnidraft::processor_name())
            << ", \"architecture\": " << quoted(system.machine)
            << ", \"kernel\": " << quoted(std::string(system.sysname) + " " + system.release)
            << ", \"cores\": " << std::thread::hardware_concurrency()
            << ", \"threads\": " << settings.threads
            << ", \"versions\": {\"onnxruntime\": " << quoted(decoder.version()) << '}'
            << ", \"load_ms\": " << load << ", \"context\": " << settings.context
            << ", \"prompt_ms\": " << prompt << ", \"passes\": [" << passes.str() << ']'
            << ", \"peak_bytes\": " << bytes(omnidraft::memory_of("status", "VmHWM"))
            << ", \"pss_bytes\": " << bytes(omnidraft::memory_of("smaps_rollup", "Pss")) << "}\n";
}

}  // namespace

int main(int count, char** words) {
  try {
    measure(read({words + 1, words + count}));
    return 0;
  } catch (const std::invalid_argument& error) {
    std::cerr << "omnidraft_run: " << error.what() << "\n" << usage();
    return 2;
  } catch (const std::exception& error) {
    std::cerr << "omnidraft_run: " << error.what() << "\n";
    return 1;
  }
}

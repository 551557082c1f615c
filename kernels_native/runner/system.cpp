#include "system.h"

#include <fstream>
#include <map>

namespace omnidraft {
namespace {

// The value of "key : value", empty where the line has another key.
std::string value_of(const std::string& line, const std::string& key) {
  const std::size_t colon = line.find(':');
  const std::size_t end = line.find_last_not_of(" \t", colon == 0 ? 0 : colon - 1);
  if (colon == std::string::npos || colon == 0 || end == std::string::npos ||
      line.substr(0, end + 1) != key) {
    return "";
  }
  const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
  return begin == std::string::npos ? "" : line.substr(begin);
}

}  // namespace

std::int64_t memory_of(const std::string& file, const std::string& field) {
  std::ifstream lines("/proc/self/" + file);
  for (std::string line; std::getline(lines, line);) {
    const std::string value = value_of(line, field);
    if (!value.empty() && value[0] >= '0' && value[0] <= '9') {
      return std::stoll(value) * 1024;
    }
  }
  return -1;
}

std::string processor_name() {
  std::string named, hardware, implementer;
  std::map<std::string, int> parts;
  std::ifstream lines("/proc/cpuinfo");
  for (std::string line; std::getline(lines, line);) {
    if (const std::string name = value_of(line, "model name"); !name.empty()) {
      named = name;
    } else if (const std::string chip = value_of(line, "Hardware"); !chip.empty()) {
      hardware = chip;
    } else if (const std::string maker = value_of(line, "CPU implementer"); !maker.empty()) {
      implementer = maker;
    } else if (const std::string part = value_of(line, "CPU part"); !part.empty()) {
      ++parts[part];
    }
  }
  std::string name = !named.empty() ? named : hardware;
  if (!parts.empty()) {
    std::string cores;
    for (const auto& [part, count] : parts) {
      cores += (cores.empty() ? "" : ", ") + std::to_string(count) + " of part " + part;
    }
    name += (name.empty() ? "" : "; ") + ("implementer " + implementer + ": " + cores);
  }
  return name;
}

}  // namespace omnidraft

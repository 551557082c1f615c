// What Linux, and so Android, says of this process and its processor.
#pragma once

#include <cstdint>
#include <string>

namespace omnidraft {

// Bytes of a field such as "VmHWM" or "Pss" of a file in /proc/self; -1 where it is not there.
std::int64_t memory_of(const std::string& file, const std::string& field);

// The processor's name; of one that has none the implementer's and the parts' numbers.
std::string processor_name();

}  // namespace omnidraft

#include "runtime/host_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace quire::runtime {
namespace {

// Returns the first number of a file such as /sys/fs/cgroup/memory.max, or nothing for "max" or a
// missing file.
std::optional<std::int64_t> ReadNumber(const char* path) {
  std::ifstream file(path);
  std::string word;
  std::int64_t value = 0;
  if (!(file >> word) || !absl::SimpleAtoi(word, &value)) return std::nullopt;
  return value;
}

}  // namespace

std::int64_t FreeHostMemory() {
  std::ifstream file("/proc/meminfo");
  std::string line;
  std::int64_t available = 0;
  while (std::getline(file, line)) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, "MemAvailable:")) continue;
    absl::ConsumeSuffix(&rest, " kB");
    if (absl::SimpleAtoi(rest, &available)) available *= 1024;
  }
  const std::optional<std::int64_t> limit = ReadNumber("/sys/fs/cgroup/memory.max");
  const std::optional<std::int64_t> used = ReadNumber("/sys/fs/cgroup/memory.current");
  if (limit && used) available = std::min(available, *limit - *used);
  return std::max<std::int64_t>(available, 0);
}

}  // namespace quire::runtime

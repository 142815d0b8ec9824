#include "base/machine.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace quire {
namespace {

std::optional<std::string> ReadFirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(static_cast<int>(cpu));
    }
  } else {  // a machine with more CPUs than the mask holds
    const int count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    for (int cpu = 0; cpu < count; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

std::vector<int> FirstOfEachCore(const std::string& root, const std::vector<int>& cpus) {
  std::set<std::string> cores;  // "package/core"
  std::vector<int> first;
  for (const int cpu : cpus) {
    const std::string base = absl::StrCat(root, "/sys/devices/system/cpu/cpu", cpu, "/topology/");
    const auto package = ReadFirstLine(base + "physical_package_id");
    const auto core = ReadFirstLine(base + "core_id");
    // Without a topology every CPU counts as a core.
    const bool is_new =
        cores
            .insert(package && core ? absl::StrCat(*package, "/", *core) : absl::StrCat("cpu", cpu))
            .second;
    if (is_new) first.push_back(cpu);
  }
  return first;
}

// CPUs that a quota and its period allow, rounded up; nothing when there is no limit.
std::optional<int> QuotaOf(absl::string_view quota, absl::string_view period) {
  std::int64_t quota_us = 0, period_us = 0;
  if (!absl::SimpleAtoi(quota, &quota_us) || !absl::SimpleAtoi(period, &period_us)) {
    return std::nullopt;  // "max"
  }
  if (quota_us <= 0 || period_us <= 0) return std::nullopt;  // -1 in version 1
  return static_cast<int>((quota_us + period_us - 1) / period_us);
}

// The tightest CPU quota of this process's cgroup and its parents: cpu.max of version 2, else
// cpu.cfs_quota_us of version 1.
std::optional<int> CgroupQuota(const std::string& root) {
  std::optional<int> least;
  const auto consider = [&least](std::optional<int> quota) {
    if (quota && (!least || *quota < *least)) least = quota;
  };
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool is_v2 = parts[0] == "0";
    if (!is_v2 && !absl::StrContains(absl::StrCat(",", parts[1], ","), ",cpu,")) continue;
    // Version 1 has one folder for each controller, or for each set of them that is mounted as one.
    const std::string mount = absl::StrCat(root, "/sys/fs/cgroup", is_v2 ? "" : "/cpu");
    std::string group = parts[2];
    while (true) {
      const std::string base = mount + (group == "/" ? "" : group);
      if (is_v2) {
        const std::string max = ReadFirstLine(base + "/cpu.max").value_or("");
        const std::vector<std::string> words = absl::StrSplit(max, ' ');
        if (words.size() == 2) consider(QuotaOf(words[0], words[1]));
      } else {
        consider(QuotaOf(ReadFirstLine(base + "/cpu.cfs_quota_us").value_or(""),
                         ReadFirstLine(base + "/cpu.cfs_period_us").value_or("")));
      }
      if (group.empty() || group == "/") break;
      group.resize(group.rfind('/') == 0 ? 1 : group.rfind('/'));
    }
  }
  return least;
}

std::string DetectIsa(const std::string& root) {
#if defined(__x86_64__)
  // These look at CPUID and at the register state that the system saves.
  __builtin_cpu_init();
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const auto flags = [&root] {
    std::ifstream file(root + "/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
      if (absl::StartsWith(line, "flags")) return absl::StrCat(line, " ");
    }
    return std::string();
  }();
  if (has_avx512 && absl::StrContains(flags, " amx_tile ")) return "amx";
  if (has_avx512 && __builtin_cpu_supports("avx512vnni")) return "avx512_vnni";
  if (has_avx512) return "avx512";
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return __builtin_cpu_supports("avxvnni") ? "avx_vnni" : "avx2";
  }
  return "baseline";
#elif defined(__aarch64__)
  return "neon";
#else
  return "baseline";
#endif
}

std::string DetectCpuModel(const std::string& root) {
  std::ifstream file(root + "/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    return std::string(absl::StripAsciiWhitespace(absl::string_view(line).substr(colon + 1)));
  }
  return "unknown";
}

}  // namespace

Machine Machine::Detect(const MachineSource& source) {
  Machine machine;
  machine.cpus_ = source.cpus ? *source.cpus : AllowedCpus();
  machine.core_cpus_ = FirstOfEachCore(source.root, machine.cpus_);
  const int cores = static_cast<int>(machine.core_cpus_.size());
  machine.physical_cores_ = std::max(1, std::min(cores, CgroupQuota(source.root).value_or(cores)));
  machine.isa_ = DetectIsa(source.root);
  machine.cpu_model_ = DetectCpuModel(source.root);
  return machine;
}

std::vector<int> Machine::CpusToBind(int num_threads) const {
  const int cores = static_cast<int>(core_cpus_.size());
  if (num_threads != cores || physical_cores_ < cores) return {};
  return core_cpus_;
}

}  // namespace quire

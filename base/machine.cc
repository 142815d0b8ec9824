#include "base/machine.h"

#include <hwloc.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <numeric>
#include <optional>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/check.h"

namespace quire {
namespace {

std::optional<std::string> ReadFirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

// The packages, cores and CPUs of this machine or of a synthetic topology.
class Topology {
 public:
  explicit Topology(const std::string& synthetic) {
    QUIRE_CHECK(hwloc_topology_init(&topology_) == 0);
    QUIRE_CHECK(hwloc_topology_set_all_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_NONE) == 0);
    for (const hwloc_obj_type_t type : {HWLOC_OBJ_PACKAGE, HWLOC_OBJ_CORE}) {
      QUIRE_CHECK(hwloc_topology_set_type_filter(topology_, type, HWLOC_TYPE_FILTER_KEEP_ALL) == 0);
    }
    QUIRE_CHECK(hwloc_topology_set_flags(topology_, HWLOC_TOPOLOGY_FLAG_NO_DISTANCES |
                                                        HWLOC_TOPOLOGY_FLAG_NO_MEMATTRS |
                                                        HWLOC_TOPOLOGY_FLAG_NO_CPUKINDS) == 0);
    // Excludes the "x86" component, which would bind this thread to each CPU in turn to learn what
    // /sys already reports. Libraries for other architectures lack the component and return an
    // error, which is ignored.
    (void)hwloc_topology_set_components(topology_, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
    if (!synthetic.empty()) {
      QUIRE_CHECK(hwloc_topology_set_synthetic(topology_, synthetic.c_str()) == 0);
    }
    is_loaded_ = hwloc_topology_load(topology_) == 0;
  }
  ~Topology() { hwloc_topology_destroy(topology_); }
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  // Returns the CPUs of the calling thread's affinity mask. If a sandbox hides the mask, returns as
  // many CPUs as the standard library reports.
  std::vector<int> AllowedCpus() const {
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    QUIRE_CHECK(set != nullptr);
    std::vector<int> cpus;
    if (is_loaded_ && hwloc_get_cpubind(topology_, set, HWLOC_CPUBIND_THREAD) == 0) {
      for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) {
        cpus.push_back(cpu);
      }
    }
    hwloc_bitmap_free(set);
    const int count = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
    if (cpus.empty()) {
      cpus.resize(static_cast<std::size_t>(count));
      std::iota(cpus.begin(), cpus.end(), 0);
    }
    return cpus;
  }

  // Returns the first of `cpus` on each core. A CPU whose core is unknown counts as a separate
  // core.
  std::vector<int> FirstOfEachCore(const std::vector<int>& cpus) const {
    std::set<hwloc_obj_t> cores;
    std::vector<int> first;
    for (const int cpu : cpus) {
      const hwloc_obj_t pu =
          is_loaded_ ? hwloc_get_pu_obj_by_os_index(topology_, static_cast<unsigned>(cpu))
                     : nullptr;
      const hwloc_obj_t core =
          pu ? hwloc_get_ancestor_obj_by_type(topology_, HWLOC_OBJ_CORE, pu) : nullptr;
      if (core == nullptr || cores.insert(core).second) first.push_back(cpu);
    }
    return first;
  }

  std::string CpuModel() const {
    if (!is_loaded_) return "unknown";
    for (const hwloc_obj_t object :
         {hwloc_get_next_obj_by_type(topology_, HWLOC_OBJ_PACKAGE, nullptr),
          hwloc_get_root_obj(topology_)}) {
      const char* const name = object ? hwloc_obj_get_info_by_name(object, "CPUModel") : nullptr;
      if (name != nullptr) return std::string(absl::StripAsciiWhitespace(name));
    }
    return "unknown";
  }

 private:
  hwloc_topology_t topology_;
  bool is_loaded_ = false;  // false if the system hides its topology
};

// Returns the number of CPUs that a quota and its period allow, rounded up; nullopt without a
// limit.
std::optional<int> QuotaOf(absl::string_view quota, absl::string_view period) {
  std::int64_t quota_us = 0, period_us = 0;
  if (!absl::SimpleAtoi(quota, &quota_us) || !absl::SimpleAtoi(period, &period_us)) {
    return std::nullopt;  // the quota is "max"
  }
  if (quota_us <= 0 || period_us <= 0) return std::nullopt;  // -1 in version 1 means no limit
  return static_cast<int>((quota_us + period_us - 1) / period_us);
}

// Returns the lowest CPU quota of this process's cgroup and its parents: cpu.max in cgroup version
// 2, otherwise cpu.cfs_quota_us of version 1.
std::optional<int> CgroupQuota(const std::string& root) {
  std::optional<int> lowest;
  const auto update_lowest = [&lowest](std::optional<int> quota) {
    if (quota && (!lowest || *quota < *lowest)) lowest = quota;
  };
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const bool is_v2 = parts[0] == "0";
    if (!is_v2 && !absl::StrContains(absl::StrCat(",", parts[1], ","), ",cpu,")) continue;
    // Version 1 has one folder for each controller or group of controllers that is mounted
    // together.
    const std::string mount = absl::StrCat(root, "/sys/fs/cgroup", is_v2 ? "" : "/cpu");
    std::string group = parts[2];
    while (true) {
      const std::string base = mount + (group == "/" ? "" : group);
      if (is_v2) {
        const std::string max = ReadFirstLine(base + "/cpu.max").value_or("");
        const std::vector<std::string> words = absl::StrSplit(max, ' ');
        if (words.size() == 2) update_lowest(QuotaOf(words[0], words[1]));
      } else {
        update_lowest(QuotaOf(ReadFirstLine(base + "/cpu.cfs_quota_us").value_or(""),
                              ReadFirstLine(base + "/cpu.cfs_period_us").value_or("")));
      }
      if (group.empty() || group == "/") break;
      group.resize(group.rfind('/') == 0 ? 1 : group.rfind('/'));
    }
  }
  return lowest;
}

std::string DetectIsa(const std::string& root) {
#if defined(__x86_64__)
  // These builtins check both CPUID and whether the operating system saves the registers.
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
    // clang 14 does not accept "avxvnni" in __builtin_cpu_supports.
    return absl::StrContains(flags, " avx_vnni ") ? "avx_vnni" : "avx2";
  }
  return "baseline";
#elif defined(__aarch64__)
  return "neon";
#else
  return "baseline";
#endif
}

}  // namespace

Machine Machine::Detect(const MachineSource& source) {
  Machine machine;
  const Topology topology(source.topology);
  machine.cpus_ = source.cpus ? *source.cpus : topology.AllowedCpus();
  machine.core_cpus_ = topology.FirstOfEachCore(machine.cpus_);
  const int cores = static_cast<int>(machine.core_cpus_.size());
  machine.physical_cores_ = std::max(1, std::min(cores, CgroupQuota(source.root).value_or(cores)));
  machine.isa_ = DetectIsa(source.root);
  machine.cpu_model_ = topology.CpuModel();
  return machine;
}

std::vector<int> Machine::CpusToBind(int num_threads) const {
  const int cores = static_cast<int>(core_cpus_.size());
  if (num_threads != cores || physical_cores_ < cores) return {};
  return core_cpus_;
}

}  // namespace quire

#pragma once

#include <optional>
#include <string>
#include <vector>

namespace quire {

// The sources that Machine reads; tests replace them.
struct MachineSource {
  std::string root;      // prefix of /proc and /sys, for the CPU quota and flags
  std::string topology;  // synthetic topology in the syntax of hwloc(7); empty: this machine
  std::optional<std::vector<int>> cpus;  // absent: the calling thread's affinity mask
};

// The CPU resources that this process may use, read once from the system: CPUs of the affinity
// mask, their cores, the cgroup's CPU quota, and the instruction set.
//
// hwloc provides affinity, cores and the CPU's name. It reports neither CPU quotas, which limit the
// useful number of threads in a container, nor instruction sets.
class Machine {
 public:
  static Machine Detect(const MachineSource& source = {});

  // The logical CPUs of the affinity mask; at least one.
  const std::vector<int>& cpus() const { return cpus_; }
  // Returns the number of cores to compute on: the distinct physical cores of cpus(), limited by
  // the cgroup's CPU quota rounded up. At least 1.
  int physical_cores() const { return physical_cores_; }
  // The first CPU of each distinct physical core of cpus(), in the order of cpus().
  const std::vector<int>& core_cpus() const { return core_cpus_; }
  // Returns the CPUs to bind `num_threads` compute threads to. Returns core_cpus() if the threads
  // use every core and the quota allows that. Otherwise returns an empty list, and the system
  // places the threads. Binding fewer threads could put the threads of several processes on the
  // same cores.
  std::vector<int> CpusToBind(int num_threads) const;
  // The best instruction-set level that the CPU and the system support: "amx", "avx512_vnni",
  // "avx512", "avx_vnni", "avx2", "neon" or "baseline".
  const std::string& isa() const { return isa_; }
  // The CPU's name, such as "AMD EPYC 9654 96-Core Processor", or "unknown".
  const std::string& cpu_model() const { return cpu_model_; }

 private:
  Machine() = default;

  std::vector<int> cpus_;
  std::vector<int> core_cpus_;
  int physical_cores_ = 1;
  std::string isa_;
  std::string cpu_model_;
};

}  // namespace quire

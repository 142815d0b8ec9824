#pragma once

#include <optional>
#include <string>
#include <vector>

namespace quire {

// Where Machine looks; a test puts a machine of its own in place of the system's.
struct MachineSource {
  std::string root;                      // before /proc and /sys, of quota and CPU flags
  std::string topology;                  // synthetic, as hwloc(7) writes it; empty: the system's
  std::optional<std::vector<int>> cpus;  // absent: the calling thread's affinity mask
};

// What this process may use of the machine, read once: CPUs of the affinity mask and the cores they
// belong to, the cgroup's quota, and the instruction set. Nothing is measured.
//
// Affinity, cores and the CPU's name come from hwloc. It knows neither CPU quotas, which decide how
// many threads are of use in a container, nor instruction sets.
class Machine {
 public:
  static Machine Detect(const MachineSource& source = {});

  // Logical CPUs that the affinity mask names. At least one.
  const std::vector<int>& cpus() const { return cpus_; }
  // Cores to compute on: distinct physical cores of cpus(), at most the cgroup's CPU quota rounded
  // up. At least 1.
  int physical_cores() const { return physical_cores_; }
  // The first CPU of each distinct physical core of cpus(), in their order.
  const std::vector<int>& core_cpus() const { return core_cpus_; }
  // Where to bind `num_threads` compute threads: core_cpus() when there are as many, and the quota
  // covers them; else nothing. A process that uses a part of the cores it may use must leave the
  // choice to the system: its neighbours would bind their threads to the same first cores.
  std::vector<int> CpusToBind(int num_threads) const;
  // "amx", "avx512_vnni", "avx512", "avx_vnni", "avx2", "neon" or "baseline": the best level that
  // the CPU and the system support.
  const std::string& isa() const { return isa_; }
  // "AMD EPYC 9654 96-Core Processor", or "unknown".
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

#pragma once

#include <string>
#include <vector>

namespace quire {

// What this process may use of the machine, read once: CPUs of the affinity mask, the cgroup's
// quota, and the instruction set. Nothing is measured.
class Machine {
 public:
  static Machine Detect();

  // Logical CPUs that the affinity mask names. At least one.
  const std::vector<int>& cpus() const { return cpus_; }
  // Cores to compute on: distinct physical cores of cpus(), at most the cgroup's CPU quota rounded
  // up. At least 1.
  int physical_cores() const { return physical_cores_; }
  // "amx", "avx512vnni", "avx512", "avx2", "neon" or "baseline": the best level that the CPU and
  // the system support.
  const std::string& isa() const { return isa_; }
  // "AMD EPYC 9654 96-Core Processor", or "unknown".
  const std::string& cpu_model() const { return cpu_model_; }

 private:
  Machine() = default;

  std::vector<int> cpus_;
  int physical_cores_ = 1;
  std::string isa_;
  std::string cpu_model_;
};

}  // namespace quire

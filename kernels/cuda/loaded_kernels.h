#pragma once

// Stores the properties of kernels that launches need, so that the CUDA runtime is called once per
// kernel and not at every launch.

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace quire::kernels::cuda {

// Maximum dynamic shared memory, in bytes, for which a kernel needs no function attribute.
inline constexpr std::uint32_t kDefaultSharedBytes = 48 * 1024;

// The kernels of one device that are ready to be launched.
//
// The driver loads the code of a kernel at its first use and allocates device memory for the code.
// A kernel with more than kDefaultSharedBytes of dynamic shared memory also needs a function
// attribute. Before serving requests, a runner calls its ops with SetLoadsOnly(true), which loads
// the kernels and sets their attributes. Kernels of cuBLASLt are not included.
//
// Place:      owned by Backend; Launch and MaxBlocksPerSm use it through CudaContext.
// Invariants: a kernel is loaded at most once, and its shared memory limit only grows.
// Threads:    one at a time, as for the ops of a backend.
// Lifetime:   that of the backend.
class LoadedKernels {
 public:
  LoadedKernels() = default;
  LoadedKernels(const LoadedKernels&) = delete;
  LoadedKernels& operator=(const LoadedKernels&) = delete;

  // Loads `kernel`, the address of a __global__ function, and allows it `shared_bytes` of dynamic
  // shared memory. `name` is used in messages. Errors are those of CudaStatus.
  absl::Status Load(const char* name, const void* kernel, std::uint32_t shared_bytes);
  // Loads `kernel` and returns how many of its blocks fit on a multiprocessor, at least one. Errors
  // are those of CudaStatus. REQUIRES: all calls for a kernel pass the same shape.
  absl::StatusOr<std::uint32_t> MaxBlocksPerSm(const char* name, const void* kernel,
                                               std::uint32_t threads, std::uint32_t shared_bytes);

  // If set, Launch loads its kernel and enqueues nothing. Ops still enqueue their copies.
  void SetLoadsOnly(bool loads_only) { loads_only_ = loads_only; }
  bool loads_only() const { return loads_only_; }
  std::size_t size() const { return kernels_.size(); }

 private:
  struct Kernel {
    std::uint32_t shared_bytes = 0;   // the limit; 0: not loaded
    std::uint32_t blocks_per_sm = 0;  // 0: unknown
  };

  std::unordered_map<const void*, Kernel> kernels_;
  bool loads_only_ = false;
};

}  // namespace quire::kernels::cuda

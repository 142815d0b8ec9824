#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/device.h"
#include "base/device_buffer.h"
#include "base/stream.h"
#include "base/thread_pool.h"
#include "kernels/cuda/context.h"

namespace quire::kernels {

class Uploader;

// Grow-only scratch memory of one thread, so that ops allocate nothing after the first step.
class Workspace {
 public:
  Workspace() = default;
  Workspace(Workspace&&) = default;
  Workspace& operator=(Workspace&&) = default;

  // At least `bytes` bytes, 64-byte aligned, valid until the next call; contents are unspecified.
  std::byte* Reserve(std::size_t bytes);
  std::size_t size_bytes() const { return capacity_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::size_t capacity_ = 0;
};

// Where the ops run: chosen once, never changed, never replaced silently by another.
//
// Place:      the first argument of every op; below models, above ThreadPool.
// Invariants: results of an op depend on its params only, not on the number of threads.
// Threads:    one op at a time; the op itself uses the pool.
// Lifetime:   the thread pool outlives it. Movable; not while an op runs.
class Backend {
 public:
  // The CPU. REQUIRES: device is the CPU, pool is not null.
  static absl::StatusOr<Backend> Create(const Device& device, ThreadPool* pool);

  // The GPU of `stream`, on which every op is enqueued; the pool serves the host's part of loading.
  // Returns UNIMPLEMENTED in a build without CUDA; FAILED_PRECONDITION when the kernels of this
  // build have not been proven on such a device and QUIRE_UNPROVEN=1 is not in the environment.
  // With kFast the caller hands over the library before the first op (UseCublasLt).
  static absl::StatusOr<Backend> CreateCuda(const Stream& stream, Determinism determinism,
                                            ThreadPool* pool);

  // The library of products in kFast (kernels/linear/cublaslt.h), which lives as long as the
  // backend. REQUIRES: a GPU and kFast; the library was opened on the stream of the backend.
  void UseCublasLt(std::shared_ptr<cuda::CublasLt> library);

  Backend(Backend&&) = default;
  Backend& operator=(Backend&&) = default;

  const Device& device() const { return device_; }
  // Null on the CPU. On a GPU every op only enqueues; its pointers are device or pinned memory
  // unless its header says otherwise, and no op allocates.
  const CudaContext* cuda() const { return cuda_ ? &*cuda_ : nullptr; }
  // CUDA: how PackLinearWeights brings host memory to the device (kernels/cuda/uploader.h).
  // LoadModel lends one for the time of loading and takes it back with null.
  Uploader* uploader() const { return uploader_; }
  void LendUploader(Uploader* uploader) const { uploader_ = uploader; }

  ThreadPool* pool() const { return pool_; }
  int num_threads() const { return pool_->size(); }
  // "amx", "avx512_vnni", "avx512", "avx_vnni", "avx2", "sse4", "neon" or "scalar": what the
  // kernels run with.
  absl::string_view isa() const;

  // Runs fn(begin, end, part) over disjoint ranges that cover [0, n) and begin at multiples of
  // `grain`. `work` is the cost of one item, roughly in nanoseconds; when all of it is too little
  // to share, the caller does it alone. Each thread walks its own share in shrinking pieces and
  // then helps the others with theirs, so that a thread that was interrupted is not waited for. Ops
  // whose bits depend on how a range is cut must not use it. REQUIRES: n < 2^32.
  void ParallelFor(std::int64_t n, double work,
                   absl::FunctionRef<void(std::int64_t begin, std::int64_t end, int part)> fn,
                   std::int64_t grain = 1) const;

  // Runs fn(item, part) for every item in [0, n), each on whichever thread is free next.
  void ParallelItems(std::int64_t n, double work,
                     absl::FunctionRef<void(std::int64_t item, int part)> fn) const;

  // Scratch of one thread inside ParallelFor and ParallelItems, and of the whole op outside them.
  Workspace& workspace(int part) const { return (*workspaces_)[static_cast<std::size_t>(part)]; }
  Workspace& op_workspace() const { return workspaces_->back(); }
  // Grows the scratch of every thread, so that it does not matter later which of them takes an
  // item.
  void ReserveWorkspaces(std::size_t bytes) const;
  // Of all scratch memory, as it has grown until now.
  std::int64_t scratch_bytes() const;

 private:
  // What a thread has left of a range, as begin << 32 | end.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> left{0};
  };

  Backend(const Device& device, ThreadPool* pool);

  Device device_;
  std::optional<CudaContext> cuda_;
  // What cuda_ points to.
  DeviceBuffer linear_workspace_;
  std::shared_ptr<cuda::CublasLt> cublaslt_;
  ThreadPool* pool_;
  mutable Uploader* uploader_ = nullptr;
  // One per thread, and one for the op.
  std::unique_ptr<std::vector<Workspace>> workspaces_;
  std::unique_ptr<Share[]> shares_;  // one per thread
};

// Selects the instruction set of the kernels of this process: "auto", "amx", "avx512_vnni",
// "avx512", "avx_vnni", "avx2", "sse4", "neon" or "scalar". For configuration and
// tests, before or between ops. Returns INVALID_ARGUMENT for a name that is not listed,
// FAILED_PRECONDITION when the CPU, this build or the operating system does not provide it.
absl::Status SelectCpuIsa(absl::string_view isa);

}  // namespace quire::kernels

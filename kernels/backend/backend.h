#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/device.h"
#include "base/device_buffer.h"
#include "base/stream.h"
#include "base/thread_pool.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/loaded_kernels.h"

namespace quire::kernels {

class Uploader;

// Grow-only scratch memory of one thread, so that ops allocate nothing after the first step.
class Workspace {
 public:
  Workspace() = default;
  Workspace(Workspace&&) = default;
  Workspace& operator=(Workspace&&) = default;

  // Returns at least `bytes` bytes, 64-byte aligned and uninitialized. They are valid until the
  // next call.
  std::byte* Reserve(std::size_t bytes);
  std::size_t size_bytes() const { return capacity_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::size_t capacity_ = 0;
};

// The dtype of activations in products on the CPU.
enum class CpuActivations : std::uint8_t {
  kAuto,  // chosen for instruction set and weights (kernels/linear/bf16_linear.h)
  kInt8,  // int8 for integer weights, f32 for all other weights
  kF32,
  // Activations and weights are rounded to bf16 (kernels/linear/bf16_linear.h). In attention over
  // bf16 pages, queries and attention weights are also rounded
  // (kernels/attention/bf16_attention.h).
  kBF16,
};
// Replaces kAuto by the dtype that it selects for weights other than bf16. Other values are
// returned unchanged.
CpuActivations ResolveCpuActivations(CpuActivations activations);
// Returns "auto", "int8", "f32" or "bf16".
absl::string_view CpuActivationsName(CpuActivations activations);

// The device on which ops run. It never falls back to another device.
//
// Place:      the first argument of every op; used by models, uses ThreadPool.
// Invariants: results of an op depend only on its params, not on the number of threads.
// Threads:    one op at a time; the op itself uses the pool.
// Lifetime:   the thread pool outlives the backend. Movable, except while an op runs.
class Backend {
 public:
  // Creates the CPU backend. REQUIRES: device is the CPU, pool is not null.
  static absl::StatusOr<Backend> Create(const Device& device, ThreadPool* pool,
                                        CpuActivations activations = CpuActivations::kAuto);

  // Creates a backend that enqueues every op on `stream`. Loading weights uses threads of `pool`.
  // With kFast the caller must call UseCublasLt before the first op. Ops run the kernels for the
  // compute capability of the stream's Device, which may be lower than the capability of the GPU.
  // Returns UNIMPLEMENTED in a build without CUDA.
  static absl::StatusOr<Backend> CreateCuda(const Stream& stream, Determinism determinism,
                                            ThreadPool* pool);

  // Sets the library for matrix products in kFast (kernels/linear/cublaslt.h). REQUIRES: a GPU and
  // kFast; the library was opened on the backend's stream.
  void UseCublasLt(std::shared_ptr<cuda::CublasLt> library);

  Backend(Backend&&) = default;
  Backend& operator=(Backend&&) = default;

  const Device& device() const { return device_; }
  // Returns null on the CPU. On a GPU every op only enqueues work and never allocates. Pointers in
  // an op's parameters point to device or pinned memory unless the op's header states otherwise.
  const CudaContext* cuda() const { return cuda_ ? &*cuda_ : nullptr; }
  // Returns the object that copies weights to the device (kernels/cuda/uploader.h), or null.
  // LoadModel sets it while loading and resets it afterwards.
  Uploader* uploader() const { return uploader_; }
  void SetUploader(Uploader* uploader) const { uploader_ = uploader; }

  ThreadPool* pool() const { return pool_; }
  int num_threads() const { return pool_->size(); }
  // The instruction set in use: "amx", "avx512_vnni", "avx512", "avx_vnni", "avx2", "sse4", "neon"
  // or "scalar".
  absl::string_view isa() const;
  // Returns the dtype of activations in matrix products, never kAuto. REQUIRES: the backend is the
  // CPU.
  CpuActivations activations() const;

  // Runs fn(begin, end, part) over disjoint ranges that cover [0, n) and begin at multiples of
  // `grain`. `work` is the approximate cost of one item in nanoseconds. If the total cost is small,
  // the calling thread runs everything. Each thread first processes its own share of the items in
  // shrinking ranges. It then steals from other threads, so that an interrupted thread does not
  // delay the call. An op whose bits depend on the range boundaries must not use ParallelFor.
  // `part` is the index of the thread. REQUIRES: n < 2^32.
  void ParallelFor(std::int64_t n, double work,
                   absl::FunctionRef<void(std::int64_t begin, std::int64_t end, int part)> fn,
                   std::int64_t grain = 1) const;

  // Runs fn(item, part) for every item in [0, n). The next idle thread takes the next item.
  void ParallelItems(std::int64_t n, double work,
                     absl::FunctionRef<void(std::int64_t item, int part)> fn) const;

  // Scratch memory. workspace(part) is for one thread inside ParallelFor and ParallelItems,
  // op_workspace() for code outside of them.
  Workspace& workspace(int part) const { return (*workspaces_)[static_cast<std::size_t>(part)]; }
  Workspace& op_workspace() const { return workspaces_->back(); }
  // Grows the scratch memory of every thread to `bytes`, because any thread may process any item.
  void ReserveWorkspaces(std::size_t bytes) const;
  // Returns the current size of all scratch memory in bytes.
  std::int64_t scratch_bytes() const;

 private:
  // The remaining part of one thread's range, as begin << 32 | end.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> left{0};
  };

  Backend(const Device& device, ThreadPool* pool);

  Device device_;
  CpuActivations activations_ = CpuActivations::kAuto;
  std::optional<CudaContext> cuda_;
  // Objects that cuda_ points to.
  std::unique_ptr<cuda::LoadedKernels> loaded_kernels_;
  DeviceBuffer linear_workspace_;
  std::shared_ptr<cuda::CublasLt> cublaslt_;
  ThreadPool* pool_;
  mutable Uploader* uploader_ = nullptr;
  // One per thread, then op_workspace().
  std::unique_ptr<std::vector<Workspace>> workspaces_;
  std::unique_ptr<Share[]> shares_;  // one per thread
};

// Selects the instruction set of all kernels of this process: "auto" or a name that isa() returns.
// Must not be called while an op runs. Returns INVALID_ARGUMENT for an unknown name. Returns
// FAILED_PRECONDITION if the CPU, this build or the operating system does not support the
// instruction set.
absl::Status SelectCpuIsa(absl::string_view isa);

// Returns the instruction sets that SelectCpuIsa accepts, best first.
std::vector<std::string> AvailableCpuIsas();

// Returns FAILED_PRECONDITION if the selected instruction set does not support `activations`.
absl::Status CheckCpuActivations(CpuActivations activations);

}  // namespace quire::kernels

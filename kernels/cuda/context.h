#pragma once

// Values that an op needs to run on a GPU, set once when the backend is created.

#include <cstddef>
#include <cstdint>

namespace quire {
class Stream;
}

namespace quire::kernels {

namespace cuda {
class CublasLt;
class LoadedKernels;
}  // namespace cuda

// True if this build contains CUDA kernels. Ops dispatch with `if constexpr (kHasCuda)`, so a build
// without CUDA needs no stubs.
#ifdef QUIRE_HAS_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

// Bytes of the workspace in which matrix products exchange partial sums (layout:
// kernels/linear/linear_reduction.h).
inline constexpr std::int64_t kLinearWorkspaceBytes = 20973568;
// Bytes of the workspace of cuBLASLt (kernels/linear/cublaslt.h).
inline constexpr std::int64_t kCublasLtWorkspaceBytes = std::int64_t{32} << 20;

// How far a row's bits may depend on the other rows of the step (README.md, "Numerics").
enum class Determinism : std::uint8_t {
  kFast,            // library matrix products with algorithms that the library chooses
  kBatchInvariant,  // fixed reduction orders
  // Fixed reduction orders. The class of a token (prefill or decode) is part of its page's key.
  kStrict,
};

// Returns the bytes of device memory that a backend allocates for matrix products: its own
// workspace and, in kFast, the workspace of cuBLASLt.
constexpr std::int64_t LinearWorkspaceBytes(Determinism determinism) {
  return kLinearWorkspaceBytes + (determinism == Determinism::kFast ? kCublasLtWorkspaceBytes : 0);
}

// Threads: read-only, except for `kernels`. Lifetime: the stream outlives the context.
struct CudaContext {
  const Stream* stream = nullptr;
  cuda::LoadedKernels* kernels = nullptr;
  std::uint32_t num_sms = 0;
  std::int32_t compute_capability = 0;  // 90 for 9.0
  Determinism determinism = Determinism::kBatchInvariant;
  // kLinearWorkspaceBytes of device memory, zeroed once.
  std::byte* linear_workspace = nullptr;
  // Set by Backend::UseCublasLt if determinism is kFast, otherwise null.
  cuda::CublasLt* cublaslt = nullptr;
  // Kernels compiled for sm_90a run on compute capability 9.0 only.
  bool has_sm90a() const { return compute_capability == 90; }
};

}  // namespace quire::kernels

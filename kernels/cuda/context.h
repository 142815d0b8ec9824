#pragma once

// What an op needs to run on a GPU: plain values, chosen once in Backend::Create.

#include <cstddef>
#include <cstdint>

namespace quire {
class Stream;
}

namespace quire::kernels {

namespace cuda {
class CublasLt;
}

// Whether this build holds CUDA kernels. Dispatch is `if constexpr (kHasCuda)`, so that a build
// without them needs no stand-ins.
#ifdef QUIRE_HAS_CUDA
inline constexpr bool kHasCuda = true;
#else
inline constexpr bool kHasCuda = false;
#endif

// What matrix products exchange partial sums through (kernels/linear/linear_reduction.h lays it
// out).
inline constexpr std::int64_t kLinearWorkspaceBytes = 20973568;
// What cuBLASLt works in (kernels/linear/cublaslt.h).
inline constexpr std::int64_t kCublasLtWorkspaceBytes = std::int64_t{32} << 20;

// How far bits may depend on what else is in a step (README.md, "Numerics").
enum class Determinism : std::uint8_t {
  kFast,            // library matrix products with their own choice of algorithm
  kBatchInvariant,  // fixed reduction orders
  kStrict,          // fixed reduction orders, and the row class is part of a page's key
};

// Device memory that a backend takes for matrix products: its own workspace, and in kFast that of
// cuBLASLt.
constexpr std::int64_t LinearWorkspaceBytes(Determinism determinism) {
  return kLinearWorkspaceBytes + (determinism == Determinism::kFast ? kCublasLtWorkspaceBytes : 0);
}

// Threads: read-only. Lifetime: the stream outlives it.
struct CudaContext {
  const Stream* stream = nullptr;
  std::uint32_t num_sms = 0;
  std::int32_t compute_capability = 0;  // 90 for 9.0
  Determinism determinism = Determinism::kBatchInvariant;
  // kLinearWorkspaceBytes of device memory, zeroed once.
  std::byte* linear_workspace = nullptr;
  // Set by Backend::UseCublasLt when determinism is kFast, else null.
  cuda::CublasLt* cublaslt = nullptr;
  // The kernels compiled for 9.0a run on that capability only.
  bool has_sm90a() const { return compute_capability == 90; }
};

}  // namespace quire::kernels

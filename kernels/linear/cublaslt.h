#pragma once

// Matrix products by NVIDIA's cuBLASLt, for engine.determinism = fast. The library occupies
// hundreds of megabytes, so it is not linked but opened when a backend is created in that mode.

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/device_buffer.h"
#include "base/mutex.h"
#include "base/stream.h"
#include "kernels/cuda/context.h"
#include "kernels/linear/linear.h"

namespace quire::kernels::cuda {

struct CublasLtApi;

// The opened library, its workspace and the algorithms of all shapes.
//
// Place:      owned by a Backend in kFast, used by Linear and PackLinearWeights.
// Invariants: one algorithm per (N, K, type of y). Pin chooses it with the library's heuristic for
//             kPinnedRows rows, without a split of K. The same algorithm is used for every number
//             of rows. Matmul neither chooses algorithms nor allocates.
// Threads:    any thread may call Pin; only the thread that enqueues may call Matmul.
// Lifetime:   must not outlive the stream; plans are valid until the CublasLt is destroyed.
class CublasLt {
 public:
  static constexpr absl::string_view kLibrary = "libcublasLt.so.13";
  static constexpr std::int64_t kWorkspaceBytes = kCublasLtWorkspaceBytes;
  static constexpr std::uint32_t kPinnedRows = 2048;

  // Opens the library. Returns NOT_FOUND with the library's name if the library or one of its
  // functions is missing. Returns RESOURCE_EXHAUSTED if the workspace cannot be allocated.
  static absl::StatusOr<std::shared_ptr<CublasLt>> Open(const Stream& stream,
                                                        absl::string_view library = kLibrary);
  static absl::StatusOr<std::shared_ptr<CublasLt>> Create(const Stream& stream,
                                                          const CublasLtApi& api);
  ~CublasLt();

  // True for weights that the library multiplies: bf16 with N and K multiples of 8.
  static bool Supports(DType dtype, std::uint32_t n, std::uint32_t k);

  // Returns the plans of a shape. Returns FAILED_PRECONDITION if the library has no algorithm that
  // supports every number of rows.
  absl::StatusOr<const LtPlans*> Pin(std::uint32_t n, std::uint32_t k);

  // Enqueues Linear of bf16 x. Returns INVALID_ARGUMENT for a bias, a residual with bf16 y, or rows
  // of x, y or residual that are not 16-byte aligned. Returns INTERNAL if the library fails.
  absl::Status Matmul(const LtPlans& plans, const LinearParams& params);

 private:
  CublasLt(const Stream& stream, const CublasLtApi& api);

  // Creates the descriptors of a shape, without algorithms.
  absl::Status Describe(LtPlans* plans) const;
  absl::Status Choose(LtPlans* plans, bool y_is_bf16) const;
  absl::Status SetRows(const LtPlans& plans, std::uint32_t num_rows, std::int64_t x_stride,
                       std::int64_t y_stride, std::int64_t residual_stride) const;
  void Destroy(LtPlans* plans) const;

  const Stream& stream_;
  const std::unique_ptr<const CublasLtApi> api_;
  void* handle_ = nullptr;
  DeviceBuffer workspace_;
  Mutex mutex_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::unique_ptr<LtPlans>> plans_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire::kernels::cuda

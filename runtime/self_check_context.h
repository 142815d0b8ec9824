#pragma once

// The memory, random data and comparisons that the parts of the self-check share.
//
// Place:      used by RunSelfCheck and its parts only.
// Invariants: memory is taken from the arrays of StepBuffers that precede token_rows.
// Threads:    one.
// Lifetime:   the arguments of the constructor and the memory that they name outlive it.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/stream.h"
#include "kernels/backend/float_ptr.h"
#include "runtime/self_check.h"

namespace quire::runtime {

// Number of distinct rows in the inputs of a check. Row i equals row i % kPatterns, so that one row
// computed alone is the reference of many rows. kPatterns is prime, so rows that are a tile apart
// differ.
inline constexpr std::uint32_t kPatterns = 7;

class SelfCheckContext {
 public:
  // `cpu` computes references on the host.
  SelfCheckContext(const SelfCheckParams& params, const kernels::Backend& cpu, absl::Duration limit,
                   SelfCheckReport* report);

  const SelfCheckParams& params() const { return params_; }
  const kernels::CudaContext& cuda() const { return *params_.backend->cuda(); }
  const kernels::Backend& cpu() const { return cpu_; }
  DType activation() const { return params_.limits.activation; }
  SelfCheckWork& work() { return report_->work; }

  // Device memory for one check. Release(mark) frees the memory that was taken since used()
  // returned `mark`. Free frees all memory.
  void Free() { used_ = 0; }
  void Release(std::int64_t mark) { used_ = mark; }
  std::int64_t used() const { return used_; }
  std::int64_t free_bytes() const { return total_ - used_; }
  // Returns aligned memory, or RESOURCE_EXHAUSTED with the needed and available bytes.
  absl::StatusOr<std::byte*> Take(std::int64_t bytes);
  absl::StatusOr<kernels::FloatPtr> TakeFloats(DType dtype, std::int64_t count);
  // Takes memory and copies `values` to it.
  template <typename T>
  absl::StatusOr<T*> Upload(const std::vector<T>& values) {
    const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
    QUIRE_ASSIGN_OR_RETURN(std::byte* const to, Take(bytes));
    QUIRE_RETURN_IF_ERROR(Copy(to, values.data(), bytes));
    return reinterpret_cast<T*>(to);
  }

  // Waits for the device. Returns DEADLINE_EXCEEDED after the limit of the check.
  absl::Status Wait();
  // Copies between host and device and waits.
  absl::Status Copy(void* to, const void* from, std::int64_t bytes);
  // Uploads values, rounded to the type of `to`.
  absl::Status UploadFloats(kernels::FloatPtr to, std::span<const float> values);
  absl::StatusOr<std::vector<float>> DownloadFloats(kernels::ConstFloatPtr from,
                                                    std::int64_t count);
  // Fills memory with bytes 0xff, which are NaN in every floating-point type.
  absl::Status Poison(void* to, std::int64_t bytes);
  // Copies row i % count of `rows` to row i of `to` for each i in [begin, end). REQUIRES: the rows
  // of `to` before `begin` have been copied.
  absl::Status Repeat(void* to, const void* rows, std::uint32_t count, std::int64_t row_bytes,
                      std::uint32_t begin, std::uint32_t end);

  // Names the comparison that runs next. Errors until the next call are reported with these names.
  void Begin(absl::string_view kernel, absl::string_view shape);
  // Returns kernel and shape of the last Begin in the form of a message.
  const std::string& current() const { return current_; }
  // Reports a comparison. Sets the fault if there is none and the error exceeds the limit.
  void Add(kernels::KernelCheck check);

 private:
  const SelfCheckParams& params_;
  const kernels::Backend& cpu_;
  const Stream& stream_;
  const absl::Time deadline_;
  SelfCheckReport* const report_;
  const std::vector<std::byte> poison_;
  std::byte* const base_;
  const std::int64_t total_;
  std::int64_t used_ = 0;
  std::string current_;
};

// Returns reproducible numbers in [-2, 2), which bf16 represents exactly.
std::vector<float> RandomValues(std::size_t count, std::uint64_t seed);

// Returns `rows` random rows, of which row i equals row i % patterns.
std::vector<float> RepeatedRows(std::uint32_t rows, std::uint32_t patterns, std::uint32_t columns,
                                std::uint64_t seed);

// Returns element i of stored values as f32.
template <typename T>
float ElementAt(std::span<const std::byte> stored, std::size_t i) {
  T value;
  std::memcpy(&value, stored.data() + i * sizeof(T), sizeof(T));
  return ToFloat(value);
}

// Returns |a - b| / |b| in the Euclidean norm; 0 if both are zero, NaN if a value is not finite.
double RelativeError(std::span<const float> a, std::span<const float> b);

// The parts of the check. They return errors of the device and of memory only.
absl::Status CheckProducts(SelfCheckContext* context);
absl::Status CheckAttention(SelfCheckContext* context);
absl::Status CheckSelection(SelfCheckContext* context);
absl::Status CheckSmallOps(SelfCheckContext* context);

}  // namespace quire::runtime

#include "runtime/cpu_kernel_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/device_buffer.h"
#include "base/dtype.h"
#include "base/split_mix.h"
#include "base/thread_pool.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/bf16_attention.h"
#include "kernels/kv_store/kv_store.h"
#include "kernels/linear/bf16_linear.h"
#include "kernels/linear/fp8_linear.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/norm/norm.h"
#include "kernels/recurrent/state_scan.h"

namespace quire::runtime {
namespace {

using kernels::Backend;
using kernels::CpuActivations;
using kernels::KernelCheck;
using kernels::PackedLinear;

// Number of distinct rows of x. Larger batches repeat these rows, because the bits of a result must
// not depend on the position of its row.
constexpr std::uint32_t kDistinctRows = 17;
// Batch sizes around the row blocks of the kernels: 8, 4, 2 and 1 rows, and tiles of 16.
constexpr std::uint32_t kRowCounts[] = {1, 4, 9, 17, 34};
constexpr std::uint32_t kLargestBatch = 34;
// Number of output features: four and a half panels.
constexpr std::uint32_t kFeatures = 72;
// Number of inputs. It exceeds the 512 inputs that a bf16 product sums at a time, and is a multiple
// of every group size.
constexpr std::uint32_t kInputs = 640;
// Number of inputs that is not a multiple of the block size of any kernel.
constexpr std::uint32_t kOddInputs = 333;
// Maximum relative error of f32 sums that are computed in another order.
constexpr double kMaxError = 5e-6;

// Returns values between -1 and 1, times `scale`.
std::vector<float> UniformValues(std::size_t count, std::uint64_t seed, float scale = 1) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto bits = static_cast<std::int32_t>(SplitMix(seed << 32 | i) >> 40);  // 24 bits
    values[i] = static_cast<float>(bits - (1 << 23)) * 0x1p-23f * scale;
  }
  return values;
}

// Returns kLargestBatch rows, which repeat after kDistinctRows.
std::vector<float> RandomRows(std::uint32_t columns, std::uint64_t seed) {
  const std::vector<float> distinct = UniformValues(std::size_t{kDistinctRows} * columns, seed);
  std::vector<float> rows(std::size_t{kLargestBatch} * columns);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = distinct[i % distinct.size()];
  return rows;
}

// A row-major output matrix that is filled with NaN. NaNs also fill the gap after each row.
class Output {
 public:
  Output(std::uint32_t rows, std::uint32_t columns)
      : rows_(rows),
        columns_(columns),
        values_(rows * stride(), std::numeric_limits<float>::quiet_NaN()) {}

  float* data() { return values_.data(); }
  std::size_t stride() const { return columns_ + std::size_t{kGap}; }
  std::span<const float> row(std::size_t m) const {
    return std::span(values_).subspan(m * stride(), columns_);
  }
  std::uint32_t rows() const { return rows_; }
  std::uint32_t columns() const { return columns_; }
  bool AreGapsIntact() const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (i % stride() >= columns_ && !std::isnan(values_[i])) return false;
    }
    return true;
  }

 private:
  static constexpr std::uint32_t kGap = 3;
  std::uint32_t rows_, columns_;
  std::vector<float> values_;
};

// Compares `y` with `expected`, whose rows are repeated if it has fewer. Sets check->fault if `y`
// is wrong. check->error becomes the larger of its old value and the error of `y`.
void Compare(const Output& y, const Output& expected, KernelCheck* check) {
  double difference = 0, norm = 0;
  std::size_t unequal = 0, not_numbers = 0, first = 0;
  for (std::size_t m = 0; m < y.rows(); ++m) {
    const std::span<const float> got = y.row(m), want = expected.row(m % expected.rows());
    for (std::size_t i = 0; i < got.size(); ++i) {
      difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
      norm += double{want[i]} * want[i];
      if (std::bit_cast<std::uint32_t>(got[i]) == std::bit_cast<std::uint32_t>(want[i])) continue;
      if (unequal++ == 0) first = m;
      if (std::isnan(got[i])) ++not_numbers;
    }
  }
  double error = std::sqrt(difference / std::max(norm, 1e-300));
  if (!std::isfinite(error)) error = std::numeric_limits<double>::infinity();
  check->error = std::max(check->error, error);
  const std::size_t total = std::size_t{y.rows()} * y.columns();
  if (!y.AreGapsIntact()) {
    check->fault = "memory beyond the output was written";
  } else if (not_numbers > 0) {
    check->fault = absl::StrCat(not_numbers, " of ", total, " values are NaN or were not written");
  } else if (check->limit == 0 && unequal > 0) {
    check->fault =
        absl::StrCat(unequal, " of ", total, " values have wrong bits, the first in row ", first);
  } else if (error > check->limit) {
    check->fault = "the error is above the limit";
  }
}

void SetFault(const absl::Status& status, KernelCheck* check) {
  if (!status.ok()) check->fault = std::string(status.message());
}

// Packing small matrices fails only for lack of memory or for a mistake in this file. The child
// process of the check then aborts.
PackedLinear Value(absl::StatusOr<PackedLinear> packed) {
  QUIRE_CHECK(packed.ok());
  return *std::move(packed);
}

PackedLinear MakeIntegers(const Backend& backend, const QuantizedShape& shape) {
  const bool is_int4 = shape.format == WeightFormat::kInt4;
  const int steps = is_int4 ? 16 : 256;
  const int lowest = shape.has_min ? 0 : -steps / 2;
  return Value(
      kernels::PackQuantizedRows(backend, shape, [&](std::uint32_t row, const QuantizedRow& out) {
        const auto random = [&](std::uint64_t i) { return SplitMix(std::uint64_t{row} << 32 | i); };
        for (std::size_t i = 0; i < out.q.size(); ++i) {
          const auto step = static_cast<int>(random(i) >> 40) % steps;
          out.q[i] = static_cast<std::int8_t>(lowest + step);
        }
        for (std::size_t g = 0; g < out.scales.size(); ++g) {
          out.scales[g] = 0.001f + static_cast<float>(random(g + shape.k) >> 40) * 0x1p-30f;
        }
        for (std::size_t g = 0; g < out.mins.size(); ++g) {
          const auto step = static_cast<float>(random(g + 2 * shape.k) >> 40) * 0x1p-24f *
                            static_cast<float>(steps);
          out.mins[g] = shape.has_zero_points ? -std::floor(step) : -0.01f * step;
        }
      }));
}

PackedLinear MakeFp8(const Backend& backend, const Fp8Shape& shape) {
  return Value(kernels::PackFp8Rows(backend, shape, [&](std::uint32_t row, const Fp8Row& out) {
    const std::vector<float> values = UniformValues(out.codes.size(), row, 400);
    for (std::size_t i = 0; i < out.codes.size(); ++i) {
      out.codes[i] = std::bit_cast<std::uint8_t>(F8E4M3::FromFloat(values[i]));
    }
    for (std::size_t g = 0; g < out.scales.size(); ++g) {
      out.scales[g] = 0.0001f + static_cast<float>(g) * 0x1p-20f;
    }
  }));
}

PackedLinear MakeBf16(const Backend& backend, std::uint32_t k) {
  const std::vector<float> values = UniformValues(std::size_t{kFeatures} * k, 1, 0.05f);
  std::vector<BF16> weights(values.size());
  std::transform(values.begin(), values.end(), weights.begin(), BF16::FromFloat);
  return Value(kernels::PackLinearWeight(backend, weights.data(), DType::kBF16, kFeatures, k));
}

class Checker {
 public:
  Checker(const CheckedOps& ops, KernelCheckSink sink) : ops_(ops), sink_(sink) {}

  void CheckProducts();
  // With kBF16 the result must equal the reference bitwise.
  void CheckAttention(CpuActivations activations);
  void CheckNorm();
  // The second of two steps continues from the state of the first one.
  void CheckScan();

 private:
  Backend MakeBackend(CpuActivations activations) {
    absl::StatusOr<Backend> backend = Backend::Create(Device::Cpu(), &pool_, activations);
    QUIRE_CHECK(backend.ok());
    return *std::move(backend);
  }
  void CheckProduct(const Backend& backend, absl::string_view weights, const PackedLinear& weight);

  const CheckedOps& ops_;
  const KernelCheckSink sink_;
  ThreadPool pool_{1};
};

// Computes the product with the reference kernel of its kind.
void MultiplyByReference(const Backend& backend, const kernels::LinearParams& params,
                         bool is_integer) {
  if (backend.activations() == CpuActivations::kBF16) {
    kernels::internal::LinearBf16Cpu(params, 0, params.weight->num_panels());
  } else if (is_integer) {
    kernels::internal::LinearQuantized(backend, params, kernels::internal::kIntLinearScalar);
  } else {
    kernels::internal::LinearCpu(params);
  }
}

void Checker::CheckProduct(const Backend& backend, absl::string_view weights,
                           const PackedLinear& weight) {
  const std::uint32_t n = weight.n(), k = weight.k();
  const bool is_integer =
      weight.format() == WeightFormat::kInt8 || weight.format() == WeightFormat::kInt4;
  const CpuActivations activations = backend.activations();
  const bool is_bf16 = activations == CpuActivations::kBF16;
  // sse4 has no fused multiply-add, so its sums are rounded differently.
  const bool has_equal_bits = is_bf16 || (is_integer && backend.isa() != "sse4");
  KernelCheck check = {.kernel = is_bf16      ? "bf16 product"
                                 : is_integer ? "int8 product"
                                              : "f32 product",
                       .limit = has_equal_bits ? 0 : kMaxError};

  const std::vector<float> x = RandomRows(k, 2);
  const std::vector<float> bias = UniformValues(n, 3);
  const std::vector<float> residual = RandomRows(n, 4);
  const auto params = [&](Output* y) {
    return kernels::LinearParams{.x = x.data(),
                                 .weight = &weight,
                                 .bias = bias.data(),
                                 .residual = residual.data(),
                                 .y = y->data(),
                                 .x_stride = k,
                                 .residual_stride = n,
                                 .y_stride = static_cast<std::int64_t>(y->stride()),
                                 .num_rows = y->rows()};
  };
  check.shape = absl::StrCat(weights, ", ", kDistinctRows, " x ", n, " x ", k);
  sink_(check, /*is_finished=*/false);
  Output expected(kDistinctRows, n);
  MultiplyByReference(backend, params(&expected), is_integer);
  for (const std::uint32_t rows : kRowCounts) {
    check.shape = absl::StrCat(weights, ", ", rows, " x ", n, " x ", k);
    sink_(check, /*is_finished=*/false);
    Output y(rows, n);
    SetFault(ops_.linear(backend, params(&y)), &check);
    if (check.fault.empty()) Compare(y, expected, &check);
    if (!check.fault.empty()) break;
  }
  if (check.fault.empty()) {
    check.shape = absl::StrCat(weights, ", 1 to ", kLargestBatch, " x ", n, " x ", k);
  }
  sink_(check, /*is_finished=*/true);
}

void Checker::CheckProducts() {
  using enum WeightFormat;
  struct Case {
    absl::string_view name;
    PackedLinear weight;
    bool has_bf16_case;
  };
  const Backend int8 = MakeBackend(CpuActivations::kInt8);
  std::vector<Case> cases;
  const auto add_integers = [&](absl::string_view name, const QuantizedShape& shape,
                                bool has_bf16_case = false) {
    cases.push_back({name, MakeIntegers(int8, shape), has_bf16_case});
  };
  add_integers("int8", {kInt8, kFeatures, kInputs, kInputs}, /*has_bf16_case=*/true);
  add_integers("int8", {kInt8, kFeatures, kOddInputs, kOddInputs});
  add_integers("int8 g32", {kInt8, kFeatures, kInputs, 32});
  add_integers("int8 g16 min", {kInt8, kFeatures, kInputs, 16, /*has_min=*/true});
  add_integers("int4 g32", {kInt4, kFeatures, kInputs, 32}, /*has_bf16_case=*/true);
  add_integers("int4 g32 min", {kInt4, kFeatures, kInputs, 32, /*has_min=*/true});
  add_integers("int4 g128 zero point",
               {kInt4, kFeatures, kInputs, 128, /*has_min=*/true, /*has_zero_points=*/true},
               /*has_bf16_case=*/true);
  cases.push_back({"bf16", MakeBf16(int8, kInputs), true});
  cases.push_back({"bf16", MakeBf16(int8, kOddInputs), true});
  cases.push_back({"e4m3 g128", MakeFp8(int8, {.n = kFeatures, .k = kInputs, .group = 128}), true});
  for (const Case& c : cases) CheckProduct(int8, c.name, c.weight);
  if (!kernels::CheckCpuActivations(CpuActivations::kBF16).ok()) return;
  const Backend bf16 = MakeBackend(CpuActivations::kBF16);
  for (const Case& c : cases) {
    if (c.has_bf16_case) CheckProduct(bf16, c.name, c.weight);
  }
}

// Keys and values of two sequences in bf16 pages.
class SequencePair {
 public:
  static constexpr std::uint32_t kKvHeads = 2, kHeadSize = 64, kColumns = kKvHeads * kHeadSize;
  static constexpr std::uint32_t kPrompt = 20;  // tokens of the first sequence, all of them new
  // Cached tokens of the second sequence, which has 1 new token.
  static constexpr std::uint32_t kCached = 65;

  // Stores the tokens of both sequences. The pages of a sequence are not adjacent.
  explicit SequencePair(const Backend& backend) {
    const std::uint32_t second[] = {6, 5, 4, 3, 1};
    std::copy(std::begin(second), std::end(second), table_ + kTableStride);
    const cache::KvGeometry geometry = {.num_blocks = 8,
                                        .num_layers = 1,
                                        .page_size = 16,
                                        .num_heads = kKvHeads,
                                        .head_size = kHeadSize,
                                        .dtype = DType::kBF16};
    absl::StatusOr<DeviceBuffer> pages =
        DeviceBuffer::Allocate(MemoryKind::kHost, geometry.num_blocks * geometry.block_stride() *
                                                      DTypeSize(geometry.dtype));
    QUIRE_CHECK(pages.ok());
    pages_ = *std::move(pages);
    const absl::StatusOr<kernels::AnyKvCollection> collection =
        kernels::MakeKvCollection(geometry, pages_.data(),
                                  {.lookup_table = table_,
                                   .cache_lengths = cached_,
                                   .lookup_stride = kTableStride,
                                   .max_rows = 2,
                                   .max_seq_length = kCached + 1,
                                   .max_cache_length = kCached + 1,
                                   .max_history_length = kCached});
    QUIRE_CHECK(collection.ok());
    keys_ = kernels::KeyView(*collection, 0);
    values_ = kernels::ValueView(*collection, 0);
    constexpr std::uint32_t kStored = kPrompt + kCached + 1;
    const std::vector<float> k = UniformValues(std::size_t{kStored} * kColumns, 5);
    const std::vector<float> v = UniformValues(std::size_t{kStored} * kColumns, 6);
    const std::uint32_t rows[] = {0, kPrompt, kStored};
    QUIRE_CHECK(kernels::KvStore(backend, {.keys = &*keys_,
                                           .values = &*values_,
                                           .k = k.data(),
                                           .v = v.data(),
                                           .row_offsets = rows,
                                           .k_stride = kColumns,
                                           .v_stride = kColumns,
                                           .batch_size = 2})
                    .ok());
    cached_[1] = kCached;
  }

  const kernels::AnyKvView& keys() const { return *keys_; }
  const kernels::AnyKvView& values() const { return *values_; }

 private:
  static constexpr std::uint32_t kTableStride = 24;

  // [2][kTableStride] page ids.
  alignas(32) std::uint32_t table_[2 * kTableStride] = {2, 7};
  std::uint32_t cached_[2] = {};
  DeviceBuffer pages_;
  std::optional<kernels::AnyKvView> keys_, values_;
};

void Checker::CheckAttention(CpuActivations activations) {
  constexpr std::uint32_t kHeads = 4, kColumns = kHeads * SequencePair::kHeadSize;
  constexpr std::uint32_t kPrompt = SequencePair::kPrompt, kRows = kPrompt + 1;
  const bool is_bf16 = activations == CpuActivations::kBF16;
  const Backend backend = MakeBackend(activations);
  KernelCheck check = {
      .kernel = absl::StrCat(kernels::CpuActivationsName(activations), " attention"),
      .shape = absl::StrCat("bf16 pages, prompts of ", kPrompt, " and ", SequencePair::kCached + 1,
                            " tokens, ", kHeads, " heads of ", SequencePair::kHeadSize),
      .limit = is_bf16 ? 0 : kMaxError};
  sink_(check, /*is_finished=*/false);
  const SequencePair sequences(backend);
  const std::vector<float> q = UniformValues(std::size_t{kRows} * kColumns, 7, 2);
  const std::uint32_t rows[] = {0, kPrompt, kRows};
  Output y(kRows, kColumns), expected(kRows, kColumns);
  kernels::AttentionParams params = {.keys = &sequences.keys(),
                                     .values = &sequences.values(),
                                     .q = q.data(),
                                     .out = expected.data(),
                                     .row_offsets = rows,
                                     .q_stride = kColumns,
                                     .out_stride = static_cast<std::int64_t>(y.stride()),
                                     .batch_size = 2,
                                     .num_heads = kHeads,
                                     .scale = 0.125f};
  if (is_bf16) {
    kernels::internal::AttentionBf16Cpu(params, 0, kRows);
  } else {
    kernels::internal::AttentionCpu(params);
  }
  params.out = y.data();
  SetFault(ops_.attention(backend, params), &check);
  if (check.fault.empty()) Compare(y, expected, &check);
  sink_(check, /*is_finished=*/true);
}

void Checker::CheckNorm() {
  constexpr std::uint32_t kRows = 9;
  const Backend backend = MakeBackend(CpuActivations::kF32);
  KernelCheck check = {.kernel = "rms norm",
                       .shape = absl::StrCat("residual, ", kRows, " x ", kOddInputs),
                       .limit = kMaxError};
  const std::vector<float> x = UniformValues(std::size_t{kRows} * kOddInputs, 8);
  const std::vector<float> weight = UniformValues(kOddInputs, 9);
  std::vector<float> residual = UniformValues(x.size(), 10);
  std::vector<float> reference_residual = residual;
  Output y(kRows, kOddInputs), expected(kRows, kOddInputs);
  const auto params = [&](std::vector<float>* residuals, Output* out) {
    return kernels::RmsNormParams{.x = x.data(),
                                  .weight = weight.data(),
                                  .residual = residuals->data(),
                                  .y = out->data(),
                                  .x_stride = kOddInputs,
                                  .residual_stride = kOddInputs,
                                  .y_stride = static_cast<std::int64_t>(out->stride()),
                                  .num_rows = kRows,
                                  .hidden = kOddInputs,
                                  .epsilon = 1e-5f};
  };
  sink_(check, /*is_finished=*/false);
  kernels::internal::RmsNormCpu(params(&reference_residual, &expected), 0, kRows);
  SetFault(ops_.norm(backend, params(&residual, &y)), &check);
  if (check.fault.empty()) Compare(y, expected, &check);
  if (check.fault.empty() && residual != reference_residual) check.fault = "the residual is wrong";
  sink_(check, /*is_finished=*/true);
}

// Inputs of the delta rule. Two heads share a key head. The columns of a head fill one block of the
// kernel and part of another.
struct ScanInputs {
  static constexpr std::uint32_t kHeads = 2, kKeySize = 24, kValueSize = 72, kTokens = 5;
  static constexpr std::uint32_t kColumns = kHeads * kValueSize;
  static constexpr std::size_t kState = std::size_t{kColumns} * kKeySize;

  // Parameters of a step after `cached` tokens.
  kernels::StateScanParams Params(std::int32_t cached, float* out) {
    std::iota(positions.begin(), positions.end(), cached);
    return {.rows = {.states = reinterpret_cast<std::byte*>(states.data()),
                     .slot_stride = kState * sizeof(float),
                     .slots = {.state_in = &zero,
                               .state_out = &zero,
                               .snapshot_at = &zero,
                               .snapshot_slot = &zero,
                               .max_rows = 1},
                     .row_offsets = row_offsets,
                     .positions = positions.data(),
                     .batch_size = 1,
                     .num_tokens = kTokens},
            .q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .decay = decay.data(),
            .rate = rate.data(),
            .out = out,
            .qkv_stride = kColumns,
            .heads = kHeads,
            .key_heads = 1,
            .key_size = kKeySize,
            .value_size = kValueSize};
  }

  const std::vector<float> q = UniformValues(kTokens * kColumns, 11);
  const std::vector<float> k = UniformValues(kTokens * kColumns, 12, 0.2f);
  const std::vector<float> v = UniformValues(kTokens * kColumns, 13);
  const std::vector<float> decay = UniformValues(kTokens * kHeads, 14);
  const std::vector<float> rate = UniformValues(kTokens * kHeads, 15);
  std::vector<float> states = std::vector<float>(kState);
  std::vector<std::int32_t> positions = std::vector<std::int32_t>(kTokens);
  std::uint32_t row_offsets[2] = {0, kTokens};
  std::uint32_t zero = 0;
};

void Checker::CheckScan() {
  constexpr std::uint32_t kTokens = ScanInputs::kTokens;
  const Backend backend = MakeBackend(CpuActivations::kF32);
  KernelCheck check = {
      .kernel = "state scan",
      .shape = absl::StrCat("2 x ", kTokens, " tokens, ", ScanInputs::kHeads, " heads of ",
                            ScanInputs::kKeySize, " x ", ScanInputs::kValueSize),
      .limit = kMaxError};
  sink_(check, /*is_finished=*/false);
  ScanInputs inputs, reference;
  // One row for the results of each step.
  Output y(2, kTokens * ScanInputs::kColumns), expected(2, kTokens * ScanInputs::kColumns);
  for (std::uint32_t step = 0; step < 2 && check.fault.empty(); ++step) {
    const auto cached = static_cast<std::int32_t>(step * kTokens);
    const auto params = reference.Params(cached, expected.data() + step * expected.stride());
    for (std::uint32_t head = 0; head < ScanInputs::kHeads; ++head) {
      kernels::internal::StateScanCpu(params, 0, head, 0, ScanInputs::kValueSize);
    }
    SetFault(ops_.scan(backend, inputs.Params(cached, y.data() + step * y.stride())), &check);
  }
  if (check.fault.empty()) Compare(y, expected, &check);
  sink_(check, /*is_finished=*/true);
}

}  // namespace

CheckedOps::CheckedOps()
    : linear(kernels::Linear),
      attention(kernels::PagedAttention),
      norm(kernels::RmsNorm),
      scan(kernels::StateScan) {}

void CheckCpuKernels(const CheckedOps& ops, KernelCheckSink sink) {
  Checker checker(ops, sink);
  checker.CheckProducts();
  checker.CheckAttention(CpuActivations::kF32);
  if (kernels::CheckCpuActivations(CpuActivations::kBF16).ok()) {
    checker.CheckAttention(CpuActivations::kBF16);
  }
  checker.CheckNorm();
  checker.CheckScan();
}

}  // namespace quire::runtime

#include "runtime/self_check.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/device.h"
#include "base/split_mix.h"
#include "base/status.h"
#include "runtime/self_check_context.h"

namespace quire::runtime {
namespace {

constexpr std::int64_t kAlignment = 256;
constexpr std::size_t kPoisonBytes = 4096;

std::string Remedy(const kernels::Backend& backend) {
  if (backend.cuda()->has_sm90a()) {
    return "device.hopper_kernels: false selects the portable kernels";
  }
  return "update the driver, use another GPU, or set device.type: cpu";
}

// Zeroes the step buffers, so that no step finds values of the check.
absl::Status CleanUp(SelfCheckContext* context) {
  const models::StepBuffers& buffers = *context->params().buffers;
  auto* const base = static_cast<std::byte*>(buffers.memory.data());
  auto* const end = reinterpret_cast<std::byte*>(buffers.inv_freq);
  QUIRE_RETURN_IF_ERROR(context->cuda().stream->Zero(base, end - base));
  return context->Wait();
}

}  // namespace

SelfCheckContext::SelfCheckContext(const SelfCheckParams& params, const kernels::Backend& cpu,
                                   absl::Duration limit, SelfCheckReport* report)
    : params_(params),
      cpu_(cpu),
      stream_(*params.backend->cuda()->stream),
      deadline_(MonotonicNow() + limit),
      report_(report),
      poison_(kPoisonBytes, std::byte{0xff}),
      base_(static_cast<std::byte*>(params.buffers->memory.data())),
      total_(reinterpret_cast<std::byte*>(params.buffers->token_rows) - base_) {}

absl::StatusOr<std::byte*> SelfCheckContext::Take(std::int64_t bytes) {
  const std::int64_t padded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (padded > free_bytes()) {
    return absl::ResourceExhaustedError(absl::StrCat("the comparison needs ", used_ + padded,
                                                     " bytes of the buffers of a step, which have ",
                                                     total_, "; raise scheduler.max_step_tokens"));
  }
  std::byte* const memory = base_ + used_;
  used_ += padded;
  return memory;
}

absl::StatusOr<kernels::FloatPtr> SelfCheckContext::TakeFloats(DType dtype, std::int64_t count) {
  QUIRE_ASSIGN_OR_RETURN(std::byte* const memory, Take(count * DTypeSize(dtype)));
  return kernels::FloatPtr(memory, dtype);
}

absl::Status SelfCheckContext::Wait() {
  QUIRE_ASSIGN_OR_RETURN(Event event, Event::Create(stream_.device()));
  QUIRE_RETURN_IF_ERROR(event.Record(stream_));
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const bool is_done, event.IsDone());
    if (is_done) return absl::OkStatus();
    if (MonotonicNow() >= deadline_) {
      return absl::DeadlineExceededError("it did not end within the time limit of the check");
    }
    std::this_thread::yield();
  }
}

absl::Status SelfCheckContext::Copy(void* to, const void* from, std::int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  work().copied_bytes += static_cast<double>(bytes);
  // A copy of pageable memory may wait for the stream without a limit.
  QUIRE_RETURN_IF_ERROR(Wait());
  QUIRE_RETURN_IF_ERROR(stream_.Copy(to, from, bytes));
  return Wait();
}

absl::Status SelfCheckContext::UploadFloats(kernels::FloatPtr to, std::span<const float> values) {
  if (to.is_f32()) {
    return Copy(to.data(), values.data(), static_cast<std::int64_t>(values.size_bytes()));
  }
  std::vector<BF16> rounded(values.size());
  std::transform(values.begin(), values.end(), rounded.begin(), BF16::FromFloat);
  return Copy(to.data(), rounded.data(), static_cast<std::int64_t>(rounded.size() * sizeof(BF16)));
}

absl::StatusOr<std::vector<float>> SelfCheckContext::DownloadFloats(kernels::ConstFloatPtr from,
                                                                    std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  if (from.is_f32()) {
    QUIRE_RETURN_IF_ERROR(
        Copy(values.data(), from.data(), count * static_cast<std::int64_t>(sizeof(float))));
    return values;
  }
  std::vector<BF16> stored(values.size());
  QUIRE_RETURN_IF_ERROR(
      Copy(stored.data(), from.data(), count * static_cast<std::int64_t>(sizeof(BF16))));
  std::transform(stored.begin(), stored.end(), values.begin(),
                 [](BF16 value) { return value.ToFloat(); });
  return values;
}

absl::Status SelfCheckContext::Poison(void* to, std::int64_t bytes) {
  auto* const first = static_cast<std::byte*>(to);
  std::int64_t filled = std::min(bytes, static_cast<std::int64_t>(poison_.size()));
  if (bytes == 0) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(stream_.Copy(first, poison_.data(), filled));
  while (filled < bytes) {
    const std::int64_t size = std::min(filled, bytes - filled);
    QUIRE_RETURN_IF_ERROR(stream_.Copy(first + filled, first, size));
    filled += size;
  }
  return absl::OkStatus();
}

absl::Status SelfCheckContext::Repeat(void* to, const void* rows, std::uint32_t count,
                                      std::int64_t row_bytes, std::uint32_t begin,
                                      std::uint32_t end) {
  auto* const first = static_cast<std::byte*>(to);
  const auto* const source = static_cast<const std::byte*>(rows);
  while (begin < end) {
    // Rows that have been copied are the source of the next copy, so the number of rows doubles.
    const bool has_run = begin >= count;
    const std::uint32_t from = begin % count;
    const std::uint32_t run = std::min(end - begin, has_run ? begin - from : count - from);
    QUIRE_RETURN_IF_ERROR(stream_.Copy(
        first + begin * row_bytes, (has_run ? first : source) + from * row_bytes, run * row_bytes));
    begin += run;
  }
  return absl::OkStatus();
}

void SelfCheckContext::Begin(absl::string_view kernel, absl::string_view shape) {
  current_ = absl::StrCat(kernel, ", ", shape);
}

void SelfCheckContext::Add(kernels::KernelCheck check) {
  if (check.fault.empty() && !(check.error <= check.limit)) {
    check.fault = std::isnan(check.error) ? "the result has values that are not finite"
                                          : "the result differs from the reference";
  }
  report_->checks.push_back(std::move(check));
}

std::vector<float> RandomValues(std::size_t count, std::uint64_t seed) {
  constexpr std::size_t kPerWord = 8;
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t word = SplitMix(seed + i / kPerWord * kSplitMixStep);
    const auto byte = static_cast<std::int32_t>(word >> (i % kPerWord * 8) & 0xff);
    values[i] = static_cast<float>(byte - 128) / 64;
  }
  return values;
}

std::vector<float> RepeatedRows(std::uint32_t rows, std::uint32_t patterns, std::uint32_t columns,
                                std::uint64_t seed) {
  const std::vector<float> distinct = RandomValues(std::size_t{patterns} * columns, seed);
  std::vector<float> values;
  for (std::uint32_t row = 0; row < rows; ++row) {
    const auto first = distinct.begin() + row % patterns * columns;
    values.insert(values.end(), first, first + columns);
  }
  return values;
}

double RelativeError(std::span<const float> a, std::span<const float> b) {
  QUIRE_CHECK(a.size() == b.size());
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    apart += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  if (apart == 0) return 0;
  if (!std::isfinite(apart)) return std::nan("");
  return std::sqrt(apart / size);
}

absl::Status FailureOf(std::span<const kernels::KernelCheck> checks,
                       const kernels::Backend& backend) {
  const auto failed = std::ranges::find_if(
      checks, [](const kernels::KernelCheck& check) { return !check.fault.empty(); });
  if (failed == checks.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "self-check of the kernels: %s, %s: %s (relative error %.2g, limit %.2g); %s", failed->kernel,
      failed->shape, failed->fault, failed->error, failed->limit, Remedy(backend)));
}

absl::Status CheckError(const absl::Status& status, const kernels::Backend& backend) {
  const std::string text = absl::StrCat("self-check of the kernels: ", status.message());
  if (absl::IsResourceExhausted(status)) return absl::ResourceExhaustedError(text);
  const std::string with_remedy = absl::StrCat(text, "; ", Remedy(backend));
  return absl::IsDeadlineExceeded(status) ? absl::DeadlineExceededError(with_remedy)
                                          : absl::FailedPreconditionError(with_remedy);
}

absl::Status RunSelfCheck(const SelfCheckParams& params, absl::Duration limit,
                          SelfCheckReport* report) {
  QUIRE_CHECK(params.backend->cuda() != nullptr);
  QUIRE_RETURN_IF_ERROR(UseDevice(params.backend->device()));
  QUIRE_ASSIGN_OR_RETURN(const kernels::Backend cpu,
                         kernels::Backend::Create(Device::Cpu(), params.backend->pool()));
  SelfCheckContext context(params, cpu, limit, report);
  absl::Status status = CheckProducts(&context);
  if (status.ok()) status = CheckAttention(&context);
  if (status.ok()) status = CheckSelection(&context);
  if (status.ok()) status = CheckSmallOps(&context);
  if (status.ok()) status = CleanUp(&context);
  if (!status.ok()) {
    return CheckError(
        absl::Status(status.code(), absl::StrCat(context.current(), ": ", status.message())),
        *params.backend);
  }
  return FailureOf(report->checks, *params.backend);
}

}  // namespace quire::runtime

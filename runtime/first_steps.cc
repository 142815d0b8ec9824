#include "runtime/first_steps.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strong_id.h"
#include "cache_manager/cache_manager.h"
#include "runtime/self_check_context.h"

namespace quire::runtime {
namespace {

// The prompt is short, because tests run these steps on a CPU that emulates the GPU. RunSelfCheck
// compares attention over several pages.
constexpr std::uint32_t kPromptTokens = 9;

bool IsFinite(const StepResult& result) {
  if (!result.samples.empty()) return !result.samples[0].non_finite;
  return std::ranges::all_of(result.pools[0], [](float value) { return std::isfinite(value); });
}

// Completes the batch with the inputs from the cache, and computes it.
absl::StatusOr<const StepResult*> RunStep(const FirstSteps& steps,
                                          std::span<const cache::RowStep> rows, StepBatch* batch) {
  batch->copies = steps.cache->TakeCopies();
  batch->clears = steps.cache->TakeClears();
  batch->kv = steps.cache->PrepareStep(rows);
  batch->states = steps.cache->state_inputs();
  QUIRE_RETURN_IF_ERROR(steps.runner->Run(*batch));
  return steps.runner->Collect();
}

// Tokens [begin, end) of the sequence that the steps compute, for a row whose pages contain the
// tokens before `begin`.
struct Part {
  BatchRow row;
  std::uint32_t begin = 0, end = 0;
  bool is_prompt = true;
};

class StepComparison {
 public:
  StepComparison(const FirstSteps& steps, std::vector<kernels::KernelCheck>* checks)
      : steps_(steps),
        checks_(checks),
        prompt_(std::min({kPromptTokens, steps.max_step_tokens - 1, steps.max_context_tokens - 1})),
        has_choices_(std::ranges::any_of(steps.spec->layers,
                                         [](const models::LayerSpec& layer) {
                                           return layer.has_moe() || layer.mla.has_indexer();
                                         })),
        limit_(steps.activation == DType::kBF16 ? 0.1 : 1e-3) {}

  absl::Status Run();
  // Describes the current comparison, for messages.
  const std::string& shape() const { return shape_; }

 private:
  using Logits = std::vector<float>;  // [parts, vocab], of the last token of each part

  // Reserves the pages of the parts' tokens.
  absl::Status Reserve(std::span<const Part> parts);
  absl::StatusOr<Logits> Compute(std::span<const Part> parts);
  // Adds a check that `got` and `want` are bitwise equal.
  void CompareBits(const std::string& shape, std::span<const float> got, const Logits& want);
  // Compares steps that compute a prompt and a generated token of two sequences.
  absl::Status CompareMixed(const Part& prompt, const Part& next, const Logits& of_prompt,
                            const Logits& of_next);
  void Free(std::uint32_t rows);

  const FirstSteps& steps_;
  std::vector<kernels::KernelCheck>* const checks_;
  const std::uint32_t prompt_;  // prompt tokens; one generated token follows
  const bool has_choices_;      // the model chooses experts, or keys by an indexer
  const double limit_;          // maximum error of the generated token's logits
  std::string shape_;
};

absl::Status StepComparison::Reserve(std::span<const Part> parts) {
  for (const Part& part : parts) {
    QUIRE_RETURN_IF_ERROR(steps_.cache->Reserve(part.row, part.end));
  }
  return absl::OkStatus();
}

absl::StatusOr<StepComparison::Logits> StepComparison::Compute(std::span<const Part> parts) {
  QUIRE_RETURN_IF_ERROR(Reserve(parts));
  StepBatch batch;
  std::vector<cache::RowStep> rows;
  for (const Part& part : parts) {
    const std::uint32_t count = part.end - part.begin;
    batch.rows.push_back({.batch_row = part.row,
                          .cache_length = part.begin,
                          .first_token = static_cast<std::uint32_t>(batch.token_ids.size()),
                          .num_tokens = count,
                          .prompt_tokens = part.is_prompt ? count : 0});
    rows.push_back({.row = part.row, .cache_length = part.begin, .new_tokens = count});
    for (std::uint32_t i = part.begin; i < part.end; ++i) {
      constexpr std::uint64_t kPrime = 7919;
      batch.token_ids.push_back(
          static_cast<std::int32_t>((i + 1) * kPrime % steps_.spec->vocab_size));
    }
    batch.logits_tokens.push_back(static_cast<std::uint32_t>(batch.token_ids.size() - 1));
  }
  Logits logits(parts.size() * steps_.spec->vocab_size);
  batch.logits_out = logits.data();
  QUIRE_RETURN_IF_ERROR(RunStep(steps_, rows, &batch).status());
  steps_.cache->CompleteStep();
  return logits;
}

void StepComparison::CompareBits(const std::string& shape, std::span<const float> got,
                                 const Logits& want) {
  kernels::KernelCheck check{.kernel = "steps", .shape = shape};
  check.error = RelativeError(got, want);
  if (std::memcmp(got.data(), want.data(), got.size_bytes()) != 0) {
    check.fault = "the logits are not bitwise equal to those of the reference step";
  } else if (std::isnan(check.error)) {
    check.fault = "the logits are not finite";
  }
  checks_->push_back(std::move(check));
}

void StepComparison::Free(std::uint32_t rows) {
  for (std::uint32_t row = 0; row < rows; ++row) steps_.cache->Free(BatchRow(row));
}

absl::Status StepComparison::CompareMixed(const Part& prompt, const Part& next,
                                          const Logits& of_prompt, const Logits& of_next) {
  const std::string shapes[] = {"generated token beside a prompt",
                                "prompt beside a generated token"};
  Part beside = prompt;
  beside.row = BatchRow(1);
  const Part parts[] = {next, beside};
  shape_ = shapes[0];
  const absl::Status reserved = steps_.max_rows > 1
                                    ? Reserve(parts)
                                    : absl::ResourceExhaustedError("max_running_sequences is 1");
  if (absl::IsResourceExhausted(reserved)) {
    for (const std::string& shape : shapes) {
      checks_->push_back(
          {.kernel = "steps",
           .shape = shape,
           .skipped = absl::StrCat("two sequences cannot run at once: ", reserved.message())});
    }
    Free(std::min(steps_.max_rows, 2u));
    return absl::OkStatus();
  }
  QUIRE_RETURN_IF_ERROR(reserved);
  // A step with a prompt does not run as a graph.
  QUIRE_ASSIGN_OR_RETURN(const Logits mixed, Compute(parts));
  Free(2);
  const std::span<const float> rows = mixed;
  CompareBits(shapes[0], rows.first(steps_.spec->vocab_size), of_next);
  CompareBits(shapes[1], rows.subspan(steps_.spec->vocab_size), of_prompt);
  return absl::OkStatus();
}

absl::Status StepComparison::Run() {
  const BatchRow first(0);
  const Part prompt{first, 0, prompt_};
  const Part next{first, prompt_, prompt_ + 1, /*is_prompt=*/false};
  shape_ = absl::StrCat("prompt of ", prompt_, " tokens");
  QUIRE_ASSIGN_OR_RETURN(const Logits of_prompt, Compute({{prompt}}));
  shape_ = "generated token";
  QUIRE_ASSIGN_OR_RETURN(const Logits of_next, Compute({{next}}));
  Free(1);

  const std::uint32_t half = prompt_ / 2;
  shape_ = absl::StrCat("prompt of ", half, " + ", prompt_ - half, " tokens");
  QUIRE_RETURN_IF_ERROR(Compute({{{first, 0, half}}}).status());
  QUIRE_ASSIGN_OR_RETURN(const Logits of_chunk, Compute({{{first, half, prompt_}}}));
  CompareBits(shape_, of_chunk, of_prompt);

  QUIRE_RETURN_IF_ERROR(CompareMixed(prompt, next, of_prompt, of_next));
  shape_ = "generated token and the same token in a prompt";
  kernels::KernelCheck check{.kernel = "steps", .shape = shape_, .limit = limit_};
  if (has_choices_) {
    check.skipped = "rounding can change the experts or keys that a token chooses";
  } else {
    const Part whole{prompt.row, 0, prompt_ + 1};
    QUIRE_ASSIGN_OR_RETURN(const Logits as_prompt, Compute({{whole}}));
    Free(1);
    check.error = RelativeError(of_next, as_prompt);
    if (!(check.error <= check.limit)) check.fault = "the logits differ";
  }
  checks_->push_back(std::move(check));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunOneToken(const FirstSteps& steps) {
  const BatchRow row(0);
  QUIRE_RETURN_IF_ERROR(steps.cache->Reserve(row, 1));
  const cache::RowStep step{.row = row, .cache_length = 0, .new_tokens = 1};
  StepBatch batch;
  batch.token_ids = {0};
  batch.rows = {{.batch_row = row, .cache_length = 0, .first_token = 0, .num_tokens = 1}};
  if (steps.spec->has_head) {
    batch.logits_tokens = {0};
    batch.samples.resize(1);
    batch.samples[0].row.temperature = 0;
    batch.samples[0].row.position = 1;
  } else {
    batch.pools = {{.batch_row = row, .num_tokens = 1, .begins = true, .ends = true}};
  }
  QUIRE_ASSIGN_OR_RETURN(const StepResult* result, RunStep(steps, {&step, 1}, &batch));
  const bool is_finite = IsFinite(*result);
  steps.cache->CompleteStep();
  steps.cache->Free(row);
  if (!is_finite) {
    return absl::InvalidArgumentError("the logits of the model's first step are NaN or infinite");
  }
  return absl::OkStatus();
}

absl::Status CompareSteps(const FirstSteps& steps, std::vector<kernels::KernelCheck>* checks) {
  constexpr std::uint32_t kMinTokens = 4;
  std::string skipped;
  if (!steps.spec->has_head) {
    skipped = "the model has no logits";
  } else if (std::min(steps.max_step_tokens, steps.max_context_tokens) < kMinTokens) {
    skipped = absl::StrCat("a step or a sequence is limited to fewer than ", kMinTokens, " tokens");
  }
  if (!skipped.empty()) {
    checks->push_back({.kernel = "steps", .shape = "all", .skipped = std::move(skipped)});
    return absl::OkStatus();
  }
  StepComparison comparison(steps, checks);
  const absl::Status status = comparison.Run();
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("steps, ", comparison.shape(), ": ", status.message()));
}

}  // namespace quire::runtime

// The part of the self-check that compares embedding, norm, gate and sampler with the CPU.

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/split_mix.h"
#include "base/status.h"
#include "kernels/backend/isa.h"
#include "kernels/elementwise/activation.h"
#include "kernels/elementwise/embedding.h"
#include "kernels/norm/norm.h"
#include "kernels/sampling/device_sampler.h"
#include "kernels/sampling/sampling.h"
#include "models/blocks/mlp_block.h"
#include "runtime/self_check_context.h"

namespace quire::runtime {
namespace {

using kernels::FloatPtr;

constexpr std::uint32_t kRows = 65;

// Runs an op twice over poisoned memory at `y`, [rows, columns], and compares the result with
// `want`. Rows whose numbers are equal modulo kPatterns must be equal.
absl::Status CompareRows(SelfCheckContext* context, kernels::KernelCheck check, FloatPtr y,
                         std::uint32_t rows, std::uint32_t columns, std::span<const float> want,
                         absl::FunctionRef<absl::Status()> run) {
  context->Begin(check.kernel, check.shape);
  const std::int64_t count = std::int64_t{rows} * columns;
  std::vector<float> results[2];
  for (std::vector<float>& result : results) {
    QUIRE_RETURN_IF_ERROR(context->Poison(y.data(), count * DTypeSize(y.dtype())));
    QUIRE_RETURN_IF_ERROR(run());
    QUIRE_ASSIGN_OR_RETURN(result, context->DownloadFloats(y, count));
  }
  check.error = RelativeError(results[0], want);
  for (std::uint32_t row = 0; row < rows && check.fault.empty(); ++row) {
    const float* const values = &results[0][std::size_t{row} * columns];
    const std::size_t bytes = columns * sizeof(float);
    if (std::memcmp(values, &results[1][std::size_t{row} * columns], bytes) != 0) {
      check.fault = absl::StrCat("two runs differ in row ", row);
    } else if (row >= kPatterns &&
               std::memcmp(values, values - std::size_t{kPatterns} * columns, bytes) != 0) {
      check.fault = absl::StrCat("row ", row, " differs from row ", row - kPatterns,
                                 ", which has the same input");
    }
  }
  // If the error is NaN or above the limit, Add describes that, which is more useful.
  if (!(check.error <= check.limit)) check.fault.clear();
  context->Add(std::move(check));
  return absl::OkStatus();
}

double LimitOf(DType dtype) {
  return dtype == DType::kBF16 ? 4e-3 : 1e-5;
}

// Returns the largest number of rows up to kRows for which 8 arrays of f32 fit.
std::uint32_t CountFittingRows(const SelfCheckContext& context, std::int64_t columns) {
  const std::int64_t fit = context.free_bytes() / (8 * columns * 4) - 1;
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(fit, 1, kRows));
}

// A table of rows that tokens select, in device memory.
struct EmbeddingTable {
  const char* kernel;
  const void* rows;  // [vocab, columns]
  DType dtype;
  std::uint32_t vocab;
  std::uint32_t columns;
  float scale;
};

// Looks up kPatterns tokens, spread evenly over the vocabulary, or fewer if fewer rows fit. The CPU
// looks the tokens up in a copy of their table rows.
absl::Status CheckEmbedding(SelfCheckContext* context, const EmbeddingTable& table) {
  context->Free();
  const std::uint32_t rows = CountFittingRows(*context, table.columns);
  kernels::KernelCheck check{
      .kernel = table.kernel,
      .shape = absl::StrCat(DTypeName(table.dtype), ", ", rows, " lookups in ", table.vocab, " x ",
                            table.columns)};
  context->Begin(check.kernel, check.shape);
  const std::int64_t row_bytes = table.columns * DTypeSize(table.dtype);
  std::vector<std::byte> copied(static_cast<std::size_t>(kPatterns * row_bytes));
  std::vector<std::int32_t> tokens(rows), copied_tokens(rows);
  for (std::uint32_t p = 0; p < kPatterns; ++p) {
    const std::int64_t token = std::int64_t{table.vocab - 1} * p / (kPatterns - 1);
    for (std::uint32_t row = p; row < rows; row += kPatterns) {
      tokens[row] = static_cast<std::int32_t>(token);
      copied_tokens[row] = static_cast<std::int32_t>(p);
    }
    QUIRE_RETURN_IF_ERROR(
        context->Copy(copied.data() + p * row_bytes,
                      static_cast<const std::byte*>(table.rows) + token * row_bytes, row_bytes));
  }
  const std::int64_t count = std::int64_t{rows} * table.columns;
  std::vector<float> want(static_cast<std::size_t>(count));
  kernels::EmbeddingParams params{.table = copied.data(),
                                  .tokens = copied_tokens.data(),
                                  .y = want.data(),
                                  .y_stride = table.columns,
                                  .dtype = table.dtype,
                                  .vocab = kPatterns,
                                  .hidden = table.columns,
                                  .num_rows = rows,
                                  .scale = table.scale};
  QUIRE_RETURN_IF_ERROR(kernels::Embedding(context->cpu(), params));
  QUIRE_ASSIGN_OR_RETURN(params.tokens, context->Upload(tokens));
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr y, context->TakeFloats(DType::kF32, count));
  params.table = table.rows;
  params.y = y.f32();
  params.vocab = table.vocab;
  return CompareRows(context, std::move(check), y, rows, table.columns, want,
                     [&] { return kernels::Embedding(*context->params().backend, params); });
}

absl::Status CheckEmbeddings(SelfCheckContext* context) {
  const models::ModelSpec& spec = *context->params().spec;
  const models::Weights& weights = *context->params().weights;
  QUIRE_RETURN_IF_ERROR(CheckEmbedding(context, {.kernel = "embedding",
                                                 .rows = weights.embedding(),
                                                 .dtype = weights.embedding_dtype(),
                                                 .vocab = spec.vocab_size,
                                                 .columns = spec.hidden,
                                                 .scale = spec.embed_scale}));
  const models::PerLayerInputSpec& inputs = spec.layer_inputs;
  if (inputs.size == 0) return absl::OkStatus();
  return CheckEmbedding(context,
                        {.kernel = "embedding of layer inputs",
                         .rows = weights.input_embedding(),
                         .dtype = weights.input_embedding_dtype(),
                         .vocab = inputs.vocab,
                         .columns = inputs.size * static_cast<std::uint32_t>(spec.layers.size()),
                         .scale = inputs.embed_scale});
}

absl::Status CheckNorm(SelfCheckContext* context) {
  const std::uint32_t hidden = context->params().spec->hidden;
  context->Free();
  const std::uint32_t rows = CountFittingRows(*context, hidden);
  const std::int64_t count = std::int64_t{rows} * hidden;
  const std::vector<float> x = RepeatedRows(rows, kPatterns, hidden, 7);
  const std::vector<float> weight = RandomValues(hidden, 8);
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr device_x, context->TakeFloats(DType::kF32, count));
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr device_weight, context->TakeFloats(DType::kF32, hidden));
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr y, context->TakeFloats(context->activation(), count));
  QUIRE_RETURN_IF_ERROR(context->UploadFloats(device_x, x));
  QUIRE_RETURN_IF_ERROR(context->UploadFloats(device_weight, weight));
  std::vector<float> want(x.size());
  kernels::RmsNormParams params{.x = kernels::ConstFloatPtr(x.data()),
                                .weight = weight.data(),
                                .y = FloatPtr(want.data()),
                                .x_stride = hidden,
                                .y_stride = hidden,
                                .num_rows = rows,
                                .hidden = hidden,
                                .epsilon = 1e-6f};
  QUIRE_RETURN_IF_ERROR(kernels::RmsNorm(context->cpu(), params));
  params.x = device_x;
  params.weight = device_weight.f32();
  params.y = y;
  return CompareRows(context,
                     {.kernel = "norm",
                      .shape = absl::StrCat(rows, " x ", hidden),
                      .limit = LimitOf(y.dtype()),
                      .fault = {}},
                     y, rows, hidden, want,
                     [&] { return kernels::RmsNorm(*context->params().backend, params); });
}

absl::Status CheckGate(SelfCheckContext* context, const models::MlpSpec& mlp) {
  const std::uint32_t columns = mlp.intermediate;
  context->Free();
  const std::uint32_t rows = CountFittingRows(*context, columns);
  const std::int64_t count = std::int64_t{rows} * columns;
  const std::vector<float> gate = RepeatedRows(rows, kPatterns, columns, 9);
  const std::vector<float> up = RepeatedRows(rows, kPatterns, columns, 10);
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr device_gate,
                         context->TakeFloats(context->activation(), count));
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr device_up,
                         context->TakeFloats(context->activation(), count));
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr y, context->TakeFloats(context->activation(), count));
  QUIRE_RETURN_IF_ERROR(context->UploadFloats(device_gate, gate));
  QUIRE_RETURN_IF_ERROR(context->UploadFloats(device_up, up));
  std::vector<float> want(gate.size());
  kernels::GatedProductParams params{
      .gate = kernels::ConstFloatPtr(gate.data()),
      .up = mlp.gated ? kernels::ConstFloatPtr(up.data()) : kernels::ConstFloatPtr(),
      .y = FloatPtr(want.data()),
      .gate_stride = columns,
      .up_stride = columns,
      .y_stride = columns,
      .num_rows = rows,
      .columns = columns,
      .shape = models::GateShapeOf(mlp)};
  QUIRE_RETURN_IF_ERROR(kernels::GatedProduct(context->cpu(), params));
  params.gate = device_gate;
  if (mlp.gated) params.up = device_up;
  params.y = y;
  return CompareRows(context,
                     {.kernel = "gate",
                      .shape = absl::StrCat(rows, " x ", columns),
                      .limit = LimitOf(y.dtype()),
                      .fault = {}},
                     y, rows, columns, want,
                     [&] { return kernels::GatedProduct(*context->params().backend, params); });
}

// Returns the samples of the check. `greedy_only` is set if the CPU has no fused multiply-add. The
// CPU's probabilities then differ from the GPU's in some bits, so only a greedy token is compared.
std::vector<kernels::SamplingRow> SamplesOf(const SelfCheckParams& params, bool greedy_only) {
  const auto vocab = static_cast<std::int32_t>(params.spec->vocab_size);
  static const kernels::TokenCount history[] = {{0, 2}, {1, 0}};
  std::vector<kernels::SamplingRow> rows(greedy_only ? 1 : 4);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].seed = i;
    rows[i].position = 3;
    rows[i].text_vocab = params.text_vocab;
    rows[i].has_text = params.has_text;
  }
  rows[0].temperature = 0;
  if (greedy_only) return rows;
  rows[1].num_logprobs = static_cast<std::int32_t>(std::min(params.limits.max_logprobs, 4u));
  rows[1].top_p = 0.9f;
  rows[1].top_k = 40;
  rows[2].temperature = 0.7f;
  rows[2].min_p = 0.01f;
  rows[2].history = history;
  rows[2].history_size = vocab > 1 ? 2 : 1;
  rows[2].repetition_penalty = 1.2f;
  rows[2].frequency_penalty = 0.1f;
  rows[3].top_n_sigma = 1.5f;
  rows[3].wants_processed_logprob = true;
  return rows;
}

std::string DifferenceOf(const kernels::SampledRow& a, const kernels::SampledRow& b) {
  if (a.token != b.token) return absl::StrCat("token ", a.token, " instead of ", b.token);
  if (a.logprob != b.logprob || a.processed_logprob != b.processed_logprob || a.rank != b.rank) {
    return absl::StrCat("log-probability ", a.logprob, " of rank ", a.rank, " instead of ",
                        b.logprob, " of rank ", b.rank);
  }
  if (a.non_finite != b.non_finite) {
    return absl::StrCat("logits reported as ", a.non_finite ? "not finite" : "finite",
                        " instead of ", b.non_finite ? "not finite" : "finite");
  }
  if (a.no_survivor != b.no_survivor) {
    return absl::StrCat(a.no_survivor ? "no token" : "a token",
                        " remains after filtering instead of ", b.no_survivor ? "none" : "one");
  }
  if (a.num_top != b.num_top) {
    return absl::StrCat(a.num_top, " most likely tokens instead of ", b.num_top);
  }
  for (std::uint32_t i = 0; i < a.num_top; ++i) {
    if (a.top[i].token != b.top[i].token || a.top[i].logprob != b.top[i].logprob) {
      return absl::StrCat("most likely token ", i, " is ", a.top[i].token, " instead of ",
                          b.top[i].token);
    }
  }
  return "";
}

// Samples on the device and returns the first difference from `want`.
absl::StatusOr<std::string> SampleOnDevice(SelfCheckContext* context,
                                           std::span<const kernels::SamplingRow> rows,
                                           std::span<const kernels::SampledRow> want) {
  constexpr int kSlot = 0;
  kernels::DeviceSampler& sampler = *context->params().sampler;
  const auto bytes = static_cast<std::int64_t>(rows.size() * sizeof(std::int32_t));
  const std::int64_t mark = context->used();
  QUIRE_ASSIGN_OR_RETURN(std::byte* const sampled, context->Take(bytes));
  QUIRE_RETURN_IF_ERROR(context->Poison(sampled, bytes));
  sampler.Reset(kSlot);
  QUIRE_RETURN_IF_ERROR(sampler.Sample(rows, reinterpret_cast<std::int32_t*>(sampled), kSlot));
  std::vector<std::int32_t> tokens(rows.size());
  QUIRE_RETURN_IF_ERROR(context->Copy(tokens.data(), sampled, bytes));
  context->Release(mark);
  const std::span<const kernels::SampledRow> got = sampler.samples(kSlot);
  std::string difference;
  for (std::size_t i = 0; i < rows.size() && difference.empty(); ++i) {
    difference = DifferenceOf(got[i], want[i]);
    if (difference.empty() && tokens[i] != want[i].token) {
      difference = absl::StrCat("the next step gets token ", tokens[i]);
    }
    if (!difference.empty()) absl::StrAppend(&difference, " in row ", i);
  }
  sampler.Reset(kSlot);
  return difference;
}

absl::Status CheckSampler(SelfCheckContext* context) {
  const SelfCheckParams& params = context->params();
  const std::uint32_t vocab = params.spec->vocab_size;
  const bool has_fma = kernels::internal::ChosenLevel() <= kernels::internal::CpuLevel::kAvx2;
  std::vector<kernels::SamplingRow> rows = SamplesOf(params, !has_fma);
  if (rows.size() > params.limits.max_step_samples) rows.resize(params.limits.max_step_samples);
  kernels::KernelCheck check{.kernel = "sampler", .shape = absl::StrCat(rows.size(), " x ", vocab)};
  context->Begin(check.kernel, check.shape);
  std::vector<float> logits(rows.size() * vocab);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const std::uint64_t word = SplitMix(11 + i * kSplitMixStep);
    logits[i] = static_cast<float>(word >> 40) / float{1 << 21} - 4;  // [-4, 4)
  }
  context->Free();
  QUIRE_ASSIGN_OR_RETURN(
      const FloatPtr device,
      context->TakeFloats(DType::kF32, static_cast<std::int64_t>(logits.size())));
  QUIRE_RETURN_IF_ERROR(context->UploadFloats(device, logits));
  std::vector<kernels::SampledRow> want(rows.size());
  std::vector<kernels::TopLogprob> top(rows.size() * 4);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i].logits = &logits[i * vocab];
    want[i].top = &top[i * 4];
  }
  QUIRE_RETURN_IF_ERROR(
      kernels::Sample(context->cpu(), {.rows = rows, .sampled = want, .vocab = vocab}));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i].logits = device.f32() + i * vocab;
  QUIRE_ASSIGN_OR_RETURN(std::string first, SampleOnDevice(context, rows, want));
  QUIRE_ASSIGN_OR_RETURN(const std::string second, SampleOnDevice(context, rows, want));
  check.fault = first.empty() ? second : first;
  context->Add(std::move(check));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSmallOps(SelfCheckContext* context) {
  const models::ModelSpec& spec = *context->params().spec;
  QUIRE_RETURN_IF_ERROR(CheckEmbeddings(context));
  QUIRE_RETURN_IF_ERROR(CheckNorm(context));
  const auto layer = std::find_if(spec.layers.begin(), spec.layers.end(),
                                  [](const auto& l) { return l.mlp != models::MlpKind::kNone; });
  if (layer != spec.layers.end()) {
    const bool is_dense = layer->mlp == models::MlpKind::kDense;
    QUIRE_RETURN_IF_ERROR(CheckGate(context, is_dense ? layer->dense : layer->moe.expert));
  }
  return spec.has_head ? CheckSampler(context) : absl::OkStatus();
}

}  // namespace quire::runtime

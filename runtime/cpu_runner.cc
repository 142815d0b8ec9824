#include "runtime/cpu_runner.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "cache_manager/pool/kv_pool.h"
#include "kernels/comm/communicator.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/kv_store/page_copy.h"
#include "kernels/linear/fp8_linear.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/sampling/sampling.h"
#include "models/blocks/decoder.h"
#include "models/blocks/step_buffers.h"
#include "models/weights/weights.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "runtime/runner_base.h"
#include "runtime/step_batch_check.h"
#include "runtime/step_order.h"

namespace quire::models {
struct ModelRunner::State : RunnerBase {
  State(const Model& m, const kernels::Backend& b, cache::KvPool* p, const RunnerOptions& o)
      : RunnerBase(m, b, p, o), limits(LimitsOf(o)), order(limits) {
    kv.reserve(layers.groups.size());
  }

  // Run, and what it does, in order.
  absl::Status Step(const StepBatch& batch);
  absl::Status MakeCollections(const StepBatch& batch);
  absl::Status PreparePages(const StepBatch& batch);
  absl::Status Forward(const StepBatch& batch);
  absl::Status Head(const StepBatch& batch);
  absl::Status Pools(const StepBatch& batch);
  // Samples and prompt logprobs whose logits lie in rows [begin, end) of logits_tokens.
  absl::Status SampleBlock(const StepBatch& batch, std::uint32_t begin, std::uint32_t end);
  absl::Status ScoreBlock(const StepBatch& batch, std::uint32_t begin, std::uint32_t end);

  const StepLimits limits;
  StepOrder order;
  std::int64_t scratch_bytes = 0;            // reserved in the backend
  std::vector<kernels::AnyKvCollection> kv;  // of the step, one per layer group over the one pool

  std::vector<kernels::SampledRow> sampled;  // of one block of logits
  std::vector<float> pooled;  // [max_rows, hidden]: of each batch row, the sum so far
  StepResult result;
  bool has_result = false;
  absl::Status late_error;  // of the head that waited for late samples
};

absl::Status ModelRunner::State::MakeCollections(const StepBatch& batch) {
  kv.clear();
  for (const cache::KvStepInputs& inputs : batch.kv) {
    QUIRE_ASSIGN_OR_RETURN(
        kernels::AnyKvCollection collection,
        kernels::MakeKvCollection(pool->geometry(), pool->blocks(), inputs, pool->scales()));
    kv.push_back(std::move(collection));
  }
  return absl::OkStatus();
}

// Whole pages, so those of any group are all groups'.
absl::Status ModelRunner::State::PreparePages(const StepBatch& batch) {
  for (const BlockId page : batch.clears) {
    QUIRE_RETURN_IF_ERROR(kernels::ZeroPage(backend, kv[0], page.value()));
  }
  for (const cache::PageCopy& copy : batch.copies) {
    QUIRE_RETURN_IF_ERROR(kernels::CopyPage(backend, {.pool = &kv[0],
                                                      .source = copy.source.value(),
                                                      .destination = copy.target.value(),
                                                      .num_rows = copy.num_rows}));
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::State::Forward(const StepBatch& batch) {
  const std::uint32_t batch_size = order.Order(batch, {.tokens = buffers.tokens,
                                                       .positions = buffers.positions,
                                                       .row_offsets = buffers.row_offsets});
  return DecoderForward(model.spec, *model.weights,
                        {.backend = &backend,
                         .kv = kv,
                         .layers = &layers,
                         .buffers = &buffers,
                         .num_tokens = static_cast<std::uint32_t>(batch.token_ids.size()),
                         .batch_size = batch_size,
                         .heartbeat = batch.heartbeat,
                         .hidden_out = batch.hidden_out,
                         .batch_index = order.batch_index(),
                         .comm = options.comm});
}

absl::Status ModelRunner::State::Head(const StepBatch& batch) {
  const std::size_t vocab = model.spec.vocab_size;
  const std::uint32_t total = static_cast<std::uint32_t>(batch.logits_tokens.size());
  std::uint32_t* const tokens = buffers.head_tokens;
  for (std::uint32_t begin = 0; begin < total; begin += kHeadRows) {
    const std::uint32_t end = std::min(total, begin + kHeadRows);
    for (std::uint32_t i = begin; i < end; ++i) {
      tokens[i - begin] = order.step_index()[batch.logits_tokens[i]];
    }
    QUIRE_RETURN_IF_ERROR(
        DecoderHead(model.spec, *model.weights, backend, &buffers, tokens, end - begin));
    if (batch.logits_out != nullptr) {
      std::copy_n(buffers.logits, (end - begin) * vocab, batch.logits_out + begin * vocab);
    }
    QUIRE_RETURN_IF_ERROR(SampleBlock(batch, begin, end));
    QUIRE_RETURN_IF_ERROR(ScoreBlock(batch, begin, end));
    if (batch.heartbeat != nullptr) batch.heartbeat->Beat();
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::State::Pools(const StepBatch& batch) {
  for (std::size_t p = 0; p < batch.pools.size(); ++p) {
    const StepPool& pool = batch.pools[p];
    const std::size_t hidden = model.spec.hidden;
    float* const sum = pooled.data() + pool.batch_row.value() * hidden;
    QUIRE_RETURN_IF_ERROR(AddPool(pool, order.step_index()[pool.first_token], kHeadRows, sum));
    if (pool.ends) result.pools[p] = {sum, hidden};
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::State::SampleBlock(const StepBatch& batch, std::uint32_t begin,
                                             std::uint32_t end) {
  TakeSamples(batch, begin, end, SamplePass::kAll);
  if (sampling_rows.empty()) return absl::OkStatus();
  sampled.assign(sampling_rows.size(), {});
  for (std::size_t i = 0; i < sampled.size(); ++i) {
    sampled[i].top = buffers.sample_top + std::size_t{sample_indices[i]} * limits.max_logprobs;
  }
  QUIRE_RETURN_IF_ERROR(kernels::Sample(
      backend, {.rows = sampling_rows, .sampled = sampled, .vocab = model.spec.vocab_size}));
  for (std::size_t i = 0; i < sampled.size(); ++i) {
    result.samples[sample_indices[i]] = ToStepToken(sampled[i]);
  }
  return absl::OkStatus();
}

absl::Status ModelRunner::State::ScoreBlock(const StepBatch& batch, std::uint32_t begin,
                                            std::uint32_t end) {
  const std::size_t first = TakePromptLogprobs(batch, begin, end);
  if (logprob_tokens.empty()) return absl::OkStatus();
  for (std::size_t i = 0; i < logprob_tokens.size(); ++i) {
    logprob_tokens[i].top = buffers.prompt_logprob_top + (first + i) * limits.max_logprobs;
  }
  QUIRE_RETURN_IF_ERROR(kernels::ComputeLogprobs(backend, {.tokens = logprob_tokens,
                                                           .vocab = model.spec.vocab_size,
                                                           .text_vocab = text_vocab,
                                                           .has_text = has_text}));
  for (std::size_t i = 0; i < logprob_tokens.size(); ++i) {
    result.prompt_logprobs[first + i] = ToStepToken(logprob_tokens[i]);
  }
  return absl::OkStatus();
}

ModelRunner::ModelRunner(std::unique_ptr<State> state) : state_(std::move(state)) {}
ModelRunner::~ModelRunner() = default;

namespace {

// Inputs of the widest matrix.
std::uint32_t MaxInputs(const ModelSpec& spec) {
  std::int64_t inputs = spec.hidden;
  for (const LayerSpec& layer : spec.layers) {
    ForEachTensor(layer, [&](BlockKind, const TensorInfo& info) {
      if (info.is_vector()) return;
      inputs = std::max(inputs, ExtentOf(info.inputs(), spec.hidden, layer).size);
    });
  }
  return static_cast<std::uint32_t>(inputs);
}

CodedMatrices CodedMatricesOf(const Weights& weights) {
  CodedMatrices coded;
  const auto add = [&](const LinearWeights& linear) {
    for (const kernels::PackedLinear& matrix : linear.matrices) {
      coded.integers |=
          matrix.format() == WeightFormat::kInt8 || matrix.format() == WeightFormat::kInt4;
      coded.act_orders |= matrix.act_order() != nullptr;
      coded.fp8 |= matrix.format() == WeightFormat::kFp8E4M3;
    }
  };
  add(weights.head());
  for (const LayerWeights& layer : weights.layers()) {
    for (const auto& named : LinearsOf(layer)) add(*named.linear);
  }
  return coded;
}

// Products of integers and of fp8 use the same memory, one after the other.
std::int64_t LinearScratchBytes(const CodedMatrices& coded, std::uint32_t num_rows,
                                std::uint32_t inputs) {
  std::int64_t bytes = 0;
  if (coded.integers) {
    bytes = kernels::QuantizedLinearScratchBytes(num_rows, inputs, coded.act_orders);
  }
  if (coded.fp8) bytes = std::max(bytes, kernels::Fp8LinearScratchBytes(num_rows, inputs));
  return bytes;
}

std::int64_t PooledBytes(const ModelSpec& spec, const StepLimits& limits) {
  return std::int64_t{limits.max_rows} * spec.hidden * std::int64_t{sizeof(float)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelRunner>> ModelRunner::Create(const Model& model,
                                                                 const kernels::Backend& backend,
                                                                 cache::KvPool* pool,
                                                                 const RunnerOptions& options) {
  QUIRE_RETURN_IF_ERROR(CheckRunnerOptions(model.spec, options));
  QUIRE_RETURN_IF_ERROR(CheckCommunicator(model.part, options, backend));
  QUIRE_RETURN_IF_ERROR(CheckPoolGeometry(model.spec, pool->geometry()));
  auto state = std::make_unique<State>(model, backend, pool, options);
  QUIRE_ASSIGN_OR_RETURN(state->buffers, StepBuffers::Allocate(model.spec, state->limits));
  if (options.comm != nullptr) {
    options.comm->Reserve(std::size_t{state->limits.max_step_tokens} * model.spec.hidden);
  }
  state->sampled.reserve(state->limits.max_step_samples);
  state->result.samples.reserve(state->limits.max_step_samples);
  state->result.prompt_logprobs.reserve(state->limits.max_step_tokens);
  state->result.pools.reserve(state->limits.max_rows);
  state->pooled.resize(std::size_t{state->limits.max_rows} * model.spec.hidden);
  const CodedMatrices coded = CodedMatricesOf(*model.weights);
  state->scratch_bytes =
      LinearScratchBytes(coded, state->limits.max_step_tokens, MaxInputs(model.spec));
  if (state->scratch_bytes > 0) {
    backend.op_workspace().Reserve(static_cast<std::size_t>(state->scratch_bytes));
  }
  return std::unique_ptr<ModelRunner>(new ModelRunner(std::move(state)));
}

absl::Status ModelRunner::State::Step(const StepBatch& batch) {
  QUIRE_RETURN_IF_ERROR(CheckStepBatch(batch, model.spec, limits, pool->geometry(),
                                       static_cast<std::uint32_t>(layers.groups.size())));
  result.samples.assign(batch.samples.size(), StepToken{.unsampled = true, .top = {}});
  result.prompt_logprobs.assign(batch.prompt_logprobs.size(), StepToken{});
  result.pools.assign(batch.pools.size(), {});
  BeginLogits();
  if (!batch.kv.empty()) {
    QUIRE_RETURN_IF_ERROR(MakeCollections(batch));
    QUIRE_RETURN_IF_ERROR(PreparePages(batch));
    if (!batch.rows.empty()) QUIRE_RETURN_IF_ERROR(Forward(batch));
  }
  if (!batch.has_late_samples()) QUIRE_RETURN_IF_ERROR(Head(batch));
  return Pools(batch);
}

absl::Status ModelRunner::Run(const StepBatch& batch) {
  State& s = *state_;
  s.has_result = false;
  s.late_error = absl::OkStatus();
  const absl::Status done = s.Step(batch);
  // The other ranks would wait for this one's part of their next sum.
  if (!done.ok() && s.options.comm != nullptr) s.options.comm->Abort(done);
  s.has_result = done.ok();
  return done;
}

void ModelRunner::SampleLate(const StepBatch& batch) {
  state_->late_error = state_->Head(batch);
}

absl::StatusOr<const StepResult*> ModelRunner::Collect() {
  if (!state_->has_result) return absl::FailedPreconditionError("no step was launched");
  state_->has_result = false;
  QUIRE_RETURN_IF_ERROR(state_->late_error);
  return &state_->result;
}

std::int64_t ModelRunner::workspace_bytes() const {
  return state_->buffers.memory.size_bytes() + state_->scratch_bytes +
         PooledBytes(state_->model.spec, state_->limits);
}

std::int64_t PlanWorkspaceBytes(const ModelSpec& spec, const RunnerOptions& options,
                                const CodedMatrices& coded) {
  const StepLimits limits = LimitsOf(options);
  return StepBuffers::BytesFor(spec, limits) + PooledBytes(spec, limits) +
         LinearScratchBytes(coded, limits.max_step_tokens, MaxInputs(spec));
}

}  // namespace quire::models

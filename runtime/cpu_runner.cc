#include "runtime/cpu_runner.h"

#include <algorithm>
#include <span>

#include "absl/status/status.h"
#include "base/status.h"
#include "cache_manager/pool/kv_pool.h"
#include "kernels/attention/attention.h"
#include "kernels/comm/communicator.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/kv_store/page_copy.h"
#include "kernels/linear/bf16_linear.h"
#include "kernels/linear/fp8_linear.h"
#include "kernels/linear/quantized_linear.h"
#include "kernels/moe/router.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sparse/index_score.h"
#include "models/blocks/decoder.h"
#include "models/blocks/step_buffers.h"
#include "models/blocks/tail_rows.h"
#include "models/weights/weights.h"
#include "runtime/model.h"
#include "runtime/runner_base.h"
#include "runtime/step_batch_check.h"

namespace quire::runtime {
namespace {

// Returns the number of inputs of the widest matrix.
std::uint32_t MaxInputs(const models::ModelSpec& spec) {
  std::int64_t inputs = spec.hidden;
  for (const models::LayerSpec& layer : spec.layers) {
    models::ForEachTensor(layer, [&](models::BlockKind, const models::TensorInfo& info) {
      if (info.is_vector()) return;
      inputs = std::max(inputs, models::ExtentOf(info.inputs(), spec.hidden, layer).size);
    });
  }
  return static_cast<std::uint32_t>(inputs);
}

models::QuantizedMatrices QuantizedMatricesOf(const models::Weights& weights) {
  models::QuantizedMatrices quantized;
  const auto add = [&](const models::LinearWeights& linear) {
    for (const kernels::PackedLinear& matrix : linear.matrices) {
      quantized.integers |=
          matrix.format() == WeightFormat::kInt8 || matrix.format() == WeightFormat::kInt4;
      quantized.act_orders |= matrix.act_order() != nullptr;
      quantized.fp8 |= matrix.format() == WeightFormat::kFp8E4M3;
    }
  };
  add(weights.head());
  add(weights.input_context());
  for (const models::LayerWeights& layer : weights.layers()) {
    for (const auto& named : models::LinearsOf(layer)) add(*named.linear);
  }
  return quantized;
}

// Returns the bytes of scratch memory that all products share. They run one after the other.
std::int64_t LinearScratchBytes(const models::QuantizedMatrices& quantized,
                                kernels::CpuActivations activations, std::uint32_t num_rows,
                                std::uint32_t inputs) {
  if (activations == kernels::CpuActivations::kBF16) {
    return kernels::Bf16LinearScratchBytes(num_rows, inputs);
  }
  std::int64_t bytes = 0;
  if (quantized.integers) {
    bytes = kernels::QuantizedLinearScratchBytes(num_rows, inputs, quantized.act_orders);
  }
  if (quantized.fp8) bytes = std::max(bytes, kernels::Fp8LinearScratchBytes(num_rows, inputs));
  return bytes;
}

// Returns the bytes of scratch memory that products need for each thread.
std::int64_t LinearThreadBytes(const models::QuantizedMatrices& quantized,
                               kernels::CpuActivations activations, std::uint32_t num_rows,
                               std::uint32_t inputs) {
  if (activations == kernels::CpuActivations::kBF16) {
    return kernels::Bf16LinearThreadBytes(num_rows, inputs);
  }
  return quantized.integers && activations == kernels::CpuActivations::kF32
             ? kernels::DequantizedThreadBytes(inputs)
             : 0;
}

// Returns the bytes of scratch memory that each thread needs for a step. All ops share this memory.
std::int64_t ThreadBytes(const models::ModelSpec& spec, kernels::CpuActivations activations,
                         std::int64_t linear_bytes) {
  std::int64_t bytes = linear_bytes;
  if (spec.has_head) bytes = std::max(bytes, kernels::SampleThreadBytes(spec.vocab_size));
  for (const models::LayerSpec& layer : spec.layers) {
    if (layer.has_moe()) {
      bytes = std::max(bytes, kernels::RouterThreadBytes(layer.moe.num_experts, layer.moe.groups));
    }
    if (!layer.has_kv()) continue;
    // All heads of MLA share the cached row.
    const bool is_mla = layer.attention == models::AttentionKind::kMla;
    const std::uint32_t kv_heads = is_mla ? 1 : std::max(layer.heads.num_kv_heads, 1u);
    bytes = std::max(
        bytes, is_mla ? kernels::AttentionThreadBytes(activations,
                                                      layer.mla.kv_lora_rank + layer.mla.rope_size,
                                                      kv_heads, layer.mla.num_heads)
                      : kernels::AttentionThreadBytes(activations, layer.heads.head_size, kv_heads,
                                                      layer.heads.num_heads / kv_heads));
    if (layer.mla.has_indexer()) {
      const models::IndexSpec& index = *layer.mla.index;
      bytes = std::max(bytes, kernels::IndexScoreThreadBytes(index.heads, index.size));
    }
  }
  return bytes;
}

// Bytes of scratch memory that a runner reserves in its backend.
struct ScratchBytes {
  std::int64_t op;      // Backend::op_workspace
  std::int64_t thread;  // each Backend::workspace
};
ScratchBytes ScratchBytesOf(const models::ModelSpec& spec, const models::StepLimits& limits,
                            const models::QuantizedMatrices& quantized,
                            kernels::CpuActivations activations) {
  const std::uint32_t inputs = MaxInputs(spec);
  return {.op = LinearScratchBytes(quantized, activations, limits.max_step_tokens, inputs),
          .thread = ThreadBytes(
              spec, activations,
              LinearThreadBytes(quantized, activations, limits.max_step_tokens, inputs))};
}

std::int64_t PooledBytes(const models::ModelSpec& spec, const models::StepLimits& limits) {
  return std::int64_t{limits.max_rows} * spec.hidden * std::int64_t{sizeof(float)};
}

}  // namespace

CpuRunner::CpuRunner(const Model& model, const kernels::Backend& backend, cache::KvPool* pool,
                     const RunnerOptions& options)
    : RunnerBase(model, backend, pool, options), limits_(LimitsOf(options)), order_(limits_) {
  kv_.reserve(layers.groups.size());
  if (models::FirstTailLayer(model.spec) == model.spec.layers.size()) return;
  tail_kv_.reserve(layers.groups.size());
  wanted_tokens_.resize(limits_.max_rows);
}

absl::StatusOr<std::unique_ptr<CpuRunner>> CpuRunner::Create(const Model& model,
                                                             const kernels::Backend& backend,
                                                             cache::KvPool* pool,
                                                             const RunnerOptions& options) {
  QUIRE_RETURN_IF_ERROR(CheckRunnerOptions(model.spec, options));
  QUIRE_RETURN_IF_ERROR(CheckCommunicator(model.part, options, backend));
  QUIRE_RETURN_IF_ERROR(CheckPoolGeometry(model.spec, pool->geometry()));
  std::unique_ptr<CpuRunner> runner(new CpuRunner(model, backend, pool, options));
  QUIRE_RETURN_IF_ERROR(runner->Allocate());
  return runner;
}

absl::Status CpuRunner::Allocate() {
  if (layers.index_slots > 0) {
    QUIRE_ASSIGN_OR_RETURN(index_rows_, IndexRowsFor(model.spec, pool->geometry()));
  }
  QUIRE_ASSIGN_OR_RETURN(buffers, models::StepBuffers::Allocate(model.spec, limits_));
  if (options.comm != nullptr) {
    options.comm->Reserve(std::size_t{limits_.max_step_tokens} * model.spec.hidden);
  }
  QUIRE_ASSIGN_OR_RETURN(
      states_,
      DeviceBuffer::Allocate(MemoryKind::kHost, options.num_state_slots * layers.state_bytes));
  sampled_.reserve(limits_.max_step_samples);
  result_.samples.reserve(limits_.max_step_samples);
  result_.prompt_logprobs.reserve(limits_.max_step_tokens);
  result_.pools.reserve(limits_.max_rows);
  pooled_.resize(std::size_t{limits_.max_rows} * model.spec.hidden);
  const ScratchBytes scratch = ScratchBytesOf(
      model.spec, limits_, QuantizedMatricesOf(*model.weights), backend.activations());
  if (scratch.op > 0) backend.op_workspace().Reserve(static_cast<std::size_t>(scratch.op));
  backend.ReserveWorkspaces(static_cast<std::size_t>(scratch.thread));
  scratch_bytes_ = scratch.op + backend.num_threads() * scratch.thread;
  return absl::OkStatus();
}

absl::Status CpuRunner::MakeCollections(const StepBatch& batch) {
  kv_.clear();
  tail_kv_.clear();
  for (std::size_t group = 0; group < batch.kv.size(); ++group) {
    QUIRE_ASSIGN_OR_RETURN(
        kernels::AnyKvCollection collection,
        kernels::MakeKvCollection(models::GroupGeometry(pool->geometry(), layers, group),
                                  pool->blocks(), batch.kv[group], pool->scales()));
    kv_.push_back(collection);
    if (wanted_tokens_.empty()) continue;
    cache::KvStepInputs tail = batch.kv[group];
    tail.cache_lengths = buffers.tail_lengths;
    tail.max_history_length = tail.max_cache_length;
    QUIRE_ASSIGN_OR_RETURN(collection, kernels::MakeKvCollection(
                                           models::GroupGeometry(pool->geometry(), layers, group),
                                           pool->blocks(), tail, pool->scales()));
    tail_kv_.push_back(collection);
  }
  if (layers.index_slots > 0) {
    auto* const rows = static_cast<std::byte*>(pool->blocks()) + index_rows_.offset_bytes;
    QUIRE_ASSIGN_OR_RETURN(index_,
                           kernels::MakeKvCollection(index_rows_.geometry, rows, batch.kv.front()));
  }
  return absl::OkStatus();
}

std::span<const std::uint32_t> CpuRunner::WantedTokens(const StepBatch& batch,
                                                       std::uint32_t batch_size) {
  if (wanted_tokens_.empty() || batch.hidden_out != nullptr) return {};
  std::fill(wanted_tokens_.begin(), wanted_tokens_.end(), 0u);
  const std::span<const std::uint32_t> offsets(buffers.row_offsets, batch_size + 1);
  const auto want = [&](std::uint32_t token) {
    const std::uint32_t index = order_.step_index()[token];
    const auto end = std::upper_bound(offsets.begin(), offsets.end(), index);
    std::uint32_t& wanted = wanted_tokens_[static_cast<std::size_t>(end - offsets.begin()) - 1];
    wanted = std::max(wanted, *end - index);
  };
  for (const std::uint32_t token : batch.logits_tokens) want(token);
  for (const StepPool& pool : batch.pools) want(pool.first_token);
  return wanted_tokens_;
}

// If the KV rows of layers differ in size, the first tokens of a page are not at the same bytes in
// all layer slots, so whole pages are copied. The additional tokens are overwritten before they are
// read.
absl::Status CpuRunner::PreparePages(const StepBatch& batch) {
  if (batch.clears.empty() && batch.copies.empty()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const kernels::AnyKvCollection slots,
                         kernels::MakeKvCollection(pool->geometry(), pool->blocks(),
                                                   batch.kv.front(), pool->scales()));
  QUIRE_RETURN_IF_ERROR(PreparePagesOf(batch, slots));
  return index_ ? PreparePagesOf(batch, *index_) : absl::OkStatus();
}

absl::Status CpuRunner::PreparePagesOf(const StepBatch& batch, const kernels::AnyKvCollection& kv) {
  for (const BlockId page : batch.clears) {
    QUIRE_RETURN_IF_ERROR(kernels::ZeroPage(backend, kv, page.value()));
  }
  const bool has_equal_rows = models::HasEqualRows(layers);
  for (const cache::PageCopy& copy : batch.copies) {
    QUIRE_RETURN_IF_ERROR(kernels::CopyPage(
        backend, {.pool = &kv,
                  .source = copy.source.value(),
                  .destination = copy.target.value(),
                  .num_rows = has_equal_rows ? copy.num_rows : pool->geometry().page_size}));
  }
  return absl::OkStatus();
}

absl::Status CpuRunner::Forward(const StepBatch& batch) {
  const std::uint32_t batch_size = order_.Order(batch, {.tokens = buffers.tokens,
                                                        .positions = buffers.positions,
                                                        .row_offsets = buffers.row_offsets});
  return models::DecoderForward(model.spec, *model.weights,
                                {.backend = &backend,
                                 .kv = kv_,
                                 .layers = &layers,
                                 .buffers = &buffers,
                                 .num_tokens = static_cast<std::uint32_t>(batch.token_ids.size()),
                                 .batch_size = batch_size,
                                 .heartbeat = batch.heartbeat,
                                 .hidden_out = batch.hidden_out,
                                 .batch_index = order_.batch_index(),
                                 .states = {.memory = states_.bytes().data(),
                                            .slot_bytes = layers.state_bytes,
                                            .inputs = batch.states},
                                 .comm = options.comm,
                                 .index = index_ ? &*index_ : nullptr,
                                 .wanted_tokens = WantedTokens(batch, batch_size),
                                 .cache_lengths = batch.kv[0].cache_lengths,
                                 .tail_kv = tail_kv_});
}

absl::Status CpuRunner::RunHead(const StepBatch& batch) {
  const std::size_t vocab = model.spec.vocab_size;
  const std::uint32_t total = static_cast<std::uint32_t>(batch.logits_tokens.size());
  std::uint32_t* const tokens = buffers.head_tokens;
  for (std::uint32_t begin = 0; begin < total; begin += models::kHeadRows) {
    const std::uint32_t end = std::min(total, begin + models::kHeadRows);
    for (std::uint32_t i = begin; i < end; ++i) {
      tokens[i - begin] = order_.step_index()[batch.logits_tokens[i]];
    }
    QUIRE_RETURN_IF_ERROR(
        models::DecoderHead(model.spec, *model.weights, backend, &buffers, tokens, end - begin));
    if (batch.logits_out != nullptr) {
      std::copy_n(buffers.logits, (end - begin) * vocab, batch.logits_out + begin * vocab);
    }
    QUIRE_RETURN_IF_ERROR(SampleBlock(batch, begin, end));
    QUIRE_RETURN_IF_ERROR(ScoreBlock(batch, begin, end));
    if (batch.heartbeat != nullptr) batch.heartbeat->Beat();
  }
  return absl::OkStatus();
}

absl::Status CpuRunner::ComputePools(const StepBatch& batch) {
  for (std::size_t p = 0; p < batch.pools.size(); ++p) {
    const StepPool& pool = batch.pools[p];
    const std::size_t hidden = model.spec.hidden;
    float* const sum = pooled_.data() + pool.batch_row.value() * hidden;
    QUIRE_RETURN_IF_ERROR(
        AddPool(pool, order_.step_index()[pool.first_token], models::kHeadRows, sum));
    if (pool.ends) result_.pools[p] = {sum, hidden};
  }
  return absl::OkStatus();
}

absl::Status CpuRunner::SampleBlock(const StepBatch& batch, std::uint32_t begin,
                                    std::uint32_t end) {
  TakeSamples(batch, begin, end, SamplePass::kAll);
  if (sampling_rows.empty()) return absl::OkStatus();
  sampled_.assign(sampling_rows.size(), {});
  for (std::size_t i = 0; i < sampled_.size(); ++i) {
    sampled_[i].top = buffers.sample_top + std::size_t{sample_indices[i]} * limits_.max_logprobs;
  }
  QUIRE_RETURN_IF_ERROR(kernels::Sample(
      backend, {.rows = sampling_rows, .sampled = sampled_, .vocab = model.spec.vocab_size}));
  for (std::size_t i = 0; i < sampled_.size(); ++i) {
    result_.samples[sample_indices[i]] = ToStepToken(sampled_[i]);
  }
  return absl::OkStatus();
}

absl::Status CpuRunner::ScoreBlock(const StepBatch& batch, std::uint32_t begin, std::uint32_t end) {
  const std::size_t first = TakePromptLogprobs(batch, begin, end);
  if (logprob_tokens.empty()) return absl::OkStatus();
  for (std::size_t i = 0; i < logprob_tokens.size(); ++i) {
    logprob_tokens[i].top = buffers.prompt_logprob_top + (first + i) * limits_.max_logprobs;
  }
  QUIRE_RETURN_IF_ERROR(kernels::ComputeLogprobs(backend, {.tokens = logprob_tokens,
                                                           .vocab = model.spec.vocab_size,
                                                           .text_vocab = text_vocab,
                                                           .has_text = has_text}));
  for (std::size_t i = 0; i < logprob_tokens.size(); ++i) {
    result_.prompt_logprobs[first + i] = ToStepToken(logprob_tokens[i]);
  }
  return absl::OkStatus();
}

absl::Status CpuRunner::Step(const StepBatch& batch) {
  QUIRE_RETURN_IF_ERROR(CheckStepBatch(batch, model.spec, limits_, pool->geometry(),
                                       static_cast<std::uint32_t>(layers.groups.size())));
  result_.samples.assign(batch.samples.size(), StepToken{.unsampled = true, .top = {}});
  result_.prompt_logprobs.assign(batch.prompt_logprobs.size(), StepToken{});
  result_.pools.assign(batch.pools.size(), {});
  BeginLogits();
  if (!batch.kv.empty()) {
    QUIRE_RETURN_IF_ERROR(MakeCollections(batch));
    QUIRE_RETURN_IF_ERROR(PreparePages(batch));
    if (!batch.rows.empty()) QUIRE_RETURN_IF_ERROR(Forward(batch));
  }
  if (!batch.has_late_samples()) QUIRE_RETURN_IF_ERROR(RunHead(batch));
  return ComputePools(batch);
}

absl::Status CpuRunner::Run(const StepBatch& batch) {
  has_result_ = false;
  late_error_ = absl::OkStatus();
  const absl::Status done = Step(batch);
  // Without Abort the other ranks would wait for this rank's contribution to their next sum.
  if (!done.ok() && options.comm != nullptr) options.comm->Abort(done);
  has_result_ = done.ok();
  return done;
}

void CpuRunner::SampleLate(const StepBatch& batch) {
  late_error_ = RunHead(batch);
}

absl::StatusOr<const StepResult*> CpuRunner::Collect() {
  if (!has_result_) return absl::FailedPreconditionError("no step was launched");
  has_result_ = false;
  QUIRE_RETURN_IF_ERROR(late_error_);
  return &result_;
}

std::int64_t CpuRunner::workspace_bytes() const {
  return buffers.memory.size_bytes() + scratch_bytes_ + PooledBytes(model.spec, limits_);
}

std::int64_t PlanWorkspaceBytes(const models::ModelSpec& spec, const RunnerOptions& options,
                                const models::QuantizedMatrices& quantized,
                                kernels::CpuActivations activations, int num_threads) {
  const models::StepLimits limits = LimitsOf(options);
  const ScratchBytes scratch = ScratchBytesOf(spec, limits, quantized, activations);
  return models::StepBuffers::BytesFor(spec, limits) + PooledBytes(spec, limits) + scratch.op +
         num_threads * scratch.thread;
}

}  // namespace quire::runtime

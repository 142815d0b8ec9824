#include "runtime/cuda_sizes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cache_manager/pool/lookup_table.h"
#include "kernels/comm/nccl_communicator.h"
#include "models/blocks/layer_groups.h"
#include "models/blocks/tail_rows.h"
#include "runtime/cuda_step_inputs.h"
#include "runtime/cuda_tail.h"

namespace quire::runtime {
namespace {

// Maximum device memory of a graph node: its arguments and the driver's data.
constexpr std::int64_t kGraphNodeBytes = 32 << 10;
// Maximum number of nodes of a layer. kOtherNodes is the maximum number outside the layers.
constexpr std::int64_t kNodesPerLayer = 12;
constexpr std::int64_t kQkNormNodes = 2;
constexpr std::int64_t kBranchNodes = 4;  // norm and sum of both branches
// Additional nodes of an MoE layer: router, dispatch to experts, combine, and a shared expert.
constexpr std::int64_t kMoeNodes = 12;
// Additional nodes of the branch that multiplies by a layer's input (LayerSpec::input). Computing
// the inputs of all layers takes the same number of nodes.
constexpr std::int64_t kInputNodes = 4;
constexpr std::int64_t kOtherNodes = 16;
// Additional nodes of a recurrent layer: convolution, scan and gate, the quantization of their rows
// before products, and the second stages of low-rank projections.
constexpr std::int64_t kRecurrentNodes = 8;
// Additional nodes of a layer with an indexer: three products, IndexStore and MapSelectedRows, and
// two nodes for each block of kIndexRows rows.
constexpr std::int64_t kIndexNodes = 5;
constexpr std::int64_t kIndexBlockNodes = 2;
// Additional nodes with dynamic activation quantization (fp8): one launch before each product, and
// the store of heads after a product.
constexpr std::int64_t kActivationQuantNodes = 8;

// Maximum number of history entries that the sampler holds at a time. Only samples with penalties
// have a history, so this limit is rarely reached. A step that exceeds it is sampled in pieces. One
// sample always fits, because a history has at most as many entries as a context or a vocabulary,
// and a sample has at most kMaxBias biases.
constexpr std::int64_t kMaxHistory = std::int64_t{1} << 22;
constexpr std::int64_t kMaxBiasPerSample = 64;
constexpr std::int64_t kMaxBannedPerSample = 64;
constexpr std::uint32_t kMaxMasks = 256;

std::uint32_t NumBuckets(std::uint32_t max_rows) {
  std::uint32_t buckets = 0;
  for (std::uint32_t rows = 1; rows <= GraphBucket(max_rows); rows = GraphBucket(rows + 1)) {
    ++buckets;
  }
  return buckets;
}

// Returns the number of additional nodes of a layer of a divided model. Each of the two branches of
// a layer has a gather and a sum per piece. The norm and the residual sum are separate nodes. In
// models that are not divided they are fused into a product.
std::int64_t RankNodes(const models::ModelSpec& spec, const CudaSizes& sizes) {
  constexpr std::int64_t kPiece = kernels::NcclCommunicator::kChunk;
  if (!sizes.buffers.is_part) return 0;
  const std::int64_t elements = std::int64_t{GraphBucket(sizes.max_graph_rows)} * spec.hidden;
  return 4 * ((elements + kPiece - 1) / kPiece) + kBranchNodes;
}

std::int64_t IndexNodes(const CudaSizes& sizes) {
  constexpr std::int64_t kRows = models::kIndexRows;
  const std::int64_t rows = GraphBucket(sizes.max_graph_rows);
  return kIndexNodes + kIndexBlockNodes * ((rows + kRows - 1) / kRows);
}

std::int64_t NodesOf(const models::ModelSpec& spec, const CudaSizes& sizes,
                     bool quantizes_activations) {
  std::int64_t nodes = kOtherNodes + static_cast<std::int64_t>(sizes.attention.size());
  if (spec.layer_inputs.size > 0) nodes += kInputNodes;
  const std::int64_t rank_nodes = RankNodes(spec, sizes);
  for (const models::LayerSpec& layer : spec.layers) {
    nodes += kNodesPerLayer + rank_nodes;
    if (quantizes_activations)
      nodes += layer.has_moe() ? 2 * kActivationQuantNodes : kActivationQuantNodes;
    if (layer.heads.qk_norm.kind != models::NormKind::kNone) nodes += kQkNormNodes;
    if (layer.heads.v_norm.kind != models::NormKind::kNone) ++nodes;
    if (layer.heads.output_gate) ++nodes;
    if (layer.has_state()) nodes += kRecurrentNodes;
    if (models::NeedsBranchBuffer(layer)) nodes += kBranchNodes;
    if (layer.has_moe()) nodes += kMoeNodes;
    // Counts the dense MLP, three norms and a sum.
    if (layer.mlp == models::MlpKind::kDenseAndMoe) nodes += kNodesPerLayer;
    if (layer.input.size > 0) nodes += kInputNodes;
    // MLA has two products per head, into the latent space and back, and two latent norms.
    if (layer.attention == models::AttentionKind::kMla)
      nodes += 2 * std::int64_t{layer.mla.num_heads} + 2;
    if (layer.mla.has_indexer()) nodes += IndexNodes(sizes);
  }
  return nodes;
}

std::uint32_t LookupStride(std::uint32_t max_context, std::uint32_t page_size) {
  const std::uint32_t pages = (max_context + page_size - 1) / page_size;
  return (pages + 7) / 8 * 8 + cache::LookupTable::kPaddingColumns;
}

kernels::DeviceSamplerLimits SamplerLimits(const models::ModelSpec& spec,
                                           const models::StepLimits& limits,
                                           std::uint32_t max_context) {
  const std::int64_t samples = limits.max_step_samples;
  const std::int64_t distinct = std::min(spec.vocab_size, max_context);
  return {
      .max_samples = limits.max_step_samples,
      .max_prompt_logprobs = limits.max_step_tokens,
      .vocab = spec.vocab_size,
      .max_logprobs = limits.max_logprobs,
      .max_history =
          static_cast<std::uint32_t>(std::max(std::min(samples * distinct, kMaxHistory), distinct)),
      .max_bias =
          static_cast<std::uint32_t>(std::max(samples * kMaxBiasPerSample, std::int64_t{kMaxBias})),
      .max_banned = static_cast<std::uint32_t>(samples * kMaxBannedPerSample),
      .max_masks = std::min(limits.max_step_samples, kMaxMasks)};
}

}  // namespace

CudaSizes CudaSizesFor(const models::ModelSpec& spec, std::uint32_t page_size,
                       const RunnerOptions& options) {
  CudaSizes sizes;
  sizes.max_context = options.max_context_tokens == 0
                          ? spec.max_position
                          : std::min(options.max_context_tokens, spec.max_position);
  sizes.limits = LimitsOf(options);
  sizes.limits.activation = options.activation;
  sizes.limits.memory = MemoryKind::kDevice;
  sizes.limits.lookup_stride = LookupStride(sizes.max_context, page_size);
  const models::LayerGroups layers = models::PlanLayerGroups(spec);
  sizes.limits.num_groups = static_cast<std::uint32_t>(layers.groups.size());
  if (options.graphs) {
    sizes.max_graph_rows = std::min({options.max_rows, options.max_step_tokens, kMaxGraphRows});
  }
  // Ranks of a divided model have no tail, because they exchange the sums of all tokens.
  sizes.has_tail = !sizes.limits.is_part && models::FirstTailLayer(spec) < spec.layers.size();
  sizes.buffers = sizes.limits;
  sizes.buffers.max_step_tokens =
      std::max(options.max_step_tokens, GraphBucket(sizes.max_graph_rows));
  sizes.buffers.head_rows = std::max(models::kHeadRows, GraphBucket(sizes.max_graph_rows));
  for (std::size_t group = 0; group < layers.groups.size(); ++group) {
    const kernels::AttentionPlanLimits limits = AttentionLimitsOf(spec, layers, group, sizes);
    if (std::find(sizes.attention.begin(), sizes.attention.end(), limits) ==
        sizes.attention.end()) {
      sizes.attention.push_back(limits);
    }
  }
  sizes.state_bytes = options.num_state_slots * layers.state_bytes;
  sizes.sampler = SamplerLimits(spec, sizes.limits, sizes.max_context);
  sizes.sampled_stride = (std::int64_t{sizes.limits.max_step_samples} + 63) / 64 * 64;
  sizes.pooled_bytes =
      std::int64_t{sizes.limits.max_rows} * spec.hidden * static_cast<std::int64_t>(sizeof(float));
  sizes.graph_bytes = NumBuckets(sizes.max_graph_rows) *
                      NodesOf(spec, sizes, options.fp8_activations) * kGraphNodeBytes;
  return sizes;
}

kernels::AttentionPlanLimits AttentionLimitsOf(const models::ModelSpec& spec,
                                               const models::LayerGroups& layers, std::size_t group,
                                               const CudaSizes& sizes) {
  std::size_t layer = 0;
  while (!spec.layers[layer].has_kv() || layers.places[layer].group != group) ++layer;
  const models::MlaSpec& mla = spec.layers[layer].mla;
  const models::AttentionSpec& heads = spec.layers[layer].heads;
  const bool is_mla = spec.layers[layer].attention == models::AttentionKind::kMla;
  return {.max_sequences = sizes.limits.max_rows,
          .max_step_tokens = sizes.buffers.max_step_tokens,
          .max_length = sizes.max_context,
          .num_heads = is_mla ? mla.num_heads : heads.num_heads,
          .num_kv_heads = is_mla ? 1 : heads.num_kv_heads,
          .head_size = is_mla ? mla.kv_lora_rank + mla.rope_size : heads.head_size,
          .window = layers.groups[group].window};
}

RunnerMemory RunnerMemoryFor(const models::ModelSpec& spec, const CudaSizes& sizes,
                             std::uint32_t num_sms, kernels::Determinism determinism) {
  RunnerMemory memory;
  memory.activation_bytes = models::StepBuffers::BytesFor(spec, sizes.buffers) +
                            CudaStepInputs::DeviceBytesFor(sizes.buffers) + sizes.pooled_bytes +
                            CudaStepInputs::kSlots * sizes.sampled_stride *
                                static_cast<std::int64_t>(sizeof(std::int32_t));
  if (sizes.has_tail) memory.activation_bytes += CudaTail::DeviceBytesFor(sizes.buffers);
  for (const kernels::AttentionPlanLimits& limits : sizes.attention) {
    memory.attention_bytes += kernels::AttentionPlan::BytesFor(limits, num_sms);
  }
  memory.sampler_bytes = kernels::DeviceSampler::BytesFor(sizes.sampler);
  memory.linear_bytes = kernels::LinearWorkspaceBytes(determinism);
  memory.graph_bytes = sizes.graph_bytes;
  memory.state_bytes = sizes.state_bytes;
  memory.pinned_bytes = CudaStepInputs::PinnedBytesFor(sizes.buffers) +
                        CudaStepInputs::kSlots * sizes.pooled_bytes +
                        kernels::DeviceSampler::PinnedBytesFor(sizes.sampler);
  if (sizes.has_tail) memory.pinned_bytes += CudaTail::PinnedBytesFor(sizes.buffers);
  return memory;
}

absl::Status CheckActivation(DType activation, DType kv_dtype) {
  if (activation != DType::kF32 && activation != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("activations are ", DTypeName(activation), ", a GPU computes f32 and bf16"));
  }
  if (kv_dtype == DType::kF16) {
    return absl::InvalidArgumentError(
        "kv_cache.dtype is f16, a GPU supports f32, bf16, fp8_e4m3 and int8; write bf16");
  }
  if ((activation == DType::kF32) == (kv_dtype == DType::kF32)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("activations are ", DTypeName(activation),
                                                 " and the kv cache ", DTypeName(kv_dtype),
                                                 ": both must be f32, or neither"));
}

}  // namespace quire::runtime

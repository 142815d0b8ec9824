#include "runtime/cuda_runner.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/device.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/stream.h"
#include "cache_manager/pool/kv_pool.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/attention/kv_tensor_maps.h"
#include "kernels/comm/communicator.h"
#include "kernels/cuda/loaded_kernels.h"
#include "kernels/kv_store/kv_dispatch.h"
#include "kernels/kv_store/page_copy.h"
#include "kernels/sampling/device_sampler.h"
#include "models/blocks/decoder.h"
#include "runtime/cuda_sizes.h"
#include "runtime/cuda_step_inputs.h"
#include "runtime/cuda_tail.h"
#include "runtime/model.h"
#include "runtime/runner_base.h"
#include "runtime/self_check.h"
#include "runtime/step_batch_check.h"
#include "runtime/step_graphs.h"
#include "runtime/step_order.h"

namespace quire::runtime {
namespace {

// Returns the error with the reason DEVICE_LOST. An error that is found while waiting occurred on
// the device after a launch. The state of pages and sampler is then unknown, regardless of the CUDA
// error.
absl::Status DeviceLost(const absl::Status& status) {
  if (HasReason(status, Reason::kDeviceLost)) return status;
  return WithReason(absl::UnavailableError(status.message()), Reason::kDeviceLost);
}

}  // namespace

struct CudaRunner::State : RunnerBase {
  static constexpr std::uint32_t kSlots = 2;

  // A launched step: its event, its sampled tokens and the data that Collect needs.
  struct Slot {
    Event done;
    std::int32_t* tokens = nullptr;  // device [max_step_samples]
    std::uint32_t num_samples = 0;
    // places[i] is the index in StepBatch::samples of the sampler's result i.
    std::vector<std::uint32_t> places;
    absl::Status late_error;
    StepResult result;
  };

  State(const Model& m, const kernels::Backend& b, cache::KvPool* p, const RunnerOptions& o)
      : RunnerBase(m, b, p, o),
        sizes(CudaSizesFor(m.spec, p->geometry().page_size, o)),
        order(sizes.buffers),
        graphs(b.cuda()->stream, sizes.graph_bytes) {}

  const Stream& stream() const { return *backend.cuda()->stream; }

  // Parts of Create.
  absl::Status CheckRoom() const;
  absl::Status Allocate();
  absl::Status MakeCollections();
  absl::Status MakeMaps();
  absl::Status UploadRopeTables();
  // Loads the kernels of steps, and runs none of them.
  absl::Status LoadKernels();
  absl::Status CaptureGraphs();

  // Parts of Run, in order.
  absl::Status Check(const StepBatch& batch) const;
  absl::Status Launch(const StepBatch& batch, std::uint32_t slot);
  absl::Status PreparePages(const StepBatch& batch);
  absl::Status Compute(const StepBatch& batch, const PackedStep& step, std::uint32_t slot);
  absl::Status Forward(const StepBatch& batch, const PackedStep& step);
  // Plans the attention of the rows of a step, or of its tail.
  absl::Status Plan(std::uint32_t batch_size, bool has_prompt_rows, bool has_generated_rows,
                    const models::TailArrays* of_tail = nullptr);
  // Runs the decoder and the head of a whole bucket, as one graph if the bucket has a graph.
  absl::Status RunGraph(std::uint32_t bucket);
  // Enqueues planner, decoder and head for `num_tokens` tokens of any number of rows.
  absl::Status EnqueuePadded(std::uint32_t num_tokens, bool has_prompt_rows);
  // Enqueue every kind of kernel that steps may launch, those of the tail, and those of the
  // sampler. REQUIRES: LoadedKernels loads kernels without launching them.
  absl::Status EnqueueAllKinds();
  absl::Status EnqueueTail();
  absl::Status EnqueueSamplerKinds();
  absl::Status RunHead(std::uint32_t begin, std::uint32_t end);
  // Copies logits to logits_out, and computes samples and prompt log-probabilities, for rows
  // [begin, end) of logits_tokens. REQUIRES: buffers.logits has the logits of these rows.
  absl::Status Finish(const StepBatch& batch, std::uint32_t begin, std::uint32_t end,
                      std::uint32_t slot);
  // Samples the rows that TakeSamples found.
  absl::Status Sample(const StepBatch& batch, std::uint32_t slot);
  absl::Status SampleLate(const StepBatch& batch, std::uint32_t slot);
  absl::Status ComputePromptLogprobs(const StepBatch& batch, std::uint32_t begin, std::uint32_t end,
                                     std::uint32_t slot);

  absl::Status ComputePools(const StepBatch& batch, std::uint32_t slot);

  // Wait for an event, or for all work enqueued so far. With a communicator, both also return if
  // the group of ranks is aborted.
  absl::Status Wait(const Event& event) const;
  absl::Status Synchronize();

  // Returns the bucket of a step that runs as a graph, or 0.
  std::uint32_t BucketOf(const StepBatch& batch) const;
  // Returns the state slots, and the step's arrays at their fixed addresses.
  models::StepStates States();

  const CudaSizes sizes;
  RunnerMemory memory;
  StepOrder order;
  DeviceBuffer sampled;      // [kSlots, sampled_stride]
  DeviceBuffer states;       // [num_state_slots, layers.state_bytes]
  DeviceBuffer pooled;       // [max_rows, hidden] f32 sums so far
  DeviceBuffer pooled_host;  // [kSlots, max_rows, hidden], pinned: complete sums
  std::optional<CudaStepInputs> inputs;
  std::vector<kernels::AnyKvCollection> kv;          // one per layer group over the one pool
  std::optional<kernels::AnyKvCollection> slots_kv;  // the layer slots, for whole pages
  std::optional<kernels::AnyKvCollection> index;     // index rows of the pool, if it has any
  std::optional<CudaTail> tail;                   // set if the model has tail layers (tail_rows.h)
  std::vector<kernels::AnyKvCollection> tail_kv;  // `kv` with the cached tokens of the tail
  std::vector<std::unique_ptr<kernels::AttentionPlan>> plans;      // CudaSizes::attention
  std::vector<kernels::AttentionPlan*> group_plans;                // by layer group
  std::vector<std::unique_ptr<kernels::cuda::KvTensorMaps>> maps;  // one per kind of KV rows
  std::vector<const kernels::cuda::KvTensorMaps*> group_maps;      // by layer group; may be null
  std::unique_ptr<kernels::DeviceSampler> sampler;
  StepGraphs graphs;
  std::uint64_t graph_steps = 0;
  absl::Time wait_deadline = absl::InfiniteFuture();

  std::optional<Event> enqueued;  // used by Synchronize
  std::vector<Slot> slots;
  std::uint32_t next_slot = 0;
  std::uint32_t in_flight = 0;
  std::uint32_t previous_samples = 0;  // number of samples of the step in the other slot
  // Pages that the current step clears and copies; members to avoid allocations.
  std::vector<std::uint32_t> clears;
  std::vector<kernels::PageCopyItem> copies;
};

// Returns RESOURCE_EXHAUSTED if the runner's memory exceeds the free memory. Counts the memory
// reserved for graphs, although graphs are captured later.
absl::Status CudaRunner::State::CheckRoom() const {
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t free, FreeDeviceMemory(backend.device()));
  // The backend has allocated its scratch memory already.
  const std::int64_t needed = memory.device_bytes() - memory.linear_bytes;
  if (needed <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("device memory: the runner needs ", needed, " bytes (activations ",
                   memory.activation_bytes, ", attention ", memory.attention_bytes, ", sampler ",
                   memory.sampler_bytes, ", graphs ", memory.graph_bytes,
                   memory.state_bytes == 0 ? "" : absl::StrCat(", states ", memory.state_bytes),
                   "), but only ", free, " are free"));
}

absl::Status CudaRunner::State::Allocate() {
  const models::ModelSpec& spec = model.spec;
  memory = RunnerMemoryFor(spec, sizes, backend.cuda()->num_sms, backend.cuda()->determinism);
  QUIRE_RETURN_IF_ERROR(CheckRoom());
  QUIRE_ASSIGN_OR_RETURN(buffers, models::StepBuffers::Allocate(spec, sizes.buffers));
  QUIRE_ASSIGN_OR_RETURN(
      sampled, DeviceBuffer::Allocate(MemoryKind::kDevice,
                                      kSlots * sizes.sampled_stride *
                                          static_cast<std::int64_t>(sizeof(std::int32_t))));
  QUIRE_ASSIGN_OR_RETURN(states, DeviceBuffer::Allocate(MemoryKind::kDevice, sizes.state_bytes));
  QUIRE_ASSIGN_OR_RETURN(pooled, DeviceBuffer::Allocate(MemoryKind::kDevice, sizes.pooled_bytes));
  QUIRE_ASSIGN_OR_RETURN(pooled_host,
                         DeviceBuffer::Allocate(MemoryKind::kPinned, kSlots * sizes.pooled_bytes));
  QUIRE_ASSIGN_OR_RETURN(
      inputs, CudaStepInputs::Create(backend, sizes.buffers, pool->geometry().page_size));
  if (sizes.has_tail) {
    QUIRE_ASSIGN_OR_RETURN(tail, CudaTail::Create(backend, sizes.buffers));
  }
  for (const kernels::AttentionPlanLimits& limits : sizes.attention) {
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::AttentionPlan> plan,
                           kernels::AttentionPlan::Create(backend, limits));
    plans.push_back(std::move(plan));
  }
  for (std::size_t group = 0; group < layers.groups.size(); ++group) {
    const auto limits = AttentionLimitsOf(spec, layers, group, sizes);
    const auto plan = std::find_if(plans.begin(), plans.end(),
                                   [&](const auto& p) { return p->limits() == limits; });
    group_plans.push_back(plan->get());
  }
  QUIRE_ASSIGN_OR_RETURN(sampler, kernels::DeviceSampler::Create(backend, sizes.sampler,
                                                                 options.has_text, text_vocab));
  QUIRE_ASSIGN_OR_RETURN(enqueued, Event::Create(backend.device()));
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    QUIRE_ASSIGN_OR_RETURN(Event done, Event::Create(backend.device()));
    slots.push_back(
        {.done = std::move(done),
         .tokens = static_cast<std::int32_t*>(sampled.data()) + i * sizes.sampled_stride,
         .places = {},
         .late_error = {},
         .result = {}});
    slots.back().places.reserve(sizes.limits.max_step_samples);
    slots.back().result.samples.reserve(sizes.limits.max_step_samples);
    slots.back().result.prompt_logprobs.reserve(sizes.limits.max_step_tokens);
    slots.back().result.pools.reserve(sizes.limits.max_rows);
  }
  clears.reserve(pool->geometry().num_blocks);
  copies.reserve(pool->geometry().num_blocks);
  return absl::OkStatus();
}

absl::Status CudaRunner::State::MakeCollections() {
  const std::size_t table_size = std::size_t{sizes.limits.max_rows} * sizes.limits.lookup_stride;
  const auto make = [&](const cache::KvGeometry& geometry, std::size_t group,
                        const std::uint32_t* cache_lengths, std::int64_t offset_bytes = 0) {
    const cache::KvStepInputs step{.lookup_table = buffers.lookup_table + group * table_size,
                                   .cache_lengths = cache_lengths,
                                   .lookup_stride = sizes.limits.lookup_stride,
                                   .max_rows = sizes.limits.max_rows,
                                   .max_seq_length = sizes.limits.max_step_tokens,
                                   .max_cache_length = sizes.max_context,
                                   .max_history_length = sizes.max_context};
    auto* const blocks = static_cast<std::byte*>(pool->blocks()) + offset_bytes;
    void* const scales = geometry.quantized() ? pool->scales() : nullptr;
    return kernels::MakeKvCollection(geometry, blocks, step, scales);
  };
  for (std::size_t group = 0; group < layers.groups.size(); ++group) {
    const cache::KvGeometry geometry = models::GroupGeometry(pool->geometry(), layers, group);
    QUIRE_ASSIGN_OR_RETURN(kernels::AnyKvCollection collection,
                           make(geometry, group, buffers.cache_lengths));
    kv.push_back(collection);
    if (!tail) continue;
    QUIRE_ASSIGN_OR_RETURN(collection, make(geometry, group, tail->arrays().cache_lengths));
    tail_kv.push_back(collection);
  }
  QUIRE_ASSIGN_OR_RETURN(slots_kv, make(pool->geometry(), 0, buffers.cache_lengths));
  if (layers.index_slots > 0) {
    QUIRE_ASSIGN_OR_RETURN(const IndexRows rows, IndexRowsFor(model.spec, pool->geometry()));
    QUIRE_ASSIGN_OR_RETURN(index, make(rows.geometry, 0, buffers.cache_lengths, rows.offset_bytes));
  }
  return MakeMaps();
}

absl::Status CudaRunner::State::MakeMaps() {
  group_maps.assign(layers.groups.size(), nullptr);
  if constexpr (kernels::kHasCuda) {
    for (std::size_t group = 0; group < layers.groups.size(); ++group) {
      std::size_t first = 0;
      while (layers.groups[first].row != layers.groups[group].row) ++first;
      if (first < group) {
        group_maps[group] = group_maps[first];
        continue;
      }
      QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<kernels::cuda::KvTensorMaps> made,
                             kernels::cuda::KvTensorMaps::Create(backend.device(), kv[group]));
      group_maps[group] = made.get();
      maps.push_back(std::move(made));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaRunner::State::UploadRopeTables() {
  float* to = buffers.inv_freq;
  for (const models::RopeTable& table : model.spec.rope_tables) {
    const auto bytes = static_cast<std::int64_t>(table.inv_freq.size() * sizeof(float));
    QUIRE_RETURN_IF_ERROR(stream().Copy(to, table.inv_freq.data(), bytes));
    to += table.inv_freq.size();
  }
  return stream().Synchronize();
}

absl::Status CudaRunner::State::Wait(const Event& event) const {
  const absl::Status aborted =
      options.comm == nullptr ? absl::OkStatus() : options.comm->Wait(event);
  while (wait_deadline != absl::InfiniteFuture()) {
    const absl::StatusOr<bool> is_done = event.IsDone();
    if (!is_done.ok() || *is_done) break;  // Synchronize returns the error.
    if (MonotonicNow() >= wait_deadline) {
      return absl::DeadlineExceededError("a step did not end within the time limit of the check");
    }
    std::this_thread::yield();
  }
  const absl::Status done = event.Synchronize();
  return done.ok() ? aborted : DeviceLost(done);
}

absl::Status CudaRunner::State::Synchronize() {
  QUIRE_RETURN_IF_ERROR(enqueued->Record(stream()));
  return Wait(*enqueued);
}

std::uint32_t CudaRunner::State::BucketOf(const StepBatch& batch) const {
  const auto num_rows = static_cast<std::uint32_t>(batch.rows.size());
  if (num_rows == 0 || num_rows > sizes.max_graph_rows || batch.logits_tokens.empty() ||
      batch.logits_tokens.size() > num_rows || !batch.pools.empty() ||
      batch.hidden_out != nullptr) {
    return 0;
  }
  const bool decodes = std::all_of(batch.rows.begin(), batch.rows.end(), [](const StepRow& row) {
    return row.num_tokens == 1 && row.prompt_tokens == 0;
  });
  return decodes ? GraphBucket(num_rows) : 0;
}

models::StepStates CudaRunner::State::States() {
  if (layers.state_bytes == 0) return {};
  const std::uint32_t rows = sizes.limits.max_rows;
  std::uint32_t* const arrays = buffers.states;
  return {.memory = static_cast<std::byte*>(states.data()),
          .slot_bytes = layers.state_bytes,
          .inputs = {.state_in = arrays,
                     .state_out = arrays + rows,
                     .snapshot_at = arrays + 2 * std::size_t{rows},
                     .snapshot_slot = arrays + 3 * std::size_t{rows},
                     .max_rows = rows}};
}

// Clears whole pages. If the KV rows of layers differ in size, the first tokens of a page are not
// at the same bytes in all layer slots, so whole pages are copied too. Index rows, which follow the
// other rows of a page, are cleared and copied separately.
absl::Status CudaRunner::State::PreparePages(const StepBatch& batch) {
  clears.clear();
  copies.clear();
  for (const BlockId page : batch.clears) clears.push_back(page.value());
  const bool has_equal_rows = models::HasEqualRows(layers);
  for (const cache::PageCopy& copy : batch.copies) {
    copies.push_back({.source = copy.source.value(),
                      .destination = copy.target.value(),
                      .num_rows = has_equal_rows ? copy.num_rows : pool->geometry().page_size});
  }
  if (!clears.empty()) QUIRE_RETURN_IF_ERROR(kernels::ZeroPages(backend, *slots_kv, clears));
  if (!copies.empty()) QUIRE_RETURN_IF_ERROR(kernels::CopyPages(backend, *slots_kv, copies));
  if (!index) return absl::OkStatus();
  if (!clears.empty()) QUIRE_RETURN_IF_ERROR(kernels::ZeroPages(backend, *index, clears));
  if (!copies.empty()) QUIRE_RETURN_IF_ERROR(kernels::CopyPages(backend, *index, copies));
  return absl::OkStatus();
}

absl::Status CudaRunner::State::Plan(std::uint32_t batch_size, bool has_prompt_rows,
                                     bool has_generated_rows, const models::TailArrays* of_tail) {
  kernels::AttentionPlanParams params{.row_offsets = buffers.row_offsets,
                                      .cache_lengths = buffers.cache_lengths,
                                      .prefill_tokens = buffers.prefill_tokens,
                                      .live_sequences = buffers.live_rows,
                                      .batch_size = batch_size,
                                      .has_prompt_rows = has_prompt_rows,
                                      .has_generated_rows = has_generated_rows};
  if (of_tail != nullptr) {
    params.row_offsets = of_tail->row_offsets;
    params.cache_lengths = of_tail->cache_lengths;
    params.prefill_tokens = of_tail->prefill_tokens;
  }
  for (const std::unique_ptr<kernels::AttentionPlan>& plan : plans) {
    QUIRE_RETURN_IF_ERROR(kernels::PlanAttention(backend, params, plan.get()));
  }
  return absl::OkStatus();
}

absl::Status CudaRunner::State::EnqueuePadded(std::uint32_t num_tokens, bool has_prompt_rows) {
  QUIRE_RETURN_IF_ERROR(Forward({}, {.num_tokens = num_tokens,
                                     .batch_size = sizes.limits.max_rows,
                                     .has_prompt_rows = has_prompt_rows,
                                     .has_generated_rows = true}));
  return RunHead(0, std::min(num_tokens, sizes.buffers.head_rows));
}

absl::Status CudaRunner::State::RunGraph(std::uint32_t bucket) {
  const DeviceGraph* const graph = graphs.Find(bucket);
  if (graph == nullptr) return EnqueuePadded(bucket, /*has_prompt_rows=*/false);
  ++graph_steps;
  return graph->Launch(stream());
}

absl::Status CudaRunner::State::EnqueueSamplerKinds() {
  static constexpr kernels::LogitBias kBias[] = {{0, 1.0f}};
  kernels::SamplingRow row;
  row.logits = buffers.logits;
  row.top_k = 1;
  row.top_n_sigma = 1;
  row.bias = kBias;
  row.bias_size = std::size(kBias);
  row.text_vocab = text_vocab;
  row.has_text = has_text;
  row.num_logprobs = static_cast<std::int32_t>(std::min(sizes.limits.max_logprobs, 1u));
  return sampler->Sample({&row, 1}, slots[0].tokens, /*slot=*/0);
}

// The layers of a tail use the same kernels as other layers. A tail needs additional kernels only
// to move its tokens.
absl::Status CudaRunner::State::EnqueueTail() {
  models::TailArrays arrays = tail->arrays();
  arrays.num_tokens = 1;
  return Forward({}, {.num_tokens = 2,
                      .batch_size = sizes.limits.max_rows,
                      .has_prompt_rows = true,
                      .tail = arrays});
}

// Enqueues steps of p and p + 1 tokens for every power of two p. An op changes its kernel only at
// numbers of tokens that are powers of two, or at a single other number, so these steps use all
// kernels.
absl::Status CudaRunner::State::EnqueueAllKinds() {
  QUIRE_RETURN_IF_ERROR(
      inputs->Upload({.words = 1}, /*slot=*/0, /*num_head_tokens=*/0, {}, nullptr, 0, &buffers));
  const std::uint32_t page = 1;
  QUIRE_RETURN_IF_ERROR(kernels::ZeroPages(backend, *slots_kv, {&page, 1}));
  const std::uint32_t max_tokens = sizes.buffers.max_step_tokens;
  for (std::uint32_t power = 1; power / 2 < max_tokens; power *= 2) {
    for (const std::uint32_t num_tokens :
         {std::min(power, max_tokens), std::min(power + 1, max_tokens)}) {
      QUIRE_RETURN_IF_ERROR(EnqueuePadded(num_tokens, /*has_prompt_rows=*/true));
    }
  }
  if (tail) QUIRE_RETURN_IF_ERROR(EnqueueTail());
  QUIRE_RETURN_IF_ERROR(AddPool({.batch_row = BatchRow{0}, .num_tokens = 1}, /*first=*/0,
                                sizes.buffers.head_rows, static_cast<float*>(pooled.data())));
  return EnqueueSamplerKinds();
}

absl::Status CudaRunner::State::LoadKernels() {
  // The ranks of a divided model would have to enqueue the same sums at the same time, so their
  // kernels are loaded at first use.
  if (options.comm != nullptr) return absl::OkStatus();
  const absl::Time start = MonotonicNow();
  kernels::cuda::LoadedKernels& loaded = *backend.cuda()->kernels;
  loaded.SetLoadsOnly(true);
  const absl::Status enqueued = EnqueueAllKinds();
  loaded.SetLoadsOnly(false);
  QUIRE_RETURN_IF_ERROR(enqueued);
  QUIRE_RETURN_IF_ERROR(Synchronize());
  sampler->Reset(0);
  log::Info("model", "kernels loaded",
            {{"kernels", loaded.size()}, {"seconds", MonotonicNow() - start}});
  return absl::OkStatus();
}

absl::Status CudaRunner::State::CaptureGraphs() {
  if (sizes.max_graph_rows == 0) return absl::OkStatus();
  const absl::Time start = MonotonicNow();
  const std::uint32_t last = GraphBucket(sizes.max_graph_rows);
  for (std::uint32_t bucket = 1; bucket <= last; bucket = GraphBucket(bucket + 1)) {
    QUIRE_RETURN_IF_ERROR(
        graphs.Capture(bucket, [&] { return EnqueuePadded(bucket, /*has_prompt_rows=*/false); }));
  }
  QUIRE_RETURN_IF_ERROR(Synchronize());
  log::Info("model", "decode graphs captured",
            {{"graphs", graphs.size()},
             {"bytes", graphs.used_bytes()},
             {"seconds", MonotonicNow() - start}});
  return absl::OkStatus();
}

absl::Status CudaRunner::State::Forward(const StepBatch& batch, const PackedStep& step) {
  QUIRE_RETURN_IF_ERROR(Plan(step.batch_size, step.has_prompt_rows, step.has_generated_rows));
  const auto plan_tail = [&] {
    return Plan(step.batch_size, step.has_prompt_rows, step.has_generated_rows, &*step.tail);
  };
  const models::DeviceTail tail_of{step.tail.value_or(models::TailArrays{}), tail_kv, plan_tail};
  return models::DecoderForward(model.spec, *model.weights,
                                {.backend = &backend,
                                 .kv = kv,
                                 .layers = &layers,
                                 .plans = group_plans,
                                 .maps = group_maps,
                                 .buffers = &buffers,
                                 .num_tokens = step.num_tokens,
                                 .batch_size = step.batch_size,
                                 .hidden_out = batch.hidden_out,
                                 .batch_index = order.batch_index(),
                                 .states = States(),
                                 .comm = options.comm,
                                 .index = index ? &*index : nullptr,
                                 .tail = step.tail ? &tail_of : nullptr});
}

absl::Status CudaRunner::State::RunHead(std::uint32_t begin, std::uint32_t end) {
  return models::DecoderHead(model.spec, *model.weights, backend, &buffers,
                             buffers.head_tokens + begin, end - begin);
}

absl::Status CudaRunner::State::Finish(const StepBatch& batch, std::uint32_t begin,
                                       std::uint32_t end, std::uint32_t slot) {
  if (batch.logits_out != nullptr) {
    const std::size_t vocab = model.spec.vocab_size;
    // Synchronize returns if the group of ranks is aborted. A copy to pageable memory would wait
    // for the stream even then.
    QUIRE_RETURN_IF_ERROR(Synchronize());
    QUIRE_RETURN_IF_ERROR(
        stream().Copy(batch.logits_out + begin * vocab, buffers.logits,
                      static_cast<std::int64_t>((end - begin) * vocab * sizeof(float))));
    QUIRE_RETURN_IF_ERROR(stream().Synchronize());
  }
  TakeSamples(batch, begin, end, SamplePass::kEarly);
  QUIRE_RETURN_IF_ERROR(Sample(batch, slot));
  return ComputePromptLogprobs(batch, begin, end, slot);
}

absl::Status CudaRunner::State::Sample(const StepBatch& batch, std::uint32_t slot) {
  if (sampling_rows.empty()) return absl::OkStatus();
  for (std::size_t i = 0; i < sampling_rows.size(); ++i) {
    const std::int32_t sample_in_flight = batch.samples[sample_indices[i]].sample_in_flight;
    if (sample_in_flight < 0) continue;
    sampling_rows[i].sample_in_flight = slots[(slot + 1) % kSlots].tokens + sample_in_flight;
  }
  slots[slot].places.insert(slots[slot].places.end(), sample_indices.begin(), sample_indices.end());
  return sampler->Sample(sampling_rows, slots[slot].tokens, static_cast<int>(slot), sample_indices);
}

// The logits of the last block are still in buffers.logits. The logits of an earlier block are
// computed again, with the same bits.
absl::Status CudaRunner::State::SampleLate(const StepBatch& batch, std::uint32_t slot) {
  BeginLogits();
  const auto num_logits = static_cast<std::uint32_t>(batch.logits_tokens.size());
  const std::uint32_t head_rows = sizes.buffers.head_rows;
  std::uint32_t in_buffer = (num_logits - 1) / head_rows * head_rows;
  for (std::uint32_t begin = 0; begin < num_logits; begin += head_rows) {
    const std::uint32_t end = std::min(num_logits, begin + head_rows);
    TakeSamples(batch, begin, end, SamplePass::kLate);
    if (sampling_rows.empty()) continue;
    if (in_buffer != begin) QUIRE_RETURN_IF_ERROR(RunHead(begin, end));
    in_buffer = begin;
    QUIRE_RETURN_IF_ERROR(Sample(batch, slot));
  }
  return absl::OkStatus();
}

absl::Status CudaRunner::State::ComputePromptLogprobs(const StepBatch& batch, std::uint32_t begin,
                                                      std::uint32_t end, std::uint32_t slot) {
  TakePromptLogprobs(batch, begin, end);
  if (logprob_tokens.empty()) return absl::OkStatus();
  return sampler->ComputeLogprobs(logprob_tokens, static_cast<int>(slot));
}

// The copies follow the sums on the stream, so they are complete before Collect reads them.
absl::Status CudaRunner::State::ComputePools(const StepBatch& batch, std::uint32_t slot) {
  const std::size_t hidden = model.spec.hidden;
  auto* const sums = static_cast<float*>(pooled.data());
  float* host = static_cast<float*>(pooled_host.data()) + slot * sizes.limits.max_rows * hidden;
  for (std::size_t p = 0; p < batch.pools.size(); ++p) {
    const StepPool& pool = batch.pools[p];
    float* const sum = sums + pool.batch_row.value() * hidden;
    QUIRE_RETURN_IF_ERROR(
        AddPool(pool, order.step_index()[pool.first_token], sizes.buffers.head_rows, sum));
    if (!pool.ends) continue;
    float* const to = host + p * hidden;
    QUIRE_RETURN_IF_ERROR(
        stream().Copy(to, sum, static_cast<std::int64_t>(hidden * sizeof(float))));
    slots[slot].result.pools[p] = {to, hidden};
  }
  return absl::OkStatus();
}

absl::Status CudaRunner::State::Compute(const StepBatch& batch, const PackedStep& step,
                                        std::uint32_t slot) {
  const auto num_logits = static_cast<std::uint32_t>(batch.logits_tokens.size());
  if (const std::uint32_t bucket = BucketOf(batch); bucket > 0) {
    QUIRE_RETURN_IF_ERROR(RunGraph(bucket));
    return Finish(batch, 0, num_logits, slot);
  }
  QUIRE_RETURN_IF_ERROR(Forward(batch, step));
  for (std::uint32_t begin = 0; begin < num_logits; begin += sizes.buffers.head_rows) {
    const std::uint32_t end = std::min(num_logits, begin + sizes.buffers.head_rows);
    QUIRE_RETURN_IF_ERROR(RunHead(begin, end));
    QUIRE_RETURN_IF_ERROR(Finish(batch, begin, end, slot));
  }
  return ComputePools(batch, slot);
}

absl::Status CudaRunner::State::Launch(const StepBatch& batch, std::uint32_t slot) {
  sampler->Reset(static_cast<int>(slot));
  slots[slot].places.clear();
  slots[slot].late_error = absl::OkStatus();
  slots[slot].result.pools.assign(batch.pools.size(), {});
  BeginLogits();
  QUIRE_RETURN_IF_ERROR(PreparePages(batch));
  if (batch.rows.empty()) return slots[slot].done.Record(stream());
  PackedStep step = inputs->Pack(batch, static_cast<int>(slot), &order);
  const std::uint32_t bucket = BucketOf(batch);
  if (tail && bucket == 0 && tail->Choose(batch, static_cast<int>(slot), order)) {
    inputs->SetHeadTokens(step, static_cast<int>(slot), tail->head_tokens());
    QUIRE_RETURN_IF_ERROR(tail->Upload(static_cast<int>(slot)));
    step.tail = tail->arrays();
  }
  if (options.comm != nullptr) {
    QUIRE_RETURN_IF_ERROR(options.comm->BeginStep(bucket > 0 ? bucket : step.num_tokens));
  }
  StepPadding padding;
  if (bucket > 0) {
    padding = {.tokens = bucket, .head_tokens = bucket, .rows = sizes.limits.max_rows};
  }
  QUIRE_RETURN_IF_ERROR(inputs->Upload(
      step, static_cast<int>(slot), static_cast<std::uint32_t>(batch.logits_tokens.size()), padding,
      slots[(slot + 1) % kSlots].tokens, previous_samples, &buffers));
  QUIRE_RETURN_IF_ERROR(Compute(batch, step, slot));
  return batch.has_late_samples() ? absl::OkStatus() : slots[slot].done.Record(stream());
}

CudaRunner::CudaRunner(std::unique_ptr<State> state) : state_(std::move(state)) {}

CudaRunner::~CudaRunner() {
  // An error cannot be handled here. A caller that waits for a step gets the error from Collect.
  if (state_->enqueued) state_->Synchronize().IgnoreError();
}

absl::StatusOr<std::unique_ptr<CudaRunner>> CudaRunner::Create(const Model& model,
                                                               const kernels::Backend& backend,
                                                               cache::KvPool* pool,
                                                               const RunnerOptions& options) {
  QUIRE_CHECK(backend.cuda() != nullptr && pool->memory_kind() == MemoryKind::kDevice);
  QUIRE_RETURN_IF_ERROR(CheckRunnerOptions(model.spec, options));
  QUIRE_RETURN_IF_ERROR(CheckCommunicator(model.part, options, backend));
  QUIRE_RETURN_IF_ERROR(CheckPoolGeometry(model.spec, pool->geometry()));
  QUIRE_RETURN_IF_ERROR(CheckActivation(options.activation, pool->geometry().dtype));
  auto state = std::make_unique<State>(model, backend, pool, options);
  QUIRE_RETURN_IF_ERROR(state->Allocate());
  QUIRE_RETURN_IF_ERROR(state->MakeCollections());
  QUIRE_RETURN_IF_ERROR(state->UploadRopeTables());
  QUIRE_RETURN_IF_ERROR(state->LoadKernels());
  QUIRE_RETURN_IF_ERROR(state->CaptureGraphs());
  const DType pages = pool->geometry().dtype;
  const models::LayerSpec& layer = model.spec.first_kv_layer();
  if (layer.attention == models::AttentionKind::kMla && pages != DType::kBF16 &&
      layer.mla.kv_lora_rank + layer.mla.rope_size > 128) {
    log::Info("model", "MLA attention runs without tensor cores",
              {{"kv_cache.dtype", DTypeName(pages)},
               {"reason", "the tensor core kernel reads only bf16 pages"}});
  }
  return std::unique_ptr<CudaRunner>(new CudaRunner(std::move(state)));
}

absl::Status CudaRunner::CheckKernels(absl::Duration limit, SelfCheckReport* report) {
  State& s = *state_;
  const absl::Status status = RunSelfCheck({.spec = &s.model.spec,
                                            .weights = s.model.weights.get(),
                                            .backend = &s.backend,
                                            .layers = &s.layers,
                                            .buffers = &s.buffers,
                                            .limits = s.sizes.buffers,
                                            .kv = s.kv,
                                            .plans = s.group_plans,
                                            .maps = s.group_maps,
                                            .pool = s.pool,
                                            .sampler = s.sampler.get(),
                                            .text_vocab = s.text_vocab,
                                            .has_text = s.has_text},
                                           limit, report);
  s.inputs->Forget();
  return status;
}

void CudaRunner::LimitWaits(absl::Time deadline) {
  state_->wait_deadline = deadline;
}

int CudaRunner::max_steps_in_flight() const {
  return state_->layers.state_bytes > 0 ? 1 : State::kSlots;
}

std::span<std::byte> CudaRunner::states() {
  return {static_cast<std::byte*>(state_->states.data()),
          static_cast<std::size_t>(state_->states.size_bytes())};
}

absl::Status CudaRunner::State::Check(const StepBatch& batch) const {
  if (in_flight == kSlots) {
    return absl::FailedPreconditionError(
        absl::StrCat(in_flight, " steps are launched and not collected"));
  }
  QUIRE_RETURN_IF_ERROR(CheckStepBatch(batch, model.spec, sizes.limits, pool->geometry(),
                                       static_cast<std::uint32_t>(layers.groups.size()),
                                       previous_samples));
  for (const cache::KvStepInputs& kv : batch.kv) {
    if (kv.lookup_stride == sizes.limits.lookup_stride) continue;
    return absl::InvalidArgumentError(absl::StrCat("step batch: lookup_stride is ",
                                                   kv.lookup_stride, " but must be ",
                                                   sizes.limits.lookup_stride));
  }
  if (batch.hidden_out != nullptr && options.comm != nullptr) {
    return absl::UnimplementedError(
        "hidden states are not supported for a model that is divided among GPUs");
  }
  // The thread that runs steps is not the thread that opened the device.
  return UseDevice(stream().device());
}

absl::Status CudaRunner::Run(const StepBatch& batch) {
  State& s = *state_;
  const std::uint32_t slot = s.next_slot;
  const absl::Status checked = s.Check(batch);
  const absl::Status status = checked.ok() ? s.Launch(batch, slot) : checked;
  // Without Abort the other ranks would wait for this rank's contribution to their next sum.
  if (!status.ok() && s.options.comm != nullptr) s.options.comm->Abort(status);
  if (!checked.ok()) return checked;
  if (!status.ok()) {
    if (absl::IsDeadlineExceeded(status)) return status;  // Waiting again might never end.
    // The next step uses the pinned memory of the slot again, so the stream must be idle. An error
    // while waiting is an error of the device.
    s.Synchronize().IgnoreError();
    const absl::Status waited = s.stream().Synchronize();
    s.inputs->Forget();
    return waited.ok() ? status : DeviceLost(waited);
  }
  s.slots[slot].num_samples = static_cast<std::uint32_t>(batch.samples.size());
  s.previous_samples = s.slots[slot].num_samples;
  s.next_slot = (slot + 1) % State::kSlots;
  ++s.in_flight;
  return absl::OkStatus();
}

void CudaRunner::SampleLate(const StepBatch& batch) {
  State& s = *state_;
  const std::uint32_t index = (s.next_slot + State::kSlots - 1) % State::kSlots;
  State::Slot& slot = s.slots[index];
  slot.late_error = s.SampleLate(batch, index);
  const absl::Status recorded = slot.done.Record(s.stream());
  if (slot.late_error.ok()) slot.late_error = recorded;
}

absl::StatusOr<const StepResult*> CudaRunner::Collect() {
  State& s = *state_;
  if (s.in_flight == 0) return absl::FailedPreconditionError("no step was launched");
  const std::uint32_t index = (s.next_slot + State::kSlots - s.in_flight) % State::kSlots;
  State::Slot& slot = s.slots[index];
  --s.in_flight;
  QUIRE_RETURN_IF_ERROR(s.Wait(slot.done));
  QUIRE_RETURN_IF_ERROR(slot.late_error);
  slot.result.samples.assign(slot.num_samples, StepToken{.unsampled = true, .top = {}});
  slot.result.prompt_logprobs.clear();
  const std::span<const kernels::SampledRow> rows = s.sampler->samples(static_cast<int>(index));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    slot.result.samples[slot.places[i]] = ToStepToken(rows[i]);
  }
  for (const kernels::TokenLogprob& token : s.sampler->logprobs(static_cast<int>(index))) {
    slot.result.prompt_logprobs.push_back(ToStepToken(token));
  }
  return &slot.result;
}

const RunnerMemory& CudaRunner::memory() const {
  return state_->memory;
}

std::uint64_t CudaRunner::graph_steps() const {
  return state_->graph_steps;
}

std::uint32_t CudaRunner::num_graphs() const {
  return state_->graphs.size();
}

}  // namespace quire::runtime

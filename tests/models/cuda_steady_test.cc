// Ten thousand steps of every kind on an emulated GPU: prefill chunks, decode, sampling options,
// prefix hits, forks and preemptions. No step allocates or frees device memory or pinned host
// memory, captures a graph, loads a kernel or sets a function attribute.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/device_buffer.h"
#include "base/device_graph.h"
#include "base/status.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/pool/kv_pool.h"
#include "cache_manager/prefix/page_hash.h"
#include "runtime/cuda_runner.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

constexpr std::uint32_t kRows = 3;
constexpr std::uint32_t kStepTokens = 8;
constexpr std::uint32_t kBlocks = 10;
constexpr std::uint32_t kPageSize = 16;
constexpr std::uint32_t kContext = 48;
constexpr std::int32_t kVocab = 48;
constexpr Hash128 kRoot{1, 2};
constexpr int kSteps = 10000;
// A mixture-of-experts step differs from a dense one only in the computation of its experts.
constexpr int kMixtureSteps = 2500;
// A step of a hybrid model differs in its recurrent layer and in the slots of its rows.
constexpr int kHybridSteps = 1000;

// One layer and few columns, because the cost of a step here is its number of launches.
constexpr char kDense[] = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 48, "max_position_embeddings": 48,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": true, "torch_dtype": "bfloat16"})";
constexpr char kMixture[] = R"({"architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 48, "max_position_embeddings": 48,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu", "sliding_window": null,
    "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": true,
    "torch_dtype": "bfloat16"})";

constexpr char kHybrid[] = R"({"architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text", "hidden_size": 16, "intermediate_size": 16,
    "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "vocab_size": 48,
    "max_position_embeddings": 48, "rms_norm_eps": 1e-06, "hidden_act": "silu",
    "attn_output_gate": true, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
    "partial_rotary_factor": 0.25}, "tie_word_embeddings": true, "torch_dtype": "bfloat16"})";
constexpr std::uint32_t kSnapshots = 3;

// Counts of the steps' features, which prove that every kind occurred.
struct Counts {
  int prefills = 0;  // rows with prompt tokens
  int decodes = 0;   // rows with a generated token
  int fed_back = 0;  // decodes whose token was still in flight
  int begun = 0;     // number of started sequences
  int hits = 0;      // sequences that started with cached pages
  int preempted = 0;
  int recomputed = 0;  // rows with generated tokens that are computed again
  int forks = 0;
  int clears = 0;     // number of cleared pages
  int snapshots = 0;  // of recurrent states
  int penalties = 0;  // number of samples, as are the next two
  int filters = 0;
  int logprobs = 0;
  int prompt_logprobs = 0;
  int two_in_flight = 0;  // steps launched while another one was in flight
};

// A model on an emulated GPU and sequences that start, run and end at random, as in an engine.
//
// Invariants: at most one step is launched and not collected when a step is filled.
class Traffic {
 public:
  explicit Traffic(std::uint64_t seed) : random_(seed), threads_(1) {
    stream_.emplace(*Stream::Create(*OpenCudaDevice(0)));
    backend_.emplace(
        *kernels::Backend::CreateCuda(*stream_, kernels::Determinism::kBatchInvariant, &threads_));
  }

  absl::Status Start(const std::string& config, DType dtype) {
    EditableFiles files;
    files.Set("config.json", config);
    QUIRE_ASSIGN_OR_RETURN(
        model_, runtime::LoadModel(files.Files(), *backend_,
                                   {.mode = runtime::LoadMode::kDummy, .activation = dtype}));
    QUIRE_ASSIGN_OR_RETURN(const cache::KvGeometry geometry,
                           runtime::KvGeometryFor(model_->spec, kPageSize, dtype, kBlocks));
    QUIRE_ASSIGN_OR_RETURN(
        cache::KvPool pool,
        cache::KvPool::Create(geometry, {.guard_canary = true, .stream = &*stream_}));
    pool_ = std::make_unique<cache::KvPool>(std::move(pool));
    const bool has_states = PlanLayerGroups(model_->spec).state_bytes > 0;
    const std::uint32_t num_slots = has_states ? 1 + kRows + kSnapshots : 0;
    QUIRE_ASSIGN_OR_RETURN(cache_, cache::CacheManager::Create({.geometry = geometry,
                                                                .max_rows = kRows,
                                                                .max_context_tokens = kContext,
                                                                .num_state_slots = num_slots}));
    QUIRE_ASSIGN_OR_RETURN(runner_, runtime::CudaRunner::Create(*model_, *backend_, pool_.get(),
                                                                {.max_rows = kRows,
                                                                 .max_step_tokens = kStepTokens,
                                                                 .max_logprobs = 5,
                                                                 .num_state_slots = num_slots,
                                                                 .activation = dtype}));
    return absl::OkStatus();
  }

  // Launches one step. Once two are in flight it waits for the older one, sometimes for both. With
  // recurrent layers at most one is in flight.
  absl::Status Step() {
    EndAndBegin();
    Fill();
    QUIRE_RETURN_IF_ERROR(runner_->Run(batches_[next_batch_]));
    next_batch_ = 1 - next_batch_;
    ++in_flight_;
    counts_.two_in_flight += in_flight_ == 2 ? 1 : 0;
    const int keep = runner_->max_steps_in_flight() == 1 || Chance(0.2) ? 0 : 1;
    while (in_flight_ > keep) QUIRE_RETURN_IF_ERROR(Collect());
    return absl::OkStatus();
  }

  const Counts& counts() const { return counts_; }
  const runtime::CudaRunner& runner() const { return *runner_; }
  const cache::KvPool& pool() const { return *pool_; }
  const cache::CacheManager& cache() const { return *cache_; }
  const Stream& stream() const { return *stream_; }

 private:
  struct Row {
    bool is_live = false;
    std::uint32_t prompt = 0;          // tokens
    std::uint32_t known = 0;           // tokens to compute without sampling: the prompt, or more
    std::vector<std::int32_t> tokens;  // the prompt
    bool is_published = false;
    std::uint32_t end = 0;        // number of tokens at which it ends
    std::uint32_t cached = 0;     // number of tokens, including the step in flight
    int serial = 0;               // sequence number
    std::int32_t last_token = 0;  // the newest known token
    std::int32_t in_flight = -1;  // its sample of the step in flight, or -1
    std::vector<kernels::TokenCount> history;
  };
  static constexpr int kNoSequence = 0;
  // The row and serial number of a sample's owner.
  struct Owner {
    std::uint32_t row;
    int serial;
  };

  bool Chance(double p) { return std::bernoulli_distribution(p)(random_); }
  std::uint32_t Between(std::uint32_t least, std::uint32_t most) {
    return std::uniform_int_distribution<std::uint32_t>(least, most)(random_);
  }
  std::int32_t AnyToken() { return static_cast<std::int32_t>(Between(0, kVocab - 1)); }

  void EndAndBegin() {
    for (std::uint32_t i = 0; i < kRows; ++i) {
      Row& row = rows_[i];
      if (row.is_live && (row.cached >= row.end || Chance(0.01))) {
        // Clears pages before their reuse, as after a non-finite flag of the sampler.
        if (row.cached > 0 && Chance(0.2)) {
          cache_->Invalidate(BatchRow{i}, {}, {}, 0);
        } else {
          cache_->Free(BatchRow{i});
        }
        row.is_live = false;
      }
      if (row.is_live && in_flight_ == 0 && row.cached > row.prompt && Chance(0.05)) Preempt(i);
      if (!row.is_live && Chance(0.2)) Begin(i);
    }
  }

  // Takes the pages of a row, which is then computed again.
  void Preempt(std::uint32_t index) {
    Row& row = rows_[index];
    cache_->Free(BatchRow{index});
    row.known = row.cached;
    row.cached = 0;
    row.in_flight = -1;
    row.is_published = true;  // a row that was not attached publishes nothing
    ++counts_.preempted;
  }

  // Chooses a prompt, which often is the one that earlier sequences published, and attaches the
  // cached pages of it.
  void BeginPrompt(std::uint32_t index, Row* row) {
    const bool is_shared = Chance(0.5);
    row->prompt = is_shared ? kPageSize + 4 : Between(1, kPageSize + 4);
    for (std::uint32_t t = 0; t < row->prompt; ++t) {
      row->tokens.push_back(is_shared ? static_cast<std::int32_t>(t) : AnyToken());
    }
    const std::vector<cache::PageKey> keys = cache::HashPages({}, kRoot, row->tokens, kPageSize);
    const cache::PrefixMatch match = cache_->Match(row->tokens, keys, kRoot, row->prompt - 1);
    if (cache_->Attach(BatchRow{index}, match, kRoot).ok()) row->cached = match.num_tokens;
    counts_.hits += row->cached > 0 ? 1 : 0;
  }

  // Publishes the prompts of all rows. REQUIRES: no step is in flight.
  void PublishPrompts() {
    for (std::uint32_t i = 0; i < kRows; ++i) {
      Row& row = rows_[i];
      if (!row.is_live || row.is_published || row.cached < row.prompt) continue;
      std::vector<cache::PageKey> keys;
      cache_->Publish(BatchRow{i}, row.tokens, &keys, row.prompt);
      row.is_published = true;
    }
  }

  void Begin(std::uint32_t index) {
    Row row;
    row.is_live = true;
    row.serial = ++counts_.begun;
    row.history = {{1, 0}, {2, 1}, {5, 3}};
    // Starts another choice of a running sequence from its last token on.
    const std::uint32_t from = Between(0, kRows - 1);
    const Row& parent = rows_[from];
    if (from != index && parent.is_live && parent.cached >= parent.known && Chance(0.7) &&
        cache_->Fork(BatchRow{from}, BatchRow{index}, parent.cached).ok()) {
      ++counts_.forks;
      row.prompt = parent.prompt;
      row.tokens = parent.tokens;
      row.is_published = true;
      row.cached = parent.cached;
      row.last_token = parent.last_token;
      row.in_flight = parent.in_flight;
    } else {
      BeginPrompt(index, &row);
    }
    row.known = row.prompt;
    row.end = std::min(row.prompt + Between(1, 20), kContext);
    rows_[index] = std::move(row);
  }

  // Builds a step over some of the rows: chunks of prompts, and one token of each answer.
  void Fill() {
    runtime::StepBatch& batch = batches_[next_batch_];
    std::vector<Owner>& owners = owners_[next_batch_];
    batch.Clear();
    owners.clear();
    steps_.clear();
    std::uint32_t budget = kStepTokens;
    const bool decodes_only = Chance(0.6);
    for (std::uint32_t i = 0; i < kRows; ++i) {
      Row& row = rows_[i];
      const bool is_prompt = row.cached < row.known;
      if (!row.is_live || row.cached >= row.end || budget == 0 || Chance(0.3)) continue;
      if (is_prompt && decodes_only) continue;
      const std::uint32_t chunk =
          is_prompt ? std::min(budget, Between(1, row.known - row.cached)) : 1;
      if (!cache_->Reserve(BatchRow{i}, row.cached + chunk).ok()) continue;
      AddRow(i, chunk, &batch, &owners);
      budget -= chunk;
    }
    for (Row& row : rows_) row.in_flight = -1;
    for (std::size_t s = 0; s < owners.size(); ++s) {
      if (owners[s].serial == kNoSequence) continue;
      rows_[owners[s].row].in_flight = static_cast<std::int32_t>(s);
    }
    batch.copies = cache_->TakeCopies();
    batch.clears = cache_->TakeClears();
    counts_.clears += static_cast<int>(batch.clears.size());
    batch.kv = cache_->PrepareStep(steps_);
    batch.states = cache_->state_inputs();
    counts_.snapshots += static_cast<int>(std::ranges::count_if(steps_, [&](const auto& step) {
      return cache_->has_states() && batch.states.snapshot_at[step.row.value()] > 0;
    }));
  }

  void AddRow(std::uint32_t index, std::uint32_t chunk, runtime::StepBatch* batch,
              std::vector<Owner>* owners) {
    Row& row = rows_[index];
    const bool is_prompt = row.cached < row.known;
    const std::uint32_t prompt_tokens =
        std::min(chunk, row.prompt - std::min(row.prompt, row.cached));
    const auto first = static_cast<std::uint32_t>(batch->token_ids.size());
    for (std::uint32_t t = 0; t < chunk; ++t) {
      batch->token_ids.push_back(t < prompt_tokens    ? row.tokens[row.cached + t]
                                 : is_prompt          ? AnyToken()
                                 : row.in_flight >= 0 ? -1 - row.in_flight
                                                      : row.last_token);
    }
    counts_.prefills += prompt_tokens > 0 ? 1 : 0;
    counts_.recomputed += is_prompt && prompt_tokens < chunk ? 1 : 0;
    counts_.decodes += is_prompt ? 0 : 1;
    counts_.fed_back += !is_prompt && row.in_flight >= 0 ? 1 : 0;
    batch->rows.push_back({.batch_row = BatchRow{index},
                           .cache_length = row.cached,
                           .first_token = first,
                           .num_tokens = chunk,
                           .prompt_tokens = prompt_tokens});
    steps_.push_back({BatchRow{index}, row.cached, chunk});
    row.cached += chunk;
    if (is_prompt && chunk > 1 && Chance(0.3)) {
      batch->logits_tokens.push_back(first);
      batch->prompt_logprobs.push_back(
          {.logits_index = static_cast<std::uint32_t>(batch->logits_tokens.size() - 1),
           .token = AnyToken(),
           .num_top = static_cast<std::int32_t>(Between(0, 5))});
      ++counts_.prompt_logprobs;
    }
    if (row.cached < row.known) return;
    batch->logits_tokens.push_back(first + chunk - 1);
    runtime::StepSample sample;
    sample.logits_index = static_cast<std::uint32_t>(batch->logits_tokens.size() - 1);
    sample.row = AnySampling(row);
    if (!is_prompt) sample.sample_in_flight = row.in_flight;
    batch->samples.push_back(sample);
    owners->push_back({index, row.serial});
    // Adds another choice of the same request, which ends at once.
    if (is_prompt && Chance(0.2)) {
      sample.row = AnySampling(row);
      batch->samples.push_back(sample);
      owners->push_back({index, kNoSequence});
    }
  }

  kernels::SamplingRow AnySampling(const Row& row) {
    static constexpr kernels::LogitBias kBias[] = {{3, 1.5f}, {9, -2.0f}};
    static constexpr std::int32_t kBanned[] = {0, 7};
    kernels::SamplingRow sampling;
    sampling.temperature = Chance(0.8) ? 0.0f : 0.8f;
    sampling.seed = random_();
    sampling.position = row.cached;
    if (Chance(0.05)) {
      sampling.temperature = 0.9f;
      sampling.top_k = static_cast<std::int32_t>(Between(1, 20));
      sampling.top_p = 0.9f;
      ++counts_.filters;
    }
    if (Chance(0.05)) {
      sampling.repetition_penalty = 1.2f;
      sampling.frequency_penalty = 0.1f;
      sampling.history = row.history.data();
      sampling.history_size = static_cast<std::uint32_t>(row.history.size());
      ++counts_.penalties;
    }
    if (Chance(0.05)) {
      sampling.bias = kBias;
      sampling.bias_size = std::size(kBias);
      sampling.banned = kBanned;
      sampling.banned_size = std::size(kBanned);
    }
    if (Chance(0.05)) {
      sampling.num_logprobs = static_cast<std::int32_t>(Between(0, 5));
      ++counts_.logprobs;
    }
    return sampling;
  }

  absl::Status Collect() {
    const std::size_t oldest = in_flight_ == 2 ? next_batch_ : 1 - next_batch_;
    QUIRE_ASSIGN_OR_RETURN(const runtime::StepResult* result, runner_->Collect());
    cache_->CompleteStep();
    --in_flight_;
    for (std::size_t s = 0; s < owners_[oldest].size(); ++s) {
      const Owner& owner = owners_[oldest][s];
      const std::int32_t token = result->samples[s].token;
      if (token < 0 || token >= kVocab) return absl::InternalError("a sample has no token");
      Row& row = rows_[owner.row];
      if (row.serial == owner.serial) row.last_token = token;
    }
    if (in_flight_ == 0) {
      for (Row& row : rows_) row.in_flight = -1;
      PublishPrompts();
    }
    return absl::OkStatus();
  }

  std::mt19937_64 random_;
  ThreadPool threads_;
  std::optional<Stream> stream_;
  std::optional<kernels::Backend> backend_;
  std::unique_ptr<runtime::Model> model_;
  std::unique_ptr<cache::KvPool> pool_;
  std::unique_ptr<cache::CacheManager> cache_;
  std::unique_ptr<runtime::CudaRunner> runner_;
  std::array<Row, kRows> rows_;
  std::array<runtime::StepBatch, 2> batches_;
  std::array<std::vector<Owner>, 2> owners_;
  std::vector<cache::RowStep> steps_;
  std::size_t next_batch_ = 0;
  int in_flight_ = 0;
  Counts counts_;
};

// Counts of the calls that belong to the start of a daemon.
struct StartCalls {
  std::uint64_t allocations = cuda_emulator::AllocationCount();
  std::uint64_t captures = cuda_emulator::CaptureCount();
  std::uint64_t function_calls = cuda_emulator::FunctionCallCount();
  std::uint64_t tensor_maps = cuda_emulator::TensorMapCount();
  friend bool operator==(const StartCalls&, const StartCalls&) = default;
  std::string Since(const StartCalls& before) const {
    return absl::StrCat(allocations - before.allocations, " allocations, ",
                        captures - before.captures, " captures, ",
                        function_calls - before.function_calls, " calls about kernels, ",
                        tensor_maps - before.tensor_maps, " tensor maps");
  }
};

struct Moved {
  int step = -1;     // the first step that failed or after which a count changed, or -1
  std::string what;  // the error or the calls of that step
};

// Runs `steps` steps. Calls `plant` before step `planted` (-1: never).
Moved StepsUntilStartCall(
    Traffic* traffic, int steps, int planted = -1, absl::FunctionRef<void()> plant = [] {}) {
  const StartCalls before;
  for (int step = 0; step < steps; ++step) {
    if (step == planted) plant();
    if (absl::Status status = traffic->Step(); !status.ok()) return {step, status.ToString()};
    if (const StartCalls now; now != before) return {step, now.Since(before)};
  }
  return {};
}

struct Kind {
  const char* name;
  const char* config;
  DType dtype;
  int steps;
  bool has_states = false;
};

class CudaSteadyTest : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override { cuda_emulator::Reset(); }
};

TEST_P(CudaSteadyTest, StepsAllocateCaptureAndLoadNothing) {
  const int steps = GetParam().steps;
  const bool has_states = GetParam().has_states;
  Traffic traffic(20);
  const absl::Status started = traffic.Start(GetParam().config, GetParam().dtype);
  ASSERT_TRUE(started.ok()) << started;
  EXPECT_EQ(traffic.runner().num_graphs(), 3u);  // of 1, 2 and 4 rows
  const Moved moved = StepsUntilStartCall(&traffic, steps);
  ASSERT_EQ(moved.step, -1) << moved.what;

  // The steps covered all of these features.
  const Counts& counts = traffic.counts();
  for (const int count : {counts.prefills, counts.decodes, counts.begun, counts.forks,
                          counts.clears, counts.penalties, counts.filters, counts.logprobs,
                          counts.prompt_logprobs, counts.preempted, counts.recomputed}) {
    EXPECT_GT(count, steps / 200);
  }
  // States are kept at few borders only, and their rows have one step in flight.
  EXPECT_GT(counts.hits, has_states ? 0 : steps / 200);
  EXPECT_EQ(counts.snapshots > 0, has_states) << counts.snapshots;
  EXPECT_EQ(counts.fed_back > steps / 200, !has_states) << counts.fed_back;
  EXPECT_EQ(counts.two_in_flight > steps / 2, !has_states) << counts.two_in_flight;
  EXPECT_GT(cuda_emulator::LaunchCount("page_copy"), has_states ? 10u : 100u);
  EXPECT_GT(traffic.runner().graph_steps(), static_cast<std::uint64_t>(steps / 10));
  EXPECT_TRUE(traffic.pool().CheckIntegrity().ok()) << traffic.pool().CheckIntegrity();
  EXPECT_TRUE(traffic.cache().CheckIntegrity().ok()) << traffic.cache().CheckIntegrity();

  // An injected call is detected in the step in which it happens.
  for (const MemoryKind kind : {MemoryKind::kDevice, MemoryKind::kPinned}) {
    const auto allocate = [&] { EXPECT_TRUE(DeviceBuffer::Allocate(kind, 1).ok()); };
    EXPECT_EQ(StepsUntilStartCall(&traffic, 9, 5, allocate).step, 5);
  }
  const auto capture = [&] {
    EXPECT_TRUE(DeviceGraph::Capture(traffic.stream(), [] { return absl::OkStatus(); }).ok());
  };
  EXPECT_EQ(StepsUntilStartCall(&traffic, 9, 3, capture).step, 3);
  const auto set_attribute = [] {
    EXPECT_EQ(cudaFuncSetAttribute(&kRoot, cudaFuncAttributeMaxDynamicSharedMemorySize, 1),
              cudaSuccess);
  };
  EXPECT_EQ(StepsUntilStartCall(&traffic, 9, 4, set_attribute).step, 4);
}

INSTANTIATE_TEST_SUITE_P(Models, CudaSteadyTest,
                         testing::Values(Kind{"Dense", kDense, DType::kF32, kSteps},
                                         Kind{"Mixture", kMixture, DType::kBF16, kMixtureSteps},
                                         Kind{"Hybrid", kHybrid, DType::kBF16, kHybridSteps, true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quire::models

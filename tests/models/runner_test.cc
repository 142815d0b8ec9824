#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/pool/kv_pool.h"
#include "models/weights/checkpoint.h"
#include "models/weights/weights.h"
#include "runtime/cpu_runner.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "tests/models/allocation_counter.h"
#include "tests/models/test_files.h"
#include "tests/testing/paths.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::models {
namespace {

using testing::HasSubstr;

constexpr std::uint32_t kRows = 4;
constexpr std::uint32_t kStepTokens = 96;
constexpr std::uint32_t kBlocks = 64;

kernels::SamplingRow Greedy(std::int32_t num_logprobs = 0) {
  kernels::SamplingRow row{};
  row.temperature = 0;
  row.num_logprobs = num_logprobs;
  return row;
}

// A model with a cache manager, as in the engine.
class RunnerTest : public testing::Test {
 protected:
  void SetUp() override { Load("models/llama-gqa-tied-bf16"); }

  void Load(const std::string& folder, const runtime::RunnerOptions& options = DefaultOptions()) {
    auto files = formats::ModelFiles::FromDirectory(TestDataPath(folder));
    ASSERT_TRUE(files.ok()) << files.status();
    LoadFiles(*files, options);
  }

  static runtime::RunnerOptions DefaultOptions() {
    return {.max_rows = kRows, .max_step_tokens = kStepTokens, .max_logprobs = 5};
  }

  void LoadFiles(const formats::ModelFiles& files, const runtime::RunnerOptions& options,
                 Quantization quantization = Quantization::kAuto, DType kv_dtype = DType::kF32) {
    auto model = runtime::LoadModel(files, cpu_->backend, {.quantization = quantization});
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    auto geometry = runtime::KvGeometryFor(model_->spec, 16, kv_dtype, kBlocks);
    ASSERT_TRUE(geometry.ok()) << geometry.status();
    auto pool = cache::KvPool::Create(*geometry);
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = std::make_unique<cache::KvPool>(*std::move(pool));
    auto runner = runtime::CpuRunner::Create(*model_, cpu_->backend, pool_.get(), options);
    ASSERT_TRUE(runner.ok()) << runner.status();
    runner_ = *std::move(runner);
    auto cache =
        cache::CacheManager::Create({.geometry = *geometry,
                                     .groups = CacheGroupsOf(PlanLayerGroups(model_->spec)),
                                     .max_rows = kRows,
                                     .max_context_tokens = model_->spec.max_position,
                                     .max_row_overlap_tokens = kStepTokens});
    ASSERT_TRUE(cache.ok()) << cache.status();
    cache_ = *std::move(cache);
  }

  // Runs `count` tokens of `tokens`, starting at `cached`, in row `row` and samples after the last
  // token.
  absl::StatusOr<runtime::StepToken> Advance(std::uint32_t row,
                                             const std::vector<std::int32_t>& tokens,
                                             std::uint32_t cached, std::uint32_t count) {
    QUIRE_RETURN_IF_ERROR(cache_->Reserve(BatchRow{row}, cached + count));
    batch_.Clear();
    for (std::uint32_t i = 0; i < count; ++i) batch_.token_ids.push_back(tokens[cached + i]);
    batch_.rows.push_back({BatchRow{row}, cached, 0, count});
    batch_.logits_tokens.push_back(count - 1);
    batch_.samples.push_back({0, Greedy()});
    const cache::RowStep step{BatchRow{row}, cached, count};
    batch_.kv = cache_->PrepareStep({&step, 1});
    batch_.copies = cache_->TakeCopies();
    batch_.clears = cache_->TakeClears();
    batch_.heartbeat = heartbeat_;
    QUIRE_RETURN_IF_ERROR(runner_->Run(batch_));
    cache_->CompleteStep();
    QUIRE_ASSIGN_OR_RETURN(const runtime::StepResult* result, runner_->Collect());
    return result->samples[0];
  }

  std::vector<std::int32_t> Generate(std::uint32_t row, std::vector<std::int32_t> tokens,
                                     std::size_t count) {
    std::uint32_t cached = 0;
    std::vector<std::int32_t> sampled;
    while (sampled.size() < count) {
      const std::uint32_t fresh =
          std::min<std::uint32_t>(kStepTokens, static_cast<std::uint32_t>(tokens.size()) - cached);
      const auto token = Advance(row, tokens, cached, fresh);
      EXPECT_TRUE(token.ok()) << token.status();
      if (!token.ok()) return sampled;
      cached += fresh;
      if (cached < tokens.size()) continue;
      tokens.push_back(token->token);
      sampled.push_back(token->token);
    }
    return sampled;
  }

  // Runs 64 steps of one token and counts allocations after the first 32.
  void ExpectSteadyState() {
    std::vector<std::int32_t> tokens(64);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i) + 40;
    ASSERT_TRUE(cache_->Reserve(BatchRow{1}, 64).ok());
    runtime::StepBatch batch;
    std::int64_t before = 0;
    for (std::uint32_t i = 0; i < 64; ++i) {
      const cache::RowStep step{BatchRow{1}, i, 1};
      batch.Clear();
      batch.token_ids.push_back(tokens[i]);
      batch.rows.push_back({BatchRow{1}, i, 0, 1});
      batch.logits_tokens.push_back(0);
      batch.samples.push_back({0, Greedy(3)});
      batch.kv = cache_->PrepareStep({&step, 1});
      // The first steps grow the scratch memory of the ops, whose size is a power of two of the
      // context.
      if (i == 32) before = AllocationCount();
      ASSERT_TRUE(runner_->Run(batch).ok());
      ASSERT_TRUE(runner_->Collect().ok());
    }
    EXPECT_EQ(AllocationCount() - before, 0);
  }

  // Returns a valid batch of one row of three tokens, which tests modify.
  runtime::StepBatch SoundBatch() {
    EXPECT_TRUE(cache_->Reserve(BatchRow{1}, 3).ok());
    const cache::RowStep step{BatchRow{1}, 0, 3};
    runtime::StepBatch batch;
    batch.kv = cache_->PrepareStep({&step, 1});
    batch.token_ids = {5, 6, 7};
    batch.rows.push_back({BatchRow{1}, 0, 0, 3});
    batch.logits_tokens = {1, 2};
    batch.samples.push_back({1, Greedy()});
    batch.prompt_logprobs.push_back({0, 7, 0});
    return batch;
  }

  std::unique_ptr<TestBackend> cpu_ = std::make_unique<TestBackend>(2);
  std::unique_ptr<runtime::Model> model_;
  std::unique_ptr<cache::KvPool> pool_;
  std::unique_ptr<runtime::CpuRunner> runner_;
  std::unique_ptr<cache::CacheManager> cache_;
  runtime::StepBatch batch_;
  Heartbeat* heartbeat_ = nullptr;  // of the next batches
};

TEST_F(RunnerTest, InvalidBatchesAreRejectedWithAReason) {
  const runtime::StepBatch sound = SoundBatch();
  ASSERT_TRUE(runner_->Run(sound).ok()) << runner_->Run(sound);
  ASSERT_TRUE(runner_->Collect().ok());
  const std::pair<const char*, std::function<void(runtime::StepBatch&)>> cases[] = {
      {"0 layer groups, the model has 1", [](runtime::StepBatch& b) { b.kv = {}; }},
      {"token_ids[1] is 384", [](runtime::StepBatch& b) { b.token_ids[1] = 384; }},
      {"token_ids[2] is -1", [](runtime::StepBatch& b) { b.token_ids[2] = -1; }},
      {"samples[0].sample_in_flight is 0, the previous step has 0",
       [](runtime::StepBatch& b) { b.samples[0].sample_in_flight = 0; }},
      {"samples[0].sample_in_flight is -2",
       [](runtime::StepBatch& b) { b.samples[0].sample_in_flight = -2; }},
      {"batch_row is 4", [](runtime::StepBatch& b) { b.rows[0].batch_row = BatchRow{4}; }},
      {"it must begin at 0", [](runtime::StepBatch& b) { b.rows[0].first_token = 1; }},
      {"end by 3", [](runtime::StepBatch& b) { b.rows[0].num_tokens = 4; }},
      {"rows have 2 tokens", [](runtime::StepBatch& b) { b.rows[0].num_tokens = 2; }},
      {"cache_length is 1", [](runtime::StepBatch& b) { b.rows[0].cache_length = 1; }},
      {"model context is 512", [](runtime::StepBatch& b) { b.rows[0].cache_length = 510; }},
      {"logits_tokens[0] is 3", [](runtime::StepBatch& b) { b.logits_tokens[0] = 3; }},
      {"samples[0].logits_index is 2",
       [](runtime::StepBatch& b) { b.samples[0].logits_index = 2; }},
      {"samples[1].logits_index is 0",
       [](runtime::StepBatch& b) {
         b.samples.push_back({0, Greedy()});
       }},
      {"num_logprobs is 6", [](runtime::StepBatch& b) { b.samples[0].row.num_logprobs = 6; }},
      {"prompt_logprobs[0].token is 384",
       [](runtime::StepBatch& b) { b.prompt_logprobs[0].token = 384; }},
      {"prompt_logprobs[0].num_top is -1",
       [](runtime::StepBatch& b) { b.prompt_logprobs[0].num_top = -1; }},
      {"clears[0] is page 0", [](runtime::StepBatch& b) { b.clears.push_back(BlockId{0}); }},
      {"copies[0] is page 64",
       [](runtime::StepBatch& b) {
         b.copies.push_back({BlockId{64}, BlockId{1}, 1});
       }},
      {"num_rows is 17",
       [](runtime::StepBatch& b) {
         b.copies.push_back({BlockId{3}, BlockId{1}, 17});
       }},
      {"97 tokens, at most 96", [](runtime::StepBatch& b) { b.token_ids.resize(97); }},
      {"17 samples, at most 16", [](runtime::StepBatch& b) { b.samples.resize(17, b.samples[0]); }},
  };
  for (const auto& [message, change] : cases) {
    runtime::StepBatch batch = sound;
    change(batch);
    const absl::Status status = runner_->Run(batch);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_FALSE(runner_->Collect().ok()) << "a refused step has no result";
  }
}

TEST_F(RunnerTest, OptionsAndPoolAreChecked) {
  const std::pair<const char*, runtime::RunnerOptions> cases[] = {
      {"max_rows is 0", {.max_rows = 0, .max_step_tokens = 8}},
      {"max_step_tokens is 0", {.max_rows = 1, .max_step_tokens = 0}},
      {"has_text has 3 entries",
       {.max_rows = 1, .max_step_tokens = 8, .has_text = std::vector<std::uint8_t>(3, 1)}}};
  for (const auto& [message, options] : cases) {
    const auto runner = runtime::CpuRunner::Create(*model_, cpu_->backend, pool_.get(), options);
    ASSERT_FALSE(runner.ok()) << message;
    EXPECT_THAT(std::string(runner.status().message()), HasSubstr(message));
  }
  cache::KvGeometry other = pool_->geometry();
  other.num_heads = 3;
  auto pool = cache::KvPool::Create(other);
  ASSERT_TRUE(pool.ok());
  EXPECT_THAT(
      std::string(runtime::CpuRunner::Create(*model_, cpu_->backend, &*pool, DefaultOptions())
                      .status()
                      .message()),
      HasSubstr("kv pool has 2 layers of 3 heads"));
}

TEST_F(RunnerTest, WorkspaceEqualsThePlan) {
  EXPECT_EQ(runner_->workspace_bytes(),
            runtime::PlanWorkspaceBytes(model_->spec, DefaultOptions(), QuantizedMatrices{},
                                        cpu_->backend.activations(), cpu_->backend.num_threads()));
}

// After steps of each family, threads have exactly the planned scratch memory.
TEST_F(RunnerTest, StepsStayWithinThePlannedScratchMemory) {
  using enum kernels::CpuActivations;
  const runtime::RunnerOptions options = DefaultOptions();
  for (const char* const folder :
       {"models/llama-gqa-tied-bf16", "models/gemma2-bf16", "models/deepseek-v2-lite-bf16",
        "models/qwen3-moe-bf16", "models/gpt-oss-mxfp4", "models/deepseek-v32-bf16",
        "models/glm-moe-dsa-bf16", "models/gemma4-bf16", "models/gemma4-moe-bf16"}) {
    const auto files = formats::ModelFiles::FromDirectory(TestDataPath(folder));
    ASSERT_TRUE(files.ok()) << files.status();
    struct Case {
      kernels::CpuActivations activations;
      Quantization quantization;
      DType pages;
    };
    for (const auto& [activations, quantization, pages] :
         {Case{kBF16, Quantization::kNone, DType::kBF16},
          Case{kBF16, Quantization::kNone, DType::kF32},
          Case{kBF16, Quantization::kInt8, DType::kBF16},
          Case{kF32, Quantization::kNone, DType::kF32},
          Case{kF32, Quantization::kInt8, DType::kBF16},
          Case{kInt8, Quantization::kInt8, DType::kBF16}}) {
      SCOPED_TRACE(absl::StrCat(folder, " ", kernels::CpuActivationsName(activations), " ",
                                QuantizationName(quantization), " ", DTypeName(pages)));
      runner_.reset();
      cpu_ = std::make_unique<TestBackend>(2, activations);
      const kernels::Backend& backend = cpu_->backend;
      LoadFiles(*files, options, quantization, pages);
      if (HasFatalFailure()) return;
      const auto plan = runtime::PlanMemory(*files, {.page_size = 16,
                                                     .kv_dtype = pages,
                                                     .num_blocks = kBlocks,
                                                     .quantization = quantization,
                                                     .activations = activations,
                                                     .num_threads = backend.num_threads(),
                                                     .runner = options});
      ASSERT_TRUE(plan.ok()) << plan.status();
      EXPECT_EQ(runner_->workspace_bytes(), plan->workspace_bytes);
      const auto of_threads = [&] {
        return backend.scratch_bytes() -
               static_cast<std::int64_t>(backend.op_workspace().size_bytes());
      };
      const std::int64_t planned =
          plan->workspace_bytes - StepBuffers::BytesFor(model_->spec, runtime::LimitsOf(options)) -
          std::int64_t{options.max_rows} * model_->spec.hidden * std::int64_t{sizeof(float)};
      EXPECT_EQ(backend.scratch_bytes(), planned);
      const std::int64_t threads = of_threads();
      const std::vector<std::int32_t> tokens(kStepTokens + 1, 7);
      ASSERT_TRUE(Advance(0, tokens, 0, kStepTokens).ok());
      ASSERT_TRUE(Advance(0, tokens, kStepTokens, 1).ok());
      EXPECT_EQ(of_threads(), threads);
    }
  }
}

// Under equal logits the prompt log-probability of a token equals its log-probability as a sample.
TEST_F(RunnerTest, SamplesAndLogprobsAgree) {
  runtime::StepBatch batch = SoundBatch();
  batch.logits_tokens = {0, 1, 2};
  batch.samples.clear();
  batch.prompt_logprobs.clear();
  for (std::uint32_t i = 0; i < 3; ++i) {
    batch.samples.push_back({i, Greedy(3)});
    batch.samples.push_back({i, Greedy(3)});
  }
  ASSERT_TRUE(runner_->Run(batch).ok());
  auto sampled = runner_->Collect();
  ASSERT_TRUE(sampled.ok());
  const runtime::StepResult first = **sampled;
  ASSERT_EQ(first.samples.size(), 6u);
  for (std::uint32_t i = 0; i < 3; ++i)
    batch.prompt_logprobs.push_back({i, first.samples[2 * i].token, 3});
  ASSERT_TRUE(runner_->Run(batch).ok());
  const runtime::StepResult& second = **runner_->Collect();
  for (std::uint32_t i = 0; i < 3; ++i) {
    const runtime::StepToken& sample = second.samples[2 * i];
    const runtime::StepToken& score = second.prompt_logprobs[i];
    EXPECT_EQ(sample.token, second.samples[2 * i + 1].token);
    EXPECT_EQ(sample.rank, 1);
    EXPECT_EQ(score.rank, 1);
    EXPECT_EQ(sample.logprob, score.logprob);
    ASSERT_EQ(score.top.size(), 3u);
    EXPECT_EQ(score.top[0].token, sample.token);
    EXPECT_EQ(score.top[0].logprob, sample.logprob);
    EXPECT_GE(score.top[1].logprob, score.top[2].logprob);
  }
}

// The batch has more rows of logits than one block of the head.
TEST_F(RunnerTest, LogitsOfManyTokensAreComputedInBlocks) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 90; ++i) tokens.push_back((i * 37 + 5) % 300);
  ASSERT_TRUE(cache_->Reserve(BatchRow{2}, 90).ok());
  const cache::RowStep step{BatchRow{2}, 0, 90};
  runtime::StepBatch batch;
  batch.kv = cache_->PrepareStep({&step, 1});
  batch.token_ids = tokens;
  batch.rows.push_back({BatchRow{2}, 0, 0, 90});
  for (std::uint32_t i = 0; i < 90; ++i) {
    batch.logits_tokens.push_back(i);
    batch.prompt_logprobs.push_back({i, tokens[(i + 1) % 90], 1});
  }
  const std::size_t vocab = model_->spec.vocab_size;
  std::vector<float> logits(90 * vocab);
  batch.logits_out = logits.data();
  ASSERT_TRUE(runner_->Run(batch).ok());
  const runtime::StepResult& result = **runner_->Collect();
  for (std::size_t i = 0; i < 90; ++i) {
    const float* row = logits.data() + i * vocab;
    double sum = 0;
    for (std::size_t j = 0; j < vocab; ++j) sum += std::exp(double{row[j]});
    const double want =
        row[static_cast<std::size_t>(result.prompt_logprobs[i].token)] - std::log(sum);
    EXPECT_NEAR(result.prompt_logprobs[i].logprob, want, 1e-4) << i;
  }
}

TEST_F(RunnerTest, IdsWithoutTextAreNeverSampled) {
  const std::vector<std::int32_t> prompt = {10, 20, 30};
  const std::int32_t favourite = Generate(0, prompt, 1)[0];
  runtime::RunnerOptions options = DefaultOptions();
  options.has_text.assign(384, 1);
  options.has_text[static_cast<std::size_t>(favourite)] = 0;
  Load("models/llama-gqa-tied-bf16", options);
  EXPECT_NE(Generate(0, prompt, 1)[0], favourite);
  options.has_text.clear();
  options.text_vocab = static_cast<std::uint32_t>(favourite);
  Load("models/llama-gqa-tied-bf16", options);
  EXPECT_LT(Generate(0, prompt, 1)[0], favourite);
  options.text_vocab = 1000;  // a tokenizer that knows more ids than the model has rows
  Load("models/llama-gqa-tied-bf16", options);
  EXPECT_EQ(Generate(0, prompt, 1)[0], favourite);
}

// Large finite weights can overflow. The row is flagged, and the other rows continue.
TEST_F(RunnerTest, NonFiniteLogitsAreFlagged) {
  EditableFiles files("models/tiny_base");
  const auto checkpoint = Checkpoint::Open(files.Files());
  std::string weights = files.Get("model.safetensors");
  const formats::StoredTensor* norm = checkpoint->Find("model.norm.weight");
  const std::size_t offset = static_cast<std::size_t>(
      reinterpret_cast<const char*>(norm->bytes.data()) - files.Get("model.safetensors").data());
  for (std::size_t i = 0; i < norm->bytes.size(); i += 2) {
    weights[offset + i] = 0x7f;
    weights[offset + i + 1] = 0x7f;  // 3.4e38
  }
  files.Set("model.safetensors", weights);
  LoadFiles(files.Files(), DefaultOptions());
  const auto token = Advance(0, {1, 2, 3}, 0, 3);
  ASSERT_TRUE(token.ok()) << token.status();
  EXPECT_TRUE(token->non_finite);
  EXPECT_EQ(token->token, -1);
}

// Counts the calls of Now. Each heartbeat makes one call.
class CountingClock final : public Clock {
 public:
  absl::Time Now() const override {
    ++looks_;
    return absl::UnixEpoch();
  }
  absl::Time WallNow() const override { return absl::UnixEpoch(); }
  std::size_t looks() const { return looks_; }

 private:
  mutable std::size_t looks_ = 0;
};

TEST_F(RunnerTest, StepSendsAHeartbeatAfterEveryLayer) {
  const CountingClock clock;
  Heartbeat heartbeat(&clock);
  const std::size_t before = clock.looks();
  ASSERT_TRUE(Advance(0, {1, 2, 3}, 0, 2).ok());
  EXPECT_EQ(clock.looks(), before);
  heartbeat_ = &heartbeat;
  ASSERT_TRUE(Advance(0, {1, 2, 3}, 2, 1).ok());
  EXPECT_EQ(clock.looks(), before + model_->spec.layers.size() + 1);  // and after the head
}

// A model with equal layers, and models whose layers have different KV rows and share them.
class RunnerOfFolderTest : public RunnerTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override { Load(GetParam()); }
};

// Results after a shared prefix, a copied tail and a cleared page are bitwise equal to those of a
// separate sequence.
TEST_P(RunnerOfFolderTest, ForkedSequencesContinueLikeTheirParent) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < 21; ++i) tokens.push_back(i * 7 + 3);
  const auto token = Advance(0, tokens, 0, 21);
  ASSERT_TRUE(token.ok()) << token.status();
  ASSERT_TRUE(cache_->Fork(BatchRow{0}, BatchRow{3}, 21).ok());
  tokens.push_back(token->token);
  const auto child = Advance(3, tokens, 21, 1);
  ASSERT_TRUE(child.ok()) << child.status();
  const auto parent = Advance(0, tokens, 21, 1);
  ASSERT_TRUE(parent.ok()) << parent.status();
  EXPECT_EQ(child->token, parent->token);
  cache_->Free(BatchRow{0});
  const auto alone = Advance(1, tokens, 0, 22);
  ASSERT_TRUE(alone.ok()) << alone.status();
  EXPECT_EQ(alone->token, child->token);
  EXPECT_TRUE(cache_->CheckIntegrity().ok());
  EXPECT_TRUE(pool_->CheckIntegrity().ok());
}

// A copied page brings its index rows along: the page is one of those that the child selects from.
TEST_F(RunnerTest, ForksOfIndexedModelsContinueLikeTheirParent) {
  constexpr std::uint32_t kTokens = 77;  // 24 are selected, the last page has 13
  Load("models/deepseek-v32-bf16");
  std::vector<std::int32_t> tokens;
  for (std::uint32_t i = 0; i < kTokens; ++i)
    tokens.push_back(static_cast<std::int32_t>(i * 3 + 5));
  auto token = Advance(0, tokens, 0, kTokens);
  ASSERT_TRUE(token.ok()) << token.status();
  ASSERT_TRUE(cache_->Fork(BatchRow{0}, BatchRow{3}, kTokens).ok());
  for (std::uint32_t step = 0; step < 4; ++step) {
    const std::uint32_t cached = kTokens + step;
    tokens.push_back(token->token);
    const auto child = Advance(3, tokens, cached, 1);
    ASSERT_TRUE(child.ok()) << child.status();
    const auto parent = Advance(0, tokens, cached, 1);
    ASSERT_TRUE(parent.ok()) << parent.status();
    const auto alone = Advance(1, tokens, 0, cached + 1);
    ASSERT_TRUE(alone.ok()) << alone.status();
    EXPECT_EQ(child->token, alone->token);
    EXPECT_EQ(child->logprob, alone->logprob);
    EXPECT_EQ(parent->logprob, alone->logprob);
    cache_->Free(BatchRow{1});
    token = child;
  }
  EXPECT_TRUE(cache_->CheckIntegrity().ok());
  EXPECT_TRUE(pool_->CheckIntegrity().ok());
}

TEST_F(RunnerTest, ClearedPagesHaveNoIndexRows) {
  Load("models/glm-moe-dsa-bf16");
  const std::vector<std::int32_t> tokens(16, 7);
  ASSERT_TRUE(Advance(0, tokens, 0, 16).ok());
  const auto rows = runtime::IndexRowsFor(model_->spec, pool_->geometry());
  ASSERT_TRUE(rows.ok()) << rows.status();
  const auto first_index_row = [&](std::uint32_t page) {
    return pool_->page_blocks(BlockId{page})
        .subspan(static_cast<std::size_t>(rows->offset_bytes),
                 static_cast<std::size_t>(rows->geometry.head_size) * 4);
  };
  const auto is_zero = [&](std::uint32_t page) {
    return std::ranges::all_of(first_index_row(page),
                               [](std::byte b) { return b == std::byte{0}; });
  };
  std::uint32_t page = 1;
  while (page < kBlocks && is_zero(page)) ++page;
  ASSERT_LT(page, kBlocks) << "no page has index rows";
  batch_.Clear();
  batch_.clears = {BlockId{page}};
  const cache::RowStep none{};
  batch_.kv = cache_->PrepareStep({&none, 0});
  ASSERT_TRUE(runner_->Run(batch_).ok());
  EXPECT_TRUE(is_zero(page));
}

TEST_F(RunnerTest, SteadyStateStepsOfIndexedModelsAllocateNothing) {
  Load("models/glm-moe-dsa-bf16");
  ExpectSteadyState();
}

TEST_P(RunnerOfFolderTest, SteadyStateStepsAllocateNothing) {
  ExpectSteadyState();
}

INSTANTIATE_TEST_SUITE_P(Folders, RunnerOfFolderTest,
                         testing::Values("models/llama-gqa-tied-bf16", "models/gemma4-bf16",
                                         "models/gemma4-moe-bf16"));

TEST(StoryModelTest, GeneratesTheExpectedStory) {
  TestBackend cpu(2);
  const std::string directory = paths::Source("assets/story");
  const auto tokenizer = text::Tokenizer::Load(directory);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto model = runtime::LoadModel(directory, cpu.backend, {});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_NEAR(static_cast<double>((*model)->parameter_count), 5.77e6, 1e4);
  const auto geometry = runtime::KvGeometryFor((*model)->spec, 16, DType::kBF16, 16);
  auto pool = cache::KvPool::Create(*geometry);
  ASSERT_TRUE(pool.ok());
  auto runner = runtime::CpuRunner::Create(**model, cpu.backend, &*pool,
                                           {.max_rows = 1, .max_step_tokens = 64});
  ASSERT_TRUE(runner.ok()) << runner.status();
  auto cache = cache::CacheManager::Create(
      {.geometry = *geometry, .max_rows = 1, .max_context_tokens = 128});
  ASSERT_TRUE(cache.ok());
  auto tokens = (*tokenizer)->Encode("Once upon a time", {});
  ASSERT_TRUE(tokens.ok());
  std::uint32_t cached = 0;
  while (tokens->size() < 60) {
    const std::uint32_t fresh = static_cast<std::uint32_t>(tokens->size()) - cached;
    ASSERT_TRUE((*cache)->Reserve(BatchRow{0}, cached + fresh).ok());
    const cache::RowStep step{BatchRow{0}, cached, fresh};
    runtime::StepBatch batch;
    batch.kv = (*cache)->PrepareStep({&step, 1});
    batch.token_ids.assign(tokens->begin() + cached, tokens->end());
    batch.rows.push_back({BatchRow{0}, cached, 0, fresh});
    batch.logits_tokens.push_back(fresh - 1);
    batch.samples.push_back({0, Greedy()});
    ASSERT_TRUE((*runner)->Run(batch).ok());
    const runtime::StepResult& result = **(*runner)->Collect();
    cached += fresh;
    tokens->push_back(result.samples[0].token);
    if (tokens->back() == (*model)->spec.eos_ids[0]) break;
  }
  const auto story = (*tokenizer)->Decode(*tokens, true);
  ASSERT_TRUE(story.ok()) << story.status();
  std::printf("%s\n", story->c_str());
  EXPECT_THAT(*story, testing::StartsWith("Once upon a time, there was"));
}

}  // namespace
}  // namespace quire::models

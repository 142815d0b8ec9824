// Tests of CudaRunner on an emulated GPU: its allocations, page operations and errors. Its tokens
// are compared with the CPU's.

#include "runtime/cuda_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/error_reason.h"
#include "cache_manager/cache_manager.h"
#include "cache_manager/pool/kv_pool.h"
#include "kernels/comm/host_communicator.h"
#include "models/blocks/layer_groups.h"
#include "models/weights/weights.h"
#include "runtime/cpu_runner.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/models/cuda_stage.h"
#include "tests/models/test_files.h"
#include "tests/testing/paths.h"

namespace quire::models {
namespace {

using testing::HasSubstr;

// Returns |a - b| / |b| in the Euclidean norm.
double RelativeTo(const std::vector<float>& a, const std::vector<float>& b) {
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    apart += std::pow(double{a[i]} - b[i], 2);
    size += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(apart / size);
}

// Expects equal distances between consecutive matrices, and the same between their scales.
void ExpectEqualDistances(const std::vector<LinearWeights>& linears) {
  const auto at = [&](std::size_t i, bool scales) {
    const kernels::PackedLinear& matrix = linears[i].matrices[0];
    return static_cast<const std::byte*>(scales ? matrix.scales() : matrix.data());
  };
  for (std::size_t i = 2; i < linears.size(); ++i) {
    EXPECT_GT(at(1, false), at(0, false));
    EXPECT_EQ(at(i, false) - at(i - 1, false), at(1, false) - at(0, false));
    EXPECT_EQ(at(i, true) - at(i - 1, true),
              at(0, true) == nullptr ? 0 : at(1, false) - at(0, false));
  }
}

// A batch of three rows of 3, 100 and 5 tokens, each of which is sampled. The second row returns
// log-probabilities of its prompt. The batch has more logits than one block of the head, and late
// samples before and after them.
struct LateBatch {
  LateBatch(Stage& stage, std::span<const std::uint32_t> allowed, bool late) {
    const std::uint32_t counts[] = {3, 100, 5};
    std::vector<cache::RowStep> steps;
    for (std::uint32_t row = 0; row < 3; ++row) {
      EXPECT_TRUE(stage.cache().Reserve(BatchRow{row}, counts[row] + 1).ok());
      steps.push_back({BatchRow{row}, 0, counts[row]});
      const auto first = static_cast<std::uint32_t>(batch.token_ids.size());
      for (std::uint32_t i = 0; i < counts[row]; ++i) {
        batch.token_ids.push_back(static_cast<std::int32_t>((row * 31 + i * 7) % 300));
        if (row != 1 && i + 1 < counts[row]) continue;
        if (row == 1 && i + 1 < counts[row]) {
          batch.prompt_logprobs.push_back(
              {static_cast<std::uint32_t>(batch.logits_tokens.size()), 5, 2});
        }
        batch.logits_tokens.push_back(first + i);
      }
      batch.rows.push_back({BatchRow{row}, 0, first, counts[row], counts[row]});
      runtime::StepSample sample{
          .logits_index = static_cast<std::uint32_t>(batch.logits_tokens.size() - 1), .row = {}};
      sample.row.num_logprobs = 3;
      sample.row.seed = row;
      sample.is_late = late && row != 1;
      if (row != 1 && !late) sample.row.allowed = allowed.data();
      batch.samples.push_back(sample);
    }
    batch.kv = stage.cache().PrepareStep(steps);
    batch.copies = stage.cache().TakeCopies();
    batch.clears = stage.cache().TakeClears();
  }
  void Complete(std::size_t sample, std::span<const std::uint32_t> allowed) {
    batch.samples[sample].row.allowed = allowed.data();
    batch.samples[sample].is_completed = true;
  }
  runtime::StepBatch batch;
};

// Returns all values of a result in one list.
std::vector<float> ValuesOf(const runtime::StepResult& result) {
  std::vector<float> values;
  const auto add = [&](const runtime::StepToken& token) {
    values.insert(values.end(), {static_cast<float>(token.token), token.logprob,
                                 static_cast<float>(token.rank), token.unsampled ? 1.0f : 0.0f});
    for (const kernels::TopLogprob& top : token.top) values.push_back(top.logprob);
  };
  std::ranges::for_each(result.samples, add);
  std::ranges::for_each(result.prompt_logprobs, add);
  return values;
}

// Returns the fewest state slots of a cache manager with kRows rows, or 0 if there are no states.
std::uint32_t NumStateSlots(const formats::ModelFiles& files) {
  const auto model = runtime::ReadModelSpec(files, DeviceKind::kCuda);
  EXPECT_TRUE(model.ok()) << model.status();
  return PlanLayerGroups(model->spec).state_bytes > 0 ? 1 + kRows + 2 : 0;
}

class CudaRunnerTest : public testing::Test {
 protected:
  void SetUp() override { cuda_emulator::Reset(); }

  static formats::ModelFiles Fixture(const std::string& name = "llama-gqa-tied-bf16") {
    return *formats::ModelFiles::FromDirectory(TestDataPath("models/" + name));
  }
};

// Models whose memory is compared with its plan.
constexpr std::tuple<const char*, DType, Quantization> kPlanned[] = {
    {"llama-gqa-tied-bf16", DType::kF32, Quantization::kAuto},
    {"llama-gqa-tied-bf16", DType::kBF16, Quantization::kAuto},
    {"llama-gqa-tied-bf16", DType::kBF16, Quantization::kInt4G32},
    {"mistral-window-bf16", DType::kBF16, Quantization::kInt8},
    {"mixtral-bf16", DType::kF32, Quantization::kAuto},
    {"qwen3-moe-bf16", DType::kBF16, Quantization::kAuto},
    {"qwen3-moe-bf16", DType::kBF16, Quantization::kInt8G32},
    {"gpt-oss-bf16", DType::kBF16, Quantization::kAuto},
    {"gpt-oss-mxfp4", DType::kBF16, Quantization::kAuto},
    {"deepseek-v2-lite-bf16", DType::kF32, Quantization::kAuto},
    {"deepseek-v3-bf16", DType::kBF16, Quantization::kAuto},
    {"deepseek-v2-bf16", DType::kBF16, Quantization::kInt8G32},
    {"gemma4-bf16", DType::kBF16, Quantization::kAuto},
    {"gemma4-moe-bf16", DType::kBF16, Quantization::kAuto},
    {"llama4-bf16", DType::kF32, Quantization::kAuto},
    {"qwen35-moe-bf16", DType::kF32, Quantization::kAuto},
    {"kimi-linear-bf16", DType::kBF16, Quantization::kAuto},
    {"nemotron-h-bf16", DType::kBF16, Quantization::kInt8},
    {"lfm2-bf16", DType::kBF16, Quantization::kAuto}};

// The plan contains exactly the bytes that Create and LoadModel allocate.
TEST_F(CudaRunnerTest, PlanEqualsTheAllocatedBytes) {
  for (const auto& [name, dtype, quantization] : kPlanned) {
    SCOPED_TRACE(absl::StrCat(name, " ", DTypeName(dtype), " ", QuantizationName(quantization)));
    std::uint64_t before = cuda_emulator::DeviceBytesAllocated();
    Stage stage(true, dtype);
    const formats::ModelFiles files = Fixture(name);
    const std::uint32_t num_slots = NumStateSlots(files);
    const runtime::RunnerOptions options = Options(dtype, num_slots);
    const auto plan =
        runtime::PlanDeviceMemory(files, {.page_size = kPageSize,
                                          .kv_dtype = dtype,
                                          .num_blocks = kBlocks,
                                          .device_memory_bytes = std::int64_t{1} << 30,
                                          .num_sms = stage.backend().device().num_sms,
                                          .quantization = quantization,
                                          .runner = options});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto taken = [&] {
      const std::uint64_t now = cuda_emulator::DeviceBytesAllocated();
      return static_cast<std::int64_t>(now - std::exchange(before, now));
    };
    EXPECT_EQ(taken(), plan->runner.linear_bytes);
    const absl::Status loaded = stage.Load(files, runtime::LoadMode::kReal, quantization);
    ASSERT_TRUE(loaded.ok()) << loaded;
    EXPECT_EQ(taken(), plan->weight_bytes);
    EXPECT_EQ(stage.model().weight_bytes, plan->weight_bytes);
    EXPECT_EQ(stage.model().weights->size_bytes(), plan->weight_bytes);
    ASSERT_TRUE(stage.MakePool(kRows, num_slots).ok());
    EXPECT_EQ(taken(), plan->pool_bytes);
    const std::uint64_t pinned = cuda_emulator::PinnedBytesEverAllocated();
    ASSERT_TRUE(stage.MakeRunner(options).ok());
    EXPECT_EQ(cuda_emulator::PinnedBytesEverAllocated() - pinned,
              static_cast<std::uint64_t>(plan->runner.pinned_bytes));
    EXPECT_EQ(taken(), plan->runner.activation_bytes + plan->runner.attention_bytes +
                           plan->runner.sampler_bytes + plan->runner.state_bytes);
    EXPECT_EQ(stage.cuda().memory().device_bytes(), plan->runner.device_bytes());
    // Steps allocate nothing.
    ASSERT_TRUE(stage.Generate(1, {5, 6, 7}, 4).ok());
    EXPECT_EQ(taken(), 0);
    EXPECT_TRUE(stage.pool().CheckIntegrity().ok()) << stage.pool().CheckIntegrity();
  }
  EXPECT_EQ(cuda_emulator::QueuedOperations(), 0u);
}

// The models have 8 experts or 2 heads, so there are more matrices than allocations. Experts and
// heads are equally far apart, and each matrix has the alignment that all kernels need.
TEST_F(CudaRunnerTest, MatricesOfALayerShareOneAllocation) {
  for (const char* const name : {"qwen3-moe-bf16", "gpt-oss-mxfp4", "deepseek-v3-bf16"}) {
    SCOPED_TRACE(name);
    Stage stage(true, DType::kBF16);
    const std::uint64_t before = cuda_emulator::AllocationCount();
    ASSERT_TRUE(stage.Load(Fixture(name)).ok());
    const std::span<const LayerWeights> layers = stage.model().weights->layers();
    // Embedding, head and vectors, and the staging buffers of the upload, which are freed.
    EXPECT_EQ(cuda_emulator::AllocationCount() - before, layers.size() + 3 + 2);
    for (const LayerWeights& layer : layers) {
      for (const auto& [part, linear] : LinearsOf(layer)) {
        for (const kernels::PackedLinear& matrix : linear->matrices) {
          for (const void* const at : {matrix.data(), matrix.scales()}) {
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % 256, 0u) << part;
          }
        }
      }
      for (const auto* const kind :
           {&layer.moe.gate_up, &layer.moe.down, &layer.mla.to_latent, &layer.mla.from_latent}) {
        ExpectEqualDistances(*kind);
      }
    }
  }
}

TEST_F(CudaRunnerTest, PlanThatDoesNotFitNamesEveryPart) {
  runtime::DevicePlanOptions options{.page_size = kPageSize,
                                     .kv_dtype = DType::kBF16,
                                     .device_memory_bytes = std::int64_t{1} << 30,
                                     .runner = Options(DType::kBF16)};
  const auto whole = runtime::PlanDeviceMemory(Fixture(), options);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_LE(whole->total_bytes(), options.device_memory_bytes);
  EXPECT_GT(whole->total_bytes() + whole->page_bytes, options.device_memory_bytes);
  // The memory is one byte too small for one more page.
  options.num_blocks = whole->num_blocks;
  options.device_memory_bytes = whole->total_bytes();
  EXPECT_TRUE(runtime::PlanDeviceMemory(Fixture(), options).ok());
  --options.device_memory_bytes;
  const absl::Status refused = runtime::PlanDeviceMemory(Fixture(), options).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  for (const auto& [name, bytes] : whole->Lines()) {
    if (name == "limit") continue;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(absl::StrCat(name, " ", bytes)));
  }
  options.num_blocks = 0;
  options.device_memory_bytes = whole->total_bytes() - whole->pool_bytes;
  EXPECT_THAT(std::string(runtime::PlanDeviceMemory(Fixture(), options).status().message()),
              HasSubstr("at least 2 pages"));
}

TEST_F(CudaRunnerTest, RejectsIncompatibleOptions) {
  EXPECT_THAT(std::string(runtime::PlanDeviceMemory(Fixture(), {.page_size = kPageSize,
                                                                .kv_dtype = DType::kBF16,
                                                                .device_memory_bytes = 1 << 30,
                                                                .runner = Options(DType::kF32)})
                              .status()
                              .message()),
              HasSubstr("both must be f32, or neither"));
  Stage stage(true, DType::kF32);
  ASSERT_TRUE(stage.Load(Fixture()).ok());
  ASSERT_TRUE(stage.MakePool().ok());
  runtime::RunnerOptions options = Options(DType::kBF16);
  EXPECT_EQ(stage.MakeRunner(options).code(), absl::StatusCode::kInvalidArgument);
  options = Options(DType::kF32);
  options.max_rows = 0;
  EXPECT_THAT(std::string(stage.MakeRunner(options).message()), HasSubstr("max_rows is 0"));
  const auto group = kernels::HostCommunicator::CreateGroup(2);
  ASSERT_TRUE(group.ok()) << group.status();
  options = Options(DType::kF32);
  options.comm = (*group)[0].get();
  EXPECT_THAT(std::string(stage.MakeRunner(options).message()),
              HasSubstr("the communicator exchanges host memory, the runner computes on "));
}

TEST_F(CudaRunnerTest, StoryModelGeneratesTheCpusTokens) {
  const auto files = formats::ModelFiles::FromDirectory(paths::Source("assets/story"));
  ASSERT_TRUE(files.ok()) << files.status();
  const std::vector<std::int32_t> prompt = {0, 403, 262, 640, 264, 1023, 17, 350, 44};
  Stage cpu(false);
  Stage gpu(true);
  for (Stage* stage : {&cpu, &gpu}) {
    const absl::Status started = stage->Start(*files);
    ASSERT_TRUE(started.ok()) << started;
  }
  const auto want = cpu.Generate(2, prompt, 6);
  const auto got = gpu.Generate(2, prompt, 6);
  ASSERT_TRUE(want.ok() && got.ok()) << got.status();
  EXPECT_EQ(*got, *want);
  EXPECT_TRUE(gpu.pool().CheckIntegrity().ok());
}

TEST_F(CudaRunnerTest, DummyWeightsAreEqualOnBothDevices) {
  EditableFiles only_config;
  only_config.Set("config.json", EditableFiles("models/llama-gqa-tied-bf16").Get("config.json"));
  Stage cpu(false);
  Stage gpu(true);
  for (Stage* stage : {&cpu, &gpu}) {
    const absl::Status started = stage->Start(only_config.Files(), runtime::LoadMode::kDummy);
    ASSERT_TRUE(started.ok()) << started;
  }
  EXPECT_EQ(cpu.model().fingerprint, gpu.model().fingerprint);
  const auto want = cpu.Generate(0, {1, 2, 3}, 8);
  const auto got = gpu.Generate(0, {1, 2, 3}, 8);
  ASSERT_TRUE(want.ok() && got.ok()) << got.status();
  EXPECT_EQ(*got, *want);
}

// The rows have DeepSeek's width, for which there are kernels that the fixtures' narrower rows do
// not use. The layers are dense, so that steps run as graphs.
TEST_F(CudaRunnerTest, LatentRowsOfDeepSeekWidthMatchTheCpu) {
  EditableFiles only_config;
  only_config.Set(
      "config.json",
      absl::StrReplaceAll(EditableFiles("models/deepseek-v2-lite-bf16").Get("config.json"),
                          {{"\"kv_lora_rank\": 64", "\"kv_lora_rank\": 512"},
                           {"\"qk_rope_head_dim\": 8", "\"qk_rope_head_dim\": 64"},
                           {"\"qk_nope_head_dim\": 16", "\"qk_nope_head_dim\": 128"},
                           {"\"v_head_dim\": 16", "\"v_head_dim\": 128"},
                           {"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 3"}}));
  std::vector<std::int32_t> prompt(37);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(7 * i + 2);
  Stage cpu(false), gpu(true), half(true, DType::kBF16);
  std::vector<float> want, single, rounded;
  const std::pair<Stage*, std::vector<float>*> runs[] = {
      {&cpu, &want}, {&gpu, &single}, {&half, &rounded}};
  const std::uint64_t before = cuda_emulator::LaunchCount("attention latent sm_90a");
  for (const auto& [stage, logits] : runs) {
    const absl::Status started = stage->Start(only_config.Files(), runtime::LoadMode::kDummy);
    ASSERT_TRUE(started.ok()) << started;
    logits->resize(stage->model().spec.vocab_size);
    stage->logits_out = logits->data();
    ASSERT_TRUE(stage->Launch(1, prompt, 0, 37, 37).ok());
    ASSERT_TRUE(stage->runner().Collect().ok());
  }
  EXPECT_GT(cuda_emulator::LaunchCount("attention latent sm_90a"), before);
  EXPECT_LE(RelativeTo(single, want), 2e-5);
  EXPECT_LE(RelativeTo(rounded, want), 3e-2);
  cpu.logits_out = gpu.logits_out = half.logits_out = nullptr;
  EXPECT_EQ(*gpu.Generate(0, prompt, 6), *cpu.Generate(0, prompt, 6));
  EXPECT_GT(gpu.cuda().graph_steps(), 0u);
  // Decodes in bf16, with graphs and without.
  const auto in_graphs = half.Generate(0, prompt, 6);
  ASSERT_TRUE(in_graphs.ok()) << in_graphs.status();
  EXPECT_GT(half.cuda().graph_steps(), 0u);
  runtime::RunnerOptions without = Options(DType::kBF16);
  without.graphs = false;
  ASSERT_TRUE(half.MakeRunner(without).ok());
  EXPECT_EQ(*half.Generate(2, prompt, 6), *in_graphs);
  EXPECT_EQ(half.cuda().graph_steps(), 0u);
}

// The rows and index rows have DeepSeek's width, and 24 of 38 keys are selected. One layer decides
// with rounded scores in bf16, so a key may differ from the CPU's.
TEST_F(CudaRunnerTest, SelectedRowsOfDeepSeekWidthMatchTheCpu) {
  EditableFiles only_config;
  only_config.Set(
      "config.json",
      absl::StrReplaceAll(EditableFiles("models/deepseek-v32-bf16").Get("config.json"),
                          {{"\"kv_lora_rank\": 32", "\"kv_lora_rank\": 512"},
                           {"\"qk_rope_head_dim\": 16", "\"qk_rope_head_dim\": 64"},
                           {"\"index_head_dim\": 24", "\"index_head_dim\": 128"},
                           {"\"index_n_heads\": 16", "\"index_n_heads\": 64"},
                           {"\"first_k_dense_replace\": 1", "\"first_k_dense_replace\": 2"}}));
  std::vector<std::int32_t> prompt(37);
  for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<std::int32_t>(7 * i + 2);
  Stage cpu(false), gpu(true), half(true, DType::kBF16);
  std::vector<float> want, single, rounded;
  const std::pair<Stage*, std::vector<float>*> runs[] = {
      {&cpu, &want}, {&gpu, &single}, {&half, &rounded}};
  const std::uint64_t before = cuda_emulator::LaunchCount("attention latent");
  for (const auto& [stage, logits] : runs) {
    const absl::Status started = stage->Start(only_config.Files(), runtime::LoadMode::kDummy);
    ASSERT_TRUE(started.ok()) << started;
    logits->resize(stage->model().spec.vocab_size);
    stage->logits_out = logits->data();
    ASSERT_TRUE(stage->Launch(1, prompt, 0, 37, 37).ok());
    ASSERT_TRUE(stage->runner().Collect().ok());
    stage->logits_out = nullptr;
  }
  EXPECT_EQ(cuda_emulator::LaunchCount("attention latent") - before, 2u);  // layers
  EXPECT_LE(RelativeTo(single, want), 2e-5);
  EXPECT_LE(RelativeTo(rounded, want), 0.2);
  // Decodes in bf16, with graphs and without.
  const auto in_graphs = half.Generate(0, prompt, 3);
  ASSERT_TRUE(in_graphs.ok()) << in_graphs.status();
  EXPECT_GT(half.cuda().graph_steps(), 0u);
  runtime::RunnerOptions without = Options(DType::kBF16);
  without.graphs = false;
  ASSERT_TRUE(half.MakeRunner(without).ok());
  EXPECT_EQ(*half.Generate(2, prompt, 3), *in_graphs);
}

// Plans the model shape of the GPU benchmarks, without a GPU.
TEST_F(CudaRunnerTest, PlansAnEightBillionParameterModelWithoutTensors) {
  EditableFiles files;
  files.Set("config.json", R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
      "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
      "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
      "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
      "hidden_act": "silu", "tie_word_embeddings": false, "torch_dtype": "bfloat16"})");
  const auto plan = runtime::PlanDeviceMemory(
      files.Files(),
      {.device_memory_bytes = std::int64_t{80} << 30,
       .load_mode = runtime::LoadMode::kDummy,
       .runner = {.max_rows = 256, .max_step_tokens = 8192, .activation = DType::kBF16}});
  ASSERT_TRUE(plan.ok()) << plan.status();
  // 8.03e9 parameters of two bytes, and norms of four bytes.
  EXPECT_NEAR(static_cast<double>(plan->weight_bytes), 16.06e9, 0.01e9);
  EXPECT_EQ(plan->page_bytes, 8 << 20);
  EXPECT_GT(plan->num_blocks, 6000u);
  for (const auto& [name, bytes] : plan->Lines()) {
    std::printf("%-12s %12lld\n", name.c_str(), static_cast<long long>(bytes));
  }
}

TEST_F(CudaRunnerTest, ContractsOfStepsInFlightAreChecked) {
  Stage stage(true);
  ASSERT_TRUE(stage.Start(Fixture()).ok());
  EXPECT_EQ(stage.runner().max_steps_in_flight(), 2);
  EXPECT_EQ(stage.runner().Collect().status().code(), absl::StatusCode::kFailedPrecondition);
  // No earlier step has sampled a token.
  EXPECT_THAT(std::string(stage.Launch(0, {-1}, 0, 1, 1).message()),
              HasSubstr("token_ids[0] is -1"));
  ASSERT_TRUE(stage.Launch(0, {5, 6}, 0, 2, 2).ok());
  EXPECT_THAT(std::string(stage.Launch(0, {5, 6, -2}, 2, 1, 2).message()),
              HasSubstr("sample 1 of the previous step, which has 1"));
  ASSERT_TRUE(stage.Launch(0, {5, 6, -1}, 2, 1, 2).ok());
  EXPECT_EQ(stage.Launch(0, {5, 6, 0, -1}, 3, 1, 2).code(), absl::StatusCode::kFailedPrecondition);
  const auto first = stage.runner().Collect();
  ASSERT_TRUE(first.ok());
  const std::int32_t token = (*first)->samples[0].token;
  const auto second = stage.runner().Collect();
  ASSERT_TRUE(second.ok());
  // The token that was fed back on the device equals the token that the first step sampled.
  Stage again(true);
  ASSERT_TRUE(again.Start(Fixture()).ok());
  const auto want = again.Generate(0, {5, 6}, 2);
  ASSERT_TRUE(want.ok());
  EXPECT_EQ(std::vector<std::int32_t>({token, (*second)->samples[0].token}), *want);
}

TEST_F(CudaRunnerTest, LateSamplesEqualSamplesOfRun) {
  for (const bool cuda : {false, true}) {
    SCOPED_TRACE(cuda ? "CUDA" : "CPU");
    std::vector<std::vector<float>> values;
    for (const bool late : {false, true}) {
      Stage stage(cuda);
      ASSERT_TRUE(stage.Load(Fixture()).ok());
      ASSERT_TRUE(stage.MakePool().ok());
      runtime::RunnerOptions options = Options(DType::kF32);
      options.max_step_tokens = 160;
      ASSERT_TRUE(stage.MakeRunner(options).ok());
      std::vector<std::uint32_t> allowed(kernels::MaskWords(stage.model().spec.vocab_size));
      for (std::size_t i = 0; i < allowed.size(); ++i) {
        allowed[i] = 0x9e3779b9u * static_cast<std::uint32_t>(i + 1);
      }
      LateBatch made(stage, allowed, late);
      ASSERT_GT(made.batch.logits_tokens.size(), 64);
      ASSERT_TRUE(stage.runner().Run(made.batch).ok());
      stage.cache().CompleteStep();
      if (late) {
        for (const std::size_t i : {0, 2}) made.Complete(i, allowed);
        stage.runner().SampleLate(made.batch);
      }
      const auto result = stage.runner().Collect();
      ASSERT_TRUE(result.ok()) << result.status();
      values.push_back(ValuesOf(**result));
      for (const std::size_t i : {0, 2}) {
        const auto token = static_cast<std::uint32_t>((*result)->samples[i].token);
        EXPECT_NE(allowed[token / 32] >> (token % 32) & 1, 0) << i;
      }
      // A late sample without a mask does not change the other samples.
      LateBatch again(stage, allowed, true);
      ASSERT_TRUE(stage.runner().Run(again.batch).ok());
      stage.cache().CompleteStep();
      again.Complete(2, allowed);
      stage.runner().SampleLate(again.batch);
      const auto second = stage.runner().Collect();
      ASSERT_TRUE(second.ok()) << second.status();
      EXPECT_TRUE((*second)->samples[0].unsampled);
      EXPECT_FALSE((*second)->samples[1].unsampled);
      constexpr std::size_t kValuesOfSample = 4 + 3;
      EXPECT_EQ(static_cast<float>((*second)->samples[2].token),
                values.back()[2 * kValuesOfSample]);
    }
    EXPECT_EQ(values[0], values[1]);
  }
}

// Expects that a fork after `cached` tokens copies the page that both sequences would write, and
// that a cleared page is zero.
void ExpectCopiesAndClears(const formats::ModelFiles& files, DType dtype, std::uint32_t cached) {
  std::vector<std::int32_t> tokens(cached + 1);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(3 * i + 1);
  Stage stage(true, dtype);
  ASSERT_TRUE(stage.Start(files).ok());
  ASSERT_TRUE(stage.Launch(0, tokens, 0, cached, cached + 1).ok());
  ASSERT_TRUE(stage.runner().Collect().ok());
  ASSERT_TRUE(stage.cache().Fork(BatchRow{0}, BatchRow{3}, cached).ok());
  std::vector<float> logits(stage.model().spec.vocab_size), first;
  stage.logits_out = logits.data();
  for (const std::uint32_t row : {3u, 0u}) {
    ASSERT_TRUE(stage.Launch(row, tokens, cached, 1, cached + 1).ok());
    ASSERT_TRUE(stage.runner().Collect().ok());
    if (first.empty()) first = logits;
    EXPECT_EQ(logits, first) << row;
  }
  Stage alone(true, dtype);
  ASSERT_TRUE(alone.Start(files).ok());
  alone.logits_out = logits.data();
  ASSERT_TRUE(alone.Launch(1, tokens, 0, cached + 1, cached + 1).ok());
  ASSERT_TRUE(alone.runner().Collect().ok());
  EXPECT_EQ(logits, first);

  runtime::StepBatch clear;
  clear.clears = {BlockId{1}, BlockId{2}};
  clear.kv = stage.cache().PrepareStep({});
  ASSERT_TRUE(stage.runner().Run(clear).ok());
  stage.cache().CompleteStep();
  ASSERT_TRUE(stage.runner().Collect().ok());
  for (const BlockId page : clear.clears) {
    const std::span<std::byte> bytes = stage.pool().page_blocks(page);
    std::vector<std::byte> copy(bytes.size(), std::byte{1});
    const Stream& stream = *stage.backend().cuda()->stream;
    ASSERT_TRUE(
        stream.Copy(copy.data(), bytes.data(), static_cast<std::int64_t>(copy.size())).ok());
    ASSERT_TRUE(stream.Synchronize().ok());
    EXPECT_EQ(std::count(copy.begin(), copy.end(), std::byte{0}),
              static_cast<std::ptrdiff_t>(copy.size()));
  }
  EXPECT_TRUE(stage.pool().CheckIntegrity().ok());
}

TEST_F(CudaRunnerTest, PagesAreCopiedAndClearedOnTheDevice) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) ExpectCopiesAndClears(Fixture(), dtype, 21);
}

// The copied page is one of those that the child selects 24 keys from. Index rows are in the page.
TEST_F(CudaRunnerTest, IndexRowsAreCopiedAndClearedWithTheirPage) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    ExpectCopiesAndClears(EditableFiles("models/deepseek-v32-bf16").Files(), dtype, 60);
  }
}

TEST_F(CudaRunnerTest, DeviceFaultIsReportedAsDeviceLost) {
  Stage stage(true);
  ASSERT_TRUE(stage.Start(Fixture()).ok());
  ASSERT_TRUE(stage.Generate(0, {5, 6}, 2).ok());
  cuda_emulator::InjectFault(
      {.where = "kernel:linear_scalar", .error = cudaErrorIllegalAddress, .sticky = true});
  const absl::Status status = stage.Generate(1, {5, 6, 7}, 2).status();
  EXPECT_TRUE(HasReason(status, Reason::kDeviceLost)) << status;
  // The device stays lost.
  EXPECT_TRUE(HasReason(stage.Generate(2, {5}, 1).status(), Reason::kDeviceLost));
  cuda_emulator::Reset();
}

TEST_F(CudaRunnerTest, RunsWithoutAGraphIfCaptureFails) {
  Stage with(true);
  Stage without(true);
  ASSERT_TRUE(with.Start(Fixture()).ok());
  cuda_emulator::InjectFault({.where = "cudaGraphInstantiate", .error = cudaErrorNotSupported});
  ASSERT_TRUE(without.Start(Fixture()).ok());
  const auto want = with.Generate(0, {5, 6}, 6);
  // Create has captured the buckets 1, 2 and 4. The prompt runs without a graph.
  EXPECT_EQ(with.cuda().num_graphs(), 3u);
  EXPECT_EQ(with.cuda().graph_steps(), 5u);
  const auto got = without.Generate(0, {5, 6}, 6);
  ASSERT_TRUE(want.ok() && got.ok()) << got.status();
  EXPECT_EQ(*got, *want);
  EXPECT_EQ(without.cuda().num_graphs(), 0u);
  EXPECT_EQ(without.cuda().graph_steps(), 0u);
}

// The logits of a prompt and six decode tokens of an MoE model, and how the steps ran.
struct MixtureRun {
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;  // of the last step
  std::uint32_t graphs = 0;
  std::map<std::string, std::uint64_t> launches;
};

struct Mixture {
  const char* fixture;
  DType dtype = DType::kBF16;
  Quantization quantization = Quantization::kAuto;
};

MixtureRun RunMixture(const formats::ModelFiles& files, const Mixture& mixture, bool graphs) {
  MixtureRun run;
  Stage stage(true, mixture.dtype);
  EXPECT_TRUE(stage.Load(files, runtime::LoadMode::kReal, mixture.quantization).ok());
  EXPECT_TRUE(stage.MakePool().ok());
  runtime::RunnerOptions options = Options(mixture.dtype);
  options.graphs = graphs;
  EXPECT_TRUE(stage.MakeRunner(options).ok());
  run.logits.resize(stage.model().spec.vocab_size);
  stage.logits_out = run.logits.data();
  const char* const kernels[] = {
      "route",          "router", "sort_by_expert", "grouped_linear", "grouped_linear_scalar",
      "sum_chosen_rows"};
  for (const char* kernel : kernels) run.launches[kernel] = cuda_emulator::LaunchCount(kernel);
  const auto tokens = stage.Generate(0, {5, 6, 7, 8, 9, 10, 11, 12, 13}, 6);
  EXPECT_TRUE(tokens.ok()) << tokens.status();
  if (tokens.ok()) run.tokens = *tokens;
  run.graphs = stage.cuda().num_graphs();
  for (auto& [kernel, count] : run.launches) count = cuda_emulator::LaunchCount(kernel) - count;
  return run;
}

// The cases cover unquantized and quantized weights of every kind, biases and f32. A capture
// rejects every host wait, so a captured step contains none.
TEST_F(CudaRunnerTest, MoeModelsRunAsGraphs) {
  const Mixture mixtures[] = {{"qwen3-moe-bf16"},
                              {"mixtral-bf16"},
                              {"deepseek-v3-bf16"},
                              {"gpt-oss-bf16"},
                              {"gpt-oss-mxfp4"},
                              {"gpt-oss-mxfp4", DType::kF32},
                              {"mixtral-bf16", DType::kF32},
                              {"qwen3-moe-bf16", DType::kBF16, Quantization::kInt8},
                              {"qwen3-moe-bf16", DType::kBF16, Quantization::kInt8G32},
                              {"qwen3-moe-bf16", DType::kBF16, Quantization::kInt4G32}};
  for (const Mixture& mixture : mixtures) {
    SCOPED_TRACE(absl::StrCat(mixture.fixture, " ", DTypeName(mixture.dtype), " ",
                              QuantizationName(mixture.quantization)));
    const MixtureRun with = RunMixture(Fixture(mixture.fixture), mixture, true);
    const MixtureRun without = RunMixture(Fixture(mixture.fixture), mixture, false);
    EXPECT_EQ(with.graphs, 3u);
    EXPECT_EQ(without.graphs, 0u);
    EXPECT_EQ(with.tokens, without.tokens);
    EXPECT_EQ(
        std::memcmp(with.logits.data(), without.logits.data(), with.logits.size() * sizeof(float)),
        0);
    // Every MoE model has the same number of launches, for 4 and for 8 experts.
    const bool is_f32 = mixture.dtype == DType::kF32;
    for (const MixtureRun& run : {with, without}) {
      const std::uint64_t count = run.launches.at(is_f32 ? "router" : "route");
      EXPECT_GT(count, 0u);
      EXPECT_EQ(run.launches.at(is_f32 ? "grouped_linear_scalar" : "grouped_linear"), 2 * count);
      EXPECT_EQ(run.launches.at("router"), is_f32 ? count : 0);
      EXPECT_EQ(run.launches.at("sort_by_expert"), is_f32 ? count : 0);
      EXPECT_EQ(run.launches.at("sum_chosen_rows"), is_f32 ? count : 0);
    }
  }
}

TEST_F(CudaRunnerTest, TooLittleMemoryIsReportedWithNumbers) {
  Stage stage(true);
  ASSERT_TRUE(stage.Load(Fixture()).ok());
  ASSERT_TRUE(stage.MakePool().ok());
  cuda_emulator::InjectFault({.where = "cudaMalloc", .error = cudaErrorMemoryAllocation});
  const absl::Status status = stage.MakeRunner(Options(DType::kF32));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;

  // The runner rejects memory in which the graphs would not fit later.
  ASSERT_TRUE(stage.MakeRunner(Options(DType::kF32)).ok());
  const runtime::RunnerMemory memory = stage.cuda().memory();
  Stage full(true);
  ASSERT_TRUE(full.Load(Fixture()).ok());
  ASSERT_TRUE(full.MakePool().ok());
  cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
  const auto room = static_cast<std::uint64_t>(memory.device_bytes() - memory.linear_bytes);
  options.memory_bytes = cuda_emulator::DeviceBytesAllocated() + room - 1;
  cuda_emulator::SetOptions(options);
  EXPECT_THAT(std::string(full.MakeRunner(Options(DType::kF32)).message()),
              HasSubstr(absl::StrCat("graphs ", memory.graph_bytes, "), but only ", room - 1,
                                     " are free")));
  ++options.memory_bytes;
  cuda_emulator::SetOptions(options);
  EXPECT_TRUE(full.MakeRunner(Options(DType::kF32)).ok());
}

TEST_F(CudaRunnerTest, NonFiniteWeightsAreNamed) {
  EditableFiles files("models/llama-mha-f32");
  std::string tensors = files.Get("model.safetensors");
  // Sets the last element of the file to NaN.
  for (std::size_t i = tensors.size() - 4; i < tensors.size(); ++i) tensors[i] = '\x7f';
  tensors[tensors.size() - 2] = '\xff';
  files.Set("model.safetensors", tensors);
  Stage stage(true);
  const absl::Status status = stage.Load(files.Files());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("weights must be finite"));
}

}  // namespace
}  // namespace quire::models

// Tests of what the steps of CudaRunner launch, load and capture on an emulated GPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "runtime/cuda_sizes.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/models/cuda_stage.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

class CudaLaunchesTest : public testing::Test {
 protected:
  void SetUp() override { cuda_emulator::Reset(); }
};

using Launches = std::map<std::string, std::uint64_t>;

// Returns how many more launches of each kernel `more` has than `less`.
Launches Beyond(Launches more, const Launches& less) {
  for (const auto& [kernel, count] : less) more[kernel] -= count;
  std::erase_if(more, [](const auto& entry) { return entry.second == 0; });
  return more;
}

// Returns a configuration with shapes that the tensor core kernels support. 0 experts: dense.
std::string CountedConfig(int layers, int experts, bool norms_heads) {
  return absl::StrCat(
      R"({"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
          "intermediate_size": 192, "vocab_size": 384, "max_position_embeddings": 512,
          "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
          "tie_word_embeddings": true, "torch_dtype": "bfloat16", "num_hidden_layers": )",
      layers,
      experts > 0   ? absl::StrCat(R"(, "architectures": ["MixtralForCausalLM"],
          "model_type": "mixtral", "sliding_window": null, "num_experts_per_tok": 2,
          "num_local_experts": )",
                                   experts, "}")
      : norms_heads ? R"(, "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3",
          "use_sliding_window": false})"
                    : R"(, "architectures": ["LlamaForCausalLM"], "model_type": "llama"})");
}

// Decodes one token in each of the first `rows` rows, which have `cached` tokens. No work of the
// step has run when the host collects the result, so the host has not waited inside the step.
void Decode(Stage& stage, std::uint32_t rows, std::uint32_t cached) {
  runtime::StepBatch batch;
  std::vector<cache::RowStep> steps;
  for (std::uint32_t row = 0; row < rows; ++row) {
    ASSERT_TRUE(stage.cache().Reserve(BatchRow{row}, cached + 1).ok());
    steps.push_back({BatchRow{row}, cached, 1});
    batch.token_ids.push_back(static_cast<std::int32_t>(7 + row));
    batch.rows.push_back(
        {.batch_row = BatchRow{row}, .cache_length = cached, .first_token = row, .num_tokens = 1});
    batch.logits_tokens.push_back(row);
    runtime::StepSample sample{.logits_index = row, .row = {}};
    sample.row.temperature = 0;
    batch.samples.push_back(sample);
  }
  batch.kv = stage.cache().PrepareStep(steps);
  batch.copies = stage.cache().TakeCopies();
  batch.clears = stage.cache().TakeClears();
  const Launches before = cuda_emulator::LaunchCounts();
  ASSERT_TRUE(stage.runner().Run(batch).ok());
  EXPECT_EQ(cuda_emulator::LaunchCounts(), before);
  stage.cache().CompleteStep();
  ASSERT_TRUE(stage.runner().Collect().ok());
}

// Returns the launches of the third decode step of `rows` sequences.
Launches LaunchesOfDecode(const std::string& config, std::uint32_t rows, bool graphs,
                          Quantization quantization = Quantization::kAuto) {
  EditableFiles files;
  files.Set("config.json", config);
  Stage stage(true, DType::kBF16);
  runtime::RunnerOptions options = Options(DType::kBF16);
  options.graphs = graphs;
  options.max_rows = std::max(kRows, rows);
  EXPECT_TRUE(stage.Load(files.Files(), runtime::LoadMode::kDummy, quantization).ok());
  EXPECT_TRUE(stage.MakePool(options.max_rows).ok());
  EXPECT_TRUE(stage.MakeRunner(options).ok());
  const std::vector<std::int32_t> prompt = {5, 6, 7};
  for (std::uint32_t row = 0; row < rows; ++row) {
    EXPECT_TRUE(stage.Launch(row, prompt, 0, 3, 3).ok());
    EXPECT_TRUE(stage.runner().Collect().ok());
  }
  for (const std::uint32_t cached : {3u, 4u}) Decode(stage, rows, cached);
  const Launches before = cuda_emulator::LaunchCounts();
  Decode(stage, rows, 5);
  EXPECT_EQ(stage.cuda().graph_steps(), graphs ? 3u : 0u);
  return Beyond(cuda_emulator::LaunchCounts(), before);
}

// Launches, not bytes, limit the speed of small batches. The test therefore asserts the launches of
// a layer and of the rest of a step.
TEST_F(CudaLaunchesTest, DecodeStepHasTheExpectedLaunches) {
  const Launches attention = {{"rms_norm", 2}, {"attention decode sm_90a", 1}, {"linear", 2}};
  Launches dense = attention;
  dense["linear"] += 2;  // gate and up with their product, and down
  Launches mixture = attention;
  mixture["route"] = 1;
  mixture["grouped_linear"] = 2;
  const Launches outside = {{"step inputs", 1}, {"attention plan", 1}, {"embedding", 1},
                            {"rope_angles", 1}, {"rms_norm", 1},       {"linear", 1},
                            {"sampler_scan", 1}};
  const std::tuple<int, bool, std::uint32_t, bool> cases[] = {
      {0, false, 1, true}, {0, false, 1, false}, {0, true, 3, true}, {0, false, 3, false},
      {4, false, 1, true}, {8, false, 3, false}, {8, false, 3, true}};
  for (const auto& [experts, norms_heads, rows, graphs] : cases) {
    SCOPED_TRACE(absl::StrCat(experts, " experts, ", rows, " rows", graphs ? ", graphs" : "",
                              norms_heads ? ", norms of heads" : ""));
    const Launches one = LaunchesOfDecode(CountedConfig(1, experts, norms_heads), rows, graphs);
    const Launches two = LaunchesOfDecode(CountedConfig(2, experts, norms_heads), rows, graphs);
    const Launches layer = Beyond(two, one);
    EXPECT_EQ(layer, experts == 0 ? dense : mixture);
    EXPECT_EQ(Beyond(one, layer), outside);
  }
}

// The shapes use the kernels of tensor cores and of compute capability 9.0, which need attributes.
TEST_F(CudaLaunchesTest, StepsLoadNoKernelAndCaptureNoGraph) {
  for (const int experts : {0, 8}) {
    SCOPED_TRACE(absl::StrCat(experts, " experts"));
    EditableFiles files;
    files.Set("config.json", CountedConfig(1, experts, false));
    Stage stage(true, DType::kBF16);
    ASSERT_TRUE(stage.Load(files.Files(), runtime::LoadMode::kDummy).ok());
    ASSERT_TRUE(stage.MakePool().ok());
    const std::uint64_t before = cuda_emulator::FunctionCallCount();
    ASSERT_TRUE(stage.MakeRunner(Options(DType::kBF16)).ok());
    const std::uint64_t calls = cuda_emulator::FunctionCallCount();
    const std::uint64_t captures = cuda_emulator::CaptureCount();
    EXPECT_GT(calls, before + 10);
    const std::vector<std::int32_t> prompt(kStepTokens, 7);
    std::uint32_t row = 0;
    for (const std::uint32_t count : {3u, 17u, kStepTokens}) {
      ASSERT_TRUE(stage.Launch(row++, prompt, 0, count, count).ok());
      ASSERT_TRUE(stage.runner().Collect().ok());
    }
    Decode(stage, /*rows=*/1, /*cached=*/3);
    EXPECT_EQ(stage.cuda().graph_steps(), 1u);
    EXPECT_EQ(cuda_emulator::FunctionCallCount(), calls);
    EXPECT_EQ(cuda_emulator::CaptureCount(), captures);
  }
}

// A padded step has as many tiles of rows as the step itself.
TEST(GraphBucketTest, FewBucketsServeAllSteps) {
  std::set<std::uint32_t> buckets;
  for (std::uint32_t rows = 1; rows <= runtime::kMaxGraphRows; ++rows) {
    const std::uint32_t bucket = runtime::GraphBucket(rows);
    EXPECT_GE(bucket, rows);
    EXPECT_EQ((bucket + 63) / 64, (rows + 63) / 64) << rows;
    EXPECT_EQ(runtime::GraphBucket(bucket), bucket);
    buckets.insert(bucket);
  }
  EXPECT_EQ(buckets.size(), 19u);
}

// With more rows than the last block of a launch can continue with, there are more launches.
TEST_F(CudaLaunchesTest, LargerBatchHasTheExpectedLaunches) {
  const std::tuple<int, std::uint32_t, std::uint64_t> cases[] = {
      {0, 8, 7}, {0, 9, 8}, {8, 8, 8}, {8, 9, 9}, {8, 17, 11}, {8, 33, 12}};
  for (const auto& [experts, rows, want] : cases) {
    const Launches layer =
        Beyond(LaunchesOfDecode(CountedConfig(2, experts, false), rows, /*graphs=*/false),
               LaunchesOfDecode(CountedConfig(1, experts, false), rows, /*graphs=*/false));
    std::uint64_t count = 0;
    for (const auto& [kernel, launches] : layer) count += launches;
    EXPECT_EQ(count, want) << experts << " experts, " << rows << " rows";
  }
}

// Quantized layers have as many launches as bf16 layers.
TEST_F(CudaLaunchesTest, QuantizedLayersHaveTheExpectedLaunches) {
  using enum Quantization;
  const std::tuple<Quantization, int, std::uint32_t, std::uint64_t> cases[] = {
      {kInt4G32, 0, 1, 7}, {kInt4G32, 0, 8, 7},   {kInt4G32, 0, 9, 8}, {kInt4G32, 4, 1, 8},
      {kInt4G32, 8, 8, 8}, {kInt4G32, 8, 17, 11}, {kInt8, 0, 1, 7},    {kInt8G32, 4, 8, 8}};
  for (const auto& [codes, experts, rows, want] : cases) {
    const Launches layer =
        Beyond(LaunchesOfDecode(CountedConfig(2, experts, false), rows, rows == 1, codes),
               LaunchesOfDecode(CountedConfig(1, experts, false), rows, rows == 1, codes));
    std::uint64_t count = 0;
    for (const auto& [kernel, launches] : layer) count += launches;
    EXPECT_EQ(count, want) << QuantizationName(codes) << ", " << experts << " experts, " << rows
                           << " rows: " << testing::PrintToString(layer);
  }
}

}  // namespace
}  // namespace quire::models

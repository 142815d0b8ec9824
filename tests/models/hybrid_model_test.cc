// Models with recurrent layers: the meaning of their configuration keys, rejections by name, and
// the memory and step inputs of their states.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_manager/pool/kv_pool.h"
#include "models/blocks/layer_groups.h"
#include "runtime/cpu_runner.h"
#include "runtime/memory_plan.h"
#include "runtime/model.h"
#include "runtime/step_batch_check.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const char* const kFolders[] = {"qwen3-next-bf16", "qwen35-bf16", "qwen35-moe-bf16"};

json ConfigOf(const std::string& folder) {
  return json::parse(ReadTestFile("models/" + folder + "/config.json"));
}

absl::StatusOr<runtime::CheckedSpec> Read(const json& config,
                                          DeviceKind device = DeviceKind::kCpu) {
  EditableFiles files;
  files.Set("config.json", config.dump());
  return runtime::ReadModelSpec(files.Files(), device);
}

ModelSpec SpecOf(const json& config) {
  const auto read = Read(config);
  EXPECT_TRUE(read.ok()) << read.status();
  return read.ok() ? read->spec : ModelSpec();
}

std::string ErrorOf(const json& config) {
  const auto read = Read(config);
  EXPECT_FALSE(read.ok()) << config;
  return std::string(read.status().message());
}

TEST(HybridModelTest, SpecEqualsTheGoldenText) {
  const std::string recurrent =
      "sequential; attn_in rms eps 1e-06 offset 1; delta heads 4 keys 2 state 16 x 24 conv 160 x 4 "
      "norm silu eps 1e-06 qk_l2_eps 1e-06; attn_out none; mlp_in rms eps 1e-06 offset 1; experts "
      "2 of 4 softmax_all gated silu 16 renormalize eps 0 shared gated silu 32 shared_gate; "
      "mlp_out none; group 0\n";
  const std::string attention =
      "sequential; attn_in rms eps 1e-06 offset 1; heads 2 kv 1 size 32 v 32 scale 0.176777 rope 0 "
      "half 0+8 qk_norm rms eps 1e-06 offset 1 output_gate in q_proj; attn_out none; mlp_in rms "
      "eps 1e-06 offset 1; ";
  EXPECT_EQ(DumpSpec(SpecOf(ConfigOf("qwen3-next-bf16"))),
            absl::StrCat("model vocab 304 hidden 64 max_position 512 eos 1 bos 0 pad 2\n"
                         "rope 0: 4 entries 1 to 5.62341e-06 factor 1\n"
                         "layers 0 to 0: ",
                         recurrent, "layers 1 to 1: ", attention,
                         "gated silu 80; mlp_out none; group 1\nlayers 2 to 2: ", recurrent,
                         "layers 3 to 3: ", attention,
                         "experts 2 of 4 softmax_all gated silu 16 renormalize eps 0 shared gated "
                         "silu 32 shared_gate; mlp_out none; group 1\n"
                         "final norm rms eps 1e-06 offset 1\n"));
}

TEST(HybridModelTest, AbsentKeysHaveTheDefaultsOfTheFamily) {
  json config = ConfigOf("qwen3-next-bf16");
  for (const char* key :
       {"full_attention_interval", "partial_rotary_factor", "norm_topk_prob",
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
        "linear_value_head_dim", "linear_conv_kernel_dim", "head_dim",
        "shared_expert_intermediate_size", "mlp_only_layers", "decoder_sparse_step"}) {
    config.erase(key);
  }
  const ModelSpec spec = SpecOf(config);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(spec.layers[i].attention, i == 3 ? AttentionKind::kHeads : AttentionKind::kRecurrent);
    EXPECT_EQ(spec.layers[i].mlp, MlpKind::kMoe);
  }
  EXPECT_EQ(spec.layers[3].heads.head_size, 256u);
  EXPECT_EQ(spec.layers[3].heads.rotary_size, 64u);
  EXPECT_TRUE(spec.layers[0].moe.renormalize);
  EXPECT_EQ(spec.layers[0].moe.shared->intermediate, 512u);
  const RecurrentSpec& recurrent = spec.layers[0].recurrent;
  EXPECT_EQ(recurrent.key_heads, 16u);
  EXPECT_EQ(recurrent.heads, 32u);
  EXPECT_EQ(recurrent.key_size, 128u);
  EXPECT_EQ(recurrent.value_size, 128u);
  EXPECT_EQ(recurrent.conv_width, 4u);
  EXPECT_EQ(recurrent.conv_channels, 8192u);
}

// layer_types decides, whatever the interval is.
TEST(HybridModelTest, LayerTypesTakePrecedence) {
  json config = ConfigOf("qwen35-bf16");
  config["full_attention_interval"] = 2;
  EXPECT_EQ(SpecOf(config), SpecOf(ConfigOf("qwen35-bf16")));
  config.erase("layer_types");
  EXPECT_EQ(SpecOf(config).layers[1].attention, AttentionKind::kHeads);
}

TEST(HybridModelTest, NamesUnsupportedAndContradictingValues) {
  const struct {
    const char* folder;
    const char* key;
    json value;
    const char* error;
  } cases[] = {
      {"qwen35-bf16", "attn_output_gate", false, "attn_output_gate false is not supported"},
      {"qwen3-hd128-bf16", "attn_output_gate", true, "attn_output_gate true is not supported"},
      {"qwen3-hd128-bf16", "linear_num_key_heads", 2, "linear_num_key_heads 2 is not supported"},
      {"qwen35-bf16", "linear_num_value_heads", 3,
       "linear_num_value_heads is 3, it must be a multiple of linear_num_key_heads 2"},
      {"qwen35-bf16", "linear_conv_kernel_dim", 9, "linear_conv_kernel_dim"},
      {"qwen35-bf16", "linear_key_head_dim", 512, "linear_key_head_dim"},
      {"qwen35-bf16", "layer_types", json(std::vector<std::string>(4, "linear_attention")),
       "layer_types gives 0 layers with full attention, there must be at least 1"},
      {"qwen35-bf16", "layer_types", json(std::vector<std::string>(4, "mamba")),
       "layer_types[0] \"mamba\" is not supported by qwen3_5"},
      {"qwen35-bf16", "layer_types", json(std::vector<std::string>(3, "full_attention")),
       "layer_types has 3 entries, num_hidden_layers is 4"}};
  for (const auto& c : cases) {
    json config = ConfigOf(c.folder);
    config[c.key] = c.value;
    EXPECT_THAT(ErrorOf(config), HasSubstr(c.error));
  }
  json config = ConfigOf("qwen35-moe-bf16");
  config["text_config"]["attn_output_gate"] = false;
  EXPECT_THAT(ErrorOf(config), HasSubstr("attn_output_gate false is not supported"));
}

TEST(HybridModelTest, GpusSupportThem) {
  for (const char* folder : kFolders) {
    const auto read = Read(ConfigOf(folder), DeviceKind::kCuda);
    EXPECT_TRUE(read.ok()) << folder << ": " << read.status();
  }
}

TEST(HybridModelTest, DummyWeightsHaveRealSizes) {
  const TestBackend cpu;
  for (const char* folder : kFolders) {
    SCOPED_TRACE(folder);
    EditableFiles only_config;
    only_config.Set("config.json", ConfigOf(folder).dump());
    const auto dummy =
        runtime::LoadModel(only_config.Files(), cpu.backend, {.mode = runtime::LoadMode::kDummy});
    ASSERT_TRUE(dummy.ok()) << dummy.status();
    const auto files =
        formats::ModelFiles::FromDirectory(TestDataPath(absl::StrCat("models/", folder)));
    const auto real = runtime::LoadModel(*files, cpu.backend, {});
    ASSERT_TRUE(real.ok()) << real.status();
    EXPECT_EQ((*dummy)->weight_bytes, (*real)->weight_bytes);
    EXPECT_EQ((*dummy)->parameter_count, (*real)->parameter_count);
  }
}

TEST(HybridModelTest, PlanEqualsTheRunnersMemory) {
  const TestBackend cpu;
  for (const char* folder : kFolders) {
    SCOPED_TRACE(folder);
    const auto files =
        formats::ModelFiles::FromDirectory(TestDataPath(absl::StrCat("models/", folder)));
    const runtime::RunnerOptions options{
        .max_rows = 4, .max_step_tokens = 32, .num_state_slots = 7};
    const auto plan = runtime::PlanMemory(*files, {.page_size = 16,
                                                   .num_blocks = 9,
                                                   .activations = cpu.backend.activations(),
                                                   .num_threads = cpu.backend.num_threads(),
                                                   .runner = options});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto model = runtime::LoadModel(*files, cpu.backend, {});
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(plan->weight_bytes, (*model)->weight_bytes);
    const auto geometry = runtime::KvGeometryFor((*model)->spec, 16, DType::kBF16, 9);
    ASSERT_TRUE(geometry.ok()) << geometry.status();
    // Only layers with K and V have pages: two in qwen3-next, one in the others.
    EXPECT_EQ(geometry->num_layers, std::string(folder) == "qwen3-next-bf16" ? 2u : 1u);
    auto pool = cache::KvPool::Create(*geometry);
    ASSERT_TRUE(pool.ok()) << pool.status();
    const auto runner = runtime::CpuRunner::Create(**model, cpu.backend, &*pool, options);
    ASSERT_TRUE(runner.ok()) << runner.status();
    EXPECT_EQ(plan->workspace_bytes, (*runner)->workspace_bytes());
    EXPECT_EQ(plan->state_bytes, static_cast<std::int64_t>((*runner)->states().size()));
    EXPECT_EQ(plan->state_bytes, 7 * plan->layer_groups.state_bytes);
  }
}

TEST(HybridModelTest, RunnersRequireStateSlotsForRecurrentLayersOnly) {
  const ModelSpec hybrid = SpecOf(ConfigOf("qwen35-bf16"));
  const ModelSpec plain = SpecOf(ConfigOf("qwen2-bf16"));
  const auto check = [](const ModelSpec& spec, std::uint32_t slots) {
    return runtime::CheckRunnerOptions(
        spec, {.max_rows = 1, .max_step_tokens = 8, .num_state_slots = slots});
  };
  EXPECT_TRUE(check(hybrid, 2).ok());
  EXPECT_TRUE(check(plain, 0).ok());
  EXPECT_THAT(check(hybrid, 1).message(), HasSubstr("num_state_slots is 1, it must be at least 2"));
  EXPECT_THAT(check(plain, 2).message(), HasSubstr("num_state_slots is 2, it must be 0"));
}

TEST(HybridModelTest, WrongStateSlotsAreRefused) {
  const ModelSpec spec = SpecOf(ConfigOf("qwen35-bf16"));
  const StepLimits limits{.max_rows = 2, .max_step_tokens = 8, .num_state_slots = 4};
  struct Slots {
    std::uint32_t in = 1, out = 2, at = 6, snapshot = 3, max_rows = 2;
  };
  // Row 1 has 4 cached tokens and computes 3.
  const auto check = [&](const Slots& slots) {
    runtime::StepBatch batch;
    batch.token_ids = {1, 2, 3};
    batch.rows.push_back({BatchRow{1}, 4, 0, 3});
    const std::uint32_t in[] = {0, slots.in}, out[] = {0, slots.out}, at[] = {0, slots.at};
    const std::uint32_t snapshot[] = {0, slots.snapshot};
    batch.states = {in, out, at, snapshot, slots.max_rows};
    return runtime::CheckStepBatch(batch, spec, limits, {}, /*num_groups=*/0);
  };
  EXPECT_TRUE(check({}).ok()) << check({});
  EXPECT_TRUE(check({.at = 0, .snapshot = 9}).ok());
  EXPECT_THAT(check({.in = 0}).message(), HasSubstr("states.state_in[1] is slot 0"));
  EXPECT_THAT(check({.out = 4}).message(), HasSubstr("states.state_out[1] is slot 4"));
  EXPECT_THAT(check({.snapshot = 0}).message(), HasSubstr("states.snapshot_slot[1] is slot 0"));
  EXPECT_THAT(check({.at = 4}).message(), HasSubstr("states.snapshot_at[1] is 4"));
  EXPECT_THAT(check({.at = 8}).message(), HasSubstr("states.snapshot_at[1] is 8"));
  EXPECT_THAT(check({.max_rows = 1}).message(), HasSubstr("states has the slots of 1 rows"));
}

// Places of recurrent layers do not overlap and start at multiples of 256 bytes.
TEST(HybridModelTest, StatesOfLayersLieOneAfterTheOther) {
  const ModelSpec spec = SpecOf(ConfigOf("qwen3-next-bf16"));
  const LayerGroups layers = PlanLayerGroups(spec);
  // 4 heads of 16 x 24, and 3 inputs of 160 channels.
  const std::int64_t bytes = (4 * 16 * 24 + 3 * 160) * 4 + 128;
  EXPECT_EQ(layers.state_bytes, 2 * bytes);
  EXPECT_EQ(layers.places[0].state, 0);
  EXPECT_EQ(layers.places[2].state, bytes);
  EXPECT_EQ(layers.slots, 2u);
  EXPECT_EQ(layers.places[3].slot, 1u);
  EXPECT_EQ(DescribeLayerGroups(layers),
            absl::StrCat("2 layers per page; 2 without a window; states of ", 2 * bytes, " bytes"));
}

}  // namespace
}  // namespace quire::models

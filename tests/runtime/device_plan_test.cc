#include "runtime/device_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_manager/cache_manager.h"
#include "formats/model_files.h"
#include "runtime/compute_device.h"
#include "runtime/model.h"
#include "runtime/model_stack.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tools/quire/synthetic_model.h"

namespace quire::models {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMiB = 1 << 20;
// The shape "tiny" has 2 layers, one KV head of size 64, and 512 positions.
constexpr std::int64_t kTokenBytes = 2 * 2 * 64 * 2;  // bf16 keys and values of one token

// Returns options for eight sequences with prompt chunks of 64 tokens, two of which may be in
// flight.
runtime::RuntimeOptions Options() {
  runtime::RuntimeOptions options;
  options.device.reserve_bytes = kMiB;
  options.model.dummy_weights = true;
  options.pool.page_size = 64;
  options.steps = {
      .max_rows = 8, .max_tokens = 256, .max_overlap_tokens = 2 * 64, .max_logprobs = 20};
  return options;
}

class DevicePlanTest : public ::testing::Test {
 protected:
  DevicePlanTest() { EXPECT_TRUE(client::WriteSyntheticModel("tiny", dir_.path()).ok()); }

  absl::StatusOr<runtime::DevicePlan> Plan(std::int64_t free_bytes,
                                           const runtime::RuntimeOptions& options = Options()) {
    const auto files = formats::ModelFiles::FromDirectory(dir_.path());
    EXPECT_TRUE(files.ok()) << files.status();
    return runtime::PlanDevice(options, *files, free_bytes, /*num_sms=*/132);
  }

  const testing::TempDir dir_;
};

TEST_F(DevicePlanTest, UsesAddUpAndTheRemainderIsPages) {
  // The memory is too small for 8 contexts of 512 tokens, so the pool takes every page that fits.
  const auto plenty = Plan(1024 * kMiB);
  ASSERT_TRUE(plenty.ok()) << plenty.status();
  const std::int64_t fixed = plenty->memory.total_bytes() - plenty->memory.pool_bytes;
  const std::int64_t page = 64 * kTokenBytes;
  EXPECT_EQ(plenty->memory.page_bytes, page);
  const auto plan = Plan(fixed + kMiB + plenty->memory.pool_bytes - 10 * page);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.num_blocks, plenty->memory.num_blocks - 10);
  const auto lines = runtime::PlanLines(*plan);
  std::int64_t sum = 0;
  for (const auto& [name, bytes] : lines) {
    if (name == "total") {
      EXPECT_EQ(bytes, sum);
      break;
    }
    sum += bytes;
  }
  EXPECT_EQ(plan->memory.total_bytes(), sum);
  EXPECT_LE(sum, plan->free_bytes - plan->reserve_bytes);
  EXPECT_GT(sum + page, plan->free_bytes - plan->reserve_bytes);
}

TEST_F(DevicePlanTest, PoolHasNoMorePagesThanTheSequencesCanUse) {
  const auto plan = Plan(1024 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.num_blocks, 8 * 512 / 64 + 1);
  EXPECT_EQ(plan->context_tokens, 512);
  EXPECT_FALSE(plan->context_was_cut);
  EXPECT_EQ(plan->reserve_bytes, kMiB);
}

TEST_F(DevicePlanTest, CountsTheWeightsOfTheShape) {
  const auto plan = Plan(1024 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // The matrices are embedding and head, and q, k, v, o, gate, up and down of two layers.
  const std::int64_t matrices =
      2 * 512 * 128 + 2 * (128 * (128 + 2 * 64) + 128 * 128 + 3 * 128 * 256);
  const std::int64_t norms = 5 * 128;
  EXPECT_GE(plan->memory.weight_bytes, 2 * (matrices + norms));
  // Norms may be f32, and every matrix may be aligned separately.
  EXPECT_LE(plan->memory.weight_bytes, 2 * matrices + 4 * norms + 32 * 4096);
}

TEST_F(DevicePlanTest, FastCountsTheWorkspaceOfTheLibrary) {
  runtime::RuntimeOptions options = Options();
  const auto plan = Plan(1024 * kMiB, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  for (const char* const level : {"batch_invariant", "strict", "fast"}) {
    options.device.determinism = level;
    const auto other = Plan(1024 * kMiB, options);
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_EQ(other->memory.runner.linear_bytes - plan->memory.runner.linear_bytes,
              options.device.determinism == "fast" ? 32 * kMiB : 0)
        << level;
  }
}

TEST_F(DevicePlanTest, PoolOfGivenSizeNeedsNoReserveAndMayLimitTheContext) {
  const std::int64_t page = 64 * kTokenBytes;
  runtime::RuntimeOptions options = Options();
  options.pool.capacity_bytes = 5 * page;
  const auto plan = Plan(64 * kMiB, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.num_blocks, 5u);
  EXPECT_EQ(plan->reserve_bytes, 0);
  EXPECT_TRUE(plan->context_was_cut);
  EXPECT_EQ(plan->context_tokens, 4 * 64);
  EXPECT_EQ(plan->runner.max_context_tokens, 4u * 64);
  options.model.max_context_tokens = 300;
  const auto refused = Plan(64 * kMiB, options);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("model.max_context_tokens is 300, the KV pool holds 256 tokens"));
}

TEST_F(DevicePlanTest, RejectsPlansThatDoNotFitWithNumbers) {
  const auto plan = Plan(64 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto small = Plan(kMiB + 4096);
  EXPECT_EQ(small.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(small.status().message()),
              HasSubstr(absl::StrCat(plan->memory.weight_bytes)));
  const auto reserve = Plan(kMiB);
  EXPECT_EQ(reserve.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(reserve.status().message()),
              HasSubstr("device.reserve_bytes is 1048576, the GPU has 1048576 bytes free"));
  runtime::RuntimeOptions options = Options();
  options.model.max_context_tokens = 513;
  const auto longer = Plan(64 * kMiB, options);
  EXPECT_THAT(std::string(longer.status().message()), HasSubstr("the model's own context is 512"));
}

// The index contains the tokens of a node and of a root for each page, and the hash table. It is in
// host memory, not in GPU memory.
TEST_F(DevicePlanTest, PrefixIndexIsReportedAsHostMemory) {
  const auto plan = Plan(1024 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::int64_t pages = plan->memory.num_blocks - 1;
  EXPECT_GT(plan->memory.prefix_index_bytes, pages * 2 * 64 * 4);
  EXPECT_LT(plan->memory.prefix_index_bytes, pages * 2 * 64 * 8);
  const auto lines = runtime::PlanLines(*plan);
  const std::pair<std::string, std::int64_t> line("prefix_index", plan->memory.prefix_index_bytes);
  EXPECT_EQ(lines.back(), line);
  EXPECT_EQ(plan->memory.total_bytes(), plan->memory.weight_bytes + plan->memory.pool_bytes +
                                            plan->memory.runner.device_bytes());
}

// Publishers extend the context by adding yarn and leave max_position_embeddings unchanged.
TEST_F(DevicePlanTest, RopeScalingExtendsTheContext) {
  const std::string path = dir_.path() + "/config.json";
  nlohmann::json config = nlohmann::json::parse(std::ifstream(path));
  config["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}};
  std::ofstream(path) << config;
  const auto plan = Plan(64 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->context_tokens, 4 * 512);
  runtime::RuntimeOptions options = Options();
  options.model.max_context_tokens = 2049;
  const auto longer = Plan(64 * kMiB, options);
  EXPECT_THAT(std::string(longer.status().message()), HasSubstr("the model's own context is 2048"));
}

// A window of 64 tokens and two chunks of 64 in flight touch 64 / 16 + 128 / 16 pages and one more.
TEST_F(DevicePlanTest, WindowBoundsThePagesOfASequence) {
  const std::string path = dir_.path() + "/config.json";
  nlohmann::json config = nlohmann::json::parse(std::ifstream(path));
  config["architectures"] = {"MistralForCausalLM"};
  config["model_type"] = "mistral";
  config["sliding_window"] = 64;
  std::ofstream(path) << config;
  const std::int64_t page = 16 * kTokenBytes;
  runtime::RuntimeOptions options = Options();
  options.pool.page_size = 16;
  options.pool.capacity_bytes = 14 * page;
  const auto plan = Plan(64 * kMiB, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.num_blocks, 14u);
  EXPECT_EQ(plan->sequence_pages, 13u);
  EXPECT_EQ(plan->context_tokens, 512);
  EXPECT_FALSE(plan->context_was_cut);
  ASSERT_EQ(plan->memory.layer_groups.groups.size(), 1u);
  EXPECT_EQ(plan->memory.layer_groups.groups[0].window, 64u);
  // Without overlap there is one chunk less.
  options.steps.max_overlap_tokens = 64;
  const auto one_step = Plan(64 * kMiB, options);
  ASSERT_TRUE(one_step.ok()) << one_step.status();
  EXPECT_EQ(one_step->sequence_pages, 9u);
  // The pool needs no more than the pages of complete sequences, whose prefixes can be matched.
  options.pool.capacity_bytes.reset();
  const auto plenty = Plan(64 * kMiB, options);
  ASSERT_TRUE(plenty.ok()) << plenty.status();
  EXPECT_EQ(plenty->memory.num_blocks, 8 * 512 / 16 + 1);
}

TEST_F(DevicePlanTest, QuantizedPagesHaveOneScalePerTokenAndHead) {
  runtime::RuntimeOptions options = Options();
  options.pool.dtype = DType::kI8;
  options.pool.page_size = 32;
  const auto plan = Plan(1024 * kMiB, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.page_bytes, 32 * (2 * 2 * (64 + 4)));
  EXPECT_EQ(plan->runner.activation, DType::kBF16);
  options = Options();
  options.pool.dtype = DType::kF32;
  const auto f32 = Plan(1024 * kMiB, options);
  ASSERT_TRUE(f32.ok()) << f32.status();
  EXPECT_EQ(f32->memory.page_bytes, 64 * 2 * kTokenBytes);
  EXPECT_EQ(f32->runner.activation, DType::kF32);
}

TEST_F(DevicePlanTest, RejectsF16Pages) {
  runtime::RuntimeOptions options = Options();
  options.pool.dtype = DType::kF16;
  const absl::Status status = Plan(1024 * kMiB, options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("kv_cache.dtype is f16, a GPU supports f32, bf16, fp8_e4m3 and int8; "
                        "write bf16"));
}

TEST_F(DevicePlanTest, RunnerHasTheLimitsOfTheSteps) {
  const auto plan = Plan(1024 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->runner.max_step_tokens, 256u);
  EXPECT_EQ(plan->runner.max_rows, 8u);
  EXPECT_EQ(plan->runner.max_logprobs, 20u);
  EXPECT_TRUE(plan->runner.graphs);
}

// At least one page for each of two groups is necessary.
TEST(PoolOfTwoGroupsTest, EveryPlanRejectsOneUsablePage) {
  const auto files = formats::ModelFiles::FromDirectory(paths::TestData("models/gemma2-bf16"));
  ASSERT_TRUE(files.ok()) << files.status();
  const auto options = [](std::int64_t pool_bytes) {
    runtime::RuntimeOptions options = Options();
    options.model.dummy_weights = false;
    options.pool.page_size = 16;
    options.pool.capacity_bytes = pool_bytes;
    return options;
  };
  const auto whole = runtime::PlanCpu(options(64 * kMiB), *files, /*free_bytes=*/0);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->memory.layer_groups.groups.size(), 2u);
  const std::int64_t page = whole->memory.page_bytes;
  const auto two_pages = runtime::PlanCpu(options(3 * page), *files, /*free_bytes=*/0);
  ASSERT_TRUE(two_pages.ok()) << two_pages.status();
  EXPECT_EQ(two_pages->context_tokens, 16);
  const char kRefusal[] =
      "the KV pool has 1 usable pages, the shortest sequence needs 2; raise "
      "kv_cache.capacity_bytes";
  EXPECT_THAT(std::string(runtime::PlanCpu(options(2 * page), *files, 0).status().message()),
              kRefusal);
  EXPECT_THAT(
      std::string(
          runtime::PlanDevice(options(2 * page), *files, 1024 * kMiB, 132).status().message()),
      kRefusal);
  runtime::RuntimeOptions automatic = options(page);
  automatic.pool.capacity_bytes.reset();
  const cache::PageDemand demand(16, std::vector<cache::CacheGroup>(2), 32);
  EXPECT_THAT(std::string(runtime::CheckSmallestRequestFits(automatic, demand, 2).message()),
              HasSubstr("kv_cache.capacity_bytes is auto"));
  EXPECT_TRUE(runtime::CheckSmallestRequestFits(automatic, demand, 3).ok());
}

// If all layers have windows, the index has room for nodes without pages. Without prefix caching no
// row needs them.
TEST(WindowedPrefixIndexTest, PlanEqualsTheIndexOfTheCacheManager) {
  const auto files =
      formats::ModelFiles::FromDirectory(paths::TestData("models/mistral-window-bf16"));
  ASSERT_TRUE(files.ok()) << files.status();
  const auto model = runtime::ReadModelSpec(*files, DeviceKind::kCpu);
  ASSERT_TRUE(model.ok()) << model.status();
  const LayerGroups layers = PlanLayerGroups(model->spec);
  ASSERT_GT(layers.groups.at(0).window, 0u);
  runtime::RuntimeOptions options = Options();
  options.model.dummy_weights = false;
  options.pool.page_size = 16;
  options.pool.capacity_bytes = 4 * kMiB;
  std::vector<std::int64_t> planned;
  for (const bool prefix_caching : {true, false}) {
    options.pool.prefix_caching = prefix_caching;
    const auto pool = runtime::PlanCpuPool(options, model->spec, /*free_bytes=*/0);
    ASSERT_TRUE(pool.ok()) << pool.status();
    cache::CacheManagerOptions cache;
    cache.geometry = pool->geometry;
    cache.groups = CacheGroupsOf(layers);
    cache.max_rows = options.steps.max_rows;
    cache.max_context_tokens = static_cast<std::uint32_t>(pool->context_tokens);
    cache.prefix_caching = prefix_caching;
    const auto plan = runtime::PlanCpu(options, *files, /*free_bytes=*/0);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(plan->memory.prefix_index_bytes, cache::CacheManager::PrefixIndexBytes(cache));
    const auto device = runtime::PlanDevice(options, *files, 1024 * kMiB, 132);
    ASSERT_TRUE(device.ok()) << device.status();
    cache.geometry.num_blocks = device->memory.num_blocks;
    cache.max_context_tokens = static_cast<std::uint32_t>(device->context_tokens);
    EXPECT_EQ(device->memory.prefix_index_bytes, cache::CacheManager::PrefixIndexBytes(cache));
    planned.push_back(plan->memory.prefix_index_bytes);
  }
  EXPECT_GT(planned[0], planned[1]);
}

// There are more sequences than the memory has pages for.
TEST(CpuPoolTest, AutomaticPoolLeavesRoomForItsPrefixIndex) {
  const testing::TempDir dir;
  ASSERT_TRUE(client::WriteSyntheticModel("tiny", dir.path()).ok());
  const auto files = formats::ModelFiles::FromDirectory(dir.path());
  ASSERT_TRUE(files.ok()) << files.status();
  const auto model = runtime::ReadModelSpec(*files, DeviceKind::kCpu);
  ASSERT_TRUE(model.ok()) << model.status();
  runtime::RuntimeOptions options = Options();
  options.pool.memory_share = 0.25;
  options.steps.max_rows = 1024;
  constexpr std::int64_t kShare = 32 * kMiB;
  const auto pool = runtime::PlanCpuPool(options, model->spec, 4 * kShare);
  ASSERT_TRUE(pool.ok()) << pool.status();
  cache::CacheManagerOptions cache;
  cache.geometry = pool->geometry;
  cache.max_rows = 1024;
  cache.max_context_tokens = 512;
  const auto bytes = [&](std::uint32_t num_blocks) {
    cache.geometry.num_blocks = num_blocks;
    return num_blocks * cache.geometry.page_bytes() + cache::CacheManager::PrefixIndexBytes(cache);
  };
  const std::uint32_t num_blocks = pool->geometry.num_blocks;
  EXPECT_LE(bytes(num_blocks), kShare);
  EXPECT_GT(bytes(num_blocks + 1), kShare);
  EXPECT_EQ(pool->context_tokens, 512);
  EXPECT_EQ(pool->wanted_context_tokens, 512);

  // A pool of a given size has exactly that size, and the plan adds its index.
  options.pool.capacity_bytes = kShare;
  const auto given = runtime::PlanCpuPool(options, model->spec, /*free_bytes=*/0);
  ASSERT_TRUE(given.ok()) << given.status();
  EXPECT_EQ(given->geometry.num_blocks, kShare / cache.geometry.page_bytes());
  const auto plan = runtime::PlanCpu(options, *files, /*free_bytes=*/0);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.pool_bytes + plan->memory.prefix_index_bytes,
            bytes(given->geometry.num_blocks));
  EXPECT_EQ(plan->memory.total_bytes(), plan->memory.weight_bytes + plan->memory.pool_bytes +
                                            plan->memory.prefix_index_bytes +
                                            plan->memory.workspace_bytes);

  options.pool.capacity_bytes.reset();
  const std::int64_t page = cache.geometry.page_bytes();
  EXPECT_THAT(std::string(runtime::PlanCpuPool(options, model->spec, 4 * page).status().message()),
              HasSubstr("device.cpu.kv_memory_share is 0.25: kv cache of "));
}

TEST(DeviceStatesTest, StatesTakeTheirMemoryFromThePages) {
  const auto files = formats::ModelFiles::FromDirectory(paths::TestData("models/qwen35-bf16"));
  ASSERT_TRUE(files.ok()) << files.status();
  const auto model = runtime::ReadModelSpec(*files, DeviceKind::kCuda);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::int64_t slot = PlanLayerGroups(model->spec).state_bytes;
  runtime::RuntimeOptions options = Options();
  options.model.dummy_weights = false;
  options.pool.page_size = 16;
  options.pool.state_share = 0.25;
  const auto plan_of = [&](std::int64_t free_bytes) {
    return runtime::PlanDevice(options, *files, free_bytes, /*num_sms=*/132);
  };
  options.pool.capacity_bytes = 80 * slot;
  const auto given = plan_of(1024 * kMiB);
  ASSERT_TRUE(given.ok()) << given.status();
  const std::int64_t page = given->memory.page_bytes;
  EXPECT_EQ(given->states.num_slots, 1u + 8 + 20);
  EXPECT_EQ(given->runner.num_state_slots, given->states.num_slots);
  EXPECT_EQ(given->memory.runner.state_bytes, 29 * slot);
  EXPECT_EQ(given->memory.num_blocks, 51 * slot / page);

  // An automatic pool divides what the other parts leave in the same way, to the last page.
  options.pool.capacity_bytes.reset();
  const std::int64_t others = given->memory.total_bytes() - given->memory.runner.state_bytes -
                              given->memory.num_blocks * page;
  const std::int64_t free = others + options.device.reserve_bytes + 80 * slot;
  const auto automatic = plan_of(free);
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  EXPECT_EQ(automatic->states.num_slots, 29u);
  EXPECT_EQ(automatic->memory.num_blocks, 51 * slot / page);
  const auto lines = runtime::PlanLines(*automatic);
  const auto states =
      std::ranges::find(lines, "states", [](const auto& line) { return line.first; });
  ASSERT_NE(states, lines.end());
  EXPECT_EQ(states->second, 29 * slot);

  // The default runs as many sequences as fit.
  options.steps.may_lower_rows = true;
  const auto lowered = plan_of(free - 65 * slot);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_LT(lowered->runner.max_rows, 8u);
  EXPECT_EQ(lowered->runner.max_rows, lowered->states.max_rows);
  options.steps.may_lower_rows = false;

  const absl::Status refused = plan_of(free - 65 * slot).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("scheduler.max_running_sequences is 8, and the recurrent states"));
}

TEST(CpuPoolTest, StatesTakeTheirMemoryFromThePool) {
  const auto files = formats::ModelFiles::FromDirectory(paths::TestData("models/qwen35-bf16"));
  ASSERT_TRUE(files.ok()) << files.status();
  const auto model = runtime::ReadModelSpec(*files, DeviceKind::kCpu);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::int64_t slot = PlanLayerGroups(model->spec).state_bytes;
  ASSERT_GT(slot, 0);
  runtime::RuntimeOptions options = Options();
  options.pool.page_size = 16;
  options.pool.state_share = 0.25;
  options.pool.capacity_bytes = 100 * slot;
  const auto pool = runtime::PlanCpuPool(options, model->spec, /*free_bytes=*/0);
  ASSERT_TRUE(pool.ok()) << pool.status();
  EXPECT_EQ(pool->states.slot_bytes, slot);
  EXPECT_EQ(pool->states.num_slots, 1u + 8 + 25);
  const std::int64_t page = pool->geometry.page_bytes();
  EXPECT_EQ(pool->geometry.num_blocks, 66 * slot / page);
  const auto plan = runtime::PlanCpu(options, *files, /*free_bytes=*/0);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.state_bytes, 34 * slot);
  EXPECT_EQ(plan->memory.pool_bytes, pool->geometry.num_blocks * page);

  // Without prefix caching there is no use for snapshots but in forks.
  options.pool.prefix_caching = false;
  EXPECT_EQ(runtime::PlanCpuPool(options, model->spec, 0)->states.num_slots, 1u + 8 + 2);

  options.pool.capacity_bytes = 15 * slot;
  const absl::Status refused = runtime::PlanCpuPool(options, model->spec, 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("scheduler.max_running_sequences is 8, and the recurrent states"));
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("lower scheduler.max_running_sequences to at most 7"));
  options.steps.may_lower_rows = true;
  const auto lowered = runtime::PlanCpuPool(options, model->spec, 0);
  ASSERT_TRUE(lowered.ok()) << lowered.status();
  EXPECT_EQ(lowered->states.max_rows, 7u);
  EXPECT_EQ(lowered->states.num_slots, 1u + 7 + 2);
  EXPECT_EQ(runtime::PlanCpu(options, *files, 0)->states.max_rows, 7u);
  options.steps.may_lower_rows = false;

  // An automatic pool divides its share in the same way, and its plan knows the size of a slot.
  options.pool.prefix_caching = true;
  options.pool.capacity_bytes.reset();
  options.pool.memory_share = 0.5;
  const auto automatic = runtime::PlanCpuPool(options, model->spec, 200 * slot);
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  EXPECT_EQ(automatic->states.num_slots, 34u);
  EXPECT_LT(automatic->geometry.num_blocks * page, 66 * slot);
  const std::int64_t weights = plan->memory.weight_bytes;
  const auto before_loading = runtime::PlanCpu(options, *files, weights + 200 * slot);
  ASSERT_TRUE(before_loading.ok()) << before_loading.status();
  EXPECT_EQ(before_loading->states.num_slots, 34u);
  EXPECT_EQ(before_loading->memory.state_bytes, 34 * slot);
  // The plan for a host that cannot hold the weights still has the size of a slot.
  const auto elsewhere = runtime::PlanCpu(options, *files, weights - 1);
  ASSERT_TRUE(elsewhere.ok()) << elsewhere.status();
  EXPECT_EQ(elsewhere->states.slot_bytes, slot);
  EXPECT_EQ(elsewhere->states.num_slots, 1u + 8 + 2);
}

// The message has the number of sequences, what they need, what is free, and how to go on.
TEST(CpuPoolTest, StatesThatDoNotFitAreRefusedBeforeWeightsAreRead) {
  const std::string fixture = paths::TestData("models/qwen35-bf16");
  const testing::TempDir dir;
  std::filesystem::copy(fixture, dir.path(), std::filesystem::copy_options::recursive);
  const auto files = formats::ModelFiles::FromDirectory(dir.path());
  ASSERT_TRUE(files.ok()) << files.status();
  const auto model = runtime::ReadModelSpec(*files, DeviceKind::kCpu);
  ASSERT_TRUE(model.ok()) << model.status();
  const std::int64_t slot = PlanLayerGroups(model->spec).state_bytes;
  runtime::RuntimeOptions options = Options();
  options.model.dummy_weights = false;
  options.model.path = dir.path();
  options.pool.page_size = 16;
  options.pool.memory_share = 0.5;
  options.device.threads = 1;
  const std::int64_t weights = runtime::PlanCpu(options, *files, 0)->memory.weight_bytes;
  const std::string refusal(
      runtime::PlanCpu(options, *files, weights + 30 * slot).status().message());
  EXPECT_THAT(refusal,
              HasSubstr(absl::StrCat(
                  "kv_cache.capacity_bytes is auto, ", 30 * slot,
                  " bytes of memory are free and device.cpu.kv_memory_share is 0.5: "
                  "scheduler.max_running_sequences is 8, and the recurrent states of 8 sequences "
                  "take ",
                  8 * slot, " bytes, more than half of the ", 15 * slot)));
  EXPECT_THAT(
      refusal,
      HasSubstr(
          "lower scheduler.max_running_sequences to at most 7, or raise kv_cache.capacity_bytes"));

  // With almost no memory for the pool, `quired --validate` and the start of the daemon refuse it
  // alike, although the weights could not be loaded either.
  options.pool.memory_share = 1e-9;
  constexpr char kTooMany[] = "scheduler.max_running_sequences is 8, and the recurrent states of 8";
  EXPECT_THAT(std::string(runtime::CheckPlan(options, *files, *model, DeviceKind::kCpu).message()),
              HasSubstr(kTooMany));
  const auto weights_path = std::filesystem::path(dir.path()) / "model.safetensors";
  const auto size = std::filesystem::file_size(weights_path);
  {
    std::fstream stream(weights_path, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(size / 2));
    stream << std::string(size / 2, '\xff');
  }
  const auto broken = formats::ModelFiles::FromDirectory(dir.path());
  ASSERT_TRUE(broken.ok()) << broken.status();
  const auto build = [&] {
    auto device = runtime::ComputeDevice::Open(options.device, runtime::CheckCpu(options.device));
    EXPECT_TRUE(device.ok()) << device.status();
    return runtime::ModelStack::Build(options, *broken, *std::move(device)).status();
  };
  EXPECT_THAT(std::string(build().message()), HasSubstr(kTooMany));
  options.pool.memory_share = 0.1;
  EXPECT_THAT(std::string(build().message()), HasSubstr("finite"));
}

TEST(LongestSequenceTest, IsTheLongestWhosePagesFit) {
  const std::vector<std::vector<cache::CacheGroup>> models = {
      {{.window = 0}}, {{.window = 40}}, {{.window = 0}, {.window = 40}, {.window = 100}}};
  for (const auto& groups : models) {
    const cache::PageDemand demand(16, groups, 32);
    for (std::uint32_t pages = 0; pages < 60; ++pages) {
      std::int32_t longest = 0;
      while (longest < 700 && demand.PagesFor(static_cast<std::uint32_t>(longest + 1)) <= pages) {
        ++longest;
      }
      EXPECT_EQ(runtime::LongestSequence(demand, pages, 700), longest)
          << groups.size() << ", " << pages;
    }
  }
  EXPECT_EQ(runtime::LongestSequence(cache::PageDemand(16, models[0], 32), 5, 700), 80);
  EXPECT_EQ(runtime::LongestSequence(cache::PageDemand(16, models[1], 32), 6, 700), 700);
}

}  // namespace
}  // namespace quire::models

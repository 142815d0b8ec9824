#include "server/config/device_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "formats/model_files.h"
#include "server/config/layered_config.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tools/quire/synthetic_model.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMiB = 1 << 20;
// Of the "tiny" shape: 2 layers, one KV head of 64, 512 positions.
constexpr std::int64_t kTokenBytes = 2 * 2 * 64 * 2;  // bf16 keys and values of one token

class DevicePlanTest : public ::testing::Test {
 protected:
  DevicePlanTest() { EXPECT_TRUE(client::WriteSyntheticModel("tiny", dir_.path()).ok()); }

  absl::StatusOr<DevicePlan> Plan(std::int64_t free_bytes, std::vector<std::string> sets = {}) {
    sets.insert(sets.begin(),
                {"device.type=cuda", "model.load_mode=dummy", "device.reserve_bytes=1MiB",
                 "scheduler.max_running_sequences=8", "scheduler.max_step_tokens=256",
                 "scheduler.prefill_chunk_tokens=64", absl::StrCat("model.path=", dir_.path())});
    std::vector<std::string> errors;
    const auto config = LayeredConfig::Load({.sets = sets}, &errors);
    EXPECT_NE(config, nullptr) << errors[0];
    const auto files = models::ModelFiles::FromDirectory(dir_.path());
    EXPECT_TRUE(files.ok()) << files.status();
    return PlanDevice(ToOptions(*config), *files, free_bytes, /*num_sms=*/132);
  }

  const testing::TempDir dir_;
};

TEST_F(DevicePlanTest, UsesAddUpAndTheRestIsPages) {
  // Too little for 8 contexts of 512 tokens, so every page that fits is taken.
  const auto plenty = Plan(1024 * kMiB);
  ASSERT_TRUE(plenty.ok()) << plenty.status();
  const std::int64_t fixed = plenty->memory.total_bytes() - plenty->memory.pool_bytes;
  const std::int64_t page = 64 * kTokenBytes;
  EXPECT_EQ(plenty->memory.page_bytes, page);
  const auto plan = Plan(fixed + kMiB + plenty->memory.pool_bytes - 10 * page);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.num_blocks, plenty->memory.num_blocks - 10);
  const auto lines = PlanLines(*plan);
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

TEST_F(DevicePlanTest, PagesStopAtWhatTheSequencesCanUse) {
  const auto plan = Plan(1024 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.num_blocks, 8 * 512 / 64 + 1);
  EXPECT_EQ(plan->context_tokens, 512);
  EXPECT_FALSE(plan->context_was_cut);
  EXPECT_EQ(plan->reserve_bytes, kMiB);
}

TEST_F(DevicePlanTest, WeightsOfTheShape) {
  const auto plan = Plan(1024 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  // Embedding and head; q, k, v and o, gate, up and down of two layers; norms.
  const std::int64_t matrices =
      2 * 512 * 128 + 2 * (128 * (128 + 2 * 64) + 128 * 128 + 3 * 128 * 256);
  const std::int64_t norms = 5 * 128;
  EXPECT_GE(plan->memory.weight_bytes, 2 * (matrices + norms));
  // Norms may be f32, and every matrix may begin on a boundary of its own.
  EXPECT_LE(plan->memory.weight_bytes, 2 * matrices + 4 * norms + 32 * 4096);
}

TEST_F(DevicePlanTest, APoolOfGivenSizeNeedsNoReserveAndMayCutTheContext) {
  const std::int64_t page = 64 * kTokenBytes;
  const auto plan = Plan(64 * kMiB, {absl::StrCat("kv_cache.capacity_bytes=", 5 * page)});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.num_blocks, 5u);
  EXPECT_EQ(plan->reserve_bytes, 0);
  EXPECT_TRUE(plan->context_was_cut);
  EXPECT_EQ(plan->context_tokens, 4 * 64);
  EXPECT_EQ(plan->runner.max_context_tokens, 4u * 64);
  const auto refused = Plan(64 * kMiB, {absl::StrCat("kv_cache.capacity_bytes=", 5 * page),
                                        "model.max_context_tokens=300"});
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("model.max_context_tokens is 300, the KV pool holds 256 tokens"));
}

TEST_F(DevicePlanTest, WhatDoesNotFitIsRefusedWithNumbers) {
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
  const auto longer = Plan(64 * kMiB, {"model.max_context_tokens=513"});
  EXPECT_THAT(std::string(longer.status().message()), HasSubstr("the model's own context is 512"));
}

// Publishers ask for a longer context by adding yarn; max_position_embeddings stays what it was.
TEST_F(DevicePlanTest, AStretchedTableStretchesTheContext) {
  const std::string path = dir_.path() + "/config.json";
  nlohmann::json config = nlohmann::json::parse(std::ifstream(path));
  config["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}};
  std::ofstream(path) << config;
  const auto plan = Plan(64 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->context_tokens, 4 * 512);
  const auto longer = Plan(64 * kMiB, {"model.max_context_tokens=2049"});
  EXPECT_THAT(std::string(longer.status().message()), HasSubstr("the model's own context is 2048"));
}

// A window of 64 tokens and two chunks of 64 under way touch 64 / 16 + 128 / 16 pages and one more.
TEST_F(DevicePlanTest, AWindowBoundsWhatASequenceTakes) {
  const std::string path = dir_.path() + "/config.json";
  nlohmann::json config = nlohmann::json::parse(std::ifstream(path));
  config["architectures"] = {"MistralForCausalLM"};
  config["model_type"] = "mistral";
  config["sliding_window"] = 64;
  std::ofstream(path) << config;
  const std::int64_t page = 16 * kTokenBytes;
  const std::vector<std::string> sets = {"kv_cache.page_size=16",
                                         absl::StrCat("kv_cache.capacity_bytes=", 14 * page)};
  const auto plan = Plan(64 * kMiB, sets);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.num_blocks, 14u);
  EXPECT_EQ(plan->sequence_pages, 13u);
  EXPECT_EQ(plan->context_tokens, 512);
  EXPECT_FALSE(plan->context_was_cut);
  ASSERT_EQ(plan->memory.layer_groups.groups.size(), 1u);
  EXPECT_EQ(plan->memory.layer_groups.groups[0].window, 64u);
  // One chunk less without a step in flight.
  std::vector<std::string> alone = sets;
  alone.push_back("engine.overlap_scheduling=false");
  const auto one_step = Plan(64 * kMiB, alone);
  ASSERT_TRUE(one_step.ok()) << one_step.status();
  EXPECT_EQ(one_step->sequence_pages, 9u);
  // No pool takes more than whole histories, whose prefixes can be found.
  const auto plenty = Plan(64 * kMiB, {"kv_cache.page_size=16"});
  ASSERT_TRUE(plenty.ok()) << plenty.status();
  EXPECT_EQ(plenty->memory.num_blocks, 8 * 512 / 16 + 1);
}

TEST_F(DevicePlanTest, QuantizedPagesHaveOneScalePerTokenAndHead) {
  const auto plan = Plan(1024 * kMiB, {"kv_cache.dtype=int8", "kv_cache.page_size=32"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->memory.page_bytes, 32 * (2 * 2 * (64 + 4)));
  EXPECT_EQ(plan->runner.activation, DType::kBF16);
  const auto f32 = Plan(1024 * kMiB, {"kv_cache.dtype=f32"});
  ASSERT_TRUE(f32.ok()) << f32.status();
  EXPECT_EQ(f32->memory.page_bytes, 64 * 2 * kTokenBytes);
  EXPECT_EQ(f32->runner.activation, DType::kF32);
}

TEST_F(DevicePlanTest, StepsAreAsLargeAsConfiguredOnGpus) {
  const auto plan = Plan(1024 * kMiB);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->runner.max_step_tokens, 256u);
  EXPECT_EQ(plan->runner.max_rows, 8u);
  EXPECT_TRUE(plan->runner.graphs);
}

// A page of each of two groups is the least that computes anything.
TEST(PoolOfTwoGroupsTest, OneUsablePageIsRefusedByEveryPlan) {
  const auto files =
      models::ModelFiles::FromDirectory(paths::TestData("models/gemma2-bf16"));
  ASSERT_TRUE(files.ok()) << files.status();
  const auto options = [](const std::string& device, std::int64_t pool_bytes) {
    std::vector<std::string> errors;
    const auto config = LayeredConfig::Load(
        {.sets = {"device.type=" + device, "kv_cache.page_size=16"}}, &errors);
    EXPECT_NE(config, nullptr) << errors[0];
    DaemonOptions options = ToOptions(*config);
    options.pool.capacity_bytes = pool_bytes;
    return options;
  };
  const auto whole = PlanCpu(options("cpu", 64 * kMiB), *files);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_EQ(whole->memory.layer_groups.groups.size(), 2u);
  const std::int64_t page = whole->memory.page_bytes;
  const auto two_pages = PlanCpu(options("cpu", 3 * page), *files);
  ASSERT_TRUE(two_pages.ok()) << two_pages.status();
  EXPECT_EQ(two_pages->context_tokens, 16);
  const char kRefusal[] =
      "the KV pool has 1 usable pages, the shortest sequence needs 2; raise "
      "kv_cache.capacity_bytes";
  EXPECT_THAT(std::string(PlanCpu(options("cpu", 2 * page), *files).status().message()), kRefusal);
  EXPECT_THAT(std::string(PlanDevice(options("cuda", 2 * page), *files, 1024 * kMiB, 132)
                              .status()
                              .message()),
              kRefusal);
  DaemonOptions automatic = options("cpu", page);
  automatic.pool.capacity_bytes.reset();
  const cache::PageDemand demand(16, std::vector<cache::CacheGroup>(2), 32);
  EXPECT_THAT(std::string(CheckHoldsAnything(automatic, demand, 2).message()),
              HasSubstr("kv_cache.capacity_bytes is auto"));
  EXPECT_TRUE(CheckHoldsAnything(automatic, demand, 3).ok());
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
      EXPECT_EQ(LongestSequence(demand, pages, 700), longest) << groups.size() << ", " << pages;
    }
  }
  EXPECT_EQ(LongestSequence(cache::PageDemand(16, models[0], 32), 5, 700), 80);
  EXPECT_EQ(LongestSequence(cache::PageDemand(16, models[1], 32), 6, 700), 700);
}

}  // namespace
}  // namespace quire::server

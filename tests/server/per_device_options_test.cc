#include "server/config/per_device_options.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache_manager/prefix/page_hash.h"
#include "server/config/layered_config.h"

namespace quire::server {
namespace {

runtime::StepSizes StepsOf(std::vector<std::string> sets, DeviceKind device) {
  sets.insert(sets.begin(), {"scheduler.max_running_sequences=8", "scheduler.max_step_tokens=2048",
                             "scheduler.prefill_chunk_tokens=640", "limits.max_logprobs=7"});
  std::vector<std::string> errors;
  const auto config = LayeredConfig::Load({.sets = sets}, &errors);
  if (config == nullptr) {
    ADD_FAILURE() << errors[0];
    return {};
  }
  return RuntimeOptionsFor(ToOptions(*config), device).steps;
}

// 512 prompt tokens in a step, and a token of each sequence.
TEST(PerDeviceOptionsTest, OnTheCpuPromptTokensOfAStepAreBounded) {
  const runtime::StepSizes steps = StepsOf({}, DeviceKind::kCpu);
  EXPECT_EQ(steps.max_rows, 8u);
  EXPECT_FALSE(steps.may_lower_rows);
  EXPECT_EQ(steps.max_tokens, 512u + 8);
  EXPECT_EQ(steps.max_overlap_tokens, 512u);
  EXPECT_EQ(steps.max_logprobs, 7u);
  const runtime::StepSizes small = StepsOf(
      {"scheduler.max_step_tokens=256", "scheduler.prefill_chunk_tokens=64"}, DeviceKind::kCpu);
  EXPECT_EQ(small.max_tokens, 256u);
  EXPECT_EQ(small.max_overlap_tokens, 64u);
}

TEST(PerDeviceOptionsTest, OnAGpuStepsAreAsLargeAsConfiguredAndTwoAreUnderWay) {
  const runtime::StepSizes steps = StepsOf({}, DeviceKind::kCuda);
  EXPECT_EQ(steps.max_rows, 8u);
  EXPECT_EQ(steps.max_tokens, 2048u);
  EXPECT_EQ(steps.max_overlap_tokens, 2 * 640u);
  const runtime::StepSizes one = StepsOf({"engine.overlap_scheduling=false"}, DeviceKind::kCuda);
  EXPECT_EQ(one.max_overlap_tokens, 640u);
}

TEST(PerDeviceOptionsTest, TheDefaultNumberOfSequencesMayBeLowered) {
  std::vector<std::string> errors;
  const auto config = LayeredConfig::Load({}, &errors);
  ASSERT_NE(config, nullptr) << errors[0];
  const runtime::StepSizes steps = RuntimeOptionsFor(ToOptions(*config), DeviceKind::kCpu).steps;
  EXPECT_TRUE(steps.may_lower_rows);
  EXPECT_EQ(steps.max_rows, 256u);
}

TEST(PerDeviceOptionsTest, TheEngineHasTheBoundOfItsDevice) {
  engine::EngineOptions engine;
  engine.max_step_tokens = 2048;
  engine.max_step_prompt_tokens = 512;
  EXPECT_EQ(AdaptEngineOptions(engine, DeviceKind::kCpu).max_step_prompt_tokens, 512);
  EXPECT_EQ(AdaptEngineOptions(engine, DeviceKind::kCuda).max_step_prompt_tokens, 2048);
}

TEST(PerDeviceOptionsTest, PrefixKeysDifferBetweenActivations) {
  using kernels::CpuActivations;
  EXPECT_EQ(PageFingerprint("f", CpuActivations::kInt8), "f");
  std::set<std::pair<std::uint64_t, std::uint64_t>> roots;
  for (const CpuActivations activations :
       {CpuActivations::kInt8, CpuActivations::kF32, CpuActivations::kBF16}) {
    const std::string fingerprint = PageFingerprint("f", activations);
    const Hash128 root =
        cache::HashRoot(HashKey{}, {.tenant = "t", .fingerprint = fingerprint, .salt = ""});
    roots.insert({root.lo, root.hi});
  }
  EXPECT_EQ(roots.size(), 3u);
}

}  // namespace
}  // namespace quire::server

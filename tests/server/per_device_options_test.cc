#include "server/config/per_device_options.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/config/layered_config.h"

namespace quire::server {
namespace {

models::StepSizes StepsOf(std::vector<std::string> sets, DeviceKind device) {
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

// A step has at most 512 prompt tokens, plus one token of each sequence.
TEST(PerDeviceOptionsTest, CpuBoundsPromptTokensPerStep) {
  const models::StepSizes steps = StepsOf({}, DeviceKind::kCpu);
  EXPECT_EQ(steps.max_rows, 8u);
  EXPECT_EQ(steps.max_tokens, 512u + 8);
  EXPECT_EQ(steps.max_overlap_tokens, 512u);
  EXPECT_EQ(steps.max_logprobs, 7u);
  const models::StepSizes small = StepsOf(
      {"scheduler.max_step_tokens=256", "scheduler.prefill_chunk_tokens=64"}, DeviceKind::kCpu);
  EXPECT_EQ(small.max_tokens, 256u);
  EXPECT_EQ(small.max_overlap_tokens, 64u);
}

TEST(PerDeviceOptionsTest, GpuUsesConfiguredStepsAndOverlapsTwo) {
  const models::StepSizes steps = StepsOf({}, DeviceKind::kCuda);
  EXPECT_EQ(steps.max_rows, 8u);
  EXPECT_EQ(steps.max_tokens, 2048u);
  EXPECT_EQ(steps.max_overlap_tokens, 2 * 640u);
  const models::StepSizes one = StepsOf({"engine.overlap_scheduling=false"}, DeviceKind::kCuda);
  EXPECT_EQ(one.max_overlap_tokens, 640u);
}

TEST(PerDeviceOptionsTest, EngineUsesTheBoundOfItsDevice) {
  engine::EngineOptions engine;
  engine.max_step_tokens = 2048;
  engine.max_step_prompt_tokens = 512;
  EXPECT_EQ(EngineOptionsOn(engine, DeviceKind::kCpu).max_step_prompt_tokens, 512);
  EXPECT_EQ(EngineOptionsOn(engine, DeviceKind::kCuda).max_step_prompt_tokens, 2048);
}

}  // namespace
}  // namespace quire::server

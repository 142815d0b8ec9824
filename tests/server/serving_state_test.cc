#include "server/api/serving_state.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "base/mutex.h"
#include "tests/engine/harness.h"
#include "tests/engine/stream_reader.h"
#include "tests/testing/fake_clock.h"

namespace quire::server {
namespace {

// A reload changes health.engine_stall_timeout, so the check reads it each time.
TEST(ServingStateTest, StallTimeoutChangeTakesEffectAtOnce) {
  const engine::PoolOptions pool;
  engine::HarnessOptions options = engine::MakeHarnessOptions(pool);
  options.engine.limits.max_tokens_per_request = 100;
  const auto tokenizer = engine::MakeByteTokenizer();
  engine::FakeRunner runner(options.runner);
  Mutex mutex;
  CondVar changed;
  bool is_open = false, is_inside = false;
  runner.SetHook([&](const runtime::StepBatch&) {
    MutexLock lock(&mutex);
    is_inside = true;
    changed.NotifyAll();
    while (!is_open) changed.Wait(&mutex);
    return absl::OkStatus();
  });
  testing::FakeClock clock;
  auto created = engine::Engine::Create(options.engine, engine::MakeCache(pool), &runner,
                                        tokenizer.get(), &clock, nullptr);
  ASSERT_TRUE(created.ok()) << created.status();
  const std::unique_ptr<engine::Engine> engine = *std::move(created);
  const ServedModel served(RequestTranslator(TranslatorOptions{}), ModelDescription{},
                           runtime::DeviceDescription{}, tokenizer.get(), engine.get());
  ServingState state(absl::Seconds(30));
  state.Publish(&served);
  state.SetState(LifeState::kReady);
  auto stream = engine->Accept(engine::MakeRequest("a", engine::MakePrompt(1, 10), 5));
  ASSERT_TRUE(stream.ok()) << stream.status();
  {
    MutexLock lock(&mutex);
    while (!is_inside) changed.Wait(&mutex);
  }
  clock.Advance(absl::Seconds(5));  // the engine is stalled in its step
  EXPECT_TRUE(state.is_live());
  state.SetStallTimeout(absl::Seconds(4));
  EXPECT_FALSE(state.is_live());
  EXPECT_FALSE(state.is_ready());
  EXPECT_EQ(state.DescribeReadiness(), "the engine does not answer");
  state.SetStallTimeout(absl::Seconds(6));
  EXPECT_TRUE(state.is_ready());
  {
    MutexLock lock(&mutex);
    is_open = true;
    changed.NotifyAll();
  }
  EXPECT_TRUE(engine::ReadAll(**stream).status.ok());
}

TEST(ServingStateTest, DescribesWhyItIsNotReady) {
  ServingState state(absl::Seconds(30));
  EXPECT_EQ(state.DescribeReadiness(), "loading");
  state.SetState(LifeState::kReady);
  EXPECT_EQ(state.DescribeReadiness(), "ready");
  state.SetUnresponsiveListener("grpc");
  EXPECT_EQ(state.DescribeReadiness(), "a port does not answer");
  state.SetDrainStarted(true);
  EXPECT_EQ(state.DescribeReadiness(), "draining");
  state.SetState(LifeState::kFailed);
  EXPECT_EQ(state.DescribeReadiness(), "failed");
}

}  // namespace
}  // namespace quire::server

// Signs of life: running steps, layers of long steps, and an empty queue.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "gtest/gtest.h"
#include "tests/engine/gate.h"
#include "tests/engine/harness.h"
#include "tests/engine/stream_reader.h"

namespace quire::engine {
namespace {

constexpr absl::Duration kStall = absl::Seconds(30);
constexpr std::int32_t kStreamTokens = 16;

Request Endless(const std::string& id) {
  Request request = MakeRequest(id, {1, 2, 3}, 500);
  request.stopping.ignore_eos = true;
  return request;
}

// An engine on the fake runner, with a fake clock.
class LivenessTest : public ::testing::TestWithParam<int> {
 protected:
  void Start(const std::function<void(EngineOptions&)>& change = {}) {
    const PoolOptions pool{
        .usable_pages = 200, .page_size = 16, .max_rows = 16, .max_context_tokens = 1024};
    HarnessOptions options = MakeHarnessOptions(pool, GetParam());
    options.engine.stream_queue_tokens = kStreamTokens;
    options.engine.slow_client_timeout = absl::Hours(1);
    if (change) change(options.engine);
    tokenizer_ = MakeByteTokenizer();
    runner_ = std::make_unique<FakeRunner>(options.runner);
    auto engine = Engine::Create(options.engine, MakeCache(pool), runner_.get(), tokenizer_.get(),
                                 &clock_, &registry_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  std::shared_ptr<TokenStream> Accept(Request request) {
    auto stream = engine_->Accept(std::move(request));
    EXPECT_TRUE(stream.ok()) << stream.status();
    return stream.ok() ? *std::move(stream) : nullptr;
  }

  // Makes the engine thread wake up, settle the steps in flight and look for work.
  void PassOnce() {
    const absl::Status status = engine_->CheckIntegrity();
    EXPECT_TRUE(status.ok()) << status;
  }

  // Advances the clock while the engine thread sleeps with nothing to do.
  void Idle(absl::Duration time) {
    clock_.Advance(time);
    PassOnce();
    PassOnce();
  }

  testing::FakeClock clock_;
  probe::Registry registry_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<FakeRunner> runner_;
  Gate worker_;
  std::unique_ptr<Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, LivenessTest, ::testing::Values(1, 2));

// The output worker is stopped, so the only sequence can never be planned again. Periodic wake-ups
// of the engine do not count as progress.
TEST_P(LivenessTest, UnrunnableWorkIsAStall) {
  Start([](EngineOptions& options) { options.text_threads = 1; });
  Gate steps;
  steps.Set(/*closed=*/true);
  runner_->SetHook([&steps](const runtime::StepBatch&) {
    steps.Pass();
    return absl::OkStatus();
  });
  worker_.Set(/*closed=*/true);
  const auto stream = Accept(Endless("a"));
  stream->SetReadyCallback([this] { worker_.Pass(); });
  steps.Set(/*closed=*/false);
  worker_.AwaitArrival();
  while (engine_->ListRequests().at(0).state != RequestState::kStalled) std::this_thread::yield();
  PassOnce();
  EXPECT_TRUE(engine_->IsAlive(kStall));
  clock_.Advance(kStall);
  PassOnce();
  EXPECT_FALSE(engine_->IsAlive(kStall));
  PassOnce();
  EXPECT_FALSE(engine_->IsAlive(kStall));

  worker_.Set(/*closed=*/false);
  EXPECT_TRUE(ReadAll(*stream).status.ok());
  EXPECT_TRUE(engine_->WaitIdle(absl::InfiniteFuture()));
  EXPECT_TRUE(engine_->IsAlive(kStall));
}

// The request keeps the only row, so the second request also waits for the first one's reader.
TEST_P(LivenessTest, SlowClientIsNotAStall) {
  Start([](EngineOptions& options) { options.max_running_sequences = 1; });
  const auto running = Accept(Endless("a"));
  while (running->unread_tokens() < kStreamTokens) std::this_thread::yield();
  const auto waiting = Accept(Endless("b"));
  while (engine_->GetStats().waiting == 0) std::this_thread::yield();
  for (int i = 0; i < 3; ++i) {
    Idle(kStall);
    EXPECT_TRUE(engine_->IsAlive(kStall));
  }
  EXPECT_TRUE(ReadAll(*running).status.ok());
  EXPECT_TRUE(ReadAll(*waiting).status.ok());
}

TEST_P(LivenessTest, LongStepWithHeartbeatsIsNotAStall) {
  Start();
  bool beats = true;
  std::vector<bool> alive;
  runner_->SetHook([&](const runtime::StepBatch& batch) {
    for (int layer = 0; alive.size() < 4 && layer < 4; ++layer) {
      clock_.Advance(kStall / 2 + absl::Seconds(1));
      alive.push_back(engine_->IsAlive(kStall));
      if (beats) batch.heartbeat->Beat();
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(ReadAll(*Accept(MakeRequest("beats", {1, 2, 3}, 4))).status.ok());
  EXPECT_EQ(alive, std::vector<bool>({true, true, true, true}));
  EXPECT_TRUE(engine_->WaitIdle(absl::InfiniteFuture()));
  PassOnce();
  beats = false;
  alive.clear();
  EXPECT_TRUE(ReadAll(*Accept(MakeRequest("hangs", {1, 2, 3}, 4))).status.ok());
  EXPECT_EQ(alive, std::vector<bool>({true, false, false, false}));
}

TEST_P(LivenessTest, IdleEngineIsAliveAndIdleTimeDoesNotCount) {
  Start();
  std::vector<bool> alive;
  runner_->SetHook([&](const runtime::StepBatch&) {
    if (alive.empty()) alive.push_back(engine_->IsAlive(absl::Nanoseconds(1)));
    return absl::OkStatus();
  });
  Idle(10 * kStall);
  EXPECT_TRUE(engine_->IsAlive(kStall));
  EXPECT_TRUE(ReadAll(*Accept(MakeRequest("a", {1, 2, 3}, 4))).status.ok());
  EXPECT_EQ(alive, std::vector<bool>({true}));
}

}  // namespace
}  // namespace quire::engine

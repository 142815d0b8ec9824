// The end of the engine: everything that came before it is answered, and what comes later is told.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/request/inbox.h"
#include "gtest/gtest.h"
#include "tests/engine/gate.h"
#include "tests/engine/harness.h"
#include "tests/testing/reason_of.h"
#include "tests/testing/waiting.h"

namespace quire::engine {
namespace {

TEST(InboxTest, ClosedInboxGivesWhatCameBeforeAndRefusesTheRest) {
  Inbox inbox;
  std::vector<Signal> signals;
  EXPECT_TRUE(inbox.Post({.kind = Signal::Kind::kCall, .choice = 1}));
  EXPECT_TRUE(inbox.Drain(&signals));
  EXPECT_EQ(signals.size(), 1);
  EXPECT_TRUE(inbox.Post({.kind = Signal::Kind::kCall, .choice = 2}));
  inbox.Close();
  EXPECT_FALSE(inbox.Post({.kind = Signal::Kind::kCall, .choice = 3}));
  inbox.Wait(absl::InfiniteDuration());
  EXPECT_FALSE(inbox.Drain(&signals));
  ASSERT_EQ(signals.size(), 1);
  EXPECT_EQ(signals.front().choice, 2);
  inbox.Wait(absl::InfiniteDuration());
  EXPECT_FALSE(inbox.Drain(&signals));
  EXPECT_TRUE(signals.empty());
}

// The engine thread's first look at the time, which comes right after it has emptied its inbox,
// waits for Release.
class HoldingClock final : public Clock {
 public:
  // Called by the engine thread.
  void Hold() {
    MutexLock lock(&mutex_);
    held_thread_ = std::this_thread::get_id();
    is_closed_ = true;
  }
  absl::Time Now() const override {
    MutexLock lock(&mutex_);
    if (std::this_thread::get_id() == held_thread_) {
      is_held_ = true;
      changed_.NotifyAll();
      while (is_closed_) changed_.Wait(&mutex_);
    }
    return absl::FromUnixSeconds(1'000'000'000);
  }
  absl::Time WallNow() const override { return absl::FromUnixSeconds(1'000'000'000); }
  void AwaitHeld() {
    MutexLock lock(&mutex_);
    while (!is_held_) changed_.Wait(&mutex_);
  }
  void Release() {
    MutexLock lock(&mutex_);
    is_closed_ = false;
    changed_.NotifyAll();
  }

 private:
  mutable Mutex mutex_;
  mutable CondVar changed_;
  std::thread::id held_thread_ ABSL_GUARDED_BY(mutex_);
  mutable bool is_held_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
};

// Accepted, prepared and followed by the end of the engine, all between a drain of the inbox and
// what comes after it.
TEST(EngineShutdownTest, RequestThatComesJustBeforeTheEndIsAnswered) {
  const PoolOptions pool;
  HarnessOptions options = MakeHarnessOptions(pool);
  const auto tokenizer = MakeByteTokenizer();
  FakeRunner runner(options.runner);
  HoldingClock clock;
  options.engine.on_engine_thread = [&clock] { clock.Hold(); };
  auto created =
      Engine::Create(options.engine, MakeCache(pool), &runner, tokenizer.get(), &clock, nullptr);
  ASSERT_TRUE(created.ok()) << created.status();
  std::unique_ptr<Engine> engine = *std::move(created);
  clock.AwaitHeld();
  const auto accepted = engine->Accept(MakeRequest("a", {1, 2, 3}, 5));
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  while (engine->ListRequests().at(0).prompt_tokens == 0) std::this_thread::yield();

  Engine& ending = *engine;  // it lives until its thread is released
  std::thread ender([&engine] { engine.reset(); });
  while (ending.GetStats().state != EngineState::kStopped) std::this_thread::yield();
  // Refused as soon as the inbox is closed, which it mostly is now; a call before that takes a
  // second to be given up.
  for (int i = 0; i < 10000; ++i) std::this_thread::yield();
  while (!absl::IsUnavailable(ending.GetPageSnapshot().status())) std::this_thread::yield();
  EXPECT_EQ(ReasonOf(ending.GetPageSnapshot().status()), "SERVER_SHUTDOWN");
  EXPECT_EQ(ReasonOf(ending.CheckIntegrity()), "SERVER_SHUTDOWN");
  EXPECT_EQ(ReasonOf(ending.FlushCache(absl::ZeroDuration()).status()), "SERVER_SHUTDOWN");
  clock.Release();
  ender.join();

  TokenStream& stream = **accepted;
  while (stream.Take().has_value()) {
  }
  ASSERT_TRUE(stream.finished()) << "its arrival was lost";
  EXPECT_EQ(ReasonOf(stream.status()), "SERVER_SHUTDOWN");
}

// The engine thread has died while the output worker hung, which goes on only when the engine is
// being destroyed.
TEST(EngineShutdownTest, AWorkerThatIsFreeLateStillWritesTheEnds) {
  const PoolOptions pool;
  HarnessOptions options = MakeHarnessOptions(pool);
  Gate start, worker;
  start.Set(true);
  worker.Set(true);
  options.engine.on_engine_thread = [&start] { start.Pass(); };
  options.engine.answer_timeout = absl::Milliseconds(1);
  std::atomic<bool> is_fatal{false};
  options.engine.on_fatal = [&](const absl::Status&) { is_fatal = true; };
  const auto tokenizer = MakeByteTokenizer();
  FakeRunner runner(options.runner);
  int collects = 0;
  runner.SetCollectHook([&]() -> absl::Status {
    if (++collects < 3) return absl::OkStatus();
    worker.AwaitArrival();  // with what the steps before have given
    std::string().at(0);    // as a library might throw
    return absl::OkStatus();
  });
  const MachineClock clock;
  auto created =
      Engine::Create(options.engine, MakeCache(pool), &runner, tokenizer.get(), &clock, nullptr);
  ASSERT_TRUE(created.ok()) << created.status();
  std::unique_ptr<Engine> engine = *std::move(created);
  const auto accepted = engine->Accept(MakeRequest("a", {1, 2, 3}, 900));
  ASSERT_TRUE(accepted.ok()) << accepted.status();
  TokenStream& stream = **accepted;
  stream.SetReadyCallback([&worker] { worker.Pass(); });
  start.Set(false);
  EXPECT_TRUE(testing::WaitUntil([&] { return is_fatal.load(); }));

  std::atomic<bool> has_ended{false};
  std::thread ender([&] {
    engine.reset();
    has_ended = true;
  });
  EXPECT_TRUE(testing::Stays([&] { return !has_ended; }, absl::Milliseconds(500)));
  worker.Set(false);
  ender.join();
  while (stream.Take().has_value()) {
  }
  ASSERT_TRUE(stream.finished()) << "it was never answered";
  EXPECT_EQ(ReasonOf(stream.status()), "DEVICE_ERROR");
}

}  // namespace
}  // namespace quire::engine

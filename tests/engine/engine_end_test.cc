// What is posted to the engine thread while it ends.

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "engine/engine.h"
#include "engine/request/inbox.h"
#include "gtest/gtest.h"
#include "tests/engine/fake_runner.h"
#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

// The engine thread reads the time right after it has emptied its inbox. Here its first reading
// waits until the engine is being destroyed, so that everything is posted after that.
class HeldClock final : public Clock {
 public:
  absl::Time Now() const override {
    if (is_engine_thread && !was_held_.exchange(true)) Hold();
    return absl::Now();
  }

  void Release(const Engine* engine) { engine_.store(engine); }

  static thread_local bool is_engine_thread;

 private:
  void Hold() const {
    while (engine_.load() == nullptr) std::this_thread::yield();
    while (engine_.load()->GetStats().state != EngineState::kStopped) std::this_thread::yield();
    // The destructor joins the text workers next, then tells this thread to end. How far it comes
    // meanwhile decides only how likely a mistake is seen.
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  }

  mutable std::atomic<bool> was_held_{false};
  std::atomic<const Engine*> engine_{nullptr};
};

thread_local bool HeldClock::is_engine_thread = false;

TEST(EngineEndTest, ARequestThatArrivesAfterTheLastLookIsAnswered) {
  const PoolOptions pool;
  const std::unique_ptr<text::Tokenizer> tokenizer = MakeByteTokenizer();
  for (int round = 0; round < 50; ++round) {
    HeldClock clock;
    FakeRunner runner(MakeHarnessOptions(pool).runner);
    EngineOptions options = MakeOptions(pool);
    options.on_engine_thread = [] { HeldClock::is_engine_thread = true; };
    auto engine =
        Engine::Create(options, MakeCache(pool), &runner, tokenizer.get(), &clock, nullptr);
    ASSERT_TRUE(engine.ok()) << engine.status();
    auto stream = (*engine)->Accept(MakeRequest("late", MakePrompt(1, 10), 5));
    ASSERT_TRUE(stream.ok()) << stream.status();
    clock.Release(engine->get());
    engine->reset();
    while ((*stream)->Take().has_value()) continue;
    ASSERT_TRUE((*stream)->finished()) << "in round " << round;
    const auto reason = GetErrorReason((*stream)->status());
    ASSERT_TRUE(reason.has_value()) << (*stream)->status();
    EXPECT_EQ(reason->reason, Reason::kServerShutdown);
  }
}

TEST(InboxTest, WhatIsPostedWhileItClosesIsTakenOrRefused) {
  for (int round = 0; round < 20; ++round) {
    Inbox inbox;
    std::atomic<std::size_t> accepted{0};
    std::atomic<bool> is_closed{false};
    std::vector<std::thread> posters;
    for (int i = 0; i < 3; ++i) {
      posters.emplace_back([&] {
        while (!is_closed.load()) accepted += inbox.Post({.call = [] {}}) ? 1 : 0;
        EXPECT_FALSE(inbox.Post({.call = [] {}}));
      });
    }
    std::vector<Signal> signals;
    std::size_t taken = 0;
    while (taken < 100) {
      inbox.Drain(&signals);
      taken += signals.size();
    }
    inbox.Close(&signals);
    taken += signals.size();
    is_closed.store(true);
    for (std::thread& poster : posters) poster.join();
    EXPECT_EQ(accepted.load(), taken);
  }
}

}  // namespace
}  // namespace quire::engine

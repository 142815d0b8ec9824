// The clock advances only when a test advances it. The engine has a request that does not finish.

#include "server/api/drain_control.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "tests/engine/harness.h"
#include "tests/engine/stream_reader.h"
#include "tests/testing/fake_clock.h"

namespace quire::server {
namespace {

std::string ReasonOf(const absl::Status& status) {
  const auto reason = GetErrorReason(status);
  return reason ? std::string(ReasonName(reason->reason)) : "";
}

class DrainControlTest : public ::testing::Test {
 protected:
  DrainControlTest() {
    engine::HarnessOptions options = engine::MakeHarnessOptions(pool_);
    options.engine.limits.max_tokens_per_request = 100;
    runner_ = std::make_unique<engine::FakeRunner>(options.runner);
    runner_->SetHook([this](const runtime::StepBatch&) {
      MutexLock lock(&mutex_);
      is_inside_ = true;
      changed_.NotifyAll();
      while (!is_open_) changed_.Wait(&mutex_);
      return absl::OkStatus();
    });
    auto created = engine::Engine::Create(options.engine, engine::MakeCache(pool_), runner_.get(),
                                          tokenizer_.get(), &clock_, nullptr);
    EXPECT_TRUE(created.ok()) << created.status();
    engine_ = *std::move(created);
    served_ = std::make_unique<ServedModel>(RequestTranslator(TranslatorOptions{}),
                                            ModelDescription{}, runtime::DeviceDescription{},
                                            tokenizer_.get(), engine_.get());
    state_.Publish(served_.get());
    state_.SetState(LifeState::kReady);
    auto stream = Accept("live");
    EXPECT_TRUE(stream.ok()) << stream.status();
    live_ = *std::move(stream);
    MutexLock lock(&mutex_);
    while (!is_inside_) changed_.Wait(&mutex_);
  }
  ~DrainControlTest() override { OpenGate(); }

  absl::StatusOr<std::shared_ptr<engine::TokenStream>> Accept(const std::string& id) {
    return engine_->Accept(engine::MakeRequest(id, engine::MakePrompt(1, 10), 50));
  }
  // Lets steps finish.
  void OpenGate() {
    MutexLock lock(&mutex_);
    is_open_ = true;
    changed_.NotifyAll();
  }
  void Advance(absl::Duration by) {
    clock_.Advance(by);
    drain_.Tick();
  }
  absl::Status LiveStatus() {
    OpenGate();
    return engine::ReadAll(*live_).status;
  }

  const engine::PoolOptions pool_;
  Mutex mutex_;
  CondVar changed_;
  bool is_inside_ = false, is_open_ = false;
  testing::FakeClock clock_;
  const std::unique_ptr<text::Tokenizer> tokenizer_ = engine::MakeByteTokenizer();
  std::unique_ptr<engine::FakeRunner> runner_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<ServedModel> served_;
  ServingState state_{absl::Hours(1)};
  int num_exit_requests_ = 0;
  DrainControl drain_{&state_, &clock_, absl::Seconds(30), [this] { ++num_exit_requests_; }};
  std::shared_ptr<engine::TokenStream> live_;
};

TEST_F(DrainControlTest, AdmitsDuringTheDelayAndCancelsAtTheDeadline) {
  ASSERT_TRUE(drain_.Begin(absl::Seconds(10), absl::Seconds(30), /*exit_after=*/false).ok());
  EXPECT_FALSE(state_.is_ready());
  Advance(absl::Seconds(9));
  EXPECT_EQ(state_.state(), LifeState::kReady);
  EXPECT_EQ(drain_.deadline(), absl::InfiniteFuture());
  EXPECT_TRUE(Accept("late").ok());
  Advance(absl::Seconds(1));
  EXPECT_EQ(state_.state(), LifeState::kDraining);
  EXPECT_EQ(drain_.deadline(), clock_.Now() + absl::Seconds(30));
  EXPECT_FALSE(Accept("too late").ok());
  Advance(absl::Seconds(30));
  const absl::Status status = LiveStatus();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(ReasonOf(status), "SERVER_SHUTDOWN");
}

TEST_F(DrainControlTest, LiveRequestsMayFinishBeforeTheDeadline) {
  ASSERT_TRUE(drain_.Begin(absl::ZeroDuration(), absl::Seconds(30), /*exit_after=*/false).ok());
  Advance(absl::Seconds(29));
  EXPECT_TRUE(LiveStatus().ok());
  EXPECT_TRUE(drain_.WaitDrained());
}

TEST_F(DrainControlTest, RepeatedBeginShortensTheDelayAndRenewsTheDeadline) {
  ASSERT_TRUE(drain_.Begin(absl::Seconds(10), absl::Seconds(30), /*exit_after=*/false).ok());
  ASSERT_TRUE(drain_.Begin(absl::Seconds(20), absl::Seconds(40), /*exit_after=*/false).ok());
  ASSERT_TRUE(drain_.Begin(absl::Seconds(5), absl::Seconds(50), /*exit_after=*/false).ok());
  Advance(absl::Seconds(5));
  EXPECT_EQ(drain_.deadline(), clock_.Now() + absl::Seconds(50));
  Advance(absl::Seconds(7));
  ASSERT_TRUE(drain_.Begin(absl::Seconds(9), absl::Seconds(60), /*exit_after=*/false).ok());
  EXPECT_EQ(drain_.deadline(), clock_.Now() + absl::Seconds(60));
  drain_.ShortenDeadline(absl::Seconds(2));
  EXPECT_EQ(drain_.deadline(), clock_.Now() + absl::Seconds(2));
}

TEST_F(DrainControlTest, ResumeEndsTheDelayAndTheDrain) {
  for (const absl::Duration waited : {absl::Seconds(9), absl::Seconds(11)}) {
    ASSERT_TRUE(drain_.Begin(absl::Seconds(10), absl::Seconds(30), /*exit_after=*/false).ok());
    Advance(waited);
    ASSERT_TRUE(drain_.Resume().ok());
    EXPECT_TRUE(state_.is_ready());
    EXPECT_EQ(drain_.deadline(), absl::InfiniteFuture());
    Advance(absl::Minutes(1));
    EXPECT_TRUE(state_.is_ready());
  }
  EXPECT_TRUE(Accept("next").ok());
  EXPECT_TRUE(LiveStatus().ok());
}

TEST_F(DrainControlTest, DrainBeforeTheExitCannotBeResumed) {
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(drain_.Begin(absl::ZeroDuration(), absl::Seconds(30), /*exit_after=*/true).ok());
  }
  EXPECT_EQ(num_exit_requests_, 1);
  EXPECT_EQ(ReasonOf(drain_.Resume()), "SHUTTING_DOWN");
  EXPECT_EQ(state_.state(), LifeState::kDraining);
}

TEST_F(DrainControlTest, FailureOfTheEngineEndsTheDrain) {
  ASSERT_TRUE(drain_.Begin(absl::Seconds(10), absl::Seconds(30), /*exit_after=*/false).ok());
  state_.SetState(LifeState::kFailed);
  Advance(absl::Seconds(10));
  EXPECT_EQ(drain_.deadline(), absl::InfiniteFuture()) << "no drain has begun";
  const absl::Status resumed = drain_.Resume();
  EXPECT_EQ(resumed.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(resumed), "DEVICE_ERROR");
  EXPECT_TRUE(state_.drain_started());
  EXPECT_EQ(state_.state(), LifeState::kFailed);
  EXPECT_EQ(ReasonOf(drain_.Begin(absl::ZeroDuration(), absl::Seconds(1), /*exit_after=*/false)),
            "DEVICE_ERROR");
  EXPECT_FALSE(drain_.WaitDrained());
}

}  // namespace
}  // namespace quire::server

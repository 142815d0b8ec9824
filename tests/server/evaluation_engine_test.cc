// Calls with many requests, with an engine that the test pauses between two steps.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/probe.h"
#include "engine/engine.h"
#include "gtest/gtest.h"
#include "server/api/evaluation.h"
#include "server/auth/authenticator.h"
#include "server/config/live_config.h"
#include "tests/engine/gate.h"
#include "tests/engine/harness.h"
#include "tests/testing/reason_of.h"

namespace quire::server {
namespace {

// Records the end of one call, which an engine thread reports.
class Outcome {
 public:
  Evaluation::Done Taker() {
    return [this](absl::Status status, std::vector<EvaluationResult> results) {
      MutexLock lock(&mutex_);
      ++times_;
      status_ = std::move(status);
      results_ = std::move(results);
      changed_.NotifyAll();
    };
  }
  absl::Status Await() {
    MutexLock lock(&mutex_);
    while (times_ == 0) changed_.Wait(&mutex_);
    return status_;
  }
  int times() const {
    MutexLock lock(&mutex_);
    return times_;
  }
  std::size_t num_results() const { return results().size(); }
  std::vector<EvaluationResult> results() const {
    MutexLock lock(&mutex_);
    return results_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  int times_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<EvaluationResult> results_ ABSL_GUARDED_BY(mutex_);
};

class EvaluationEngineTest : public ::testing::Test {
 protected:
  EvaluationEngineTest() : probe_(&registry_, "m"), state_(absl::Seconds(60)) {
    const engine::PoolOptions pool{.usable_pages = 200, .max_rows = 16};
    const engine::HarnessOptions options = engine::MakeHarnessOptions(pool);
    hot_ = options.engine;
    tokenizer_ = engine::MakeByteTokenizer();
    runner_ = std::make_unique<engine::FakeRunner>(options.runner);
    runner_->SetHook([this](const runtime::StepBatch&) {
      gate_.Pass();
      return absl::OkStatus();
    });
    auto made = engine::Engine::Create(options.engine, engine::MakeCache(pool), runner_.get(),
                                       tokenizer_.get(), &clock_, &registry_);
    EXPECT_TRUE(made.ok()) << made.status();
    engine_ = *std::move(made);
    TranslatorOptions translation;
    translation.model_id = "m";
    served_ = std::make_unique<ServedModel>(RequestTranslator(std::move(translation)),
                                            ModelDescription(), runtime::DeviceDescription(),
                                            tokenizer_.get(), engine_.get());
    const std::vector<std::string> sets = {"logging.access_log=false"};
    std::vector<std::string> errors;
    auto layered = LayeredConfig::Load({.sets = sets}, &errors);
    EXPECT_TRUE(errors.empty());
    config_ =
        std::make_unique<LiveConfig>(ConfigSources{.sets = sets}, std::move(layered), &registry_);
    auto authenticator = Authenticator::Create({});
    EXPECT_TRUE(authenticator.ok()) << authenticator.status();
    authenticator_ = *std::move(authenticator);
  }
  ~EvaluationEngineTest() override { gate_.Set(false); }

  std::shared_ptr<Evaluation> MakeCall(const CallInfo& call, Outcome* outcome) {
    const HandlerContext context{.state = &state_,
                                 .probe = &probe_,
                                 .clock = &clock_,
                                 .authenticator = authenticator_.get(),
                                 .config = config_.get()};
    return std::make_shared<Evaluation>(context, "Embed", "", call, outcome->Taker());
  }

  CallInfo Caller() const {
    CallInfo call;
    call.accept_time = clock_.Now();
    return call;
  }

  static std::vector<EvaluationItem> Embeds(std::size_t count) {
    std::vector<EvaluationItem> items(count);
    for (std::size_t i = 0; i < count; ++i) {
      items[i].request.task = engine::Task::kEmbed;
      items[i].request.prompt = engine::MakePrompt(i, 20);
    }
    return items;
  }

  void ExpectIdle() {
    EXPECT_TRUE(engine_->WaitIdle(absl::InfiniteFuture()));
    EXPECT_TRUE(engine_->CheckIntegrity().ok());
    EXPECT_EQ(Sum("requests_received_total"),
              Sum("requests_accepted_total") + Sum("requests_rejected_total"));
    EXPECT_EQ(Sum("requests_accepted_total"),
              Sum("requests_completed_total") + Sum("requests_cancelled_total"));
  }

  double Sum(absl::string_view family) const {
    return engine::MetricSum(registry_, absl::StrCat("quire_", family));
  }

  MachineClock clock_;
  engine::HotOptions hot_;
  probe::Registry registry_;
  ServerProbe probe_;
  ServingState state_;
  engine::Gate gate_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<engine::FakeRunner> runner_;
  std::unique_ptr<LiveConfig> config_;
  std::unique_ptr<Authenticator> authenticator_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<ServedModel> served_;
};

TEST_F(EvaluationEngineTest, DrainRejectsUnsubmittedInputsLikeRequests) {
  constexpr std::size_t kItems = Evaluation::kMaxLiveItems + 68;
  gate_.Set(true);
  Outcome outcome;
  MakeCall(Caller(), &outcome)->Start(*served_, Embeds(kItems));
  EXPECT_EQ(engine_->ListRequests().size(), Evaluation::kMaxLiveItems);
  engine_->Drain();
  engine::Request other = engine::MakeRequest("other", {1, 2}, 1);
  const absl::Status refused = engine_->Accept(std::move(other)).status();
  EXPECT_EQ(ReasonOf(refused), "SERVER_DRAINING");
  gate_.Set(false);
  const absl::Status status = outcome.Await();
  EXPECT_EQ(status.code(), refused.code()) << status;
  EXPECT_EQ(ReasonOf(status), ReasonOf(refused));
  ExpectIdle();
  EXPECT_EQ(outcome.times(), 1);
  EXPECT_EQ(outcome.num_results(), 0u);
  // This call and the other call.
  EXPECT_EQ(Sum("requests_rejected_total"), 2);
  EXPECT_EQ(Sum("requests_accepted_total"), Evaluation::kMaxLiveItems);
}

TEST_F(EvaluationEngineTest, DrainComputesLiveInputs) {
  gate_.Set(true);
  Outcome outcome;
  MakeCall(Caller(), &outcome)->Start(*served_, Embeds(Evaluation::kMaxLiveItems));
  engine_->Drain();
  gate_.Set(false);
  EXPECT_TRUE(outcome.Await().ok());
  EXPECT_EQ(outcome.num_results(), Evaluation::kMaxLiveItems);
  ExpectIdle();
}

// A yes/no reranker scores two continuations of a prompt, which is tokenized once.
TEST_F(EvaluationEngineTest, ScoreReusesTheContextTokensOfAnEarlierScore) {
  const auto ask = [&](bool copies_context) {
    std::vector<EvaluationItem> items(2);
    for (std::size_t i = 0; i < 2; ++i) {
      engine::ScorePrompt prompt;
      if (i == 0 || !copies_context) prompt.context_text = "the same context of both";
      prompt.continuation_ids = {static_cast<std::int32_t>('a' + i)};
      items[i].request.task = engine::Task::kScore;
      items[i].request.output.prompt_logprobs = 0;
      items[i].request.prompt = prompt;
    }
    items[0].request.output.echo_prompt = items[0].request.output.token_ids = true;
    items[1].predecessor = 0;
    items[1].copies_context = copies_context;
    Outcome outcome;
    MakeCall(Caller(), &outcome)->Start(*served_, std::move(items));
    EXPECT_TRUE(outcome.Await().ok()) << outcome.Await();
    return outcome.results();
  };
  const auto taken = ask(true), told = ask(false);
  ASSERT_TRUE(taken.size() == 2 && told.size() == 2);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(taken[i].usage.prompt_tokens, told[i].usage.prompt_tokens);
    ASSERT_TRUE(taken[i].logprobs.size() == 1 && told[i].logprobs.size() == 1);
    EXPECT_EQ(taken[i].logprobs[0].token, told[i].logprobs[0].token);
    EXPECT_EQ(taken[i].logprobs[0].logprob, told[i].logprobs[0].logprob);
  }
  EXPECT_NE(taken[0].logprobs[0].token, taken[1].logprobs[0].token);
}

TEST_F(EvaluationEngineTest, InputsThatWaitForTheQueueAreCountedOnce) {
  constexpr std::size_t kItems = 8;
  hot_.max_queued_requests = 2;
  ASSERT_TRUE(engine_->PrepareHotOptions(hot_).ok());
  engine_->SetHotOptions(hot_);
  gate_.Set(true);
  Outcome outcome;
  MakeCall(Caller(), &outcome)->Start(*served_, Embeds(kItems));
  EXPECT_LT(engine_->ListRequests().size(), kItems);
  EXPECT_EQ(Sum("requests_rejected_total"), 0);
  gate_.Set(false);
  EXPECT_TRUE(outcome.Await().ok());
  EXPECT_EQ(outcome.num_results(), kItems);
  ExpectIdle();
  EXPECT_EQ(Sum("requests_received_total"), kItems);
}

}  // namespace
}  // namespace quire::server

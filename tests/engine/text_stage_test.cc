// Prompts wait for tokenization per tenant in a queue of limited size. Prompts that are too long
// for any tokenization are rejected without cost.

#include "engine/request/text_stage.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "engine/output/token_stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/gate.h"
#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Blocks every thread except its creator at each read of the clock.
class GateClock final : public Clock {
 public:
  absl::Time Now() const override {
    if (std::this_thread::get_id() != owner_) gate.Pass();
    return absl::FromUnixSeconds(1'000'000'000);
  }
  absl::Time WallNow() const override { return Now(); }

  mutable Gate gate;

 private:
  const std::thread::id owner_ = std::this_thread::get_id();
};

class TextStageTest : public ::testing::Test {
 protected:
  void Start(const std::function<void(EngineOptions&)>& change = {}) {
    options_ = MakeOptions({});
    if (change) change(options_);
    clock_.gate.Set(/*closed=*/true);
    stage_ = std::make_unique<TextStage>(options_,
                                         CacheShape{.hash_key = cache_->hash_key(),
                                                    .page_size = cache_->page_size(),
                                                    .usable_pages = cache_->usable_pages(),
                                                    .demand = cache_->demand()},
                                         tokenizer_.get(), &clock_, &limiter_, &probe_, inbox_);
  }
  void TearDown() override { clock_.gate.Set(/*closed=*/false); }

  absl::Status Submit(const std::string& tenant, int number, std::string text = "Once") {
    Request request = MakeRequest(absl::StrCat(tenant, number), {}, 4);
    request.tenant = tenant;
    request.accept_time = clock_.Now();
    request.prompt = TextPrompt{.text = std::move(text)};
    return stage_->Submit(std::make_shared<AcceptedRequest>(std::move(request), ++arrivals_, 0,
                                                            std::make_shared<TokenStream>()));
  }
  // Returns the ids of the next prepared requests, in order.
  std::vector<std::string> Prepared(std::size_t count) {
    std::vector<std::string> ids;
    while (ids.size() < count) {
      inbox_->Wait(absl::InfiniteDuration());
      std::vector<Signal> signals;
      EXPECT_TRUE(inbox_->Drain(&signals));
      for (const Signal& signal : signals) ids.push_back(signal.request->request.id);
    }
    return ids;
  }

  const std::unique_ptr<text::Tokenizer> tokenizer_ = MakeByteTokenizer();
  const std::unique_ptr<cache::CacheManager> cache_ = MakeCache({});
  GateClock clock_;
  EngineOptions options_;
  AdmissionLimiter limiter_{100, 1 << 20};
  EngineProbe probe_{nullptr,
                     {.model_name = "m",
                      .max_context_tokens = 1024,
                      .page_size = 16,
                      .num_pages = 64,
                      .kv_dtype = "f32"}};
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>();
  std::uint64_t arrivals_ = 0;
  std::unique_ptr<TextStage> stage_;
};

TEST_F(TextStageTest, TenantsAreServedInTurn) {
  Start();
  ASSERT_TRUE(Submit("first", 0).ok());
  clock_.gate.AwaitArrival();  // the only worker has taken it
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(Submit("a", i).ok());
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(Submit("b", i).ok());
  ASSERT_TRUE(Submit("c", 0).ok());
  clock_.gate.Set(/*closed=*/false);
  EXPECT_THAT(Prepared(8), ElementsAre("first0", "a0", "b0", "c0", "a1", "b1", "a2", "a3"));
}

TEST_F(TextStageTest, BoundsWaitingBytes) {
  Start([](EngineOptions& options) { options.max_queued_bytes = 1000; });
  ASSERT_TRUE(Submit("first", 0, std::string(900, 'a')).ok());
  clock_.gate.AwaitArrival();  // the only worker has taken it, so it does not wait
  ASSERT_TRUE(Submit("a", 0, std::string(600, 'a')).ok());
  ASSERT_TRUE(Submit("b", 0, std::string(400, 'a')).ok());
  const absl::Status refused = Submit("b", 1, "a");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(
      std::string(refused.message()),
      HasSubstr("2 prompts with 1000 bytes wait for tokenization, the limit is 1000 bytes"));
  const auto reason = GetErrorReason(refused);
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(reason->name(), "QUEUE_FULL");
  EXPECT_EQ(reason->Find("queued_bytes"), "1000");
  EXPECT_EQ(reason->Find("limit"), "1000");
  EXPECT_GE(reason->retry_delay, absl::Seconds(1));
  options_.max_queued_bytes = 1001;
  stage_->SetLimits(options_);
  EXPECT_TRUE(Submit("b", 1, "a").ok());
  clock_.gate.Set(/*closed=*/false);
  EXPECT_THAT(Prepared(4), ElementsAre("first0", "a0", "b0", "b1"));
  EXPECT_TRUE(Submit("b", 2, std::string(1001, 'a')).ok()) << "the queue is empty again";
  EXPECT_THAT(Prepared(1), ElementsAre("b2"));
}

TEST_F(TextStageTest, BoundsWaitingPrompts) {
  Start([](EngineOptions& options) { options.max_queued_requests = 2; });
  ASSERT_TRUE(Submit("first", 0).ok());
  clock_.gate.AwaitArrival();
  ASSERT_TRUE(Submit("a", 0).ok());
  ASSERT_TRUE(Submit("a", 1).ok());
  EXPECT_EQ(GetErrorReason(Submit("a", 2))->name(), "QUEUE_FULL");
  options_.max_queued_requests = 3;
  stage_->SetLimits(options_);
  EXPECT_TRUE(Submit("a", 2).ok());
  clock_.gate.Set(/*closed=*/false);
  EXPECT_THAT(Prepared(4), ElementsAre("first0", "a0", "a1", "a2"));
  stage_->Stop();
  EXPECT_EQ(GetErrorReason(Submit("a", 3))->name(), "SERVER_SHUTDOWN");
}

// The longest token of the byte tokenizer is "<poison>".
TEST(TextLengthTest, DoesNotTokenizeATextThatIsTooLongForAnyTokens) {
  Harness harness(MakeHarnessOptions({.max_context_tokens = 1024}));
  Request request = MakeRequest("long", {}, 4);
  request.prompt = TextPrompt{.text = std::string(8 * 1024, 'a')};
  harness.Submit(request);
  const absl::Status status = harness.output("long").status;
  EXPECT_EQ(status.message(),
            "prompt has at least 1024 tokens, but this model's maximum context length is 1024; "
            "shorten the prompt");
  EXPECT_EQ(GetErrorReason(status)->name(), "PROMPT_TOO_LONG");
  EXPECT_EQ(GetErrorReason(status)->Find("prompt_tokens"), "1024");
  // With one byte less it could be 1023 tokens, so the tokens are counted.
  request.id = "shorter";
  request.prompt = TextPrompt{.text = std::string(8 * 1023, 'a')};
  harness.Submit(request);
  EXPECT_EQ(harness.output("shorter").status.message(),
            "prompt has 8184 tokens, but this model's maximum context length is 1024; shorten the "
            "prompt");
  request.id = "short";
  request.prompt = TextPrompt{.text = absl::StrCat("<poison>", std::string(99, 'a'))};
  const auto live = harness.Submit(request);
  EXPECT_EQ(live->progress.prompt_tokens.load(), 100);
  // Text that will be truncated may have any length.
  request.id = "cut";
  request.truncate_prompt = true;
  request.prompt = TextPrompt{.text = std::string(9 * 1024, 'a')};
  EXPECT_EQ(harness.Submit(request)->progress.prompt_tokens.load(), 1020);
  request.id = "last";
  request.truncate_prompt = false;
  request.max_prompt_tokens = 7;
  EXPECT_EQ(harness.Submit(request)->progress.prompt_tokens.load(), 7);
  request.id = "both";
  request.truncate_prompt = true;
  request.max_prompt_tokens = 1022;
  EXPECT_EQ(harness.Submit(request)->progress.prompt_tokens.load(), 1020);
  // The limit does not allow a prompt that fills the context.
  request.id = "full";
  request.truncate_prompt = false;
  request.max_prompt_tokens = 1024;
  harness.Submit(request);
  EXPECT_EQ(GetErrorReason(harness.output("full").status)->name(), "PROMPT_TOO_LONG");
}

}  // namespace
}  // namespace quire::engine

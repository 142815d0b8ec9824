// Finished answers that are not read count towards a limit and expire.

#include "engine/output/unread_answers.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"
#include "tests/engine/stream_reader.h"
#include "tests/testing/reason_of.h"
#include "tests/testing/waiting.h"

namespace quire::engine {
namespace {

using ::testing::HasSubstr;

class UnreadAnswersTest : public ::testing::Test {
 protected:
  void Start(const std::function<void(EngineOptions&)>& change = {}) {
    const PoolOptions pool{
        .usable_pages = 200, .page_size = 16, .max_rows = 16, .max_context_tokens = 1024};
    HarnessOptions options = MakeHarnessOptions(pool);
    if (change) change(options.engine);
    tokenizer_ = MakeByteTokenizer();
    runner_ = std::make_unique<FakeRunner>(options.runner);
    auto engine = Engine::Create(options.engine, MakeCache(pool), runner_.get(), tokenizer_.get(),
                                 &clock_, nullptr);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  // Returns the stream of a finished answer. The engine becomes idle slightly before the answer is
  // in the stream.
  std::shared_ptr<TokenStream> Finished(const std::string& id, const std::string& tenant = "t") {
    Request request = MakeRequest(id, {1, 2, 3}, 5);
    request.tenant = tenant;
    auto stream = engine_->Accept(std::move(request));
    EXPECT_TRUE(stream.ok()) << stream.status();
    EXPECT_TRUE(engine_->WaitIdle(absl::InfiniteFuture()));
    if (!stream.ok()) return nullptr;
    EXPECT_TRUE(testing::WaitUntil([&] { return (*stream)->is_complete(); }));
    return *std::move(stream);
  }
  // Makes the engine thread read the clock.
  void Look() { EXPECT_TRUE(engine_->CheckIntegrity().ok()); }
  bool EndsAsSlow(const TokenStream& stream) {
    return testing::WaitUntil([&] {
      Look();
      return ReasonOf(stream.status()) == "SLOW_CLIENT";
    });
  }

  testing::FakeClock clock_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<FakeRunner> runner_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(UnreadAnswersTest, UnreadAnswerExpires) {
  Start([](EngineOptions& options) { options.slow_client_timeout = absl::Seconds(5); });
  const auto stream = Finished("a");
  clock_.Advance(absl::Seconds(4));
  Look();
  EXPECT_TRUE(stream->status().ok());
  clock_.Advance(absl::Seconds(7));
  ASSERT_TRUE(EndsAsSlow(*stream));
  EXPECT_THAT(std::string(stream->status().message()), HasSubstr("5000 ms"));
  EXPECT_FALSE(stream->Take().has_value()) << "the answer's memory is released";
  EXPECT_TRUE(stream->finished());
  EXPECT_TRUE(stream->CheckIntegrity().ok());
}

TEST_F(UnreadAnswersTest, CountInTheQueueUntilRead) {
  Start([](EngineOptions& options) { options.max_queued_requests = 3; });
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 3; ++i) streams.push_back(Finished(absl::StrCat("a", i)));
  const absl::Status refused = engine_->Accept(MakeRequest("b", {1}, 5)).status();
  EXPECT_EQ(ReasonOf(refused), "QUEUE_FULL");
  EXPECT_THAT(std::string(refused.message()), HasSubstr("3 unread finished answers"));
  EXPECT_EQ(ReadAll(*streams[0]).usage.completion_tokens, 5);
  EXPECT_TRUE(ReadAll(*Finished("c")).status.ok());
  // They also count after they have ended.
  clock_.Advance(absl::Minutes(2));
  ASSERT_TRUE(EndsAsSlow(*streams[1]));
  ASSERT_TRUE(EndsAsSlow(*streams[2]));
  for (int i = 0; i < 3; ++i) streams.push_back(Finished(absl::StrCat("d", i)));
}

TEST_F(UnreadAnswersTest, CountInTheLimitOfTheirTenant) {
  Start([](EngineOptions& options) { options.tenants.defaults.max_queued_requests = 2; });
  const auto one = Finished("a", "x"), two = Finished("b", "x");
  Request request = MakeRequest("c", {1}, 5);
  request.tenant = "x";
  EXPECT_EQ(ReasonOf(engine_->Accept(request).status()), "TENANT_LIMIT");
  EXPECT_TRUE(ReadAll(*Finished("c", "y")).status.ok());
  ReadAll(*one);
  EXPECT_TRUE(ReadAll(*Finished("c", "x")).status.ok());
}

std::shared_ptr<AcceptedRequest> MakeAccepted(std::uint64_t arrival) {
  return std::make_shared<AcceptedRequest>(MakeRequest(absl::StrCat("a", arrival), {1, 2, 3}, 5),
                                           arrival, /*worker=*/0, std::make_shared<TokenStream>());
}

TEST(UnreadAnswersOnlyTest, DoesNotKeepThePrompt) {
  UnreadAnswers answers;
  auto request = MakeAccepted(1);
  const std::weak_ptr<AcceptedRequest> whole = request;
  answers.Add(*request, absl::UnixEpoch());
  request.reset();
  EXPECT_TRUE(whole.expired());
  EXPECT_EQ(answers.CountsOf("").total, 1);
}

TEST(UnreadAnswersOnlyTest, OnePassExpiresOnlyAFew) {
  UnreadAnswers answers;
  constexpr int kMore = 3;
  for (int i = 0; i < UnreadAnswers::kMaxChecks + kMore; ++i) {
    const auto request = MakeAccepted(static_cast<std::uint64_t>(i));
    answers.Add(*request, absl::UnixEpoch());
    request->stream->Finish(absl::OkStatus(), {});
  }
  const absl::Time later = absl::UnixEpoch() + absl::Seconds(5);
  EXPECT_EQ(answers.Expire(later, absl::Seconds(5)), UnreadAnswers::kMaxChecks);
  EXPECT_LE(answers.NextExpiry(absl::Seconds(5)), later) << "the next pass is due at once";
  EXPECT_EQ(answers.Expire(later, absl::Seconds(5)), kMore);
  EXPECT_EQ(answers.CountsOf("").total, 0);
}

}  // namespace
}  // namespace quire::engine

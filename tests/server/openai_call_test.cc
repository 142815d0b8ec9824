// One call on the embedded model. The test implements the exchange.

#include "server/openai/openai_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/mutex.h"
#include "tests/server/service_fixture.h"
#include "tests/testing/waiting.h"

namespace quire::server {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

// The test's own thread runs the sequence, in RunUntilEnd.
class TestExchange final : public HttpExchange {
 public:
  const HttpRequest& request() const override { return request_; }
  std::string TakeBody() override { return ""; }
  void Post(std::function<void()> work) override {
    MutexLock lock(&mutex_);
    work_.push_back(std::move(work));
    changed_.NotifyAll();
  }
  void Answer(HttpAnswer answer) override {
    answer_ = std::move(answer);
    has_ended_ = true;
  }
  void BeginStream(HttpAnswer) override {}
  void Write(std::string bytes, std::function<void()> on_written) override {
    stream_ += bytes;
    writes_.fetch_add(1);
    Post(std::move(on_written));
  }
  void EndStream(bool is_complete) override {
    is_whole_ = is_complete;
    has_ended_ = true;
  }
  void OnGone(std::function<void()> callback) override { gone_ = std::move(callback); }

  // Runs one piece of work. Returns false if none arrives for a while.
  bool RunOne() {
    std::function<void()> work;
    {
      const absl::Time deadline = MonotonicNow() + absl::Seconds(20);
      MutexLock lock(&mutex_);
      while (work_.empty() && MonotonicNow() < deadline) changed_.WaitUntil(&mutex_, deadline);
      if (work_.empty()) return false;
      work = std::move(work_.front());
      work_.pop_front();
    }
    work();
    return true;
  }
  bool RunUntilEnd() {
    while (!has_ended_) {
      if (!RunOne()) return false;
    }
    return true;
  }
  // Disconnects the peer before any waiting work runs.
  void Leave() {
    const std::function<void()> gone = std::exchange(gone_, nullptr);
    if (gone) gone();
  }
  // Discards all waiting work.
  void Close() {
    Leave();
    std::deque<std::function<void()>> dropped;
    MutexLock lock(&mutex_);
    dropped.swap(work_);
  }

  HttpAnswer answer_;
  std::string stream_;
  std::atomic<int> writes_{0};
  bool is_whole_ = false;
  bool has_ended_ = false;

 private:
  const HttpRequest request_;
  std::function<void()> gone_;
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
};

// Switches the exceptions of TokensThatThrow on.
std::atomic<bool> throws{false};

OpenAiTokens TokensThatThrow(const ServedModel& served) {
  OpenAiTokens tokens = MakeTokens(served);
  tokens.is_special = [inner = tokens.is_special](std::int32_t id) {
    if (throws) (void)std::string().at(1);  // simulates an exception of a library
    return inner(id);
  };
  return tokens;
}

class OpenAiCallTest : public ServiceTest {
 protected:
  // A call and its exchange own each other until the exchange ends.
  ~OpenAiCallTest() override { exchange_->Close(); }

  void Begin(const json& body, OpenAiTokens (*tokens)(const ServedModel&) = &MakeTokens,
             std::size_t max_buffered_bytes = 1 << 20) {
    OpenAiCallHead head;
    head.max_buffered_bytes = max_buffered_bytes;
    head.endpoint = &OpenAiEndpoints()[0];
    head.info.accept_time = clock_.Now();
    head.request_id = "call";
    head.tokens = tokens;
    std::make_shared<OpenAiCall>(HandlerContext{.state = state_.get(),
                                                .probe = probe_.get(),
                                                .clock = &clock_,
                                                .authenticator = authenticator_.get(),
                                                .config = config_.get()},
                                 exchange_, std::move(head))
        ->Begin(body.dump(), &worker_);
  }
  bool BecomesIdle() const { return served().engine->WaitIdle(MonotonicNow() + absl::Seconds(20)); }
  // Occupies a worker, or waits for one, until the lock is released. Returns false if no more work
  // may wait.
  bool HoldWorker() {
    return worker_.Run([gate = gate_] { MutexLock wait(gate.get()); }).ok();
  }
  double RpcsOf(const std::string& code) const {
    return Metric("quire_rpcs_total{code=\"" + code + "\",method=\"Completions\"}");
  }

  const std::shared_ptr<TestExchange> exchange_ = std::make_shared<TestExchange>();
  const std::shared_ptr<Mutex> gate_ = std::make_shared<Mutex>();
  CallWorker worker_{1, 4};
};

constexpr int kManyTokens = 400;

TEST_F(OpenAiCallTest, ExceptionBeforeTheFirstByteIsA500AndCancelsTheGenerations) {
  for (const bool stream : {false, true}) {
    throws = true;
    exchange_->has_ended_ = false;
    Begin({{"prompt", {"Once", "The dog"}},
           {"max_tokens", kManyTokens},
           {"ignore_eos", true},
           {"logprobs", 1},
           {"echo", true},
           {"stream", stream}},
          &TokensThatThrow);
    ASSERT_TRUE(exchange_->RunUntilEnd());
    EXPECT_EQ(exchange_->answer_.status, 500);
    EXPECT_EQ(json::parse(exchange_->answer_.body)["error"]["code"], "engine_error");
    // The exception's text appears in the log only.
    EXPECT_THAT(exchange_->answer_.body, Not(HasSubstr("string")));
    EXPECT_EQ(exchange_->writes_, 0);
    EXPECT_TRUE(BecomesIdle());
    EXPECT_EQ(RpcsOf("INTERNAL"), stream ? 2 : 1);
  }
}

TEST_F(OpenAiCallTest, ExceptionInAStreamIsItsLastEventAndCancelsTheGenerations) {
  throws = false;
  // There are more prompts than run at a time, so that some are echoed after the first write.
  Begin({{"prompt", std::vector<std::string>(40, "Once")},
         {"max_tokens", kManyTokens},
         {"ignore_eos", true},
         {"logprobs", 1},
         {"echo", true},
         {"stream", true}},
        &TokensThatThrow);
  // Runs until something was sent, then throws.
  std::thread failing([&] {
    EXPECT_TRUE(testing::WaitUntil([&] { return exchange_->writes_ > 0; }));
    throws = true;
  });
  ASSERT_TRUE(exchange_->RunUntilEnd());
  failing.join();
  EXPECT_FALSE(exchange_->is_whole_);
  EXPECT_THAT(exchange_->stream_, HasSubstr("\"text_completion\""));
  EXPECT_THAT(exchange_->stream_, HasSubstr("\"code\":\"engine_error\""));
  EXPECT_THAT(exchange_->stream_, Not(HasSubstr("[DONE]")));
  EXPECT_TRUE(BecomesIdle());
  EXPECT_EQ(RpcsOf("INTERNAL"), 1);
}

TEST_F(OpenAiCallTest, BoundsBufferedAnswers) {
  const json body = {{"prompt", {"Once", "The dog", "A cat"}},
                     {"max_tokens", 100},
                     {"ignore_eos", true},
                     {"logprobs", 1}};
  Begin(body, &MakeTokens, 5000);
  ASSERT_TRUE(exchange_->RunUntilEnd());
  EXPECT_EQ(exchange_->answer_.status, 400);
  EXPECT_EQ(json::parse(exchange_->answer_.body)["error"]["param"], "stream");
  EXPECT_TRUE(BecomesIdle());
  exchange_->has_ended_ = false;
  Begin(body);
  ASSERT_TRUE(exchange_->RunUntilEnd());
  EXPECT_EQ(exchange_->answer_.status, 200);
  EXPECT_GT(exchange_->answer_.body.size(), 15000u);
}

// A worker reads a large body. Its call may have lost its peer when the body comes back.
TEST_F(OpenAiCallTest, WorkersReadLargeBodies) {
  const json body = {{"prompt", "Once"},
                     {"max_tokens", 8},
                     {"ignore_eos", true},
                     {"temperature", 0},
                     {"user", std::string(100000, 'x')}};
  Begin(body);
  EXPECT_FALSE(exchange_->has_ended_);
  ASSERT_TRUE(exchange_->RunUntilEnd());
  EXPECT_EQ(exchange_->answer_.status, 200) << exchange_->answer_.body;
  EXPECT_EQ(json::parse(exchange_->answer_.body)["choices"][0]["text"],
            Generate(Request("Once", 8)).Text());
  exchange_->has_ended_ = false;
  Begin({{"prompt", ""}, {"user", std::string(100000, 'x')}});
  ASSERT_TRUE(exchange_->RunUntilEnd());
  EXPECT_EQ(exchange_->answer_.status, 400);
}

TEST_F(OpenAiCallTest, DisconnectDuringBodyParsingCancelsTheGenerations) {
  {
    // The only worker is busy until the peer has left.
    MutexLock lock(gate_.get());
    ASSERT_TRUE(HoldWorker());
    Begin({{"prompt", "Once"},
           {"max_tokens", kManyTokens},
           {"ignore_eos", true},
           {"n", 4},
           {"user", std::string(100000, 'x')}});
    exchange_->Leave();
  }
  const absl::Time deadline = MonotonicNow() + absl::Seconds(20);
  while (RpcsOf("CANCELLED") == 0 && MonotonicNow() < deadline) exchange_->RunOne();
  EXPECT_EQ(RpcsOf("CANCELLED"), 1);
  EXPECT_TRUE(BecomesIdle());
  EXPECT_EQ(exchange_->writes_, 0);
}

TEST_F(OpenAiCallTest, RejectsLargeBodiesBeyondTheQueue) {
  {
    MutexLock lock(gate_.get());
    // One body is being read and four wait. Once no more may wait, the worker has one or will take
    // one soon.
    int held = 0;
    while (held < 5) held += HoldWorker() ? 1 : 0;
    ASSERT_FALSE(HoldWorker());
    Begin({{"prompt", "Once"}, {"user", std::string(100000, 'x')}});
    ASSERT_TRUE(exchange_->RunUntilEnd());
    EXPECT_EQ(exchange_->answer_.status, 429);
    EXPECT_EQ(json::parse(exchange_->answer_.body)["error"]["code"], "rate_limit_exceeded");
  }
  exchange_->has_ended_ = false;
  Begin({{"prompt", "Once"}, {"max_tokens", 1}});  // small bodies need no worker
  ASSERT_TRUE(exchange_->RunUntilEnd());
  EXPECT_EQ(exchange_->answer_.status, 200);
}

}  // namespace
}  // namespace quire::server

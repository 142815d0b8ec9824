// Options that change while the engine runs.

#include <atomic>
#include <functional>
#include <random>
#include <thread>

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

Request Endless(std::string id, unsigned seed, std::size_t prompt, std::int32_t tokens) {
  Request request = MakeRequest(std::move(id), MakePrompt(seed, prompt), tokens);
  request.stopping.ignore_eos = true;
  return request;
}

// Changes options between two steps on one thread. Harness::options are those of the core.
class HotStepTest : public ::testing::TestWithParam<int> {
 protected:
  HotStepTest() : harness_(MakeHarnessOptions({.usable_pages = 400, .max_rows = 16}, GetParam())) {}

  std::size_t Running() { return harness_.core.scheduler().running().size(); }

  Harness harness_;
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, HotStepTest, ::testing::Values(1, 2));

TEST_P(HotStepTest, LoweredSequenceLimitTakesEffectAsSequencesEnd) {
  for (unsigned i = 0; i < 24; ++i) {
    // The ends are spread over time, so that the number of running requests decreases gradually.
    harness_.Submit(Endless(absl::StrCat("r", i), i, 20, 20 + 10 * static_cast<int>(i % 8)));
  }
  for (int i = 0; i < 4; ++i) harness_.Step();
  EXPECT_EQ(Running(), 16);
  harness_.options.max_running_sequences = 3;
  harness_.ApplyOptions();
  std::size_t least = Running();
  while (Running() > 3) {
    ASSERT_TRUE(harness_.Step());
    EXPECT_LE(Running(), least) << "one was admitted above the limit";
    least = std::min(least, Running());
  }
  EXPECT_EQ(harness_.core.scheduler().waiting(), 8);
  for (int i = 0; i < 20; ++i) {
    harness_.Step();
    EXPECT_LE(Running(), 3);
  }
  harness_.options.max_running_sequences = 16;
  harness_.ApplyOptions();
  harness_.Step();
  harness_.Step();
  EXPECT_GT(Running(), 3);
  harness_.RunUntilIdle();
  for (const auto& [id, output] : harness_.outputs()) {
    EXPECT_TRUE(output.ended && output.status.ok()) << id << ": " << output.status;
  }
}

// The request was accepted under the old limit, so it runs, alone.
TEST_P(HotStepTest, RequestAboveTheNewChoiceLimitStillRuns) {
  harness_.Submit(Endless("a", 1, 20, 30));
  harness_.Step();
  Request request = Endless("four", 2, 20, 30);
  request.sampling.choice_count = 4;
  harness_.options.max_running_sequences = 2;
  harness_.ApplyOptions();
  harness_.Submit(std::move(request));
  harness_.RunUntilIdle();
  EXPECT_TRUE(harness_.output("four").status.ok()) << harness_.output("four").status;
  EXPECT_EQ(harness_.output("four").tokens.size(), 4);
  EXPECT_EQ(harness_.output("four").tokens.at(3).size(), 30);
}

// The request waits for all running rows but not for new ones. A request after it lets it pass and
// follows once there is room.
TEST_P(HotStepTest, RequestAboveTheNewChoiceLimitWaitsWithoutStarvation) {
  for (unsigned i = 0; i < 2; ++i) {
    harness_.Submit(Endless(absl::StrCat("before", i), i, 20, 30 + 20 * static_cast<int>(i)));
  }
  Request request = Endless("four", 2, 20, 30);
  request.sampling.choice_count = 4;
  harness_.options.max_running_sequences = 2;
  harness_.ApplyOptions();
  harness_.Step();
  harness_.Submit(std::move(request));
  // New requests arrive all the time.
  int steps = 0;
  unsigned submitted = 0;
  while (!harness_.output("four").ended) {
    ASSERT_LT(++steps, 200) << "the request starves";
    harness_.Submit(Endless(absl::StrCat("behind", submitted), 10 + submitted, 20, 5));
    ++submitted;
    ASSERT_TRUE(harness_.Step());
    EXPECT_LE(Running(), 4);
    if (!harness_.output("four").started) {
      EXPECT_FALSE(harness_.output("behind0").started) << "a later request passed it";
    }
  }
  EXPECT_TRUE(harness_.output("four").status.ok()) << harness_.output("four").status;
  EXPECT_EQ(harness_.output("four").tokens.at(3).size(), 30);
  harness_.RunUntilIdle();
  for (unsigned i = 0; i < submitted; ++i) {
    const auto& output = harness_.output(absl::StrCat("behind", i));
    EXPECT_TRUE(output.ended && output.status.ok()) << i << ": " << output.status;
  }
}

TEST_P(HotStepTest, StepAndChunkSizesApplyFromTheNextPlan) {
  harness_.options.max_step_prompt_tokens = 1024;
  harness_.ApplyOptions();
  harness_.Submit(Endless("decoding", 1, 16, 60));
  for (int i = 0; i < 3; ++i) harness_.Step();
  const auto largest_chunk = [&](std::size_t from) {
    std::uint32_t most = 0;
    for (std::size_t i = from; i < harness_.runner.steps().size(); ++i) {
      for (const auto& row : harness_.runner.steps()[i].rows) most = std::max(most, row.second);
    }
    return most;
  };
  harness_.Submit(Endless("first", 2, 600, 2));
  for (int i = 0; i < 4; ++i) harness_.Step();
  EXPECT_EQ(largest_chunk(0), 512);
  harness_.Settle();
  std::size_t from = harness_.runner.steps().size();
  harness_.options.prefill_chunk_tokens = 64;
  harness_.ApplyOptions();
  harness_.Submit(Endless("second", 3, 600, 2));
  for (int i = 0; i < 16; ++i) harness_.Step();
  EXPECT_EQ(largest_chunk(from), 64);
  harness_.Settle();
  from = harness_.runner.steps().size();
  harness_.options.max_step_tokens = 33;
  harness_.ApplyOptions();
  harness_.Submit(Endless("third", 4, 600, 2));
  for (int i = 0; i < 16; ++i) harness_.Step();
  harness_.Settle();
  for (std::size_t i = from; i < harness_.runner.steps().size(); ++i) {
    EXPECT_LE(harness_.runner.steps()[i].num_tokens, 33);
  }
  EXPECT_EQ(largest_chunk(from), 32);
  harness_.RunUntilIdle();
}

// An engine with its threads on the fake runner, which can be blocked between two steps.
class HotOptionsTest : public ::testing::TestWithParam<int> {
 protected:
  void Start(const std::function<void(EngineOptions&)>& change = {}) {
    const PoolOptions pool{
        .usable_pages = 200, .page_size = 16, .max_rows = 16, .max_context_tokens = 1024};
    HarnessOptions options = MakeHarnessOptions(pool, GetParam());
    options.engine.limits.max_tokens_per_request = 1024;
    if (change) change(options.engine);
    hot_ = options.engine;
    tokenizer_ = MakeByteTokenizer();
    runner_ = std::make_unique<FakeRunner>(options.runner);
    runner_->SetHook([this](const runtime::StepBatch&) {
      MutexLock lock(&gate_mutex_);
      while (gate_closed_) gate_.Wait(&gate_mutex_);
      return absl::OkStatus();
    });
    auto engine = Engine::Create(options.engine, MakeCache(pool), runner_.get(), tokenizer_.get(),
                                 &clock_, &registry_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }
  void TearDown() override { Gate(false); }

  void Gate(bool closed) {
    MutexLock lock(&gate_mutex_);
    gate_closed_ = closed;
    gate_.NotifyAll();
  }

  void Set(const std::function<void(HotOptions&)>& change) {
    change(hot_);
    const absl::Status status = engine_->PrepareHotOptions(hot_);
    ASSERT_TRUE(status.ok()) << status;
    engine_->SetHotOptions(hot_);
  }

  std::string RefusalOf(const std::function<void(HotOptions&)>& change) {
    HotOptions hot = hot_;
    change(hot);
    return std::string(engine_->PrepareHotOptions(hot).message());
  }

  Reading Run(Request request) {
    auto stream = engine_->Accept(std::move(request));
    if (stream.ok()) return ReadAll(**stream);
    Reading reading;
    reading.status = stream.status();
    return reading;
  }

  MachineClock clock_;
  probe::Registry registry_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<FakeRunner> runner_;
  Mutex gate_mutex_;
  CondVar gate_;
  bool gate_closed_ ABSL_GUARDED_BY(gate_mutex_) = false;
  HotOptions hot_;
  std::unique_ptr<Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, HotOptionsTest, ::testing::Values(1, 2));

TEST_P(HotOptionsTest, RejectsInvalidOptionsByName) {
  Start();
  EXPECT_THAT(RefusalOf([](HotOptions& o) { o.max_running_sequences = 17; }),
              HasSubstr("scheduler.max_running_sequences is 17, it must be at most the value in "
                        "effect at start, 16"));
  EXPECT_THAT(RefusalOf([](HotOptions& o) { ++o.max_step_tokens; }),
              HasSubstr("scheduler.max_step_tokens is 8193"));
  EXPECT_THAT(
      RefusalOf([](HotOptions& o) { ++o.limits.max_logprobs; }),
      HasSubstr("limits.max_logprobs is 21, it must be at most the value in effect at start, 20"));
  EXPECT_THAT(RefusalOf([](HotOptions& o) { o.max_step_tokens = 31; }),
              HasSubstr("scheduler.max_step_tokens is 31, must be at least 32"));
  EXPECT_THAT(RefusalOf([](HotOptions& o) { o.prefill_chunk_tokens = 15; }),
              HasSubstr("scheduler.prefill_chunk_tokens is 15"));
  EXPECT_EQ(RefusalOf([](HotOptions& o) { o.max_running_sequences = 1; }), "");
}

TEST_P(HotOptionsTest, RequestLimitsApplyAtAdmission) {
  Start();
  Request request = MakeRequest("a", MakePrompt(1, 20), 10);
  request.sampling.choice_count = 3;
  request.output.logprobs = 5;
  EXPECT_TRUE(Run(request).status.ok());
  Set([](HotOptions& o) { o.limits.max_choices = 2; });
  EXPECT_THAT(std::string(Run(request).status.message()), HasSubstr("choice_count"));
  Set([](HotOptions& o) { o.limits.max_choices = 16; });
  Set([](HotOptions& o) { o.max_running_sequences = 2; });
  EXPECT_EQ(ReasonOf(Run(request).status), "BAD_SAMPLING_PARAM");
  Set([](HotOptions& o) { o.max_running_sequences = 16; });
  Set([](HotOptions& o) { o.limits.max_logprobs = 4; });
  EXPECT_THAT(std::string(Run(request).status.message()), HasSubstr("logprobs"));
  Set([](HotOptions& o) { o.limits.max_logprobs = 20; });
  Set([](HotOptions& o) { o.max_input_bytes = 79; });
  EXPECT_EQ(ReasonOf(Run(request).status), "INPUT_TOO_LARGE");
  Set([](HotOptions& o) { o.max_input_bytes = 80; });
  EXPECT_TRUE(Run(request).status.ok());
}

TEST_P(HotOptionsTest, QueuesGrowAndShrinkWithoutEndingRequests) {
  Start([](EngineOptions& o) { o.max_queued_requests = 4; });
  Gate(true);
  std::vector<std::shared_ptr<TokenStream>> streams;
  const auto fill = [&](std::size_t most) {
    absl::Status refused;
    for (std::size_t i = 0; i < most; ++i) {
      auto stream = engine_->Accept(Endless(absl::StrCat("q", streams.size()), 7, 8, 4));
      if (!stream.ok()) return ReasonOf(stream.status());
      streams.push_back(*std::move(stream));
    }
    return std::string();
  };
  EXPECT_EQ(fill(100), "QUEUE_FULL");
  const std::size_t before = streams.size();
  EXPECT_LE(before, 4u + 16 + 1);
  Set([](HotOptions& o) { o.max_queued_requests = 400; });
  EXPECT_EQ(fill(300), "");
  Set([](HotOptions& o) { o.max_queued_requests = 1; });
  EXPECT_EQ(fill(1), "QUEUE_FULL");
  Gate(false);
  for (const auto& stream : streams) {
    const Reading reading = ReadAll(*stream);
    EXPECT_TRUE(reading.status.ok()) << reading.status;
  }
  EXPECT_TRUE(engine_->WaitIdle(absl::InfiniteFuture()));
  EXPECT_TRUE(engine_->CheckIntegrity().ok());
  Set([](HotOptions& o) { o.max_queued_tokens = 7; });
  EXPECT_EQ(ReasonOf(Run(Endless("tokens", 7, 8, 4)).status), "EXCEEDS_CAPACITY");
  Set([](HotOptions& o) { o.max_queued_tokens = 8; });
  EXPECT_TRUE(Run(Endless("tokens", 7, 8, 4)).status.ok());
}

TEST_P(HotOptionsTest, TimeoutsApplyToLaterRequests) {
  Start();
  Gate(true);
  auto old = engine_->Accept(Endless("old", 1, 20, 50));
  ASSERT_TRUE(old.ok());
  Set([](HotOptions& o) {
    o.max_running_sequences = 1;
    o.queue_timeout = absl::Milliseconds(1);
  });
  auto late = engine_->Accept(Endless("late", 2, 20, 900));
  ASSERT_TRUE(late.ok());
  const absl::Time timeout = clock_.Now() + absl::Milliseconds(1);
  ASSERT_TRUE(testing::WaitUntil([&] { return clock_.Now() > timeout; }));
  Gate(false);
  EXPECT_TRUE(ReadAll(**old).status.ok());
  EXPECT_EQ(ReasonOf(ReadAll(**late).status), "QUEUE_TIMEOUT");
  Set([](HotOptions& o) {
    o.queue_timeout = absl::InfiniteDuration();
    o.max_request_duration = absl::Nanoseconds(1);
  });
  EXPECT_EQ(ReasonOf(Run(Endless("short", 3, 20, 900)).status), "TIMEOUT");
}

TEST_P(HotOptionsTest, PartialPageReuseCanBeSwitched) {
  Start();
  const std::vector<std::int32_t> shared = MakePrompt(1, 28);  // one page and most of another
  const auto cached = [&](unsigned tail) {
    std::vector<std::int32_t> prompt = shared;
    for (const std::int32_t token : MakePrompt(tail, 8)) prompt.push_back(token);
    return Run(MakeRequest(absl::StrCat("r", tail), prompt, 2)).usage.cached_tokens;
  };
  EXPECT_EQ(Run(MakeRequest("first", shared, 2)).usage.cached_tokens, 0);
  EXPECT_GT(cached(2), 16);
  Set([](HotOptions& o) { o.partial_page_reuse = false; });
  EXPECT_EQ(cached(3), 16);
  Set([](HotOptions& o) { o.partial_page_reuse = true; });
  EXPECT_GT(cached(4), 16);
}

// Many clients run while options change all the time. Answers equal the tokens of each request
// alone.
TEST_P(HotOptionsTest, FrequentChangesDropAndChangeNothing) {
  Start();
  const auto request = [](int i) {
    Request made = Endless(absl::StrCat("s", i), static_cast<unsigned>(i % 23),
                           10 + static_cast<std::size_t>(i % 23) * 20, 5 + i % 40);
    made.output.stream = i % 2 == 0;
    return made;
  };
  constexpr int kRequests = 23 * 12;
  std::vector<std::vector<std::int32_t>> alone;
  for (int i = 0; i < kRequests; ++i) alone.push_back(Run(request(i)).choices[0].token_ids);
  std::atomic<int> next{0}, failed{0}, changed{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&] {
      for (int i = next++; i < kRequests; i = next++) {
        Reading reading = Run(request(i));
        if (!reading.status.ok() || !reading.order_errors.empty()) ++failed;
        if (reading.choices[0].token_ids != alone[static_cast<std::size_t>(i)]) ++changed;
      }
    });
  }
  std::mt19937 random(5);
  const auto one_of = [&](auto... values) {
    const std::vector<std::int32_t> all = {values...};
    return all[random() % all.size()];
  };
  int changes = 0;
  while (next < kRequests) {
    Set([&](HotOptions& o) {
      o.max_running_sequences = one_of(1, 2, 5, 16);
      o.max_step_tokens = one_of(32, 48, 100, 8192);
      o.prefill_chunk_tokens = one_of(16, 32, 512);
      o.max_queued_requests = one_of(16, 64, 2048);
      o.partial_page_reuse = random() % 2 == 0;
      o.priority_aging_interval = absl::Milliseconds(one_of(100, 1000));
    });
    ++changes;
    testing::Pace(absl::Microseconds(200));
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(changes, 10);
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(changed, 0);
  EXPECT_TRUE(engine_->WaitIdle(absl::InfiniteFuture()));
  const absl::Status status = engine_->CheckIntegrity();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(engine_->GetStats().cache.used_pages, 0);
}

}  // namespace
}  // namespace quire::engine

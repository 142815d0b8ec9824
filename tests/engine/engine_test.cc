// The engine with its threads, and the stream contract (docs/api.md, Stream contract).

#include "engine/engine.h"

#include <new>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/utf8.h"
#include "engine/request/inbox.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/harness.h"
#include "tests/engine/stream_reader.h"
#include "tests/testing/reason_of.h"
#include "tests/testing/waiting.h"

namespace quire::engine {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An engine on the fake runner, which can be blocked between two steps.
class EngineTest : public ::testing::TestWithParam<int> {
 protected:
  void Start(const std::function<void(EngineOptions&, FakeRunnerOptions&)>& change = {}) {
    HarnessOptions options = MakeHarnessOptions(pool_, GetParam());
    if (change) change(options.engine, options.runner);
    tokenizer_ = MakeByteTokenizer();
    runner_ = std::make_unique<FakeRunner>(options.runner);
    runner_->SetHook([this](const runtime::StepBatch&) {
      MutexLock lock(&gate_mutex_);
      while (gate_closed_) gate_.Wait(&gate_mutex_);
      return absl::OkStatus();
    });
    auto engine = Engine::Create(options.engine, MakeCache(pool_), runner_.get(), tokenizer_.get(),
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

  Reading Run(Request request) {
    auto stream = engine_->Accept(std::move(request));
    if (!stream.ok()) {
      Reading reading;
      reading.status = stream.status();
      return reading;
    }
    return ReadAll(**stream);
  }

  void ExpectIdle() {
    EXPECT_TRUE(engine_->WaitIdle(absl::InfiniteFuture()));
    const absl::Status status = engine_->CheckIntegrity();
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(engine_->GetStats().cache.used_pages, 0);
    EXPECT_EQ(engine_->GetStats().running, 0);
    EXPECT_EQ(engine_->GetStats().waiting, 0);
  }

  PoolOptions pool_{
      .usable_pages = 200, .page_size = 16, .max_rows = 16, .max_context_tokens = 1024};
  MachineClock clock_;
  probe::Registry registry_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<FakeRunner> runner_;
  Mutex gate_mutex_;
  CondVar gate_;
  bool gate_closed_ ABSL_GUARDED_BY(gate_mutex_) = false;
  std::unique_ptr<Engine> engine_;
};

INSTANTIATE_TEST_SUITE_P(StepsInFlight, EngineTest, ::testing::Values(1, 2));

Request TextRequest(std::string id, std::string text, std::int32_t max_tokens) {
  Request request = MakeRequest(std::move(id), {}, max_tokens);
  request.prompt = TextPrompt{.text = std::move(text)};
  return request;
}

TEST_P(EngineTest, StreamedAndWholeAnswersAreEqual) {
  Start();
  for (const std::int32_t interval : {1, 7, 1024}) {
    Request request = TextRequest("a", "Once upon a time", 100);
    request.output.logprobs = 2;
    request.output.stream_interval_tokens = interval;
    request.output.timings = true;
    request.sampling.temperature = 1;
    request.sampling.choice_count = 3;
    const Reading streamed = Run(request);
    request.output.stream = false;
    const Reading whole = Run(request);
    ASSERT_TRUE(streamed.status.ok()) << streamed.status;
    ASSERT_EQ(whole.choices.size(), 3);
    EXPECT_EQ(streamed.order_errors, "");
    EXPECT_EQ(whole.order_errors, "");
    EXPECT_EQ(whole.num_deltas, 0);
    for (std::int32_t c = 0; c < 3; ++c) {
      const Reading::Choice& a = streamed.choices.at(c);
      const Reading::Choice& b = whole.choices.at(c);
      EXPECT_EQ(a.text, b.text);
      EXPECT_EQ(a.token_ids, b.token_ids);
      EXPECT_EQ(a.logprobs, b.logprobs);
      EXPECT_EQ(3 * a.token_ids.size(), a.logprobs.size());  // its own and the two best
      EXPECT_EQ(a.finish, b.finish);
      EXPECT_EQ(a.usage.completion_tokens, static_cast<std::int32_t>(a.token_ids.size()));
      EXPECT_EQ(a.usage.prompt_tokens, 16);
      std::vector<std::int32_t> ids = a.token_ids;
      if (a.finish == FinishReason::kEos) ids.pop_back();
      EXPECT_EQ(*tokenizer_->Decode(ids, true), a.text);
    }
  }
  ExpectIdle();
}

TEST_P(EngineTest, StopStringsCutAcrossTokensLikeNaiveSearch) {
  Start();
  std::mt19937_64 random(3);
  int stopped = 0;
  for (int i = 0; i < 60; ++i) {
    Request request = TextRequest(absl::StrCat("r", i), absl::StrCat("prompt ", i), 80);
    request.stopping.ignore_eos = true;
    const Reading free_run = Run(request);
    ASSERT_TRUE(free_run.status.ok()) << free_run.status;
    const std::string text = free_run.choices.at(0).text;
    // Uses a stop string that occurs, at character boundaries.
    std::size_t begin = random() % text.size();
    while ((static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
    std::size_t end = std::min(text.size(), begin + 1 + random() % 6);
    while (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) ++end;
    request.stopping.stop = {text.substr(begin, end - begin), "never in there at all"};
    request.stopping.include_stop_text = i % 2 == 0;
    request.output.stream = i % 3 != 0;
    const Reading cut = Run(request);
    ASSERT_TRUE(cut.status.ok()) << cut.status;
    const Reading::Choice& choice = cut.choices.at(0);
    const std::size_t at = text.find(request.stopping.stop[0]);
    const std::size_t length =
        request.stopping.include_stop_text ? request.stopping.stop[0].size() : 0;
    EXPECT_EQ(choice.text, text.substr(0, at + length));
    EXPECT_EQ(choice.finish, FinishReason::kStopText);
    EXPECT_EQ(choice.stop_text, request.stopping.stop[0]);
    EXPECT_FALSE(FirstInvalidUtf8(choice.text).has_value());
    const std::vector<std::int32_t>& ids = free_run.choices.at(0).token_ids;
    ASSERT_LE(choice.token_ids.size(), ids.size());
    EXPECT_TRUE(std::equal(choice.token_ids.begin(), choice.token_ids.end(), ids.begin()));
    ++stopped;
  }
  EXPECT_EQ(stopped, 60);
  ExpectIdle();
  // `generation` counts tokens sent to clients. The others are counted as discarded.
  EXPECT_EQ(
      MetricSum(registry_, "quire_engine_step_tokens_sum"),
      MetricValue(registry_, "quire_prompt_tokens_total{model_name=\"m\",source=\"compute\"}") +
          MetricSum(registry_, "quire_generation_tokens_total") +
          MetricSum(registry_, "quire_discarded_tokens_total") - 120);
  EXPECT_EQ(MetricSum(registry_, "quire_request_inter_token_seconds_count"),
            MetricSum(registry_, "quire_generation_tokens_total") - 120);
  EXPECT_EQ(MetricSum(registry_, "quire_request_ttft_seconds_count"), 120);
  EXPECT_EQ(MetricSum(registry_, "quire_request_output_tokens_sum"),
            MetricSum(registry_, "quire_generation_tokens_total"));
  EXPECT_EQ(MetricSum(registry_, "quire_request_output_tokens_count"),
            MetricSum(registry_, "quire_choices_finished_total"));
}

TEST_P(EngineTest, StopStringsWaitForMinTokens) {
  Start();
  Request request = TextRequest("a", "prompt", 40);
  request.stopping.ignore_eos = true;
  request.output.stream = false;
  const Reading free_run = Run(request);
  const std::string text = free_run.choices.at(0).text;
  request.stopping.stop = {text.substr(0, Utf8Length(text[0]))};
  request.stopping.min_tokens = 20;
  const Reading held = Run(request);
  EXPECT_GE(held.choices.at(0).usage.completion_tokens, 20);
  EXPECT_EQ(text.substr(0, held.choices.at(0).text.size()), held.choices.at(0).text);
}

TEST_P(EngineTest, EchoAndPromptLogprobsComeFirst) {
  Start();
  Request request = TextRequest("a", "hello <eos>", 5);
  request.output.echo_prompt = true;
  request.output.prompt_logprobs = 1;
  const Reading reading = Run(request);
  ASSERT_TRUE(reading.status.ok());
  EXPECT_EQ(reading.order_errors, "");
  EXPECT_EQ(reading.started.prompt_text, "hello <eos>");
  EXPECT_THAT(reading.started.prompt_token_ids,
              ElementsAre('h', 'e', 'l', 'l', 'o', ' ', kEosToken));
  EXPECT_EQ(reading.prompt_positions, 6);
  EXPECT_EQ(reading.prompt_bytes, "ello <eos>");
}

// A lower priority value is more urgent.
TEST_P(EngineTest, TenantPriorityLimitApplies) {
  Start([](EngineOptions& options, FakeRunnerOptions&) {
    options.tenants.defaults.most_urgent_priority = -10;
    options.tenants.entries["trusted"] = {};
  });
  Request urgent = MakeRequest("a", {1}, 5);
  urgent.priority = -11;
  const absl::Status too_urgent = Run(urgent).status;
  EXPECT_EQ(ReasonOf(too_urgent), "BAD_PARAMETER");
  EXPECT_EQ(too_urgent.message(),
            "priority is -11, tenant \"default\" may ask for -10 to 100 (most_urgent_priority)");
  EXPECT_EQ(GetErrorReason(too_urgent)->Find("field"), "priority");
  EXPECT_EQ(GetErrorReason(too_urgent)->Find("value"), "-11");
  EXPECT_EQ(GetErrorReason(too_urgent)->Find("range"), "-10 to 100");
  urgent.priority = -10;
  EXPECT_TRUE(Run(urgent).status.ok());
  urgent.tenant = "trusted";
  urgent.priority = -100;
  EXPECT_TRUE(Run(urgent).status.ok());
}

TEST_P(EngineTest, RejectsAtAdmission) {
  Start([](EngineOptions& options, FakeRunnerOptions&) {
    options.max_queued_requests = 3;
    options.max_running_sequences = 2;
    options.max_input_bytes = 1000;
  });
  EXPECT_EQ(ReasonOf(Run(MakeRequest("a", {}, 5)).status), "PROMPT_MISSING");
  EXPECT_EQ(ReasonOf(Run(TextRequest("a", std::string(1001, 'x'), 5)).status), "INPUT_TOO_LARGE");
  EXPECT_EQ(ReasonOf(Run(TextRequest("a", "bad \xff", 5)).status), "BAD_UTF8");
  EXPECT_EQ(ReasonOf(Run(MakeRequest("a", {1, 2, 259}, 5)).status), "BAD_TOKEN_ID");
  EXPECT_EQ(ReasonOf(Run(MakeRequest("a", {1, 2, -1}, 5)).status), "BAD_TOKEN_ID");
  Request late = MakeRequest("a", {1}, 5);
  late.deadline = clock_.Now();
  EXPECT_EQ(ReasonOf(Run(late).status), "TIMEOUT");
  Request wide = MakeRequest("a", {1}, 5);
  wide.sampling.choice_count = 3;
  EXPECT_EQ(ReasonOf(Run(wide).status), "BAD_SAMPLING_PARAM");
  Request bad = MakeRequest("a", {1}, 5);
  bad.sampling.top_p = 0;
  EXPECT_EQ(ReasonOf(Run(bad).status), "BAD_SAMPLING_PARAM");

  Gate(true);
  std::vector<std::shared_ptr<TokenStream>> streams;
  absl::Status refused;
  while (refused.ok() && streams.size() < 20) {
    auto stream = engine_->Accept(MakeRequest(absl::StrCat("q", streams.size()), {1, 2, 3}, 5));
    if (stream.ok()) {
      streams.push_back(*std::move(stream));
    } else {
      refused = stream.status();
    }
  }
  EXPECT_EQ(ReasonOf(refused), "QUEUE_FULL");
  EXPECT_TRUE(GetErrorReason(refused)->retry_delay.has_value());
  EXPECT_EQ(ReasonOf(engine_->Accept(MakeRequest("q0", {1}, 5)).status()), "REQUEST_ID_IN_USE");
  Request other = MakeRequest("q0", {1}, 5);
  other.principal = "someone else";
  EXPECT_NE(ReasonOf(engine_->Accept(other).status()), "REQUEST_ID_IN_USE");
  other.principal = "p";
  other.tenant = "another";
  EXPECT_NE(ReasonOf(engine_->Accept(other).status()), "REQUEST_ID_IN_USE");
  Gate(false);
  for (const auto& stream : streams) EXPECT_TRUE(ReadAll(*stream).status.ok());
  ExpectIdle();
  EXPECT_EQ(MetricSum(registry_, "quire_requests_received_total"),
            MetricSum(registry_, "quire_requests_accepted_total") +
                MetricSum(registry_, "quire_requests_rejected_total"));
}

TEST_P(EngineTest, CancelAbortAndListCoverLiveRequests) {
  Start();
  Gate(true);
  std::map<std::string, std::shared_ptr<TokenStream>> streams;
  for (const char* id : {"a", "b", "c"}) {
    Request request = MakeRequest(id, {1, 2, 3}, 500);
    request.tenant = id;
    request.labels["k"] = id;
    request.stopping.ignore_eos = true;
    streams[id] = *engine_->Accept(std::move(request));
  }
  const std::vector<RequestInfo> infos = engine_->ListRequests();
  ASSERT_EQ(infos.size(), 3);
  EXPECT_EQ(infos[0].principal, "p");
  EXPECT_FALSE(engine_->Cancel({"a", "p"}, "x", CancelSource::kApi));
  EXPECT_FALSE(engine_->Cancel({"a", "q"}, "a", CancelSource::kApi));
  EXPECT_FALSE(engine_->Cancel({"b", "p"}, "a", CancelSource::kApi));
  EXPECT_TRUE(engine_->Cancel({"a", "p"}, "a", CancelSource::kApi));
  EXPECT_EQ(ReasonOf(engine_->Abort({}).status()), "SELECTION_EMPTY");
  const auto aborted =
      engine_->Abort({.ids = {"b", "nobody"}, .tenant = {}, .reason_text = "maintenance"});
  ASSERT_TRUE(aborted.ok());
  EXPECT_EQ(aborted->aborted, 1);
  EXPECT_THAT(aborted->unknown_ids, ElementsAre("nobody"));
  Gate(false);
  EXPECT_EQ(ReasonOf(ReadAll(*streams["a"]).status), "CANCELLED_BY_CALLER");
  const absl::Status b = ReadAll(*streams["b"]).status;
  EXPECT_EQ(ReasonOf(b), "ABORTED_BY_ADMIN");
  EXPECT_EQ(GetErrorReason(b)->Find("reason_text"), "maintenance");
  EXPECT_TRUE(ReadAll(*streams["c"]).status.ok());
  ExpectIdle();
}

// There are two requests with a shared page, one alone, and cached pages of a finished one.
TEST_P(EngineTest, PageSnapshotNamesTheOwners) {
  Start([](EngineOptions& options, FakeRunnerOptions&) { options.stream_queue_tokens = 16; });
  EXPECT_TRUE(ReadAll(**engine_->Accept(MakeRequest("done", MakePrompt(7, 40), 4))).status.ok());
  const std::int32_t cached = static_cast<std::int32_t>(engine_->GetStats().cache.cached_pages);
  ASSERT_GT(cached, 0);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const char* id : {"a", "b", "c"}) {
    Request request = MakeRequest(id, MakePrompt(*id == 'c' ? 3 : 1, *id == 'b' ? 47 : 40), 500);
    request.stopping.ignore_eos = true;
    streams.push_back(*engine_->Accept(std::move(request)));
    // b shares a prefix with a and then differs. No client reads, so each stalls and keeps its
    // pages.
    const auto last = [this] { return engine_->ListRequests().back().state; };
    while (last() != RequestState::kStalled) std::this_thread::yield();
  }
  const absl::StatusOr<PageSnapshot> snapshot = engine_->GetPageSnapshot();
  ASSERT_TRUE(snapshot.ok());
  EXPECT_THAT(snapshot->owners, ElementsAre("a", "b", "c"));
  std::map<std::int32_t, int> counts;
  for (const std::int32_t page : snapshot->pages) ++counts[page];
  EXPECT_EQ(counts[PageSnapshot::kCached], cached);
  EXPECT_GT(counts[PageSnapshot::kShared], 0);
  for (std::int32_t owner = 0; owner < 3; ++owner) {
    EXPECT_GT(counts[PageSnapshot::kFirstOwner + owner], 0) << owner;
  }
  EXPECT_GT(counts[PageSnapshot::kFree], 0);
  const absl::StatusOr<IntegrityReport> report = engine_->InspectIntegrity();
  ASSERT_TRUE(report.ok());
  EXPECT_TRUE(report->failures.empty());
  EXPECT_EQ(report->num_checks, 7 + 3);  // one for each stream
  for (const char* id : {"a", "b", "c"}) engine_->Cancel({"default", "p"}, id, CancelSource::kApi);
  for (const auto& stream : streams) ReadAll(*stream);
  ExpectIdle();
}

TEST_P(EngineTest, CancellingTheLastRequestResetsThePageGauge) {
  Start();
  Gate(true);
  Request request = MakeRequest("a", MakePrompt(1, 40), 500);
  request.stopping.ignore_eos = true;
  const std::shared_ptr<TokenStream> stream = *engine_->Accept(std::move(request));
  ASSERT_TRUE(testing::WaitUntil(
      [this] { return engine_->ListRequests().at(0).state == RequestState::kPrefill; }));
  EXPECT_TRUE(engine_->Cancel({"default", "p"}, "a", CancelSource::kApi));
  Gate(false);
  EXPECT_EQ(ReasonOf(ReadAll(*stream).status), "CANCELLED_BY_CALLER");
  ExpectIdle();
  EXPECT_THAT(*registry_.Expose(),
              ContainsRegex("quire_kv_cache_pages\\{[^}]*state=\"used\"[^}]*\\} 0"));
}

TEST_P(EngineTest, DrainRejectsNewRequestsAndFinishesLiveOnes) {
  Start();
  Gate(true);
  const auto stream = *engine_->Accept(MakeRequest("a", {1, 2, 3}, 20));
  engine_->Drain();
  const absl::Status refused = engine_->Accept(MakeRequest("b", {1}, 5)).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), "SERVER_DRAINING");
  EXPECT_EQ(engine_->GetStats().state, EngineState::kDraining);
  EXPECT_FALSE(engine_->WaitIdle(absl::InfinitePast()));
  Gate(false);
  EXPECT_TRUE(ReadAll(*stream).status.ok());
  EXPECT_TRUE(engine_->WaitIdle(absl::InfiniteFuture()));
  engine_->Resume();
  EXPECT_TRUE(Run(MakeRequest("c", {1}, 5)).status.ok());
}

TEST_P(EngineTest, ShutdownEndsEveryStream) {
  Start();
  Gate(true);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 30; ++i) {
    Request request = MakeRequest(absl::StrCat("r", i), {1, 2, 3}, 900);
    request.stopping.ignore_eos = true;
    streams.push_back(*engine_->Accept(std::move(request)));
  }
  std::thread opener([this] { Gate(false); });
  engine_.reset();
  opener.join();
  for (const auto& stream : streams) {
    const Reading reading = ReadAll(*stream);
    if (!reading.status.ok()) {
      EXPECT_EQ(ReasonOf(reading.status), "SERVER_SHUTDOWN");
      EXPECT_EQ(reading.status.code(), absl::StatusCode::kUnavailable);
    }
  }
}

TEST_P(EngineTest, FlushEvictsPrefixesWhenIdle) {
  Start();
  EXPECT_EQ(Run(MakeRequest("a", MakePrompt(1, 100), 1)).choices.at(0).usage.cached_tokens, 0);
  EXPECT_GE(Run(MakeRequest("b", MakePrompt(1, 100), 1)).choices.at(0).usage.cached_tokens, 96);
  const auto counts = engine_->FlushCache(absl::Seconds(60));
  ASSERT_TRUE(counts.ok());
  EXPECT_GE(counts->freed_pages, 6);
  EXPECT_EQ(Run(MakeRequest("c", MakePrompt(1, 100), 1)).choices.at(0).usage.cached_tokens, 0);
  Gate(true);
  const auto stream = *engine_->Accept(MakeRequest("d", {1, 2}, 5));
  EXPECT_EQ(ReasonOf(engine_->FlushCache(absl::Milliseconds(1)).status()), "NOT_IDLE");
  Gate(false);
  EXPECT_TRUE(ReadAll(*stream).status.ok());
}

TEST_P(EngineTest, SaltAndTenantSeparatePrefixes) {
  Start();
  auto cached = [&](const std::string& tenant, const std::string& salt) {
    Request request = MakeRequest("a", MakePrompt(1, 100), 1);
    request.tenant = tenant;
    request.cache.salt = salt;
    return Run(std::move(request)).choices.at(0).usage.cached_tokens;
  };
  EXPECT_EQ(cached("t1", ""), 0);
  EXPECT_EQ(cached("t2", ""), 0);
  EXPECT_EQ(cached("t1", "s"), 0);
  EXPECT_GE(cached("t1", ""), 96);
  EXPECT_GE(cached("t1", "s"), 96);
}

TEST_P(EngineTest, SlowReaderPausesAndResumesWithoutPolling) {
  Start([](EngineOptions& options, FakeRunnerOptions&) { options.stream_queue_tokens = 16; });
  Request request = MakeRequest("slow", {1, 2, 3}, 200);
  request.stopping.ignore_eos = true;
  const auto stream = *engine_->Accept(request);
  while (engine_->ListRequests().at(0).state != RequestState::kStalled) std::this_thread::yield();
  EXPECT_LT(engine_->ListRequests().at(0).output_tokens, 150);
  EXPECT_TRUE(engine_->IsAlive(absl::ZeroDuration()) || engine_->IsAlive(absl::Seconds(30)));
  const Reading reading = ReadAll(*stream);
  EXPECT_TRUE(reading.status.ok());
  EXPECT_EQ(reading.choices.at(0).token_ids.size(), 200);
  ExpectIdle();
}

// Checks rules 1, 3 and 4 of docs/metrics.md for a pool of 200 pages.
void ExpectConservation(const std::string& scrape) {
  const auto value = [&](const char* family, const char* label = "") {
    return SumOfFamily(scrape, absl::StrCat("quire_", family), label);
  };
  ASSERT_EQ(value("requests_accepted_total"),
            value("requests_completed_total") + value("requests_failed_total") +
                value("requests_cancelled_total") + value("requests_running") +
                value("requests_waiting"));
  ASSERT_EQ(value("kv_cache_pages"), 200);
  ASSERT_EQ(value("kv_cache_info", "num_gpu_blocks=\"200\""), 1);
  ASSERT_DOUBLE_EQ(value("kv_cache_usage_ratio"), value("kv_cache_pages", "state=\"used\"") / 200);
  const double hits = value("prefix_cache_hits_tokens_total");
  ASSERT_EQ(value("prompt_tokens_total", "source=\"device\""), hits);
  ASSERT_LE(hits, value("prefix_cache_queries_tokens_total"));
}

TEST_P(EngineTest, ScrapesObeyTheConservationRules) {
  Start([](EngineOptions& options, FakeRunnerOptions&) {
    options.admission = AdmissionMode::kOvercommit;
  });
  std::atomic<bool> done{false};
  std::thread scraper([&] {
    while (!done) {
      const absl::StatusOr<std::string> text = registry_.Expose();
      ASSERT_TRUE(text.ok());
      ASSERT_NO_FATAL_FAILURE(ExpectConservation(*text));
    }
  });
  std::vector<std::thread> clients;
  for (int c = 0; c < 4; ++c) {
    clients.emplace_back([&, c] {
      for (int i = 0; i < 40; ++i) {
        auto stream = engine_->Accept(
            MakeRequest(absl::StrCat(c, "-", i), MakePrompt(static_cast<unsigned>(i % 5), 60), 30));
        ASSERT_TRUE(stream.ok());
        if (i % 4 == 0)
          engine_->Cancel({"default", "p"}, absl::StrCat(c, "-", i), CancelSource::kClient);
        ReadAll(**stream);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  done = true;
  scraper.join();
  ExpectIdle();
  const absl::StatusOr<std::string> text = registry_.Expose();
  ASSERT_TRUE(text.ok());
  ExpectConservation(*text);
  EXPECT_GT(SumOfFamily(*text, "quire_prefix_cache_hits_tokens_total"), 0);
  for (const char* family :
       {"quire_requests_running", "quire_requests_waiting", "quire_requests_waiting_tokens"}) {
    EXPECT_EQ(SumOfFamily(*text, family), 0) << family;
  }
  EXPECT_EQ(SumOfFamily(*text, "quire_kv_cache_pages", "state=\"used\""), 0);
}

// Records the failure handling of an engine, in order.
struct Failure {
  std::string order;
  absl::Status status;
  EngineState state_at_failing = EngineState::kReady;
  std::size_t unanswered_at_fatal = 0;
};

class EngineFailureTest : public EngineTest {
 protected:
  void StartFailing() {
    Start([this](EngineOptions& options, FakeRunnerOptions&) {
      options.on_failing = [this](const absl::Status&) {
        MutexLock lock(&failure_mutex_);
        failure_.order += "failing ";
        failure_.state_at_failing = engine_->GetStats().state;
        for (const auto& stream : streams_) EXPECT_FALSE(stream->finished());
      };
      options.on_fatal = [this](const absl::Status& status) {
        MutexLock lock(&failure_mutex_);
        failure_.order += "fatal ";
        failure_.status = status;
        failure_.unanswered_at_fatal = engine_->ListRequests().size();
        has_failed_ = true;
        failed_.NotifyAll();
      };
    });
    Gate(true);
    for (int i = 0; i < 4; ++i) {
      Request request =
          MakeRequest(absl::StrCat("r", i), MakePrompt(static_cast<unsigned>(i), 20), 900);
      request.stopping.ignore_eos = true;
      streams_.push_back(*engine_->Accept(std::move(request)));
    }
  }

  // A request that the engine thread has not taken when it fails counts as rejected.
  bool HasAcceptedAll() { return MetricSum(registry_, "quire_requests_accepted_total") == 4; }

  // Every stream has tokens, then an end with a retry delay.
  void ExpectAnswered() {
    {
      MutexLock lock(&failure_mutex_);
      while (!has_failed_) failed_.Wait(&failure_mutex_);
      EXPECT_EQ(failure_.order, "failing fatal ");
      EXPECT_EQ(failure_.state_at_failing, EngineState::kFailed);
      EXPECT_EQ(failure_.unanswered_at_fatal, 0);
    }
    std::int32_t tokens = 0;
    for (const auto& stream : streams_) {
      const Reading reading = ReadAll(*stream);
      EXPECT_EQ(reading.status.code(), absl::StatusCode::kUnavailable);
      EXPECT_EQ(ReasonOf(reading.status), "DEVICE_ERROR");
      EXPECT_EQ(GetErrorReason(reading.status)->retry_delay, absl::Seconds(10));
      EXPECT_EQ(stream->usage().prompt_tokens, 20);
      tokens += stream->usage().completion_tokens;
    }
    EXPECT_GT(tokens, 0);
    EXPECT_FALSE(engine_->IsAlive(absl::InfiniteDuration()));
    const absl::Status late = engine_->Accept(MakeRequest("late", {1}, 5)).status();
    EXPECT_EQ(ReasonOf(late), "DEVICE_ERROR");
    EXPECT_TRUE(engine_->WaitIdle(absl::InfiniteFuture()));
    EXPECT_EQ(MetricSum(registry_, "quire_requests_failed_total"), 4);
    EXPECT_EQ(MetricSum(registry_, "quire_requests_running"), 0);
    EXPECT_EQ(MetricSum(registry_, "quire_generation_tokens_total"), tokens);
  }

  std::vector<std::shared_ptr<TokenStream>> streams_;
  Mutex failure_mutex_;
  CondVar failed_;
  bool has_failed_ ABSL_GUARDED_BY(failure_mutex_) = false;
  Failure failure_ ABSL_GUARDED_BY(failure_mutex_);
};
INSTANTIATE_TEST_SUITE_P(StepsInFlight, EngineFailureTest, ::testing::Values(1, 2));

absl::Status LostDevice() {
  return WithReason(absl::UnavailableError("an illegal memory access was encountered"),
                    Reason::kDeviceLost);
}

TEST_P(EngineFailureTest, DeviceLostAtLaunch) {
  StartFailing();
  int runs = 0;
  runner_->SetHook([&](const runtime::StepBatch&) {
    return ++runs < 20 || !HasAcceptedAll() ? absl::OkStatus() : LostDevice();
  });
  Gate(false);
  ExpectAnswered();
  MutexLock lock(&failure_mutex_);
  EXPECT_EQ(failure_.status, LostDevice());
  EXPECT_TRUE(engine_->CheckIntegrity().ok());
}

TEST_P(EngineFailureTest, DeviceLostAtCollect) {
  StartFailing();
  int collects = 0, losses = 0;
  runner_->SetCollectHook([&] {
    if (++collects < 20 || !HasAcceptedAll()) return absl::OkStatus();
    ++losses;
    return LostDevice();
  });
  Gate(false);
  ExpectAnswered();
  EXPECT_EQ(losses, 1) << "a lost device is not used again";
  MutexLock lock(&failure_mutex_);
  EXPECT_EQ(failure_.status, LostDevice());
  EXPECT_TRUE(engine_->CheckIntegrity().ok());
  EXPECT_EQ(engine_->GetStats().cache.used_pages, 0);
}

TEST_P(EngineFailureTest, EngineThreadThrows) {
  StartFailing();
  int collects = 0;
  runner_->SetCollectHook([&]() -> absl::Status {
    // Simulates an exception of a library.
    if (++collects >= 20 && HasAcceptedAll()) std::string().at(0);
    return absl::OkStatus();
  });
  Gate(false);
  ExpectAnswered();
  MutexLock lock(&failure_mutex_);
  EXPECT_EQ(failure_.status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ReasonOf(failure_.status), "ENGINE_DIED");
  EXPECT_EQ(ReasonOf(engine_->CheckIntegrity()), "DEVICE_ERROR");
  EXPECT_EQ(ReasonOf(engine_->FlushCache(absl::ZeroDuration()).status()), "DEVICE_ERROR");
}

TEST(EngineCreateTest, RejectsOptionsThatCannotMakeProgress) {
  const PoolOptions pool;
  const auto tokenizer = MakeByteTokenizer();
  FakeRunner runner(MakeHarnessOptions(pool).runner);
  const MachineClock clock;
  auto create = [&](const std::function<void(EngineOptions&)>& change) {
    EngineOptions options = MakeOptions(pool);
    change(options);
    return Engine::Create(options, MakeCache(pool), &runner, tokenizer.get(), &clock, nullptr)
        .status();
  };
  EXPECT_TRUE(create([](EngineOptions&) {}).ok());
  EXPECT_THAT(std::string(create([](EngineOptions& o) { o.prefill_chunk_tokens = 15; }).message()),
              HasSubstr("scheduler.prefill_chunk_tokens is 15, must be at least 16"));
  EXPECT_THAT(std::string(create([](EngineOptions& o) { o.max_step_tokens = 79; }).message()),
              HasSubstr("scheduler.max_step_tokens is 79, must be at least 80"));
  EXPECT_FALSE(create([](EngineOptions& o) { o.eos_token_ids = {kByteVocab}; }).ok());
}

}  // namespace
}  // namespace quire::engine

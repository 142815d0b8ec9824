#include "tests/stress/storm.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/probe.h"
#include "gtest/gtest.h"
#include "tests/engine/stream_reader.h"
#include "tests/testing/fake_clock.h"

namespace quire::engine {
namespace {

constexpr std::size_t kMaxLive = 120;
constexpr std::size_t kVariants = 48;
constexpr std::array kStates = {RequestState::kQueued, RequestState::kPrefill,
                                RequestState::kDecode, RequestState::kPreempted,
                                RequestState::kStalled};

std::size_t EntriesOf(const char* directory) {
  const std::filesystem::directory_iterator entries(directory);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

// Reads a stream from its own callback.
class Client {
 public:
  Client(std::size_t variant, std::shared_ptr<TokenStream> stream)
      : variant_(variant), stream_(std::move(stream)) {}
  ~Client() { stream_->SetReadyCallback(nullptr); }

  void Read() {
    if (is_reading_) return;
    is_reading_ = true;
    stream_->SetReadyCallback([this] { TakeAll(); });
  }
  // Returns the output so far, which is complete once the engine is idle.
  Reading Collect() {
    stream_->SetReadyCallback(nullptr);
    TakeAll();
    MutexLock lock(&mutex_);
    reading_.status = stream_->status();
    EXPECT_TRUE(stream_->finished());
    return reading_;
  }
  std::size_t variant() const { return variant_; }
  Usage usage() const { return stream_->usage(); }

 private:
  void TakeAll() {
    MutexLock lock(&mutex_);
    while (std::optional<OutputEvent> event = stream_->Take()) reading_.Add(*std::move(event));
    // Marks the answer as read, as a client that checks for the end does.
    (void)stream_->finished();
  }

  const std::size_t variant_;
  const std::shared_ptr<TokenStream> stream_;
  bool is_reading_ = false;
  Mutex mutex_;
  Reading reading_ ABSL_GUARDED_BY(mutex_);
};

class Storm {
 public:
  Storm(StressModel& model, std::int64_t wanted) : model_(model), wanted_(wanted) {
    std::mt19937_64 random(99);
    const auto vocab = static_cast<std::uint64_t>(model.prompt_vocab());
    for (std::size_t v = 0; v < kVariants; ++v) {
      std::mt19937_64 shared(v % 5);  // some share a prefix
      std::vector<std::int32_t> prompt;
      for (int i = 0; i < 40; ++i) prompt.push_back(static_cast<std::int32_t>(shared() % vocab));
      for (std::size_t i = 20 + random() % 80; i > 0; --i) {
        prompt.push_back(static_cast<std::int32_t>(random() % vocab));
      }
      Request request;
      request.principal = std::string("p");
      request.model = std::string("m");
      request.prompt = std::move(prompt);
      request.sampling.temperature = v % 2 == 0 ? 0.0f : 1.0f;
      request.sampling.seed = v;
      request.sampling.choice_count = v % 12 == 7 ? 2 : 1;
      request.stopping.max_tokens = 30 + static_cast<std::int32_t>(random() % 50);
      request.stopping.ignore_eos = true;
      request.output.stream = true;
      request.output.token_ids = true;
      request.output.logprobs = v % 3 == 0 ? 1 : -1;
      variants_.push_back(std::move(request));
    }
  }

  // Surviving requests must have the answers of `calm_model`, undisturbed.
  void Run(StressModel& calm_model, std::uint32_t usable_pages);

 private:
  struct Plan {
    RequestState state = RequestState::kDecode;
    CancelSource source = CancelSource::kApi;
    bool survives = false;
    std::int32_t min_output = 0;
  };

  void Start(const StressPool& pool);
  void Turn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Submit(std::int64_t number);
  Plan Choose();
  bool IsShort(std::int64_t submitted) const;  // number of finished requests
  void Stir();
  void CheckEnd();
  void CheckSurvivors(StressModel& calm_model);
  void CheckCounters();
  std::int64_t EndedIn(RequestState state) const;
  std::int64_t EndedBy(CancelSource source) const;

  StressModel& model_;
  const std::int64_t wanted_;
  std::uint32_t usable_pages_ = 0;
  std::vector<Request> variants_;
  std::mt19937_64 random_{20261121};
  testing::FakeClock clock_;
  probe::Registry registry_;
  // A turn runs before each step on the engine thread, so that every state occurs, and on the
  // test's thread when the engine has nothing to run.
  Mutex mutex_;
  bool is_storming_ ABSL_GUARDED_BY(mutex_) = false;
  std::int64_t turns_ ABSL_GUARDED_BY(mutex_) = 0;
  std::int64_t submitted_ ABSL_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<runtime::StepRunner> inner_runner_;
  std::unique_ptr<HookedRunner> runner_;
  std::unique_ptr<Engine> engine_;
  std::map<std::string, Plan> plans_;
  std::map<std::string, std::unique_ptr<Client>> clients_;
  EngineStats stats_;
};

void Storm::Start(const StressPool& pool) {
  inner_runner_ = model_.MakeRunner(pool);
  runner_ = std::make_unique<HookedRunner>(inner_runner_.get(), [this] {
    MutexLock lock(&mutex_);
    if (turns_ > 0) Turn();
  });
  EngineOptions options = model_.Options(pool);
  options.admission = AdmissionMode::kOvercommit;
  options.stream_queue_tokens = 8;
  options.slow_client_timeout = absl::Milliseconds(150);
  auto made = Engine::Create(options, model_.MakeCacheManager(pool), runner_.get(),
                             &model_.tokenizer(), &clock_, &registry_);
  ASSERT_TRUE(made.ok()) << made.status();
  engine_ = *std::move(made);
}

std::int64_t Storm::EndedIn(RequestState state) const {
  std::int64_t sum = 0;
  for (const std::int64_t count : stats_.early_ends[static_cast<std::size_t>(state)]) sum += count;
  return sum;
}

std::int64_t Storm::EndedBy(CancelSource source) const {
  std::int64_t sum = 0;
  for (const auto& causes : stats_.early_ends) sum += causes[static_cast<std::size_t>(source)];
  return sum;
}

void Storm::Turn() {
  ++turns_;
  stats_ = engine_->GetStats();
  is_storming_ = is_storming_ && (submitted_ < wanted_ || IsShort(submitted_));
  if (is_storming_) {
    for (std::size_t i = engine_->ListRequests().size(); i < kMaxLive; ++i) Submit(submitted_++);
  }
  Stir();
  clock_.Advance(absl::Milliseconds(1));
}

// Returns whether some state or cause has not reached its quota. Three times the requests is the
// limit for chance.
bool Storm::IsShort(std::int64_t submitted) const {
  if (submitted >= 3 * wanted_) return false;
  bool is_short = false;
  for (const RequestState state : kStates) is_short |= EndedIn(state) < wanted_ / 20;
  for (int i = 0; i < kNumCancelSources; ++i) {
    is_short |= EndedBy(static_cast<CancelSource>(i)) < wanted_ / 20;
  }
  return is_short;
}

// Draws a random ending. Half of the time it is the state and the cause that are furthest below
// their quota.
Storm::Plan Storm::Choose() {
  Plan plan;
  plan.survives = random_() % 8 == 0;
  plan.state = kStates[random_() % kStates.size()];
  plan.source = static_cast<CancelSource>(random_() % kNumCancelSources);
  plan.min_output = static_cast<std::int32_t>(random_() % 10);
  if (random_() % 2 == 0) {
    plan.state = *std::min_element(kStates.begin(), kStates.end(),
                                   [&](auto a, auto b) { return EndedIn(a) < EndedIn(b); });
  } else {
    for (int i = 0; i < kNumCancelSources; ++i) {
      const auto source = static_cast<CancelSource>(i);
      if (EndedBy(source) < EndedBy(plan.source)) plan.source = source;
    }
  }
  if (plan.source == CancelSource::kSlowClient) plan.state = RequestState::kStalled;
  if (plan.source == CancelSource::kQueueTimeout) plan.state = RequestState::kQueued;
  return plan;
}

void Storm::Submit(std::int64_t number) {
  const std::size_t variant = random_() % kVariants;
  Request request = variants_[variant];
  request.id = absl::StrCat("s", number);
  request.accept_time = clock_.Now();
  const Plan plan = Choose();
  if (!plan.survives && plan.source == CancelSource::kDeadline) {
    const int least = plan.state == RequestState::kQueued ? 5 : 40;
    request.deadline = clock_.Now() + absl::Milliseconds(least + static_cast<int>(random_() % 300));
  }
  if (!plan.survives && plan.source == CancelSource::kQueueTimeout) {
    request.queue_timeout = absl::Milliseconds(3 + static_cast<int>(random_() % 30));
  }
  const std::string id = request.id;
  auto stream = engine_->Accept(std::move(request));
  ASSERT_TRUE(stream.ok()) << stream.status();
  auto client = std::make_unique<Client>(variant, *std::move(stream));
  if (plan.survives || plan.state != RequestState::kStalled) client->Read();
  clients_[id] = std::move(client);
  plans_[id] = plan;
}

// Ends the live requests that are due.
void Storm::Stir() {
  for (const RequestInfo& info : engine_->ListRequests()) {
    const auto it = plans_.find(info.id);
    if (it == plans_.end() || it->second.survives) continue;
    Plan& plan = it->second;
    // Requests that left their planned state end in the next one.
    const bool is_late = plan.state == RequestState::kQueued ||
                         plan.state == RequestState::kPrefill || info.output_tokens > 20;
    if (is_late && info.state == RequestState::kDecode) plan.state = RequestState::kDecode;
    if (info.state != plan.state) continue;
    if (plan.state == RequestState::kDecode && info.output_tokens < plan.min_output) continue;
    // A prefill ends soon.
    const bool now = plan.state == RequestState::kPrefill || random_() % 2 == 0;
    switch (plan.source) {
      case CancelSource::kDeadline:
      case CancelSource::kSlowClient:
      case CancelSource::kQueueTimeout:
        break;  // the engine's clock ends it
      case CancelSource::kAdmin:
        if (now) {
          AbortSelection selection;
          selection.ids = {info.id};
          EXPECT_TRUE(engine_->Abort(selection).ok());
        }
        break;
      case CancelSource::kClient:
      case CancelSource::kApi:
      case CancelSource::kShutdown:
      case CancelSource::kRevoked:
        if (now) engine_->Cancel({"default", "p"}, info.id, plan.source);
        break;
    }
  }
}

void Storm::Run(StressModel& calm_model, std::uint32_t usable_pages) {
  usable_pages_ = usable_pages;
  // A sanitizer starts its own thread with the first thread of the process.
  std::thread([] {}).join();
  const std::size_t threads_before = EntriesOf("/proc/self/task");
  const std::size_t files_before = EntriesOf("/proc/self/fd");
  Start({.usable_pages = usable_pages, .max_rows = 12, .max_context_tokens = 256});
  {
    MutexLock lock(&mutex_);
    is_storming_ = true;
    Turn();
  }
  for (std::int64_t last_turn = 0;;) {
    const absl::Status status = engine_->CheckIntegrity();
    ASSERT_TRUE(status.ok()) << status;
    MutexLock lock(&mutex_);
    if (!is_storming_ && engine_->WaitIdle(absl::InfinitePast())) break;
    if (turns_ == last_turn) Turn();
    last_turn = turns_;
  }
  // The last step in flight belongs to no request.
  EXPECT_TRUE(engine_->CheckIntegrity().ok());
  CheckEnd();
  CheckSurvivors(calm_model);
  CheckCounters();
  clients_.clear();
  engine_.reset();
  EXPECT_EQ(EntriesOf("/proc/self/task"), threads_before);
  EXPECT_EQ(EntriesOf("/proc/self/fd"), files_before);
}

void Storm::CheckEnd() {
  stats_ = engine_->GetStats();
  EXPECT_EQ(stats_.cache.used_pages, 0);
  EXPECT_EQ(stats_.running, 0);
  EXPECT_EQ(stats_.waiting, 0);
  EXPECT_EQ(stats_.overlap_steps > 0, runner_->max_steps_in_flight() > 1);
  std::printf("steps: %lld, launched ahead: %lld\n", static_cast<long long>(stats_.steps),
              static_cast<long long>(stats_.overlap_steps));
  EXPECT_TRUE(engine_->ListRequests().empty());
  const std::int64_t least = wanted_ / 20;
  for (const RequestState state : kStates) {
    EXPECT_GE(EndedIn(state), least) << std::string(RequestStateName(state));
    std::printf("ended in %s: %lld\n", std::string(RequestStateName(state)).c_str(),
                static_cast<long long>(EndedIn(state)));
  }
  for (int i = 0; i < kNumCancelSources; ++i) {
    const auto source = static_cast<CancelSource>(i);
    EXPECT_GE(EndedBy(source), least) << std::string(CancelSourceName(source)) << " " << i;
    std::printf("ended by %s (%d): %lld\n", std::string(CancelSourceName(source)).c_str(), i,
                static_cast<long long>(EndedBy(source)));
  }
}

void Storm::CheckSurvivors(StressModel& calm_model) {
  std::int64_t survivors = 0;
  std::vector<std::pair<std::size_t, Reading>> whole;
  for (auto& [id, client] : clients_) {
    Reading reading = client->Collect();
    EXPECT_EQ(reading.order_errors, "") << id;
    if (reading.status.ok()) whole.emplace_back(client->variant(), std::move(reading));
  }
  Storm calm(calm_model, 0);
  calm.Start({.usable_pages = 200, .max_rows = 4, .max_context_tokens = 256});
  std::map<std::size_t, Reading> expected;
  for (const auto& [variant, reading] : whole) {
    if (!expected.contains(variant)) {
      Request request = variants_[variant];
      request.id = std::string("alone");
      request.accept_time = calm.clock_.Now();
      auto stream = calm.engine_->Accept(std::move(request));
      ASSERT_TRUE(stream.ok()) << stream.status();
      expected[variant] = ReadAll(**stream);
      ASSERT_TRUE(expected[variant].status.ok()) << expected[variant].status;
    }
    for (const auto& [choice, output] : expected[variant].choices) {
      ASSERT_EQ(reading.choices.at(choice).token_ids, output.token_ids) << "variant " << variant;
      ASSERT_EQ(reading.choices.at(choice).logprobs, output.logprobs) << "variant " << variant;
      ASSERT_EQ(reading.choices.at(choice).text, output.text) << "variant " << variant;
    }
    ++survivors;
  }
  EXPECT_GE(survivors, wanted_ / 50);
  std::printf("survivors: %lld\n", static_cast<long long>(survivors));
}

void Storm::CheckCounters() {
  const absl::StatusOr<std::string> text = registry_.Expose();
  ASSERT_TRUE(text.ok());
  auto sum = [&](const char* family) { return SumOfFamily(*text, absl::StrCat("quire_", family)); };
  EXPECT_EQ(sum("requests_received_total"),
            sum("requests_accepted_total") + sum("requests_rejected_total"));
  EXPECT_EQ(sum("requests_accepted_total"), sum("requests_completed_total") +
                                                sum("requests_failed_total") +
                                                sum("requests_cancelled_total"));
  EXPECT_EQ(sum("requests_failed_total"), 0);
  EXPECT_EQ(sum("requests_running"), 0);
  EXPECT_EQ(sum("requests_waiting"), 0);
  EXPECT_EQ(sum("requests_waiting_tokens"), 0);
  EXPECT_EQ(sum("expired_request_tokens_total"), 0);
  EXPECT_EQ(sum("invariant_violations_total"), 0);
  EXPECT_EQ(sum("kv_cache_pages"), usable_pages_);
  EXPECT_LE(sum("prefix_cache_hits_tokens_total"), sum("prefix_cache_queries_tokens_total"));
  const double generated = sum("generation_tokens_total");
  const double first_tokens = generated - sum("request_inter_token_seconds_count");
  EXPECT_EQ(sum("engine_step_tokens_sum"), sum("prompt_tokens_total") -
                                               sum("prefix_cache_hits_tokens_total") +
                                               sum("recomputed_tokens_total") + generated +
                                               sum("discarded_tokens_total") - first_tokens);
  EXPECT_EQ(sum("request_output_tokens_count"), sum("choices_finished_total"));
  double told = 0;
  for (auto& [id, client] : clients_) {
    told += client->usage().completion_tokens;
  }
  EXPECT_EQ(generated, told) << "usage reported to clients";
}

}  // namespace

std::int64_t StormRequests() {
  const char* text = std::getenv("QUIRE_STORM_REQUESTS");
  return text == nullptr ? 10000 : std::atoll(text);
}

void RunStorm(StressModel& model, StressModel& calm_model, std::int64_t num_requests,
              std::uint32_t usable_pages) {
  log::SetLevel("", log::Level::kError);
  Storm(model, num_requests).Run(calm_model, usable_pages);
}

}  // namespace quire::engine

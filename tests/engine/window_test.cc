// Models with windowed layers. A sequence owns only the pages that its windows reach, and its
// tokens equal those of an unlimited pool.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "tests/engine/harness.h"

namespace quire::engine {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

using Groups = std::vector<cache::CacheGroup>;

constexpr std::uint32_t kPage = 16;
constexpr std::uint32_t kChunk = 32;

struct Setting {
  Groups groups;
  std::uint32_t usable_pages = 0;
  int steps_in_flight = 1;
  AdmissionMode mode = AdmissionMode::kSafe;
};

HarnessOptions OptionsFor(const Setting& setting) {
  const PoolOptions pool{
      .usable_pages = setting.usable_pages,
      .page_size = kPage,
      .max_rows = 8,
      .max_context_tokens = 1024,
      .groups = setting.groups,
      .max_row_overlap_tokens = kChunk * static_cast<std::uint32_t>(setting.steps_in_flight)};
  HarnessOptions options = MakeHarnessOptions(pool, setting.steps_in_flight);
  options.engine.prefill_chunk_tokens = kChunk;
  options.engine.max_step_prompt_tokens = 2 * kChunk;
  options.engine.admission = setting.mode;
  return options;
}

// Returns the tokens of a request that runs alone with ample resources.
std::map<std::int32_t, std::vector<std::int32_t>> Alone(const Groups& groups, Request request) {
  Harness calm(OptionsFor({.groups = groups, .usable_pages = 1000}));
  request.id = "alone";
  request.cache = {};
  calm.Submit(std::move(request));
  calm.RunUntilIdle();
  EXPECT_TRUE(calm.output("alone").status.ok()) << calm.output("alone").status;
  return calm.output("alone").tokens;
}

std::uint32_t UsedPages(const Harness& harness) {
  return harness.cache->stats().used_pages;
}

// Runs to the end and returns the maximum number of pages in use.
std::uint32_t RunCounting(Harness* harness) {
  std::uint32_t most = 0;
  while (!harness->core.idle()) {
    EXPECT_TRUE(harness->Step());
    most = std::max(most, UsedPages(*harness));
  }
  harness->Settle();
  return most;
}

TEST(WindowTest, ContextOfManyPoolsRunsInItsWindow) {
  for (const int steps_in_flight : {1, 2}) {
    for (const AdmissionMode mode : {AdmissionMode::kSafe, AdmissionMode::kOvercommit}) {
      const Groups groups = {{.window = 24}};
      const cache::PageDemand demand(kPage, groups,
                                     kChunk * static_cast<std::uint32_t>(steps_in_flight));
      // The number of pages is exactly what the request needs, an eighth of its tokens.
      const std::uint32_t pages = demand.PagesFor(900);
      ASSERT_LE(8 * pages * kPage, 900u);
      Harness harness(OptionsFor({groups, pages, steps_in_flight, mode}));
      Request request = MakeRequest("long", MakePrompt(1, 500), 400);
      request.stopping.ignore_eos = true;
      harness.Submit(request);
      EXPECT_LE(RunCounting(&harness), pages);
      ASSERT_TRUE(harness.output("long").status.ok()) << harness.output("long").status;
      EXPECT_EQ(harness.output("long").tokens.at(0).size(), 400u);
      EXPECT_EQ(harness.output("long").tokens, Alone(groups, request));
    }
  }
}

TEST(WindowTest, MixedModelKeepsAllTokensInFullGroupsOnly) {
  const Groups groups = {{.window = 24}, {.window = 0}, {.window = 24}, {.window = 24}};
  Harness harness(OptionsFor({groups, 80}));
  const Request request = MakeRequest("long", MakePrompt(2, 600), 100);
  harness.Submit(request);
  const std::uint32_t most = RunCounting(&harness);
  ASSERT_TRUE(harness.output("long").status.ok()) << harness.output("long").status;
  EXPECT_EQ(harness.output("long").tokens, Alone(groups, request));
  const std::uint32_t full = (699 + kPage - 1) / kPage;
  EXPECT_GE(most, full);
  EXPECT_LE(most, harness.cache->demand().PagesFor(699));
  EXPECT_LT(most, 2 * full) << "four groups without windows would use " << 4 * full;
}

TEST(WindowTest, RejectsExactlyRequestsWhosePagesNeverFit) {
  const Groups groups = {{.window = 0}, {.window = 16}};
  const std::uint32_t pages = cache::PageDemand(kPage, groups, kChunk).PagesFor(400);
  Harness harness(OptionsFor({groups, pages}));
  harness.Submit(MakeRequest("fits", MakePrompt(3, 301), 100));
  harness.Submit(MakeRequest("never", MakePrompt(3, 301), 101));
  harness.RunUntilIdle();
  EXPECT_TRUE(harness.output("fits").status.ok()) << harness.output("fits").status;
  const auto reason = GetErrorReason(harness.output("never").status);
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(reason->name(), "EXCEEDS_CAPACITY");
  EXPECT_THAT(reason->metadata, Contains(Pair("pages_needed", absl::StrCat(pages + 1))));
  EXPECT_THAT(reason->metadata, Contains(Pair("pages_total", absl::StrCat(pages))));
  EXPECT_THAT(harness.output("never").status.message(),
              HasSubstr("pages of 16 tokens over 2 layer groups, the pool has"));
}

// A chunk is reduced to the available pages before any sequence is preempted.
TEST(WindowTest, PrefersAShorterChunkToPreemption) {
  const Groups groups = {{.window = 24}};
  ASSERT_EQ(cache::PageDemand(kPage, groups, kChunk).PagesFor(200), 5u);
  Harness harness(OptionsFor({groups, 7, 1, AdmissionMode::kOvercommit}));
  const Request first = MakeRequest("first", MakePrompt(8, 200), 20);
  const Request second = MakeRequest("second", MakePrompt(9, 200), 20);
  harness.Submit(first);
  harness.Submit(second);
  harness.RunUntilIdle();
  EXPECT_EQ(harness.core.Stats(harness.clock.Now()).preemptions, 0);
  EXPECT_EQ(harness.output("first").tokens, Alone(groups, first));
  EXPECT_EQ(harness.output("second").tokens, Alone(groups, second));
}

TEST(WindowTest, ReusesAPrefixAfterItsPagesWereReleased) {
  const Groups groups = {{.window = 0}, {.window = 24}};
  Harness harness(OptionsFor({groups, 200}));
  std::vector<std::int32_t> prompt = MakePrompt(4, 320);
  harness.Submit(MakeRequest("first", prompt, 2));
  harness.RunUntilIdle();
  prompt.push_back(7);
  const Request second = MakeRequest("second", prompt, 20);
  harness.Submit(second);
  harness.RunUntilIdle();
  EXPECT_GE(harness.output("second").cached_tokens, 304);
  EXPECT_EQ(harness.output("second").tokens, Alone(groups, second));
}

TEST(WindowTest, WindowsReleasePagesWithoutTheCache) {
  const Groups groups = {{.window = 40}};
  Harness harness(OptionsFor({groups, cache::PageDemand(kPage, groups, kChunk).PagesFor(700)}));
  Request request = MakeRequest("unseen", MakePrompt(5, 600), 90);
  request.cache.skip_write = true;
  harness.Submit(request);
  harness.RunUntilIdle();
  ASSERT_TRUE(harness.output("unseen").status.ok()) << harness.output("unseen").status;
  EXPECT_EQ(harness.output("unseen").tokens, Alone(groups, request));
}

TEST(WindowTest, ChoicesDivergeWithinTheirWindows) {
  const Groups groups = {{.window = 24}, {.window = 0}};
  Harness harness(OptionsFor({groups, 120}));
  Request request = MakeRequest("fork", MakePrompt(6, 200), 80);
  request.sampling.choice_count = 3;
  request.sampling.temperature = 1;
  request.sampling.seed = 5;
  harness.Submit(request);
  harness.RunUntilIdle();
  ASSERT_TRUE(harness.output("fork").status.ok()) << harness.output("fork").status;
  EXPECT_EQ(harness.output("fork").tokens, Alone(groups, request));
}

// Lowers and raises the chunk size. Rows of windowed models never need more pages than was
// reserved.
TEST(WindowTest, ChunksNeverExceedTheirInitialSize) {
  const Groups groups = {{.window = 24}};
  Harness harness(OptionsFor({groups, cache::PageDemand(kPage, groups, kChunk).PagesFor(600)}));
  harness.options.prefill_chunk_tokens = 512;
  harness.options.max_step_prompt_tokens = 512;
  harness.ApplyOptions();
  harness.Submit(MakeRequest("long", MakePrompt(7, 500), 20));
  harness.RunUntilIdle();
  EXPECT_TRUE(harness.output("long").status.ok()) << harness.output("long").status;
  for (const FakeStep& step : harness.runner.steps()) EXPECT_LE(step.num_tokens, kChunk);
}

// Requests of all kinds, in pools that are too small for all of them together.
class RandomLoad {
 public:
  explicit RandomLoad(std::uint32_t seed) : random_(seed) {}

  void Run() {
    Setting setting = RandomSetting();
    SCOPED_TRACE(absl::StrCat(setting.groups.size(), " groups, ", setting.usable_pages, " pages, ",
                              setting.steps_in_flight, " steps in flight"));
    Harness harness(OptionsFor(setting));
    std::vector<std::shared_ptr<AcceptedRequest>> live;
    std::vector<Request> requests;
    for (int i = 0; i < 24; ++i) {
      requests.push_back(RandomRequest(i));
      live.push_back(harness.Submit(requests.back()));
      for (std::uint32_t steps = Below(12); steps > 0; --steps) harness.Step();
      if (Below(6) == 0) harness.Cancel(live[Below(live.size())], CancelSource::kApi);
      if (Below(20) == 0) harness.core.FlushCache();
    }
    harness.RunUntilIdle();
    EXPECT_EQ(UsedPages(harness), 0u);
    int whole = 0;
    for (const Request& request : requests) {
      const Harness::Output& output = harness.output(request.id);
      if (absl::IsCancelled(output.status)) continue;
      ASSERT_TRUE(output.status.ok()) << request.id << ": " << output.status;
      EXPECT_EQ(output.tokens, Alone(setting.groups, request)) << request.id;
      ++whole;
    }
    EXPECT_GT(whole, 8);
    preemptions += harness.core.Stats(harness.clock.Now()).preemptions;
    hit_tokens += harness.core.Stats(harness.clock.Now()).cache.hit_tokens;
  }

  std::int64_t preemptions = 0;
  std::uint64_t hit_tokens = 0;

 private:
  std::uint32_t Below(std::size_t n) { return static_cast<std::uint32_t>(random_() % n); }

  Setting RandomSetting() {
    constexpr std::uint32_t kWindows[] = {0, 1, 2, kPage - 1, kPage, kPage + 1, 3 * kPage, 2000};
    Setting setting;
    for (std::uint32_t groups = 1 + Below(4); groups > 0; --groups) {
      setting.groups.push_back({.window = kWindows[Below(std::size(kWindows))]});
    }
    setting.steps_in_flight = 1 + static_cast<int>(Below(2));
    setting.mode = Below(3) == 0 ? AdmissionMode::kSafe : AdmissionMode::kOvercommit;
    // The pool fits the longest request with two choices, and a little more.
    const cache::PageDemand demand(kPage, setting.groups,
                                   kChunk * static_cast<std::uint32_t>(setting.steps_in_flight));
    setting.usable_pages = 2 * demand.PagesFor(260) + Below(8);
    return setting;
  }

  Request RandomRequest(int number) {
    std::vector<std::int32_t> prompt =
        MakePrompt(Below(3), 20 + Below(160));  // many share a prefix
    const std::vector<std::int32_t> own = MakePrompt(100 + random_() % 1000, Below(30));
    prompt.insert(prompt.end(), own.begin(), own.end());
    Request request = MakeRequest(absl::StrCat("r", number), std::move(prompt),
                                  1 + static_cast<std::int32_t>(Below(50)));
    request.stopping.ignore_eos = true;
    request.sampling.temperature = Below(2) == 0 ? 0.0f : 1.0f;
    request.sampling.seed = random_();
    request.sampling.choice_count = Below(5) == 0 ? 2 : 1;
    request.cache.skip_read = Below(8) == 0;
    request.cache.skip_write = Below(8) == 0;
    if (Below(8) == 0) request.sampling.repetition_penalty = 1.1f;
    return request;
  }

  std::mt19937_64 random_;
};

TEST(WindowTest, RandomLoadOnRandomGroupsChangesNoToken) {
  std::int64_t preemptions = 0;
  std::uint64_t hit_tokens = 0;
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    RandomLoad storm(seed);
    storm.Run();
    if (HasFailure()) return;
    preemptions += storm.preemptions;
    hit_tokens += storm.hit_tokens;
  }
  EXPECT_GT(preemptions, 10);
  EXPECT_GT(hit_tokens, 1000u);
}

}  // namespace
}  // namespace quire::engine

#include "base/probe.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/temp_dir.h"

namespace quire::probe {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kBorders[] = {0.1, 1, 10};

std::string Text(const Registry& registry) {
  const auto text = registry.Expose();
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

// Returns the value of the line that starts with `series` and a space, or NaN if there is none.
double ValueOf(const std::string& text, const std::string& series) {
  for (const absl::string_view part : absl::StrSplit(text, '\n')) {
    const std::string line(part);
    double value = 0;
    if (line.rfind(series + " ", 0) == 0 &&
        absl::SimpleAtod(line.substr(series.size() + 1), &value)) {
      return value;
    }
  }
  return std::nan("");
}

TEST(ProbeTest, ExposesCountersAndGauges) {
  Registry registry;
  Counter steps = registry.AddCounter("quire_steps_total", "Steps.", {{"kind", "decode"}});
  Gauge pages = registry.AddGauge("quire_pages", "Pages.");
  steps.Increment();
  steps.Increment(2.5);
  pages.Set(7);
  pages.Add(-2);
  const std::string text = Text(registry);
  EXPECT_THAT(text,
              HasSubstr("# HELP quire_steps_total Steps.\n# TYPE quire_steps_total counter\n"));
  EXPECT_EQ(ValueOf(text, "quire_steps_total{kind=\"decode\"}"), 3.5);
  EXPECT_EQ(ValueOf(text, "quire_pages"), 5);
  EXPECT_EQ(steps.value(), 3.5);
}

TEST(ProbeTest, SameNameAndLabelsIsTheSameSeries) {
  Registry registry;
  const Labels one = {{"a", "1"}, {"b", "2"}}, same = {{"b", "2"}, {"a", "1"}};
  Counter first = registry.AddCounter("x_total", "X.", one);
  Counter second = registry.AddCounter("x_total", "X.", same);
  Counter other = registry.AddCounter("x_total", "X.", {{"a", "1"}, {"b", "3"}});
  first.Increment();
  second.Increment();
  EXPECT_EQ(first.value(), 2);
  EXPECT_EQ(other.value(), 0);
}

TEST(ProbeTest, HistogramBoundsAreInclusiveAndInfinityIsTheCount) {
  Registry registry;
  Histogram seconds = registry.AddHistogram("quire_wait_seconds", "Wait.", kBorders, {{"m", "x"}});
  seconds.Observe(0.1);
  seconds.Observe(0.11, 3);
  seconds.Observe(1000);
  const std::string text = Text(registry);
  EXPECT_EQ(ValueOf(text, "quire_wait_seconds_bucket{m=\"x\",le=\"0.1\"}"), 1);
  EXPECT_EQ(ValueOf(text, "quire_wait_seconds_bucket{m=\"x\",le=\"1\"}"), 4);
  EXPECT_EQ(ValueOf(text, "quire_wait_seconds_bucket{m=\"x\",le=\"10\"}"), 4);
  EXPECT_EQ(ValueOf(text, "quire_wait_seconds_bucket{m=\"x\",le=\"+Inf\"}"), 5);
  EXPECT_EQ(ValueOf(text, "quire_wait_seconds_count{m=\"x\"}"), 5);
  EXPECT_NEAR(ValueOf(text, "quire_wait_seconds_sum{m=\"x\"}"), 1000.43, 1e-9);
}

TEST(ProbeTest, CallbacksAreReadAtEachScrape) {
  Registry registry;
  double value = 1;
  registry.AddCallbackGauge("g", "G.", {}, [&value] { return value; });
  registry.AddCallbackCounter("c_total", "C.", {}, [&value] { return 2 * value; });
  EXPECT_EQ(ValueOf(Text(registry), "g"), 1);
  value = 4;
  const std::string text = Text(registry);
  EXPECT_EQ(ValueOf(text, "g"), 4);
  EXPECT_EQ(ValueOf(text, "c_total"), 8);
}

TEST(ProbeTest, LabelValuesAreEscaped) {
  Registry registry;
  registry.AddGauge("g", "G.", {{"l", "a\"b\\c\nd"}}).Set(1);
  EXPECT_THAT(Text(registry), HasSubstr(R"(g{l="a\"b\\c\nd"} 1)"));
}

// Two counters that one Update changes together never differ in a scrape.
TEST(ProbeTest, UpdatesAreAtomic) {
  Registry registry;
  Counter accepted = registry.AddCounter("accepted_total", "A.");
  Counter finished = registry.AddCounter("finished_total", "F.");
  Gauge running = registry.AddGauge("running", "R.");
  std::atomic<bool> is_done{false};
  std::thread engine([&] {
    for (int i = 0; i < 200000; ++i) {
      Registry::Update update(&registry);
      if (i % 2 == 0) {
        accepted.Increment();
        running.Add(1);
      } else {
        running.Add(-1);
        finished.Increment();
      }
    }
    is_done = true;
  });
  int scrapes = 0;
  while (!is_done || scrapes == 0) {
    const std::string text = Text(registry);
    ASSERT_EQ(ValueOf(text, "accepted_total"),
              ValueOf(text, "finished_total") + ValueOf(text, "running"));
    ++scrapes;
  }
  engine.join();
  EXPECT_EQ(finished.value(), 100000);
}

TEST(ProbeTest, EndlessUpdateIsAnErrorInsteadOfAHang) {
  Registry registry;
  registry.AddGauge("g", "G.");
  Registry::Update update(&registry);
  EXPECT_EQ(registry.Expose().status().code(), absl::StatusCode::kUnavailable);
}

TEST(ProbeTest, ConcurrentIncrementsAreNotLost) {
  Registry registry;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&registry] {
      for (int i = 0; i < 1000; ++i) {
        registry.AddCounter("n_total", "N.", {{"i", std::to_string(i % 3)}}).Increment(0.5);
        registry.AddHistogram("h", "H.", kBorders).Observe(0.5);
      }
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(registry.Expose().ok());
  for (std::thread& thread : threads) thread.join();
  double sum = 0;
  for (int i = 0; i < 3; ++i) {
    sum += registry.AddCounter("n_total", "N.", {{"i", std::to_string(i)}}).value();
  }
  EXPECT_EQ(sum, 2000);
  EXPECT_EQ(ValueOf(Text(registry), "h_count"), 4000);
}

TEST(ProbeTest, PromtoolAcceptsTheText) {
  if (std::system("promtool --version >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool is not installed";
  }
  Registry registry;
  registry.AddCounter("quire_a_total", "A.", {{"k", "v"}}).Increment();
  registry.AddGauge("quire_pages", "B.").Set(NAN);
  registry.AddHistogram("quire_c_seconds", "C.", kBorders).Observe(2);
  const quire::testing::TempDir dir;
  const std::string file = dir.Write("metrics", Text(registry));
  EXPECT_EQ(std::system(("promtool check metrics < " + file).c_str()), 0);
}

TEST(ProbeDeathTest, RejectsWhatPrometheusRejects) {
  Registry registry;
  registry.AddCounter("a_total", "A.");
  EXPECT_DEATH(registry.AddCounter("a", "A."), "check failed");
  EXPECT_DEATH(registry.AddGauge("b_total", "B."), "check failed");
  EXPECT_DEATH(registry.AddGauge("b", ""), "check failed");
  EXPECT_DEATH(registry.AddGauge("1b", "B."), "check failed");
  EXPECT_DEATH(registry.AddGauge("B", "B."), "check failed");
  EXPECT_DEATH(registry.AddGauge("b", "B.", {{"le", "1"}}), "check failed");
  EXPECT_DEATH(registry.AddGauge("b", "B.", {{"x", "1"}, {"x", "2"}}), "check failed");
  EXPECT_DEATH(registry.AddCounter("a_total", "Another text."), "check failed");
  EXPECT_DEATH(registry.AddHistogram("h", "H.", std::vector<double>{1, 1}), "check failed");
  EXPECT_DEATH(registry.AddHistogram("h", "H.", std::vector<double>{}), "check failed");
}

}  // namespace
}  // namespace quire::probe

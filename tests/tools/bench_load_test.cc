#include "tools/quire/bench_load.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/quire/bench_trace.h"

namespace quire::client {
namespace {

using ::testing::HasSubstr;

struct Moments {
  double mean = 0;
  double deviation = 0;
};

Moments MomentsOf(const std::vector<double>& values) {
  Moments moments;
  for (const double value : values) moments.mean += value;
  moments.mean /= static_cast<double>(values.size());
  for (const double value : values) {
    moments.deviation += (value - moments.mean) * (value - moments.mean);
  }
  moments.deviation = std::sqrt(moments.deviation / static_cast<double>(values.size()));
  return moments;
}

std::vector<double> Lengths(const std::string& text, int count) {
  const LengthDistribution lengths = *ParseLengths(text);
  Random random(7);
  std::vector<double> values;
  for (int i = 0; i < count; ++i) {
    values.push_back(static_cast<double>(SampleLength(lengths, random)));
  }
  return values;
}

TEST(LengthsTest, Fixed) {
  EXPECT_THAT(Lengths("128", 10), ::testing::Each(128.0));
}

TEST(LengthsTest, UniformHasItsBoundsMeanAndDeviation) {
  const std::vector<double> values = Lengths("uniform:10:19", 20'000);
  EXPECT_EQ(*std::min_element(values.begin(), values.end()), 10);
  EXPECT_EQ(*std::max_element(values.begin(), values.end()), 19);
  const Moments moments = MomentsOf(values);
  EXPECT_NEAR(moments.mean, 14.5, 0.1);
  EXPECT_NEAR(moments.deviation, std::sqrt(99.0 / 12), 0.05);
}

TEST(LengthsTest, LogNormalHasItsMedianSpreadAndBound) {
  const std::vector<double> values = Lengths("lognormal:1000:0.5:100000", 20'000);
  std::vector<double> logarithms;
  for (const double value : values) logarithms.push_back(std::log(value));
  const Moments moments = MomentsOf(logarithms);
  EXPECT_NEAR(moments.mean, std::log(1000.0), 0.015);
  EXPECT_NEAR(moments.deviation, 0.5, 0.01);
  const std::vector<double> cut = Lengths("lognormal:1000:2:1500", 1000);
  EXPECT_EQ(*std::max_element(cut.begin(), cut.end()), 1500);
  EXPECT_THAT(Lengths("lognormal:30:0:50", 3), ::testing::Each(30.0));
}

TEST(LengthsTest, NamesWrongText) {
  for (const char* const text :
       {"", "0", "-3", "x", "uniform:5", "uniform:5:4", "uniform:0:4", "normal:3:4",
        "lognormal:5:1", "lognormal:0.5:1:9", "lognormal:5:-1:9", "lognormal:50:1:9",
        "lognormal:nan:1:9", "lognormal:5:nan:9", "10000001", "1:2"}) {
    const auto lengths = ParseLengths(text);
    ASSERT_FALSE(lengths.ok()) << text;
    EXPECT_THAT(lengths.status().message(), HasSubstr(std::string("\"") + text + "\""));
  }
}

std::vector<double> Gaps(Arrival arrival, double burstiness, std::int64_t count) {
  LoadOptions options{.arrival = arrival, .rate = 20, .burstiness = burstiness};
  const std::vector<double> times = Workload(options, 100).SendTimes(count);
  EXPECT_EQ(times.size(), static_cast<std::size_t>(count));
  EXPECT_EQ(times[0], 0);
  std::vector<double> gaps;
  for (std::size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
  return gaps;
}

// A gamma distribution of shape k has deviation = mean / sqrt(k).
TEST(ArrivalTest, GapsHaveTheRateAndTheBurstiness) {
  const Moments poisson = MomentsOf(Gaps(Arrival::kPoisson, 1, 20'000));
  EXPECT_NEAR(poisson.mean, 0.05, 0.001);
  EXPECT_NEAR(poisson.deviation, 0.05, 0.002);
  for (const double burstiness : {0.25, 4.0}) {
    const Moments gamma = MomentsOf(Gaps(Arrival::kGamma, burstiness, 40'000));
    EXPECT_NEAR(gamma.mean, 0.05, 0.002);
    EXPECT_NEAR(gamma.deviation, 0.05 / std::sqrt(burstiness), 0.004);
  }
  for (const double gap : Gaps(Arrival::kConstant, 1, 100)) EXPECT_NEAR(gap, 0.05, 1e-9);
}

TEST(WorkloadTest, IsAFunctionOfSeedAndNumber) {
  LoadOptions options;
  options.input = *ParseLengths("uniform:20:40");
  options.output = *ParseLengths("uniform:5:9");
  const Workload one(options, 1000), again(options, 1000);
  options.seed = 2;
  const Workload other(options, 1000);
  std::set<std::vector<std::int32_t>> prompts;
  for (std::int64_t i = 0; i < 100; ++i) {
    const LoadRequest request = one.Request(i);
    EXPECT_EQ(request.prompt, again.Request(i).prompt);
    EXPECT_EQ(request.output_tokens, again.Request(i).output_tokens);
    EXPECT_NE(request.prompt, other.Request(i).prompt);
    EXPECT_EQ(request.cancel_after, 0);
    EXPECT_THAT(request.prompt,
                ::testing::Each(::testing::AllOf(::testing::Ge(0), ::testing::Lt(1000))));
    prompts.insert(request.prompt);
  }
  EXPECT_EQ(prompts.size(), 100u);
}

TEST(WorkloadTest, RoundChangesOnlyTheTokens) {
  LoadOptions options;
  options.arrival = Arrival::kPoisson;
  options.rate = 20;
  options.input = *ParseLengths("uniform:20:40");
  options.output = *ParseLengths("uniform:5:9");
  options.prefix_tokens = 16;
  options.prefix_share = 0.5;
  options.cancel_ratio = 0.3;
  const Workload first(options, 1000);
  options.round = 1;
  const Workload second(options, 1000);
  for (std::int64_t i = 0; i < 100; ++i) {
    const LoadRequest a = first.Request(i), b = second.Request(i);
    EXPECT_EQ(a.prompt.size(), b.prompt.size());
    EXPECT_EQ(a.output_tokens, b.output_tokens);
    EXPECT_EQ(a.cancel_after, b.cancel_after);
    // Two random prompts, or prefixes, of at least 16 tokens differ within the first 8.
    const auto head = a.prompt.begin() + 8;
    EXPECT_NE(std::mismatch(a.prompt.begin(), head, b.prompt.begin()).first, head);
  }
  EXPECT_EQ(first.SendTimes(100), second.SendTimes(100));
}

TEST(WorkloadTest, SharedPrefixes) {
  LoadOptions options;
  options.input = *ParseLengths("uniform:128:512");
  options.prefix_count = 3;
  options.prefix_tokens = 256;
  options.prefix_share = 0.5;
  const Workload workload(options, 32000);
  std::map<std::vector<std::int32_t>, int> beginnings;
  int sharing = 0;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const LoadRequest request = workload.Request(i);
    EXPECT_GE(request.prompt.size(), 128u);
    EXPECT_LE(request.prompt.size(), 512u);
    ++beginnings[{request.prompt.begin(), request.prompt.begin() + 127}];
  }
  int texts = 0;
  for (const auto& [beginning, count] : beginnings) {
    if (count == 1) continue;
    ++texts;
    sharing += count;
    EXPECT_GT(count, 200);
  }
  EXPECT_EQ(texts, 3);
  EXPECT_NEAR(sharing, 1000, 80);
}

TEST(WorkloadTest, SharedPrefixHasItsLength) {
  LoadOptions options;
  options.input = *ParseLengths("300");
  options.prefix_tokens = 256;
  options.prefix_share = 1;
  const Workload workload(options, 32000);
  const std::vector<std::int32_t> a = workload.Request(0).prompt, b = workload.Request(1).prompt;
  EXPECT_EQ(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin(), 256);
}

TEST(WorkloadTest, CancelsItsShareBeforeTheLastToken) {
  LoadOptions options;
  options.output = *ParseLengths("10");
  options.cancel_ratio = 0.3;
  const Workload workload(options, 100);
  int cancelled = 0;
  std::set<std::int64_t> after;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const LoadRequest request = workload.Request(i);
    if (request.cancel_after == 0) continue;
    ++cancelled;
    after.insert(request.cancel_after);
  }
  EXPECT_NEAR(cancelled, 600, 70);
  EXPECT_THAT(after, ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST(WorkloadTest, ConstrainsItsShareWithoutOtherChanges) {
  LoadOptions free;
  free.output = *ParseLengths("uniform:1:20");
  free.cancel_ratio = 0.3;
  LoadOptions half = free;
  half.schema = "{}";
  half.schema_share = 0.5;
  const Workload without(free, 100), with(half, 100);
  int constrained = 0;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const LoadRequest a = without.Request(i), b = with.Request(i);
    EXPECT_EQ(a.schema, "");
    EXPECT_EQ(a.prompt, b.prompt);
    EXPECT_EQ(a.output_tokens, b.output_tokens);
    EXPECT_EQ(a.cancel_after, b.cancel_after);
    if (b.schema.empty()) continue;
    EXPECT_EQ(b.schema, half.schema);
    ++constrained;
  }
  EXPECT_NEAR(constrained, 1000, 80);
  half.schema_share = 1;
  EXPECT_EQ(Workload(half, 100).Request(7).schema, half.schema);
}

TEST(TraceTest, Azure) {
  const auto entries = ParseTrace(
      "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
      "2023-11-16 18:17:03.9799600,4808,10\r\n"
      "2023-11-16 18:17:04.4799600,110,0\r\n",
      2);
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].seconds, 0);
  EXPECT_NEAR((*entries)[1].seconds, 0.25, 1e-6);
  EXPECT_EQ((*entries)[0].input_tokens, 4808);
  EXPECT_EQ((*entries)[0].output_tokens, 10);
  EXPECT_EQ((*entries)[1].output_tokens, 1);
}

TEST(TraceTest, MooncakeBlocksAreSharedPrefixes) {
  const auto entries = ParseTrace(
      "{\"timestamp\": 3000, \"input_length\": 1100, \"output_length\": 7, \"hash_ids\": [4, 5, "
      "9]}\n"
      "{\"timestamp\": 0, \"input_length\": 1030, \"output_length\": 3, \"hash_ids\": [4, 5, 6]}\n",
      1);
  ASSERT_TRUE(entries.ok()) << entries.status();
  const Workload workload({}, 32000, *entries);
  EXPECT_TRUE(workload.is_open());
  EXPECT_THAT(workload.SendTimes(2), ::testing::ElementsAre(0, 3));
  const LoadRequest first = workload.Request(0), second = workload.Request(1);
  EXPECT_EQ(first.output_tokens, 3);
  EXPECT_EQ(first.prompt.size(), 1030u);
  EXPECT_EQ(second.prompt.size(), 1100u);
  EXPECT_EQ(std::mismatch(first.prompt.begin(), first.prompt.end(), second.prompt.begin()).first -
                first.prompt.begin(),
            1024);
}

TEST(TraceTest, NamesWrongLines) {
  const char* const wrong[] = {
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.97,x,1\n",
      "\n{\"timestamp\": 1, \"input_length\": 5}\n",
      "\n{\"timestamp\": 1, \"input_length\": 5, \"output_length\": -1}\n",
      "\n{\"timestamp\": 1, \"input_length\"\n"};
  for (const char* const text : wrong) {
    EXPECT_THAT(ParseTrace(text, 1).status().message(), HasSubstr("line 2 ")) << text;
  }
  constexpr char kLong[] =
      "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n"
      "{\"timestamp\": 3e12, \"input_length\": 1, \"output_length\": 1}\n";
  EXPECT_THAT(ParseTrace(kLong, 1).status().message(), HasSubstr("lasts 3e+09 s"));
  EXPECT_TRUE(ParseTrace(kLong, 4).ok());
  EXPECT_FALSE(ParseTrace(kLong, 1e-320).ok());
  EXPECT_FALSE(ParseTrace("infinite-future,1,1\n", 1).ok());
  EXPECT_THAT(ParseTrace("", 1).status().message(), HasSubstr("has no requests"));
  EXPECT_EQ(ReadTrace("/nonexistent", 1).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace quire::client

#include "tools/quire/bench_report.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire::client {
namespace {

using ::testing::HasSubstr;

RequestSample Sample(double ttft, double first_to_last, std::int64_t output_tokens,
                     std::vector<double> itl) {
  RequestSample sample;
  sample.ok = true;
  sample.input_tokens = 10;
  sample.output_tokens = output_tokens;
  sample.ttft_seconds = ttft;
  sample.e2e_seconds = ttft + first_to_last;
  sample.first_to_last_token_seconds = first_to_last;
  sample.itl_seconds = std::move(itl);
  return sample;
}

TEST(PercentileTest, InterpolatesBetweenClosestRanks) {
  const std::vector<double> values = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(Percentile(values, 0), 1);
  EXPECT_DOUBLE_EQ(Percentile(values, 50), 2.5);
  EXPECT_DOUBLE_EQ(Percentile(values, 100), 4);
  EXPECT_DOUBLE_EQ(Percentile({7}, 99.9), 7);
}

TEST(BenchReportTest, DefinitionsAndFieldNames) {
  BenchRun run{.model_id = "m", .concurrency = 2, .duration_seconds = 2, .samples = {}};
  // Three tokens in two messages: TPOT counts tokens, ITL counts messages.
  run.samples = {Sample(0.1, 0.4, 3, {0.4}), Sample(0.3, 0.2, 3, {0.2}), RequestSample{}};
  run.samples[2].error = "QUEUE_FULL: full";
  const auto json = nlohmann::json::parse(ReportJson(run));
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["failed"], 1);
  EXPECT_EQ(json["total_input_tokens"], 20);
  EXPECT_EQ(json["total_output_tokens"], 6);
  EXPECT_DOUBLE_EQ(json["request_throughput"].get<double>(), 1);
  EXPECT_DOUBLE_EQ(json["output_throughput"].get<double>(), 3);
  EXPECT_NEAR(json["mean_ttft_ms"].get<double>(), 200, 1e-9);
  EXPECT_NEAR(json["std_ttft_ms"].get<double>(), 100, 1e-9);
  EXPECT_NEAR(json["mean_tpot_ms"].get<double>(), 150, 1e-9);
  EXPECT_NEAR(json["median_itl_ms"].get<double>(), 300, 1e-9);
  EXPECT_NEAR(json["p99_e2el_ms"].get<double>(), 500, 1e-9);
  EXPECT_THAT(ReportTable(run), HasSubstr("2 completed, 1 failed"));
}

TEST(BenchReportTest, NothingCompletedIsZeroEverywhere) {
  BenchRun run{.model_id = "m", .concurrency = 1, .duration_seconds = 1, .samples = {{}}};
  const auto json = nlohmann::json::parse(ReportJson(run));
  EXPECT_EQ(json["completed"], 0);
  EXPECT_EQ(json["mean_ttft_ms"], 0);
  EXPECT_EQ(json["request_throughput"], 0);
}

}  // namespace
}  // namespace quire::client

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
  sample.messages = output_tokens > 1 ? 2 : 1;
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

TEST(BenchReportTest, ItlPerTokenIsCountedOncePerToken) {
  BenchRun run{.model_id = "m", .concurrency = 1, .duration_seconds = 1, .samples = {}};
  RequestSample sample = Sample(0.1, 0.5, 5, {0.4, 0.1});
  sample.itl_tokens = {4, 1};  // 0.1 per token four times, and 0.1
  sample.messages = 3;
  run.samples = {sample};
  const auto json = nlohmann::json::parse(ReportJson(run));
  EXPECT_NEAR(json["mean_itl_ms"].get<double>(), 250, 1e-9);
  EXPECT_NEAR(json["max_itl_ms"].get<double>(), 400, 1e-9);
  EXPECT_NEAR(json["mean_itl_per_token_ms"].get<double>(), 100, 1e-9);
  EXPECT_NEAR(json["max_itl_per_token_ms"].get<double>(), 100, 1e-9);
  EXPECT_NEAR(json["tokens_per_message"].get<double>(), 5.0 / 3, 1e-9);
}

TEST(BenchReportTest, GoodputCountsRequestsThatMeetEveryLimit) {
  BenchRun run{.model_id = "m", .concurrency = 1, .duration_seconds = 2, .samples = {}};
  // The TPOTs are 0.1, 0.3 and 0.1. The third request's first token is too late.
  run.samples = {Sample(0.1, 0.2, 3, {}), Sample(0.1, 0.6, 3, {}), Sample(0.6, 0.2, 3, {})};
  run.service_level = *ParseServiceLevel("ttft=500ms,tpot=200ms");
  EXPECT_NEAR(nlohmann::json::parse(ReportJson(run))["request_goodput"].get<double>(), 0.5, 1e-9);
  run.service_level = *ParseServiceLevel("e2e=750ms");
  EXPECT_NEAR(nlohmann::json::parse(ReportJson(run))["request_goodput"].get<double>(), 1, 1e-9);
  EXPECT_THAT(ReportTable(run), HasSubstr("goodput 1.00"));
  for (const char* const text : {"", "ttft", "ttft=5", "ttft=-5ms", "x=5ms", "ttft=5ms,"}) {
    EXPECT_FALSE(ParseServiceLevel(text).ok()) << text;
  }
}

TEST(BenchReportTest, TokensWithoutMessagesHaveNoLatency) {
  BenchRun run{.model_id = "m", .concurrency = 1, .duration_seconds = 1, .samples = {}};
  RequestSample silent = Sample(0, 0, 5, {});  // counted by the server only
  silent.messages = 0;
  RequestSample at_once = Sample(0.2, 0, 5, {});
  at_once.messages = 1;
  run.samples = {Sample(0.4, 0.4, 5, {0.4}), silent, at_once};
  run.service_level = *ParseServiceLevel("ttft=500ms,tpot=50ms");
  const auto json = nlohmann::json::parse(ReportJson(run));
  EXPECT_EQ(json["completed"], 3);
  EXPECT_EQ(json["total_output_tokens"], 15);
  EXPECT_NEAR(json["median_ttft_ms"].get<double>(), 300, 1e-9);
  EXPECT_NEAR(json["median_tpot_ms"].get<double>(), 100, 1e-9);
  // The first has a TPOT of 100 ms and the second has no first token.
  EXPECT_NEAR(json["request_goodput"].get<double>(), 1, 1e-9);
}

TEST(BenchReportTest, MarksInterruptedRuns) {
  BenchRun run{.model_id = "a\xff", .concurrency = 1, .duration_seconds = 1, .samples = {{}}};
  EXPECT_FALSE(nlohmann::json::parse(ReportJson(run)).contains("interrupted"));
  run.interrupted = true;
  EXPECT_EQ(nlohmann::json::parse(ReportJson(run))["interrupted"], true);
  EXPECT_THAT(ReportTable(run), HasSubstr("interrupted"));
  EXPECT_EQ(nlohmann::json::parse(ComparisonJson({run}, {run}, true))["interrupted"], true);
  EXPECT_FALSE(nlohmann::json::parse(ComparisonJson({run}, {run})).contains("interrupted"));
  EXPECT_THAT(ComparisonTable({run}, {run}, true), HasSubstr("interrupted"));
}

TEST(BenchReportTest, OpenLoopReportsLateSendsAndCancelledOnes) {
  BenchRun run{.model_id = "m", .request_rate = 4, .duration_seconds = 1, .samples = {}};
  run.samples = {Sample(0.1, 0.2, 3, {}), Sample(0.1, 0.2, 3, {}), RequestSample{}};
  run.samples[0].late_seconds = 0.002;
  run.samples[1].late_seconds = 0.25;
  run.samples[2].cancelled = true;
  const auto json = nlohmann::json::parse(ReportJson(run));
  EXPECT_EQ(json["request_rate"], 4);
  EXPECT_EQ(json["late_sends"], 1);
  EXPECT_NEAR(json["max_send_delay_ms"].get<double>(), 250, 1e-9);
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["cancelled"], 1);
  EXPECT_THAT(ReportTable(run), HasSubstr("1 sent late"));
}

TEST(BenchReportTest, ComparisonTakesMediansAndRatios) {
  const auto run = [](const char* backend, std::int64_t tokens, std::int64_t bytes) {
    return BenchRun{.backend = backend,
                    .model_id = "m",
                    .concurrency = 1,
                    .duration_seconds = 1,
                    .peak_pss_bytes = bytes,
                    .samples = {Sample(0.1, 0.2, tokens, {})}};
  };
  const std::vector<BenchRun> ours = {run("quire", 30, 7), run("quire", 60, 7),
                                      run("quire", 50, 7)};
  const std::vector<BenchRun> peer = {run("openai", 20, 0), run("openai", 10, 0),
                                      run("openai", 90, 0)};
  const auto json = nlohmann::json::parse(ComparisonJson(ours, peer));
  EXPECT_EQ(json["rounds"], 3);
  EXPECT_EQ(json["ours"].size(), 3u);
  EXPECT_EQ(json["peer"][2]["total_output_tokens"], 90);
  EXPECT_EQ(json["median"]["ours"]["output_throughput"], 50);
  EXPECT_EQ(json["median"]["peer"]["output_throughput"], 20);
  EXPECT_NEAR(json["median"]["ratio"]["output_throughput"].get<double>(), 2.5, 1e-9);
  EXPECT_FALSE(json["median"]["ratio"].contains("peak_pss_bytes"));
  EXPECT_THAT(ComparisonTable(ours, peer), HasSubstr("openai"));
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

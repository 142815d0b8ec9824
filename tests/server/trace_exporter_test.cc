#include "server/tracing/trace_exporter.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"
#include "server/api/access_log.h"
#include "server/tracing/trace_context.h"

namespace quire::server {
namespace {

namespace otlp = opentelemetry::proto::collector::trace::v1;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kTraceparent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

// A collector that stores the spans. Its first calls can be made to fail with a status code.
class Collector final : public otlp::TraceService::Service {
 public:
  Collector() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Collector() override { Stop(); }

  // Waits for the end of all calls.
  void Stop() { server_->Shutdown(); }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  void FailNext(int calls, grpc::StatusCode code) {
    MutexLock lock(&mutex_);
    num_failing_ = calls;
    code_ = code;
  }

  // Makes later calls wait until they are cancelled.
  void Hang() {
    MutexLock lock(&mutex_);
    hangs_ = true;
  }
  void WaitForCall() {
    MutexLock lock(&mutex_);
    while (num_calls_ == 0) changed_.Wait(&mutex_);
  }
  // Returns true if a call that hung was cancelled more than a second before its deadline.
  bool was_cancelled() {
    MutexLock lock(&mutex_);
    return was_cancelled_;
  }

  // Waits until there are `count` spans and returns all.
  std::vector<otlp::Span> WaitForSpans(std::size_t count) {
    MutexLock lock(&mutex_);
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (spans_.size() < count && absl::Now() < end) changed_.WaitUntil(&mutex_, end);
    return spans_;
  }
  int num_calls() {
    MutexLock lock(&mutex_);
    return num_calls_;
  }
  std::map<std::string, std::string> resource() {
    MutexLock lock(&mutex_);
    return resource_;
  }

 private:
  grpc::Status Export(grpc::ServerContext* context, const otlp::ExportTraceServiceRequest* request,
                      otlp::ExportTraceServiceResponse* /*response*/) override {
    MutexLock lock(&mutex_);
    ++num_calls_;
    changed_.NotifyAll();
    while (hangs_ && !context->IsCancelled()) {
      changed_.WaitUntil(&mutex_, MonotonicNow() + absl::Milliseconds(10));
    }
    if (hangs_) {
      was_cancelled_ =
          std::chrono::system_clock::now() + std::chrono::seconds(1) < context->deadline();
      return grpc::Status::CANCELLED;
    }
    if (num_failing_ > 0) {
      --num_failing_;
      return grpc::Status(code_, "not now");
    }
    for (const auto& resource : request->resource_spans()) {
      for (const auto& entry : resource.resource().attributes()) {
        resource_[entry.key()] = entry.value().string_value();
      }
      for (const auto& scope : resource.scope_spans()) {
        spans_.insert(spans_.end(), scope.spans().begin(), scope.spans().end());
      }
    }
    changed_.NotifyAll();
    return grpc::Status::OK;
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<otlp::Span> spans_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> resource_ ABSL_GUARDED_BY(mutex_);
  int num_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_failing_ ABSL_GUARDED_BY(mutex_) = 0;
  bool hangs_ ABSL_GUARDED_BY(mutex_) = false;
  bool was_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::StatusCode code_ ABSL_GUARDED_BY(mutex_) = grpc::StatusCode::OK;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

AccessRecord Finished() {
  AccessRecord record;
  record.method = "Generate";
  record.request_id = "r1";
  record.model = "story";
  record.traceparent = kTraceparent;
  record.prompt_tokens = 5;
  record.completion_tokens = 7;
  record.queue_time = absl::Milliseconds(10);
  record.time_to_first_token = absl::Milliseconds(30);
  record.duration = absl::Milliseconds(100);
  return record;
}

std::vector<std::string> NamesOf(const std::vector<otlp::Span>& spans) {
  std::vector<std::string> names;
  for (const otlp::Span& span : spans) names.push_back(span.name());
  return names;
}

TEST(TraceContextTest, ReadsTheHeaderOfTheStandard) {
  const auto context = ParseTraceparent(kTraceparent);
  ASSERT_TRUE(context);
  EXPECT_EQ(absl::BytesToHexString(context->trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(absl::BytesToHexString(context->span_id), "00f067aa0ba902b7");
  EXPECT_TRUE(context->is_sampled);
  EXPECT_FALSE(
      ParseTraceparent("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02")->is_sampled);
  // A later version may append fields.
  EXPECT_TRUE(ParseTraceparent("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more"));
  for (const char* const bad : {"", "00", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                                "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
                                "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                                "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
                                "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
                                "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
                                "00-4bf92f3577b34da6a3ce929d0e0e4736+00f067aa0ba902b7-01"}) {
    EXPECT_FALSE(ParseTraceparent(bad)) << bad;
  }
}

TEST(TraceExporterTest, EndpointsAreHostAndPort) {
  for (const char* const good :
       {"localhost:4317", "http://collector:4317", "https://c.example:443/", "[::1]:4317"}) {
    EXPECT_TRUE(CheckOtlpEndpoint(good).ok()) << good;
  }
  for (const char* const bad : {"collector", ":4317", "http://c:0", "c:70000",
                                "http://c:4317/v1/traces", "grpc://c:4317", "c:port"}) {
    EXPECT_FALSE(CheckOtlpEndpoint(bad).ok()) << bad;
  }
}

TEST(TraceExporterTest, SendsASpanPerRequestAndStage) {
  Collector collector;
  probe::Registry registry;
  const absl::Time end = absl::FromUnixMillis(1'000'000'000'000);
  TraceExporter traces({.endpoint = collector.address(), .version = "1.2"}, &registry);
  traces.Add(MakeTrace(Finished(), end));
  traces.CheckIntegrity();
  const std::vector<otlp::Span> spans = collector.WaitForSpans(4);
  ASSERT_THAT(NamesOf(spans), ElementsAre("queue", "prefill", "decode", "Generate"));
  const otlp::Span& request = spans[3];
  EXPECT_EQ(absl::BytesToHexString(request.trace_id()), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(absl::BytesToHexString(request.parent_span_id()), "00f067aa0ba902b7");
  EXPECT_EQ(request.kind(), otlp::Span::SPAN_KIND_SERVER);
  EXPECT_EQ(request.end_time_unix_nano(), 1'000'000'000'000'000'000u);
  EXPECT_EQ(request.end_time_unix_nano() - request.start_time_unix_nano(), 100'000'000u);
  std::uint64_t start = request.start_time_unix_nano();
  const std::uint64_t lengths[] = {10'000'000, 20'000'000, 70'000'000};
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(spans[i].parent_span_id(), request.span_id());
    EXPECT_EQ(spans[i].trace_id(), request.trace_id());
    EXPECT_EQ(spans[i].start_time_unix_nano(), start);
    start += lengths[i];
    EXPECT_EQ(spans[i].end_time_unix_nano(), start);
  }
  std::map<std::string, std::int64_t> numbers;
  for (const auto& entry : request.attributes()) {
    if (entry.value().has_int_value()) numbers[entry.key()] = entry.value().int_value();
  }
  EXPECT_EQ(numbers["gen_ai.usage.input_tokens"], 5);
  EXPECT_EQ(numbers["gen_ai.usage.output_tokens"], 7);
  EXPECT_EQ(collector.resource()["service.name"], "quire");
  EXPECT_EQ(collector.resource()["service.version"], "1.2");
}

TEST(MakeTraceTest, HasTheStagesThatTheRequestReached) {
  const auto stages = [](const AccessRecord& record) {
    std::vector<std::string> names;
    for (const auto& stage : MakeTrace(record, absl::UnixEpoch()).stages) {
      names.push_back(absl::StrCat(stage.name, " ", absl::FormatDuration(stage.duration)));
    }
    return names;
  };
  AccessRecord record = Finished();
  EXPECT_THAT(stages(record), ElementsAre("queue 10ms", "prefill 20ms", "decode 70ms"));
  record.queue_time = absl::ZeroDuration();
  EXPECT_THAT(stages(record), ElementsAre("queue 0", "prefill 30ms", "decode 70ms"));
  record.time_to_first_token = absl::ZeroDuration();
  EXPECT_THAT(stages(record), ElementsAre("queue 0"));
  record.queue_time.reset();
  EXPECT_THAT(stages(record), ElementsAre());
}

TEST(TraceExporterTest, AFailureIsTheStatusOfItsSpan) {
  Collector collector;
  probe::Registry registry;
  TraceExporter traces({.endpoint = collector.address()}, &registry);
  AccessRecord refused;
  refused.method = "ChatCompletions";
  refused.code = "RESOURCE_EXHAUSTED";
  refused.reason = Reason::kQueueFull;
  traces.Add(MakeTrace(refused, absl::Now()));
  const std::vector<otlp::Span> spans = collector.WaitForSpans(1);
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].status().code(), otlp::Status::STATUS_CODE_ERROR);
  EXPECT_EQ(spans[0].status().message(), "QUEUE_FULL");
  EXPECT_TRUE(spans[0].parent_span_id().empty());
}

TEST(TraceExporterTest, TheCallerDecidesAboutItsTrace) {
  Collector collector;
  probe::Registry registry;
  TraceExporter traces({.endpoint = collector.address(), .sample_ratio = 0}, &registry);
  AccessRecord record = Finished();
  traces.Add(MakeTrace(record, absl::Now()));
  record.traceparent.back() = '0';  // not sampled
  traces.Add(MakeTrace(record, absl::Now()));
  record.traceparent = "malformed";  // counts as absent, and the ratio is 0
  traces.Add(MakeTrace(record, absl::Now()));
  record.traceparent = kTraceparent;
  record.method = "Last";
  traces.Add(MakeTrace(record, absl::Now()));
  EXPECT_THAT(
      NamesOf(collector.WaitForSpans(8)),
      ElementsAre("queue", "prefill", "decode", "Generate", "queue", "prefill", "decode", "Last"));
}

TEST(TraceExporterTest, ABatchIsSentAgainAfterATemporaryFailure) {
  Collector collector;
  collector.FailNext(1, grpc::StatusCode::UNAVAILABLE);
  probe::Registry registry;
  TraceExporter traces({.endpoint = collector.address()}, &registry);
  traces.Add(MakeTrace(Finished(), absl::Now()));
  EXPECT_EQ(collector.WaitForSpans(4).size(), 4u);
  EXPECT_EQ(collector.num_calls(), 2);
}

TEST(TraceExporterTest, RefusedAndExcessSpansAreCounted) {
  Collector collector;
  collector.FailNext(1, grpc::StatusCode::INVALID_ARGUMENT);
  probe::Registry registry;
  {
    TraceExporter traces({.endpoint = collector.address()}, &registry);
    traces.Add(MakeTrace(Finished(), absl::Now()));
  }
  EXPECT_THAT(*registry.Expose(), HasSubstr("quire_trace_spans_dropped_total 4"));
  EXPECT_EQ(collector.WaitForSpans(0).size(), 0u);
  // No collector listens there, so nothing leaves the queue.
  TraceExporter lost({.endpoint = "127.0.0.1:1"}, &registry);
  for (std::size_t i = 0; i < TraceExporter::kMaxQueuedSpans; ++i) {
    lost.Add(MakeTrace(Finished(), absl::Now()));
    if (i % 1000 == 0) lost.CheckIntegrity();
  }
  lost.CheckIntegrity();
  EXPECT_THAT(*registry.Expose(), HasSubstr(absl::StrCat("quire_trace_spans_dropped_total ",
                                                         4 + 3 * TraceExporter::kMaxQueuedSpans)));
}

TEST(TraceExporterTest, SendsWhatIsQueuedAtTheEnd) {
  Collector collector;
  probe::Registry registry;
  {
    TraceExporter traces({.endpoint = collector.address()}, &registry);
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int i = 0; i < 100; ++i) traces.Add(MakeTrace(Finished(), absl::Now()));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(collector.WaitForSpans(1600).size(), 1600u);
}

TEST(TraceExporterTest, TheEndCancelsACallThatHangs) {
  Collector collector;
  collector.Hang();
  probe::Registry registry;
  {
    TraceExporter traces({.endpoint = collector.address()}, &registry);
    traces.Add(MakeTrace(Finished(), absl::Now()));
    collector.WaitForCall();
  }
  collector.Stop();
  EXPECT_TRUE(collector.was_cancelled());
  EXPECT_THAT(*registry.Expose(), HasSubstr("quire_trace_spans_dropped_total 4"));
}

}  // namespace
}  // namespace quire::server

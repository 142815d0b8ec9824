#include "server/tracing/trace_exporter.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/mutex.h"
#include "base/thread_name.h"
#include "opentelemetry/proto/collector/trace/v1/trace_service.grpc.pb.h"
#include "server/tracing/trace_context.h"

namespace quire::server {
namespace {

namespace otlp = opentelemetry::proto::collector::trace::v1;

constexpr std::size_t kMaxBatchSpans = 512;
constexpr absl::Duration kBatchTime = absl::Seconds(1);
constexpr absl::Duration kCallTime = absl::Seconds(10);
constexpr absl::Duration kMaxPause = absl::Seconds(30);
constexpr absl::Duration kLastPause = absl::Milliseconds(200);  // retry pause at the end

bool IsEncrypted(absl::string_view endpoint) {
  return absl::StartsWith(endpoint, "https://");
}

// Returns host:port.
std::string TargetOf(absl::string_view endpoint) {
  if (!absl::ConsumePrefix(&endpoint, "http://")) absl::ConsumePrefix(&endpoint, "https://");
  absl::ConsumeSuffix(&endpoint, "/");
  return std::string(endpoint);
}

// Returns true for the status codes after which OTLP allows a client to retry.
bool IsRetryable(grpc::StatusCode code) {
  constexpr grpc::StatusCode kCodes[] = {
      grpc::CANCELLED,          grpc::DEADLINE_EXCEEDED, grpc::ABORTED,  grpc::OUT_OF_RANGE,
      grpc::RESOURCE_EXHAUSTED, grpc::UNAVAILABLE,       grpc::DATA_LOSS};
  return std::ranges::find(kCodes, code) != std::end(kCodes);
}

void SetValue(const TracedRequest::Value& value, otlp::AnyValue* message) {
  if (const auto* text = std::get_if<std::string>(&value)) message->set_string_value(*text);
  if (const auto* integer = std::get_if<std::int64_t>(&value)) message->set_int_value(*integer);
  if (const auto* number = std::get_if<double>(&value)) message->set_double_value(*number);
}

void AddAttribute(const std::string& key, const TracedRequest::Value& value,
                  google::protobuf::RepeatedPtrField<otlp::KeyValue>* attributes) {
  otlp::KeyValue* const entry = attributes->Add();
  entry->set_key(key);
  SetValue(value, entry->mutable_value());
}

void SetTimes(absl::Time start, absl::Duration duration, otlp::Span* span) {
  span->set_start_time_unix_nano(static_cast<std::uint64_t>(absl::ToUnixNanos(start)));
  span->set_end_time_unix_nano(static_cast<std::uint64_t>(absl::ToUnixNanos(start + duration)));
}

// Returns the generator of this thread, so that requests that end at the same time need no lock.
std::mt19937_64& Random() {
  thread_local std::mt19937_64 random{std::random_device()()};
  return random;
}

std::string RandomBytes(std::size_t count) {
  std::string bytes(count, '\0');
  while (bytes.find_first_not_of('\0') == std::string::npos) {
    for (char& byte : bytes) byte = static_cast<char>(Random()());
  }
  return bytes;
}

// Returns the spans of the stages, followed by the span of the request.
std::vector<otlp::Span> MakeSpans(const TracedRequest& request,
                                  const std::optional<TraceContext>& parent) {
  otlp::Span span;
  span.set_trace_id(parent ? parent->trace_id : RandomBytes(16));
  span.set_span_id(RandomBytes(8));
  if (parent) span.set_parent_span_id(parent->span_id);
  span.set_name(request.name);
  span.set_kind(otlp::Span::SPAN_KIND_SERVER);
  SetTimes(request.start, request.duration, &span);
  for (const auto& [key, value] : request.attributes) {
    AddAttribute(key, value, span.mutable_attributes());
  }
  if (!request.error.empty()) {
    span.mutable_status()->set_code(otlp::Status::STATUS_CODE_ERROR);
    span.mutable_status()->set_message(request.error);
  }
  std::vector<otlp::Span> spans;
  absl::Time start = request.start;
  for (const TracedRequest::Stage& stage : request.stages) {
    otlp::Span& part = spans.emplace_back();
    part.set_trace_id(span.trace_id());
    part.set_span_id(RandomBytes(8));
    part.set_parent_span_id(span.span_id());
    part.set_name(stage.name);
    part.set_kind(otlp::Span::SPAN_KIND_INTERNAL);
    SetTimes(start, stage.duration, &part);
    start += stage.duration;
  }
  spans.push_back(std::move(span));
  return spans;
}

}  // namespace

absl::Status CheckOtlpEndpoint(absl::string_view endpoint) {
  const std::string target = TargetOf(endpoint);
  const std::size_t colon = target.rfind(':');
  int port = 0;
  const bool is_valid = colon != std::string::npos && colon > 0 &&
                        target.find_first_of("/ ?#@") == std::string::npos &&
                        absl::SimpleAtoi(target.substr(colon + 1), &port) && port > 0 &&
                        port <= 65535;
  if (is_valid) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "must be host:port, http://host:port or https://host:port; the port of OTLP over gRPC is "
      "usually 4317");
}

class TraceExporter::Impl {
 public:
  Impl(const TracingOptions& options, probe::Registry* registry)
      : options_(options),
        channel_(grpc::CreateChannel(TargetOf(options.endpoint),
                                     IsEncrypted(options.endpoint)
                                         ? grpc::SslCredentials({})
                                         : grpc::InsecureChannelCredentials())),
        stub_(otlp::TraceService::NewStub(channel_)),
        exported_(registry->AddCounter("quire_trace_spans_exported_total",
                                       "Spans that the collector has accepted.")),
        dropped_(registry->AddCounter("quire_trace_spans_dropped_total",
                                      "Spans lost because the collector did not accept them.")),
        thread_([this] { Run(); }) {}

  ~Impl() {
    {
      MutexLock lock(&mutex_);
      is_ending_ = true;
      end_time_ = MonotonicNow() + kLastExportTime;
      changed_.NotifyAll();
      while (!has_ended_ && MonotonicNow() < end_time_) changed_.WaitUntil(&mutex_, end_time_);
      // A call that began before this destructor may have a deadline after end_time_.
      if (call_ != nullptr) call_->TryCancel();
    }
    thread_.join();
  }

  void Add(const TracedRequest& request);

  void CheckIntegrity() const {
    MutexLock lock(&mutex_);
    QUIRE_CHECK(queue_.size() + num_sending_ <= kMaxQueuedSpans);
    for (const otlp::Span& span : queue_) {
      QUIRE_CHECK(span.trace_id().size() == 16 && span.span_id().size() == 8);
      QUIRE_CHECK(span.start_time_unix_nano() <= span.end_time_unix_nano());
    }
  }

 private:
  void Run();
  std::vector<otlp::Span> TakeBatch();
  bool Send(const std::vector<otlp::Span>& spans);
  void CountDropped(std::size_t count) { dropped_.Increment(static_cast<double>(count)); }
  // Waits for `pause`. Returns false if the exporter is ending and kLastExportTime has passed.
  bool Pause(absl::Duration pause);

  const TracingOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<otlp::TraceService::Stub> stub_;
  probe::Counter exported_, dropped_;

  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<otlp::Span> queue_ ABSL_GUARDED_BY(mutex_);
  std::size_t num_sending_ ABSL_GUARDED_BY(mutex_) = 0;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time end_time_ ABSL_GUARDED_BY(mutex_);                  // set with is_ending_
  bool has_ended_ ABSL_GUARDED_BY(mutex_) = false;               // Run has returned
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // null: no call is in flight
  std::thread thread_;  // last member, because it uses the others
};

void TraceExporter::Impl::Add(const TracedRequest& request) {
  const std::optional<TraceContext> parent = ParseTraceparent(request.traceparent);
  // A traceparent determines whether its trace is sampled. Requests without a traceparent are
  // sampled here.
  const bool is_sampled =
      parent ? parent->is_sampled
             : std::uniform_real_distribution<double>(0, 1)(Random()) < options_.sample_ratio;
  if (!is_sampled) return;
  std::vector<otlp::Span> spans = MakeSpans(request, parent);
  MutexLock lock(&mutex_);
  if (queue_.size() + num_sending_ + spans.size() > kMaxQueuedSpans) {
    CountDropped(spans.size());
    return;
  }
  queue_.insert(queue_.end(), std::make_move_iterator(spans.begin()),
                std::make_move_iterator(spans.end()));
  // If the queue was already longer, the thread has been notified and waits for the collector.
  if (queue_.size() >= kMaxBatchSpans && queue_.size() < kMaxBatchSpans + spans.size()) {
    changed_.NotifyAll();
  }
}

std::vector<otlp::Span> TraceExporter::Impl::TakeBatch() {
  MutexLock lock(&mutex_);
  const absl::Time batch_end = MonotonicNow() + kBatchTime;
  while (!is_ending_ && queue_.size() < kMaxBatchSpans && MonotonicNow() < batch_end) {
    changed_.WaitUntil(&mutex_, batch_end);
  }
  num_sending_ = std::min(queue_.size(), kMaxBatchSpans);
  std::vector<otlp::Span> spans(
      std::make_move_iterator(queue_.begin()),
      std::make_move_iterator(queue_.begin() + static_cast<std::ptrdiff_t>(num_sending_)));
  queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(num_sending_));
  return spans;
}

bool TraceExporter::Impl::Pause(absl::Duration pause) {
  MutexLock lock(&mutex_);
  const bool was_ending = is_ending_;
  const absl::Time until = MonotonicNow() + (was_ending ? kLastPause : pause);
  while (is_ending_ == was_ending && MonotonicNow() < until) changed_.WaitUntil(&mutex_, until);
  return !is_ending_ || MonotonicNow() < end_time_;
}

// Sends a batch until the collector accepts or refuses it. Returns false if the exporter must end.
bool TraceExporter::Impl::Send(const std::vector<otlp::Span>& spans) {
  otlp::ExportTraceServiceRequest request;
  otlp::ResourceSpans* const resource = request.add_resource_spans();
  AddAttribute("service.name", std::string("quire"),
               resource->mutable_resource()->mutable_attributes());
  AddAttribute("service.version", options_.version,
               resource->mutable_resource()->mutable_attributes());
  otlp::ScopeSpans* const scope = resource->add_scope_spans();
  scope->mutable_scope()->set_name("quire");
  scope->mutable_scope()->set_version(options_.version);
  for (const otlp::Span& span : spans) *scope->add_spans() = span;
  absl::Duration pause = kBatchTime;
  for (;;) {
    grpc::ClientContext context;
    {
      MutexLock lock(&mutex_);
      absl::Duration time = kCallTime;
      if (is_ending_) time = std::min(time, end_time_ - MonotonicNow());
      context.set_deadline(
          gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                       gpr_time_from_millis(absl::ToInt64Milliseconds(time), GPR_TIMESPAN)));
      call_ = &context;
    }
    otlp::ExportTraceServiceResponse response;
    const grpc::Status status = stub_->Export(&context, request, &response);
    {
      MutexLock lock(&mutex_);
      call_ = nullptr;
    }
    if (status.ok()) {
      const auto rejected = static_cast<std::uint64_t>(
          std::max<std::int64_t>(0, response.partial_success().rejected_spans()));
      const std::uint64_t accepted = spans.size() - std::min<std::uint64_t>(rejected, spans.size());
      exported_.Increment(static_cast<double>(accepted));
      CountDropped(spans.size() - accepted);
      return true;
    }
    log::Warn("tracing", "cannot send spans",
              {{"endpoint", options_.endpoint}, {"error", status.error_message()}});
    if (!IsRetryable(status.error_code())) {
      CountDropped(spans.size());
      return true;
    }
    if (!Pause(pause)) {
      CountDropped(spans.size());
      return false;
    }
    pause = std::min(pause * 2, kMaxPause);
  }
}

void TraceExporter::Impl::Run() {
  SetThreadName("tracing");
  for (;;) {
    const std::vector<otlp::Span> spans = TakeBatch();
    bool may_continue = true;
    if (!spans.empty()) may_continue = Send(spans);
    MutexLock lock(&mutex_);
    num_sending_ = 0;
    if (may_continue && !(is_ending_ && queue_.empty())) continue;
    CountDropped(queue_.size());
    queue_.clear();
    has_ended_ = true;
    changed_.NotifyAll();
    return;
  }
}

TraceExporter::TraceExporter(const TracingOptions& options, probe::Registry* registry)
    : impl_(std::make_unique<Impl>(options, registry)) {}

TraceExporter::~TraceExporter() = default;

void TraceExporter::Add(const TracedRequest& request) {
  impl_->Add(request);
}

void TraceExporter::CheckIntegrity() const {
  impl_->CheckIntegrity();
}

}  // namespace quire::server

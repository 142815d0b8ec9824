// Implements the target of `quire bench` for quired.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "quire/v1/generation.grpc.pb.h"
#include "tools/quire/bench_target.h"
#include "tools/quire/client.h"

namespace quire::client {
namespace {

// Number of channels, each with one connection. The server limits the streams of a connection
// (server.grpc.max_concurrent_streams) and serves it with one thread.
constexpr std::size_t kChannels = 16;

v1::GenerateRequest ToProto(const LoadRequest& load) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(load.prompt.begin(), load.prompt.end());
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(static_cast<std::int32_t>(load.output_tokens));
  if (load.schema.empty()) {
    request.mutable_stopping()->set_ignore_eos(true);
  } else {
    request.mutable_constraint()->set_json_schema(load.schema);
  }
  request.mutable_output()->set_stream(true);
  request.mutable_output()->set_token_ids(true);
  return request;
}

class GrpcTarget : public Target {
 public:
  GrpcTarget(const CommonOptions& options, std::shared_ptr<grpc::Channel> channel)
      : options_(options), stub_(v1::GenerationService::NewStub(std::move(channel))) {}

  RequestSample Send(const LoadRequest& load) override {
    const v1::GenerateRequest request = ToProto(load);
    grpc::ClientContext context;
    ApplyDeadline(options_, &context);
    std::int64_t prompt_tokens = 0;
    bool cancelled = false;
    SampleClock clock;
    const auto reader = stub_->Generate(&context, request);
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
      if (response.has_completed()) {
        prompt_tokens = response.completed().usage().prompt_tokens();
      }
      if (!response.has_delta() || response.delta().token_ids().empty()) continue;
      clock.OnTokens(response.delta().token_ids_size());
      if (!cancelled && load.cancel_after > 0 && clock.tokens() >= load.cancel_after) {
        cancelled = true;
        context.TryCancel();
      }
    }
    const grpc::Status status = reader->Finish();
    RequestSample sample = clock.End();
    sample.input_tokens = prompt_tokens;
    sample.ok = status.ok();
    sample.cancelled = cancelled && status.error_code() == grpc::StatusCode::CANCELLED;
    if (!sample.ok) sample.error = absl::StrCat(ReasonOf(status), ": ", status.error_message());
    return sample;
  }

 private:
  const CommonOptions options_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
};

}  // namespace

TargetFactory GrpcTargets(const CommonOptions& options) {
  struct Channels {
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    std::atomic<std::size_t> next{0};
  };
  auto shared = std::make_shared<Channels>();
  for (std::size_t i = 0; i < kChannels; ++i) {
    shared->channels.push_back(Connect(options, options.address));
  }
  return [shared, options]() -> std::unique_ptr<Target> {
    return std::make_unique<GrpcTarget>(options, shared->channels[shared->next++ % kChannels]);
  };
}

}  // namespace quire::client

#include "tests/server/service_fixture.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "server/config/options.h"
#include "tests/server/test_channel.h"
#include "tests/testing/waiting.h"

namespace quire::server {
namespace {

std::multimap<std::string, std::string> Copy(
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  std::multimap<std::string, std::string> copy;
  for (const auto& [key, value] : metadata) {
    copy.emplace(std::string(key.data(), key.size()), std::string(value.data(), value.size()));
  }
  return copy;
}

}  // namespace

std::string Answer::Text(int index) const {
  std::string text;
  for (const auto& message : messages) {
    if (message.has_delta() && message.delta().index() == index) text += message.delta().text();
    if (message.has_completed() && message.completed().index() == index) {
      text += message.completed().text();
    }
  }
  return text;
}

std::vector<std::int32_t> Answer::Ids(int index) const {
  std::vector<std::int32_t> ids;
  const auto append = [&](const auto& list) { ids.insert(ids.end(), list.begin(), list.end()); };
  for (const auto& message : messages) {
    if (message.has_delta() && message.delta().index() == index) {
      append(message.delta().token_ids());
    }
    if (message.has_completed() && message.completed().index() == index) {
      append(message.completed().token_ids());
    }
  }
  return ids;
}

const v1::Started* Answer::started() const {
  return messages.empty() || !messages[0].has_started() ? nullptr : &messages[0].started();
}

const v1::Completed* Answer::completed(int index) const {
  for (const auto& message : messages) {
    if (message.has_completed() && message.completed().index() == index) {
      return &message.completed();
    }
  }
  return nullptr;
}

int Answer::CountDeltas() const {
  int deltas = 0;
  for (const auto& message : messages) deltas += message.has_delta() ? 1 : 0;
  return deltas;
}

bool Answer::HasReason(const std::string& reason) const {
  return absl::StrContains(status.error_details(), reason);
}

ServiceTest::ServiceTest(std::vector<std::string> sets) {
  std::vector<std::string> all = {"kv_cache.page_size=16", "kv_cache.dtype=f32",
                                  "device.cpu.threads=1", "scheduler.max_running_sequences=16",
                                  "logging.access_log=false"};
  all.insert(all.end(), sets.begin(), sets.end());
  std::vector<std::string> errors;
  std::unique_ptr<LayeredConfig> config = LayeredConfig::Load({.sets = all}, &errors);
  EXPECT_NE(config, nullptr) << (errors.empty() ? "" : errors[0]);
  config_ = std::make_unique<LiveConfig>(ConfigSources{.sets = all}, std::move(config), &registry_);
  const DaemonOptions options = config_->start_options();
  state_ = std::make_unique<ServingState>(options.engine_stall_timeout);
  probe_ = std::make_unique<ServerProbe>(&registry_, "story");
  drain_ =
      std::make_unique<DrainControl>(state_.get(), &clock_, options.shutdown.drain_timeout, [] {});
  auto authenticator = Authenticator::Create(options.auth);
  EXPECT_TRUE(authenticator.ok()) << authenticator.status();
  authenticator_ = *std::move(authenticator);
  const HandlerContext context{.state = state_.get(),
                               .probe = probe_.get(),
                               .clock = &clock_,
                               .authenticator = authenticator_.get(),
                               .config = config_.get(),
                               .peers = &peers_};
  ServerDescription description;
  description.version = "test";
  description.start_time = clock_.Now();
  generation_service_ = MakeGenerationService(context, description);
  admin_service_ = MakeAdminService(context, drain_.get(), config_.get());
  auto listener = GrpcListener::Start({.addresses = {"127.0.0.1:0"},
                                       .transport = options.transport,
                                       .peers = &peers_,
                                       .registry = &registry_},
                                      {generation_service_.get(), admin_service_.get()});
  EXPECT_TRUE(listener.ok()) << listener.status();
  listener_ = *std::move(listener);
  const auto channel = ConnectTo(listener_->addresses()[0]);
  generation_ = v1::GenerationService::NewStub(channel);
  admin_ = v1::AdminService::NewStub(channel);
  auto stack = EngineStack::Build(options, runtime::CpuCheck(), &clock_, &registry_);
  EXPECT_TRUE(stack.ok()) << stack.status();
  stack_ = *std::move(stack);
  EXPECT_TRUE(stack_->Follow(config_.get()).ok());
  state_->Publish(&stack_->served());
  state_->SetState(LifeState::kReady);
}

ServiceTest::~ServiceTest() {
  for (const engine::RequestInfo& request : served().engine->ListRequests()) {
    served().engine->Cancel(request.caller(), request.id, engine::CancelSource::kShutdown);
  }
  listener_->Shutdown(MonotonicNow() + absl::Seconds(5));
}

v1::GenerateRequest ServiceTest::Request(const std::string& text, int max_tokens) {
  v1::GenerateRequest request;
  request.set_text(text);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_text(true);
  request.mutable_output()->set_token_ids(true);
  return request;
}

Answer ServiceTest::Generate(const v1::GenerateRequest& request,
                             grpc::ClientContext* context) const {
  Answer answer;
  const auto reader = generation_->Generate(context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) answer.messages.push_back(message);
  answer.status = reader->Finish();
  answer.initial = Copy(context->GetServerInitialMetadata());
  answer.trailers = Copy(context->GetServerTrailingMetadata());
  return answer;
}

Answer ServiceTest::Generate(const v1::GenerateRequest& request) const {
  grpc::ClientContext context;
  return Generate(request, &context);
}

v1::Stats ServiceTest::Stats() const {
  grpc::ClientContext context;
  v1::GetStatsResponse response;
  EXPECT_TRUE(admin_->GetStats(&context, {}, &response).ok());
  return response.stats();
}

int ServiceTest::UsedPagesWhenIdle() const {
  EXPECT_TRUE(served().engine->WaitIdle(MonotonicNow() + absl::Seconds(20)));
  EXPECT_TRUE(served().engine->CheckIntegrity().ok());
  return Stats().used_kv_page_count();
}

bool ServiceTest::MetricBecomes(const std::string& line_start, double value) const {
  return testing::WaitUntil([&] { return Metric(line_start) == value; });
}

double ServiceTest::Metric(const std::string& line_start) const {
  const absl::StatusOr<std::string> text = registry_.Expose();
  EXPECT_TRUE(text.ok());
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    double value = 0;
    if (absl::StartsWith(line, line_start) &&
        absl::SimpleAtod(line.substr(line.rfind(' ') + 1), &value)) {
      return value;
    }
  }
  return 0;
}

}  // namespace quire::server

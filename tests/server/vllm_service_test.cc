// vllm.grpc.engine.VllmEngine over a real listener, compared with quire.v1 on the same engine.

#include "server/vllm/vllm_service.h"

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "tests/server/service_fixture.h"
#include "tests/server/test_channel.h"
#include "tests/testing/paths.h"
#include "tests/testing/waiting.h"
#include "vllm/grpc/engine/vllm_engine.grpc.pb.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;
namespace wire = ::vllm::grpc::engine;

constexpr const char* kPrompt = "Once upon a time";

struct Reply {
  std::vector<wire::GenerateResponse> messages;
  grpc::Status status;

  std::vector<std::int32_t> Ids(std::uint32_t index = 0) const {
    std::vector<std::int32_t> ids;
    const auto append = [&](const auto& list) { ids.insert(ids.end(), list.begin(), list.end()); };
    for (const auto& message : messages) {
      if (message.has_chunk() && message.chunk().index() == index) {
        append(message.chunk().token_ids());
      }
      if (message.has_complete() && message.complete().index() == index) {
        append(message.complete().output_ids());
      }
    }
    return ids;
  }

  const wire::GenerateComplete& complete(std::uint32_t index = 0) const {
    for (const auto& message : messages) {
      if (message.has_complete() && message.complete().index() == index) return message.complete();
    }
    return wire::GenerateComplete::default_instance();
  }

  bool Says(const std::string& text) const {
    return absl::StrContains(status.error_details(), text);
  }
};

class VllmServiceTest : public ServiceTest {
 protected:
  explicit VllmServiceTest(std::vector<std::string> sets = {}) : ServiceTest(std::move(sets)) {
    const HandlerContext context{.state = state_.get(),
                                 .probe = probe_.get(),
                                 .clock = &clock_,
                                 .authenticator = authenticator_.get(),
                                 .config = config_.get(),
                                 .peers = &peers_};
    service_ = MakeVllmService(context, {.version = "test",
                                         .start_time = clock_.Now() - absl::Seconds(9),
                                         .model_path = "embedded",
                                         .has_own_files = false});
    auto listener = GrpcListener::Start({.addresses = {"127.0.0.1:0"},
                                         .transport = config_->start_options().transport,
                                         .peers = &peers_,
                                         .registry = &registry_},
                                        {service_.get()});
    EXPECT_TRUE(listener.ok()) << listener.status();
    vllm_listener_ = *std::move(listener);
    stub_ = wire::VllmEngine::NewStub(Connect());
  }

  ~VllmServiceTest() override {
    for (const engine::RequestInfo& request : served().engine->ListRequests()) {
      served().engine->Cancel(request.caller(), request.id, engine::CancelSource::kShutdown);
    }
    vllm_listener_->Shutdown(MonotonicNow() + absl::Seconds(5));
  }

  // Returns a channel with its own connection.
  std::shared_ptr<grpc::Channel> Connect() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return ConnectTo(vllm_listener_->addresses()[0], arguments);
  }

  static wire::GenerateRequest Greedy(int max_tokens, bool stream) {
    wire::GenerateRequest request;
    request.set_text(kPrompt);
    request.set_stream(stream);
    request.mutable_sampling_params()->set_temperature(0);
    request.mutable_sampling_params()->set_max_tokens(static_cast<std::uint32_t>(max_tokens));
    request.mutable_sampling_params()->set_ignore_eos(true);
    return request;
  }

  Reply Ask(const wire::GenerateRequest& request) const {
    grpc::ClientContext context;
    Reply reply;
    const auto reader = stub_->Generate(&context, request);
    wire::GenerateResponse message;
    while (reader->Read(&message)) reply.messages.push_back(message);
    reply.status = reader->Finish();
    return reply;
  }

  // The answers that a gateway gets while `request` runs. A fast machine may end the request before
  // the questions arrive, so it then runs once more.
  struct GatewayAnswers {
    wire::GetLoadsResponse loads;
    wire::GetServerInfoResponse server;
  };
  GatewayAnswers AskWhile(const wire::GenerateRequest& request) const {
    GatewayAnswers told;
    const auto asked_in_time = [&] {
      grpc::ClientContext context, loads_context, server_context;
      const auto reader = stub_->Generate(&context, request);
      wire::GenerateResponse message;
      if (!reader->Read(&message)) return false;
      const bool answered = stub_->GetLoads(&loads_context, {}, &told.loads).ok() &&
                            stub_->GetServerInfo(&server_context, {}, &told.server).ok();
      context.TryCancel();
      while (reader->Read(&message)) {
      }
      reader->Finish();
      return answered && told.loads.loads_size() == 1 && told.server.active_requests() == 1 &&
             told.loads.loads(0).num_total_reqs() == 1;
    };
    EXPECT_TRUE(testing::WaitUntil(asked_in_time));
    return told;
  }

  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<GrpcListener> vllm_listener_;
  std::unique_ptr<wire::VllmEngine::Stub> stub_;
};

TEST_F(VllmServiceTest, TokensEqualQuireV1) {
  const Answer ours = Generate(Request(kPrompt, 40));
  ASSERT_TRUE(ours.status.ok());
  grpc::ClientContext context;
  v1::TokenizeRequest text;
  text.set_text(kPrompt);
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(generation_->Tokenize(&context, text, &tokens).ok());
  for (const bool stream : {false, true}) {
    for (const bool tokenized : {false, true}) {
      wire::GenerateRequest request = Greedy(40, stream);
      if (tokenized) {
        auto* ids = request.mutable_tokenized()->mutable_input_ids();
        ids->Assign(tokens.token_ids().begin(), tokens.token_ids().end());
      }
      const Reply reply = Ask(request);
      ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
      EXPECT_EQ(reply.Ids(), ours.Ids());
      EXPECT_EQ(reply.complete().finish_reason(), "length");
      EXPECT_EQ(reply.complete().completion_tokens(), 40u);
      EXPECT_EQ(reply.complete().prompt_tokens(), 5u);
      if (!stream) {
        EXPECT_EQ(reply.messages.size(), 1u);
        continue;
      }
      std::uint32_t counted = 0;
      for (const auto& message : reply.messages) {
        counted += message.chunk().completion_tokens();
        EXPECT_EQ(message.chunk().completion_tokens(),
                  static_cast<std::uint32_t>(message.chunk().token_ids_size()));
      }
      EXPECT_EQ(counted, 40u);
      EXPECT_TRUE(reply.messages.back().has_complete());
      EXPECT_TRUE(reply.complete().output_ids().empty());
    }
  }
}

TEST_F(VllmServiceTest, ChoicesSeedsAndParametersReachTheEngine) {
  v1::GenerateRequest ours = Request(kPrompt, 24);
  ours.mutable_sampling()->set_temperature(0.8F);
  ours.mutable_sampling()->set_top_p(0.9F);
  ours.mutable_sampling()->set_top_k(50);
  ours.mutable_sampling()->set_repetition_penalty(1.2F);
  ours.mutable_sampling()->set_seed(11);
  ours.mutable_sampling()->set_choice_count(3);
  (*ours.mutable_sampling()->mutable_logit_bias())[300] = 5;
  wire::GenerateRequest theirs = Greedy(24, /*stream=*/true);
  wire::SamplingParams* params = theirs.mutable_sampling_params();
  params->set_temperature(0.8F);
  params->set_top_p(0.9F);
  params->set_top_k(50);
  params->set_repetition_penalty(1.2F);
  params->set_seed(11);
  params->set_n(3);
  (*params->mutable_logit_bias())[300] = 5;
  const Answer answer = Generate(ours);
  const Reply reply = Ask(theirs);
  ASSERT_TRUE(answer.status.ok() && reply.status.ok()) << reply.status.error_message();
  for (int index = 0; index < 3; ++index) {
    EXPECT_EQ(reply.Ids(static_cast<std::uint32_t>(index)), answer.Ids(index));
    EXPECT_EQ(reply.complete(static_cast<std::uint32_t>(index)).finish_reason(), "length");
  }
  EXPECT_NE(reply.Ids(0), reply.Ids(1));
}

TEST_F(VllmServiceTest, StopsEqualQuireV1) {
  const std::vector<std::int32_t> ids = Generate(Request(kPrompt, 30)).Ids();
  wire::GenerateRequest request = Greedy(30, /*stream=*/true);
  request.mutable_sampling_params()->add_stop_token_ids(static_cast<std::uint32_t>(ids[6]));
  const Reply by_id = Ask(request);
  EXPECT_EQ(by_id.complete().finish_reason(), "stop");
  EXPECT_EQ(by_id.complete().matched_token_id(), static_cast<std::uint32_t>(ids[6]));
  EXPECT_EQ(by_id.Ids().back(), ids[6]);
  EXPECT_LE(by_id.Ids().size(), 7u);

  v1::GenerateRequest ours = Request(kPrompt, 30);
  ours.mutable_stopping()->add_stop(" was");
  const Answer answer = Generate(ours);
  ASSERT_EQ(answer.completed()->finish_reason(), v1::FINISH_REASON_STOP_TEXT);
  for (const bool stream : {false, true}) {
    request = Greedy(30, stream);
    request.mutable_sampling_params()->add_stop(" was");
    const Reply by_text = Ask(request);
    EXPECT_EQ(by_text.complete().finish_reason(), "stop");
    EXPECT_EQ(by_text.complete().matched_stop_str(), " was");
    EXPECT_EQ(by_text.Ids(), answer.Ids());
  }
}

TEST_F(VllmServiceTest, LogprobsEqualQuireV1) {
  v1::GenerateRequest ours = Request(kPrompt, 6);
  ours.mutable_output()->set_logprobs(3);
  ours.mutable_output()->set_prompt_logprobs(2);
  ours.mutable_output()->set_echo_prompt(true);
  const Answer answer = Generate(ours);
  const auto& expected = answer.completed()->logprobs();
  const auto& prompt_ids = answer.started()->prompt_token_ids();
  ASSERT_EQ(expected.size(), 6);
  ASSERT_TRUE(answer.messages[1].has_prompt_logprobs());
  const auto& expected_prompt = answer.messages[1].prompt_logprobs().tokens();

  wire::GenerateRequest request = Greedy(6, /*stream=*/false);
  request.mutable_sampling_params()->set_logprobs(3);
  request.mutable_sampling_params()->set_prompt_logprobs(2);
  const Reply reply = Ask(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  const wire::OutputLogProbs& output = reply.complete().output_logprobs();
  ASSERT_EQ(output.token_logprobs_size(), 6);
  ASSERT_EQ(output.top_logprobs_size(), 6);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(output.token_logprobs(i), expected[i].logprob());
    EXPECT_EQ(output.token_ids(i), static_cast<std::uint32_t>(expected[i].token_id()));
    ASSERT_EQ(output.top_logprobs(i).values_size(), 3);
    EXPECT_EQ(output.top_logprobs(i).values(2), expected[i].top(2).logprob());
  }
  const wire::InputLogProbs& input = reply.complete().input_logprobs();
  ASSERT_EQ(input.token_ids_size(), prompt_ids.size());
  EXPECT_FALSE(input.token_logprobs(0).has_value());
  for (int i = 0; i < prompt_ids.size(); ++i) {
    EXPECT_EQ(input.token_ids(i), static_cast<std::uint32_t>(prompt_ids[i]));
    if (i == 0) continue;
    EXPECT_EQ(input.token_logprobs(i).value(), expected_prompt[i - 1].logprob());
  }
}

TEST_F(VllmServiceTest, AbortCancelsAStreamOfAnotherConnection) {
  wire::GenerateRequest request = Greedy(480, /*stream=*/true);
  request.set_request_id("long");
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, request);
  wire::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  const auto other = wire::VllmEngine::NewStub(Connect());
  const auto abort = [&](const std::vector<std::string>& ids) {
    grpc::ClientContext abort_context;
    wire::AbortRequest aborted;
    for (const std::string& id : ids) aborted.add_request_ids(id);
    wire::AbortResponse response;
    return other->Abort(&abort_context, aborted, &response);
  };
  // A bad id rejects the whole call and cancels no request.
  const grpc::Status bad = abort({"long", "not an id"});
  EXPECT_EQ(bad.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(bad.error_details(), "request_ids[1]"));
  EXPECT_EQ(served().engine->ListRequests().size(), 1u);
  EXPECT_EQ(abort(std::vector<std::string>(1025, "x")).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(abort({"unknown", "long"}).ok());
  bool completed = false;
  while (reader->Read(&message)) completed |= message.has_complete();
  const grpc::Status status = reader->Finish();
  EXPECT_FALSE(completed);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(absl::StrContains(status.error_details(), "CANCELLED_BY_CALLER"));
  EXPECT_EQ(context.GetServerTrailingMetadata().count("quire-usage-bin"), 1u);
  EXPECT_EQ(UsedPagesWhenIdle(), 0);
  EXPECT_TRUE(abort({"long"}).ok());
}

TEST_F(VllmServiceTest, DisconnectCancelsTheRequest) {
  {
    grpc::ClientContext context;
    const auto reader = stub_->Generate(&context, Greedy(480, /*stream=*/true));
    wire::GenerateResponse message;
    ASSERT_TRUE(reader->Read(&message));
    context.TryCancel();
    reader->Finish();
  }
  EXPECT_EQ(UsedPagesWhenIdle(), 0);
  EXPECT_TRUE(MetricBecomes("quire_grpc_streams_active", 0));
}

TEST_F(VllmServiceTest, ErrorsNameTheFieldsOfTheProtocol) {
  const auto refused = [&](const wire::GenerateRequest& request, const std::string& reason,
                           const std::string& field) {
    const Reply reply = Ask(request);
    EXPECT_EQ(reply.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
    EXPECT_TRUE(reply.Says(reason)) << reply.status.error_message();
    EXPECT_TRUE(reply.Says(field)) << reply.status.error_message();
  };
  wire::GenerateRequest request = Greedy(4, false);
  request.mutable_sampling_params()->set_top_p(2);
  refused(request, "BAD_SAMPLING_PARAM", "sampling_params.top_p");
  request = Greedy(4, false);
  request.mutable_sampling_params()->set_n(500);
  refused(request, "BAD_SAMPLING_PARAM", "sampling_params.n");
  request = Greedy(4, false);
  request.mutable_sampling_params()->set_logprobs(-1);
  refused(request, "BAD_PARAMETER", "sampling_params.logprobs");
  request = Greedy(4, false);
  request.mutable_sampling_params()->set_regex("a*");  // conflicts with ignore_eos
  refused(request, "BAD_PARAMETER", "sampling_params.ignore_eos");
  request = Greedy(4, false);
  request.mutable_sampling_params()->set_ignore_eos(false);
  request.mutable_sampling_params()->set_regex("(a");
  refused(request, "BAD_CONSTRAINT", "compile");
  request = Greedy(4, false);
  request.mutable_tokenized()->add_input_ids(1U << 30);
  refused(request, "BAD_TOKEN_ID", "1073741824");
  request = Greedy(4, false);
  request.set_request_id("with spaces");
  refused(request, "BAD_PARAMETER", "request_id");
  request = Greedy(4, false);
  request.clear_input();
  refused(request, "PROMPT_MISSING", "input");
}

TEST_F(VllmServiceTest, BadUtf8IsReportedWithItsPosition) {
  // GenerateRequest{3: text "a\xFF"}.
  const grpc::Slice slice(
      std::string("\x1A\x02"
                  "a\xFF"));
  grpc::ByteBuffer request(&slice, 1);
  grpc::GenericStub stub(Connect());
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  auto call =
      stub.PrepareUnaryCall(&context, "/vllm.grpc.engine.VllmEngine/Generate", request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(status.error_details(), "BAD_UTF8"));
  EXPECT_THAT(status.error_message(), HasSubstr("text is not valid UTF-8 at byte 1"));
}

TEST_F(VllmServiceTest, DeadlinesAndDrainsEqualQuireV1) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(1));
  wire::GenerateRequest request = Greedy(480, /*stream=*/true);
  const auto reader = stub_->Generate(&context, request);
  wire::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(UsedPagesWhenIdle(), 0);

  ASSERT_TRUE(drain_->Begin(absl::ZeroDuration(), absl::Seconds(5), /*exit_after=*/false).ok());
  const Reply refused = Ask(Greedy(4, false));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(refused.Says("SERVER_DRAINING"));
  grpc::ClientContext health_context;
  wire::HealthCheckResponse health;
  ASSERT_TRUE(stub_->HealthCheck(&health_context, {}, &health).ok());
  EXPECT_FALSE(health.healthy());
  EXPECT_EQ(health.message(), "draining");
  grpc::ClientContext info_context;
  wire::GetServerInfoResponse info;
  ASSERT_TRUE(stub_->GetServerInfo(&info_context, {}, &info).ok());
  EXPECT_TRUE(info.is_paused());
}

TEST_F(VllmServiceTest, HealthModelAndServer) {
  grpc::ClientContext contexts[4];
  wire::HealthCheckResponse health;
  ASSERT_TRUE(stub_->HealthCheck(&contexts[0], {}, &health).ok());
  EXPECT_TRUE(health.healthy());

  v1::GetModelResponse model;
  ASSERT_TRUE(generation_->GetModel(&contexts[1], {}, &model).ok());
  wire::GetModelInfoResponse info;
  ASSERT_TRUE(stub_->GetModelInfo(&contexts[2], {}, &info).ok());
  EXPECT_EQ(info.served_model_name(), model.model().id());
  EXPECT_EQ(info.max_context_length(),
            static_cast<std::uint32_t>(model.model().max_context_tokens()));
  EXPECT_EQ(info.max_req_input_len(), model.model().max_context_tokens() - 1);
  EXPECT_EQ(info.vocab_size(), static_cast<std::uint32_t>(model.model().vocab_size()));
  EXPECT_EQ(info.eos_token_ids(0), model.model().eos_token_ids(0));
  EXPECT_EQ(info.bos_token_id(), model.model().bos_token_id());
  EXPECT_EQ(info.architectures(0), model.model().architecture());
  EXPECT_TRUE(info.is_generation());
  EXPECT_FALSE(info.supports_vision());
  EXPECT_EQ(info.model_path(), "embedded");
  EXPECT_EQ(info.tokenizer_path(), "");
  EXPECT_THAT(info.default_sampling_params_json(), HasSubstr("\"temperature\":"));

  wire::GetServerInfoResponse server;
  ASSERT_TRUE(stub_->GetServerInfo(&contexts[3], {}, &server).ok());
  EXPECT_EQ(server.server_type(), "quire");
  EXPECT_EQ(server.data_parallel_size(), 1);
  EXPECT_EQ(server.max_num_seqs(), 16);
  EXPECT_GE(server.uptime_seconds(), 9);
  EXPECT_EQ(server.active_requests(), 0u);
  EXPECT_FALSE(server.is_paused());
}

// The longest prompt that GetModelInfo reports is accepted. One more token is rejected.
TEST_F(VllmServiceTest, AcceptsTheLongestReportedPrompt) {
  grpc::ClientContext context;
  wire::GetModelInfoResponse info;
  ASSERT_TRUE(stub_->GetModelInfo(&context, {}, &info).ok());
  wire::GenerateRequest request = Greedy(1, false);
  auto* ids = request.mutable_tokenized()->mutable_input_ids();
  ids->Resize(info.max_req_input_len(), 5);
  const Reply fits = Ask(request);
  EXPECT_TRUE(fits.status.ok()) << fits.status.error_message();
  ids->Add(5);
  EXPECT_TRUE(Ask(request).Says("PROMPT_TOO_LONG"));
}

class VllmTwoGroupsTest : public VllmServiceTest {
 protected:
  VllmTwoGroupsTest()
      : VllmServiceTest({"model.path=" + paths::TestData("models/gemma2-bf16"), "model.id=story",
                         "kv_cache.capacity_bytes=2MiB"}) {}
};

// A token occupies one slot in a page of each of two layer groups.
TEST_F(VllmTwoGroupsTest, ReportsTokensAndNotSlots) {
  const std::int32_t pages = Stats().total_kv_page_count();
  ASSERT_GT(pages, 8);
  wire::GenerateRequest request = Greedy(400, /*stream=*/true);
  request.clear_text();
  for (int i = 0; i < 17; ++i) request.mutable_tokenized()->add_input_ids(5 + i);
  const wire::GetLoadsResponse loads = AskWhile(request).loads;
  ASSERT_EQ(loads.loads_size(), 1);
  EXPECT_EQ(loads.loads(0).max_total_num_tokens(), pages * 16 / 2);
  EXPECT_GE(loads.loads(0).num_used_tokens(), 2 * 16);   // 17 tokens and more
  EXPECT_LE(loads.loads(0).num_used_tokens(), 27 * 16);  // 417 tokens at most
}

TEST_F(VllmServiceTest, LoadsEqualThoseOfTheEngine) {
  wire::GetLoadsResponse loads = AskWhile(Greedy(480, /*stream=*/true)).loads;
  ASSERT_EQ(loads.loads_size(), 1);
  const wire::SchedulerLoad& load = loads.loads(0);
  EXPECT_EQ(load.num_running_reqs(), 1);
  EXPECT_EQ(load.num_waiting_reqs(), 0);
  EXPECT_EQ(load.num_total_reqs(), 1);
  EXPECT_EQ(load.max_total_num_tokens(), 16 * Stats().total_kv_page_count());
  EXPECT_GT(load.num_used_tokens(), 0);
  EXPECT_DOUBLE_EQ(load.token_usage(),
                   static_cast<double>(load.num_used_tokens()) / load.max_total_num_tokens());
  EXPECT_EQ(load.max_running_requests(), 16);
  EXPECT_EQ(loads.version(), "test");
  absl::Time sampled;
  EXPECT_TRUE(absl::ParseTime(absl::RFC3339_full, loads.timestamp(), &sampled, nullptr));
  EXPECT_LT(absl::AbsDuration(clock_.WallNow() - sampled), absl::Seconds(20));
  grpc::ClientContext bad_context;
  wire::GetLoadsRequest other_rank;
  other_rank.set_dp_rank(1);
  EXPECT_EQ(stub_->GetLoads(&bad_context, other_rank, &loads).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(VllmServiceTest, UnsupportedMethodsReportIt) {
  const auto check = [](const grpc::Status& status, const std::string& name) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED) << name;
    EXPECT_TRUE(absl::StrContains(status.error_details(), "FEATURE_UNSUPPORTED")) << name;
    EXPECT_THAT(status.error_message(), HasSubstr(name));
  };
  grpc::ClientContext contexts[6];
  ::smg::grpc::common::ProfileResponse profile;
  check(stub_->StartProfile(&contexts[4], {}, &profile), "VllmEngine.StartProfile");
  check(stub_->StopProfile(&contexts[5], {}, &profile), "VllmEngine.StopProfile");
  wire::EmbedResponse embedded;
  check(stub_->Embed(&contexts[0], {}, &embedded), "VllmEngine.Embed");
  ::smg::grpc::common::FlushCacheResponse flushed;
  check(stub_->FlushCache(&contexts[1], {}, &flushed), "AdminService.FlushCache");
  ::smg::grpc::common::GetTokenizerChunk chunk;
  const auto tokenizer = stub_->GetTokenizer(&contexts[2], {});
  EXPECT_FALSE(tokenizer->Read(&chunk));
  check(tokenizer->Finish(), "VllmEngine.GetTokenizer");
  ::smg::grpc::common::KvEventBatch batch;
  const auto events = stub_->SubscribeKvEvents(&contexts[3], {});
  EXPECT_FALSE(events->Read(&batch));
  check(events->Finish(), "VllmEngine.SubscribeKvEvents");
}

TEST_F(VllmServiceTest, CallsAreCountedByMethod) {
  ASSERT_TRUE(Ask(Greedy(3, true)).status.ok());
  wire::GenerateRequest bad = Greedy(3, true);
  bad.clear_input();
  EXPECT_FALSE(Ask(bad).status.ok());
  const auto counter = [](absl::string_view code, absl::string_view method) {
    return absl::StrCat("quire_rpcs_total{code=\"", code, "\",method=\"", method, "\"}");
  };
  EXPECT_TRUE(MetricBecomes(counter("OK", "VllmEngine.Generate"), 1));
  EXPECT_TRUE(MetricBecomes(counter("INVALID_ARGUMENT", "VllmEngine.Generate"), 1));
  EXPECT_TRUE(MetricBecomes("quire_requests_rejected_total{reason=\"PROMPT_MISSING\"}", 1));
}

}  // namespace
}  // namespace quire::server

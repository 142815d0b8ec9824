// S12 of the stream contract, and the other calls of the service.

#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "tests/server/service_fixture.h"
#include "tests/server/test_channel.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/waiting.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;

class BatchTest : public ServiceTest {};

// S12: every item of a batch equals its own call, and half-close lets the items finish.
TEST_F(BatchTest, S12ItemsAreIndependent) {
  grpc::ClientContext context;
  const auto stream = generation_->BatchGenerate(&context);
  std::map<std::string, v1::GenerateRequest> requests;
  for (int i = 0; i < 12; ++i) {
    const std::string id = absl::StrCat("item-", i);
    v1::GenerateRequest request = Request(absl::StrCat("Story number ", i), 10 + i);
    request.mutable_output()->set_stream(i % 2 == 0);
    requests[id] = request;
    v1::BatchGenerateRequest command;
    *command.mutable_generate() = request;
    command.mutable_generate()->set_request_id(id);
    ASSERT_TRUE(stream->Write(command));
  }
  v1::BatchGenerateRequest bad;
  *bad.mutable_generate() = Request("x", 1);
  bad.mutable_generate()->set_request_id("bad");
  bad.mutable_generate()->mutable_sampling()->set_top_p(7);
  ASSERT_TRUE(stream->Write(bad));
  bad.mutable_generate()->set_request_id("");
  ASSERT_TRUE(stream->Write(bad));
  stream->WritesDone();

  std::map<std::string, Answer> answers;
  std::map<std::string, std::string> errors;
  std::set<std::string> done;
  v1::BatchGenerateResponse response;
  while (stream->Read(&response)) {
    const std::string& id = response.request_id();
    EXPECT_FALSE(done.contains(id) || errors.contains(id)) << "something follows the end of " << id;
    if (response.has_response()) {
      EXPECT_EQ(response.response().request_id(), id);
      answers[id].messages.push_back(response.response());
    } else if (response.has_done()) {
      done.insert(id);
    } else {
      errors[id] = response.error().reason();
      EXPECT_EQ(response.error().code(), 3);
    }
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(errors, (std::map<std::string, std::string>{{"bad", "BAD_SAMPLING_PARAM"},
                                                        {"", "BAD_PARAMETER"}}));
  ASSERT_EQ(done.size(), requests.size());
  for (const auto& [id, request] : requests) {
    EXPECT_EQ(answers[id].Ids(), Generate(request).Ids()) << id;
    EXPECT_NE(answers[id].started(), nullptr);
  }
  EXPECT_EQ(UsedPagesWhenIdle(), 0);
}

TEST_F(BatchTest, ItemsCanBeCancelledAndIdsAreUnique) {
  grpc::ClientContext context;
  const auto stream = generation_->BatchGenerate(&context);
  v1::BatchGenerateRequest command;
  *command.mutable_generate() = Request("Once", 480);
  command.mutable_generate()->set_request_id("long");
  command.mutable_generate()->mutable_output()->set_stream(true);
  ASSERT_TRUE(stream->Write(command));
  v1::BatchGenerateResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ASSERT_TRUE(stream->Write(command));  // the same id again
  v1::BatchGenerateRequest cancel;
  bool refused = false;
  while (!refused && stream->Read(&response)) {
    refused = response.has_error() && response.error().reason() == "REQUEST_ID_IN_USE";
  }
  EXPECT_TRUE(refused);
  cancel.set_cancel_request_id("long");
  ASSERT_TRUE(stream->Write(cancel));
  stream->WritesDone();
  std::string reason;
  int completion_tokens = 0;
  while (stream->Read(&response)) {
    if (!response.has_error()) continue;
    reason = response.error().reason();
    completion_tokens = response.error().usage().completion_tokens();
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_THAT(reason, HasSubstr("CANCELLED"));
  EXPECT_GT(completion_tokens, 0);
  EXPECT_EQ(UsedPagesWhenIdle(), 0);
}

TEST_F(BatchTest, ClosingTheStreamCancelsAllItems) {
  {
    grpc::ClientContext context;
    const auto stream = generation_->BatchGenerate(&context);
    for (int i = 0; i < 4; ++i) {
      v1::BatchGenerateRequest command;
      *command.mutable_generate() = Request("Once", 480);
      command.mutable_generate()->set_request_id(absl::StrCat("long-", i));
      command.mutable_generate()->mutable_output()->set_stream(true);
      ASSERT_TRUE(stream->Write(command));
    }
    v1::BatchGenerateResponse response;
    ASSERT_TRUE(stream->Read(&response));
    context.TryCancel();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(UsedPagesWhenIdle(), 0);
}

class TokenBatchTest : protected testing::TempDir, public ServiceTest {
 protected:
  // SHA-256 of "one" and of "two".
  static constexpr char kOne[] =
      "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed one generate\n";
  static constexpr char kTwo[] =
      "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3 two generate\n";

  TokenBatchTest()
      : ServiceTest(
            {"auth.mode=token", "auth.tokens_file=" + Write("tokens", absl::StrCat(kOne, kTwo))}) {}

  absl::Status Reload(const AuthOptions& options) {
    auto rules = Authenticator::Read(options);
    if (rules.ok()) authenticator_->Apply(*rules);
    return rules.status();
  }

  struct Stream {
    explicit Stream(v1::GenerationService::Stub* stub, const std::string& token) {
      context.AddMetadata("authorization", "Bearer " + token);
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
      stream = stub->BatchGenerate(&context);
    }
    bool Send(const std::string& id, int max_tokens) {
      v1::BatchGenerateRequest command;
      *command.mutable_generate() = Request("Once", max_tokens);
      command.mutable_generate()->set_request_id(id);
      return stream->Write(command);
    }
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::BatchGenerateRequest, v1::BatchGenerateResponse>>
        stream;
  };
};

// The stream of a client that sends nothing also ends with its token. Another client's stream is
// not affected.
TEST_F(TokenBatchTest, RevokedTokenEndsItsStreams) {
  Stream idle(generation_.get(), "one"), busy(generation_.get(), "one");
  Stream other(generation_.get(), "two");
  v1::BatchGenerateResponse response;
  const AuthOptions options = config_->start_options().auth;
  ASSERT_TRUE(MetricBecomes("quire_grpc_streams_active", 3));
  ASSERT_TRUE(Reload(options).ok());
  // Each stream checks its token four times a second. Another reload ends no call.
  const auto all_live = [this] { return Metric("quire_grpc_streams_active") == 3; };
  EXPECT_TRUE(testing::Stays(all_live, absl::Milliseconds(600)));
  ASSERT_TRUE(other.Send("short", 2));
  ASSERT_TRUE(other.stream->Read(&response));
  // There are more items than run at once, so that some wait.
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(busy.Send(absl::StrCat("long-", i), 480));
  ASSERT_TRUE(testing::WaitUntil([this] { return served().engine->ListRequests().size() >= 20; }));
  Write("tokens", kTwo);
  ASSERT_TRUE(Reload(options).ok());
  EXPECT_FALSE(idle.stream->Read(&response));
  const grpc::Status ended = idle.stream->Finish();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(ended.error_details(), HasSubstr("TOKEN_INVALID"));
  std::vector<std::string> reasons;
  while (busy.stream->Read(&response)) {
    if (response.has_error()) reasons.push_back(response.error().reason());
  }
  EXPECT_GT(reasons.size(), 0u);
  EXPECT_THAT(reasons, ::testing::Each("TOKEN_INVALID"));
  EXPECT_EQ(busy.stream->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  ASSERT_TRUE(other.Send("again", 2));
  other.stream->WritesDone();
  std::set<std::string> done;
  while (other.stream->Read(&response)) {
    if (response.has_done()) done.insert(response.request_id());
  }
  EXPECT_TRUE(other.stream->Finish().ok());
  EXPECT_THAT(done, ::testing::ElementsAre("again", "short"));
  EXPECT_TRUE(
      MetricBecomes("quire_rpcs_total{code=\"UNAUTHENTICATED\",method=\"BatchGenerate\"}", 2));
}

// Runs a hook at the first call of Now().
class HookClock final : public Clock {
 public:
  explicit HookClock(std::function<void()> hook) : hook_(std::move(hook)) {}
  absl::Time Now() const override {
    std::call_once(once_, hook_);
    return MonotonicNow();
  }
  absl::Time WallNow() const override { return MachineClock().WallNow(); }

 private:
  const std::function<void()> hook_;
  mutable std::once_flag once_;
};

// The hook revokes the token between the check of an item's caller and the submission. The stream
// notices this before the item exists.
TEST_F(TokenBatchTest, ItemStartedDuringRevocationEnds) {
  const AuthOptions options = config_->start_options().auth;
  const HookClock clock([&] {
    Write("tokens", kTwo);
    EXPECT_TRUE(Reload(options).ok());
    // The stream checks its token four times a second. A check while an item starts does not end
    // the item.
    const auto is_live = [this] { return Metric("quire_grpc_streams_active") == 1; };
    EXPECT_TRUE(testing::Stays(is_live, absl::Milliseconds(800)));
  });
  const HandlerContext context{.state = state_.get(),
                               .probe = probe_.get(),
                               .clock = &clock,
                               .authenticator = authenticator_.get(),
                               .config = config_.get(),
                               .peers = &peers_};
  const auto service = MakeGenerationService(context, ServerDescription());
  const auto listener = GrpcListener::Start({.addresses = {"127.0.0.1:0"},
                                             .transport = config_->start_options().transport,
                                             .peers = &peers_,
                                             .registry = &registry_},
                                            {service.get()});
  ASSERT_TRUE(listener.ok()) << listener.status();
  const auto stub = v1::GenerationService::NewStub(ConnectTo((*listener)->addresses()[0]));
  Stream stream(stub.get(), "one");
  ASSERT_TRUE(stream.Send("item", 480));
  v1::BatchGenerateResponse response;
  std::string reason;
  while (stream.stream->Read(&response)) {
    EXPECT_EQ(response.request_id(), "item");
    if (response.has_error()) reason = response.error().reason();
  }
  EXPECT_EQ(reason, "TOKEN_INVALID");
  EXPECT_EQ(stream.stream->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(BatchTest, EmptyCommandEndsTheStream) {
  grpc::ClientContext context;
  const auto stream = generation_->BatchGenerate(&context);
  ASSERT_TRUE(stream->Write(v1::BatchGenerateRequest()));
  v1::BatchGenerateResponse response;
  EXPECT_FALSE(stream->Read(&response));
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_details(), HasSubstr("PROMPT_MISSING"));
}

TEST_F(BatchTest, TokenizeAndDetokenizeRoundTrip) {
  grpc::ClientContext context;
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  request.set_text("Once upon a time");
  request.set_with_pieces(true);
  ASSERT_TRUE(generation_->Tokenize(&context, request, &response).ok());
  ASSERT_EQ(response.pieces_size(), response.token_ids_size());
  EXPECT_EQ(response.pieces(0).start_byte(), -1);  // added by the tokenizer
  EXPECT_EQ(response.max_context_tokens(), 512);
  grpc::ClientContext back_context;
  v1::DetokenizeRequest back;
  v1::DetokenizeResponse text;
  *back.mutable_token_ids() = response.token_ids();
  back.set_skip_special_tokens(true);
  ASSERT_TRUE(generation_->Detokenize(&back_context, back, &text).ok());
  EXPECT_EQ(text.text(), "Once upon a time");
  EXPECT_EQ(text.raw(), "Once upon a time");
  grpc::ClientContext bad_context;
  back.add_token_ids(4096);
  const grpc::Status status = generation_->Detokenize(&bad_context, back, &text);
  EXPECT_THAT(status.error_details(), HasSubstr("BAD_TOKEN_ID"));
}

class InputBytesTest : protected testing::TempDir, public ServiceTest {
 protected:
  // The template prints none of its input, so only the input itself can be too large.
  InputBytesTest()
      : ServiceTest({"tokenizer.max_input_bytes=1KiB",
                     "chat.template_file=" + Write("template.jinja", "{{ messages | length }}")}) {}

  grpc::Status Render(const v1::ChatPrompt& chat) const {
    grpc::ClientContext context;
    v1::RenderChatRequest request;
    v1::RenderChatResponse response;
    *request.mutable_chat() = chat;
    return generation_->RenderChat(&context, request, &response);
  }
  grpc::Status Tokenize(const v1::TokenizeRequest& request) const {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    return generation_->Tokenize(&context, request, &response);
  }
};

TEST_F(InputBytesTest, BoundsRenderedAndTokenizedInput) {
  const auto with = [](std::size_t bytes, int field) {
    v1::ChatPrompt chat;
    v1::ChatMessage* const message = chat.add_messages();
    message->set_role("user");
    const std::string text(bytes, 'x');
    switch (field) {
      case 0:
        message->set_content(text);
        break;
      case 1:
        message->set_reasoning_content(text);
        break;
      case 2:
        message->add_tool_calls()->set_arguments_json("{\"a\": \"" + text + "\"}");
        break;
      case 3:
        chat.add_tools()->set_description(text);
        break;
      default:
        (*chat.mutable_template_vars()->mutable_fields())["v"].set_string_value(text);
    }
    if (field == 2) message->mutable_tool_calls(0)->set_name("f");
    if (field == 3) chat.mutable_tools(0)->set_name("f");
    return chat;
  };
  for (int field = 0; field < 5; ++field) {
    v1::TokenizeRequest request;
    *request.mutable_chat() = with(600, field);
    for (const grpc::Status& status : {Render(request.chat()), Tokenize(request)}) {
      if (field != 3) {
        EXPECT_TRUE(status.ok()) << field << status.error_message();
      } else {  // the template does not print tools
        EXPECT_THAT(status.error_details(), HasSubstr("CHAT_TEMPLATE_MISSING"));
      }
    }
    *request.mutable_chat() = with(1100, field);
    for (const grpc::Status& status : {Render(request.chat()), Tokenize(request)}) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << field;
      EXPECT_THAT(status.error_details(), HasSubstr("INPUT_TOO_LARGE")) << field;
    }
  }
  v1::TokenizeRequest plain;
  plain.set_text(std::string(1024, 'x'));
  EXPECT_TRUE(Tokenize(plain).ok());
  plain.set_text(std::string(1025, 'x'));
  EXPECT_THAT(Tokenize(plain).error_details(), HasSubstr("INPUT_TOO_LARGE"));
}

TEST_F(BatchTest, ListRequestsPagesThroughLiveOnes) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>>> readers;
  for (int i = 0; i < 5; ++i) {
    v1::GenerateRequest request = Request("Once", 480);
    request.set_request_id(absl::StrCat("live-", i));
    request.mutable_output()->set_stream(true);
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(generation_->Generate(contexts.back().get(), request));
    v1::GenerateResponse started;
    ASSERT_TRUE(readers.back()->Read(&started));
  }
  std::vector<std::string> ids;
  v1::ListRequestsRequest request;
  request.set_page_size(2);
  for (int page = 0; page < 3; ++page) {
    grpc::ClientContext context;
    v1::ListRequestsResponse response;
    ASSERT_TRUE(admin_->ListRequests(&context, request, &response).ok());
    for (const auto& info : response.requests()) ids.push_back(info.request_id());
    request.set_page_token(response.next_page_token());
  }
  EXPECT_EQ(request.page_token(), "");
  EXPECT_THAT(ids, ::testing::ElementsAre("live-0", "live-1", "live-2", "live-3", "live-4"));
  for (const auto& context : contexts) context->TryCancel();
  for (const auto& reader : readers) reader->Finish();
  EXPECT_EQ(UsedPagesWhenIdle(), 0);
}

TEST_F(BatchTest, DrainRejectsAndResumeAdmits) {
  grpc::ClientContext drain_context;
  v1::DrainRequest drain;
  v1::DrainResponse drained;
  drain.set_wait(true);
  drain.mutable_pre_drain_delay();  // zero
  ASSERT_TRUE(admin_->Drain(&drain_context, drain, &drained).ok());
  EXPECT_TRUE(drained.drained());
  const Answer refused = Generate(Request("Once", 1));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(refused.HasReason("SERVER_DRAINING"));
  grpc::ClientContext resume_context;
  v1::ResumeResponse resumed;
  ASSERT_TRUE(admin_->Resume(&resume_context, {}, &resumed).ok());
  EXPECT_EQ(resumed.state(), v1::SERVER_STATE_READY);
  EXPECT_TRUE(Generate(Request("Once", 1)).status.ok());
}

TEST_F(BatchTest, DrainTimeoutEndsRemainingRequests) {
  v1::GenerateRequest request = Request("Once", 480);
  request.mutable_output()->set_stream(true);
  request.mutable_sampling()->set_choice_count(4);
  grpc::ClientContext context;
  const auto reader = generation_->Generate(&context, request);
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  ASSERT_TRUE(drain_->Begin(absl::ZeroDuration(), absl::ZeroDuration(), /*exit_after=*/false).ok());
  drain_->Tick();
  while (reader->Read(&message)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_details(), HasSubstr("SERVER_SHUTDOWN"));
  EXPECT_TRUE(drain_->WaitDrained());
  state_->SetExiting();
  grpc::ClientContext resume_context;
  v1::ResumeResponse resumed;
  const grpc::Status resume = admin_->Resume(&resume_context, {}, &resumed);
  EXPECT_EQ(resume.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(resume.error_details(), HasSubstr("SHUTTING_DOWN"));
}

TEST_F(BatchTest, ReportsModelLoadingBeforeTheModelIsReady) {
  state_->Publish(nullptr);
  const Answer answer = Generate(Request("Once", 1));
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(answer.HasReason("MODEL_LOADING"));
  state_->Publish(&served());
}

}  // namespace
}  // namespace quire::server

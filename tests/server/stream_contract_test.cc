// Tests each rule of the stream contract (docs/api.md, Stream contract) on the embedded model with
// greedy decoding.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>

#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/utf8.h"
#include "tests/server/service_fixture.h"
#include "tests/server/test_channel.h"

namespace quire::server {
namespace {

class StreamContractTest : public ServiceTest {};

constexpr const char* kPrompt = "Once upon a time";

v1::GenerateRequest Streaming(v1::GenerateRequest request) {
  request.mutable_output()->set_stream(true);
  return request;
}

// S1: started, prompt log-probabilities, deltas, one completed per index, OK.
TEST_F(StreamContractTest, S1EventsComeInOrder) {
  v1::GenerateRequest request = Streaming(Request(kPrompt, 12));
  request.mutable_output()->set_prompt_logprobs(2);
  request.mutable_sampling()->set_choice_count(3);
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  int stage = 0;  // 0 nothing, 1 started, 2 prompt log-probabilities, 3 output
  std::set<int> completed;
  for (const auto& message : answer.messages) {
    EXPECT_FALSE(message.request_id().empty());
    if (message.has_started()) {
      EXPECT_EQ(stage, 0);
      stage = 1;
    } else if (message.has_prompt_logprobs()) {
      EXPECT_TRUE(stage == 1 || stage == 2);
      stage = 2;
    } else if (message.has_delta()) {
      EXPECT_GE(stage, 2);
      EXPECT_FALSE(completed.contains(message.delta().index()));
      stage = 3;
    } else {
      ASSERT_TRUE(message.has_completed());
      EXPECT_TRUE(completed.insert(message.completed().index()).second);
    }
  }
  EXPECT_EQ(completed, (std::set<int>{0, 1, 2}));
  EXPECT_EQ(answer.initial.count("quire-request-id"), 1u);
  EXPECT_EQ(answer.started()->prompt_tokens(), 5);
}

// S2: a request that fails after started sends no completed, and its usage is in the trailers.
TEST_F(StreamContractTest, S2FailureEndsWithStatusAndUsage) {
  v1::GenerateRequest request = Streaming(Request(kPrompt, 480));
  request.set_request_id("fails");
  grpc::ClientContext context;
  const auto reader = generation_->Generate(&context, request);
  v1::GenerateResponse message;
  int deltas = 0;
  bool completed = false;
  while (reader->Read(&message)) {
    completed |= message.has_completed();
    if (message.has_delta() && ++deltas == 2) {
      grpc::ClientContext abort_context;
      v1::AbortRequestsRequest abort;
      v1::AbortRequestsResponse aborted;
      abort.add_request_ids("fails");
      abort.set_reason("test");
      ASSERT_TRUE(admin_->AbortRequests(&abort_context, abort, &aborted).ok());
    }
  }
  const grpc::Status status = reader->Finish();
  EXPECT_FALSE(completed);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(absl::StrContains(status.error_details(), "ABORTED_BY_ADMIN"));
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto usage_bytes = trailers.find("quire-usage-bin");
  ASSERT_NE(usage_bytes, trailers.end());
  v1::Usage usage;
  ASSERT_TRUE(usage.ParseFromArray(usage_bytes->second.data(),
                                   static_cast<int>(usage_bytes->second.size())));
  EXPECT_EQ(usage.prompt_tokens(), 5);
  EXPECT_GE(usage.completion_tokens(), 2);
  EXPECT_EQ(UsedPagesWhenIdle(), 0);
}

// S3: joined deltas equal the output of the same request without streaming.
TEST_F(StreamContractTest, S3DeltasJoinToTheWholeOutput) {
  for (const int interval : {1, 5}) {
    v1::GenerateRequest request = Request(kPrompt, 60);
    const Answer whole = Generate(request);
    request.mutable_output()->set_stream_interval_tokens(interval);
    const Answer parts = Generate(Streaming(request));
    ASSERT_TRUE(whole.status.ok() && parts.status.ok());
    EXPECT_EQ(whole.Text(), parts.Text());
    EXPECT_EQ(whole.Ids(), parts.Ids());
    EXPECT_EQ(whole.Ids().size(), 60u);
    EXPECT_FALSE(whole.Text().empty());
  }
}

// S4: every text is valid UTF-8, even if a token ends inside a character.
TEST_F(StreamContractTest, S4EveryTextIsUtf8) {
  v1::GenerateRequest request = Streaming(Request("Zo\xC3\xAB said \xE2\x80\x9C", 40));
  // The allowed tokens are single bytes of characters, so that a token is often half a character.
  request.mutable_sampling()->set_temperature(5);
  request.mutable_sampling()->set_seed(11);
  const Answer answer = Generate(request);
  ASSERT_TRUE(answer.status.ok());
  for (const auto& message : answer.messages) {
    EXPECT_FALSE(FirstInvalidUtf8(message.delta().text()).has_value());
  }
  EXPECT_EQ(answer.Ids().size(), 40u);
}

// S5: with streaming, completed has no output. Without streaming there is no delta.
TEST_F(StreamContractTest, S5OutputComesOnce) {
  const Answer streamed = Generate(Streaming(Request(kPrompt, 10)));
  EXPECT_GT(streamed.CountDeltas(), 0);
  EXPECT_TRUE(streamed.completed()->text().empty());
  EXPECT_TRUE(streamed.completed()->token_ids().empty());
  const Answer whole = Generate(Request(kPrompt, 10));
  EXPECT_EQ(whole.CountDeltas(), 0);
  EXPECT_EQ(whole.completed()->token_ids_size(), 10);
  EXPECT_EQ(whole.completed()->finish_reason(), v1::FINISH_REASON_LENGTH);
}

// S6: choices interleave and each keeps its order. Seeded choices equal themselves without
// streaming.
TEST_F(StreamContractTest, S6ChoicesKeepTheirOwnOrder) {
  v1::GenerateRequest request = Request(kPrompt, 30);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(7);
  request.mutable_sampling()->set_choice_count(4);
  const Answer whole = Generate(request);
  const Answer streamed = Generate(Streaming(request));
  std::set<std::string> texts;
  for (int index = 0; index < 4; ++index) {
    EXPECT_EQ(whole.Text(index), streamed.Text(index));
    texts.insert(whole.Text(index));
  }
  EXPECT_GT(texts.size(), 1u);
}

// S7: while a client does not read and the transport is full, tokens are merged into fewer messages
// and none is lost.
TEST_F(StreamContractTest, S7TokensMergeWhileAWriteIsPending) {
  constexpr int kChoices = 2, kTokens = 300;
  v1::GenerateRequest request = Streaming(Request(kPrompt, kTokens));
  request.mutable_sampling()->set_choice_count(kChoices);
  // The output is about 240 KB at 400 bytes per token. Windows and buffers on the way take about
  // 175 KB.
  // Bandwidth probes are off, so that the window does not grow on a slow machine.
  request.mutable_output()->set_logprobs(20);
  grpc::ChannelArguments fixed_window;
  fixed_window.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub =
      v1::GenerationService::NewStub(ConnectTo(listener_->addresses()[0], fixed_window));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  ASSERT_TRUE(served().engine->WaitIdle(MonotonicNow() + absl::Seconds(30)));
  Answer answer;
  int logprobs = 0;
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    logprobs += message.delta().logprobs_size();
    answer.messages.push_back(message);
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_LT(answer.CountDeltas(), kChoices * kTokens);
  EXPECT_EQ(logprobs, kChoices * kTokens);
  EXPECT_EQ(answer.Ids(), Generate(Request(kPrompt, kTokens)).Ids());
}

// S8: cached_tokens is reported in started and does not change.
TEST_F(StreamContractTest, S8CachedTokensAreFinal) {
  const std::string prompt =
      "Once upon a time there was a little dragon who lived in a big cave near the sea and liked "
      "to sing songs for the fish every morning";
  const Answer cold = Generate(Streaming(Request(prompt, 4)));
  v1::GenerateRequest request = Streaming(Request(prompt, 4));
  request.mutable_output()->set_usage_every_chunk(true);
  const Answer warm = Generate(request);
  EXPECT_EQ(cold.started()->cached_tokens(), 0);
  EXPECT_GE(warm.started()->cached_tokens(), 16);
  for (const auto& message : warm.messages) {
    if (message.has_delta()) {
      EXPECT_EQ(message.delta().usage().cached_tokens(), warm.started()->cached_tokens());
    }
  }
  EXPECT_EQ(warm.completed()->usage().cached_tokens(), warm.started()->cached_tokens());
  EXPECT_EQ(warm.completed()->usage().completion_tokens(), 4);
}

// S9: the bytes are equal alone and under load, with a cold and a warm cache.
TEST_F(StreamContractTest, S9SameRequestSameBytes) {
  v1::GenerateRequest request = Request(kPrompt, 50);
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_seed(42);
  request.mutable_output()->set_logprobs(2);
  const Answer alone = Generate(request);
  std::vector<std::thread> crowd;
  for (int i = 0; i < 6; ++i) {
    crowd.emplace_back([this, i] {
      EXPECT_TRUE(Generate(Request(absl::StrCat("Story number ", i), 60)).status.ok());
    });
  }
  const Answer crowded = Generate(request);
  for (std::thread& thread : crowd) thread.join();
  ASSERT_TRUE(alone.status.ok() && crowded.status.ok());
  EXPECT_EQ(alone.completed()->token_ids().size(), 50);
  v1::Completed first = *alone.completed();
  v1::Completed second = *crowded.completed();
  first.clear_usage();  // the second run has cached tokens
  second.clear_usage();
  EXPECT_EQ(first.SerializeAsString(), second.SerializeAsString());
}

// S10: cancel, deadline and disconnect release all pages.
TEST_F(StreamContractTest, S10EveryEndFreesPages) {
  {  // the client cancels
    grpc::ClientContext context;
    const auto reader = generation_->Generate(&context, Streaming(Request(kPrompt, 480)));
    v1::GenerateResponse message;
    ASSERT_TRUE(reader->Read(&message));
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_EQ(UsedPagesWhenIdle(), 0);
  }
  {  // another call cancels
    v1::GenerateRequest request = Streaming(Request(kPrompt, 480));
    request.set_request_id("other");
    grpc::ClientContext context;
    const auto reader = generation_->Generate(&context, request);
    v1::GenerateResponse message;
    ASSERT_TRUE(reader->Read(&message));
    grpc::ClientContext cancel_context;
    v1::CancelRequest cancel;
    v1::CancelResponse found;
    cancel.set_request_id("other");
    ASSERT_TRUE(generation_->Cancel(&cancel_context, cancel, &found).ok());
    EXPECT_TRUE(found.found());
    while (reader->Read(&message)) {
    }
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_TRUE(absl::StrContains(status.error_details(), "CANCELLED_BY_CALLER"));
    EXPECT_EQ(UsedPagesWhenIdle(), 0);
  }
  EXPECT_TRUE(MetricBecomes("quire_grpc_streams_active", 0));
}

// S11: an expired request fails with DEADLINE_EXCEEDED and never returns a short answer.
TEST_F(StreamContractTest, S11ExpiryIsNotALength) {
  v1::GenerateRequest request = Request(kPrompt, 480);
  request.mutable_sampling()->set_choice_count(8);
  request.mutable_timeout()->set_nanos(20000000);
  const Answer answer = Generate(request);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(answer.HasReason("TIMEOUT"));
  EXPECT_EQ(answer.completed(), nullptr);
  EXPECT_EQ(UsedPagesWhenIdle(), 0);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(20));
  request.clear_timeout();
  EXPECT_EQ(Generate(request, &context).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(UsedPagesWhenIdle(), 0);
}

TEST_F(StreamContractTest, InvalidUtf8IsNamedWithFieldAndByte) {
  // No client library would send this message, so the bytes are written by hand: field 3, two
  // bytes.
  grpc::GenericStub stub(ConnectTo(listener_->addresses()[0]));
  grpc::ClientContext context;
  const grpc::Slice slice(std::string("\x1a\x02\xc3\x28"));
  grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::CompletionQueue queue;
  const auto call =
      stub.PrepareUnaryCall(&context, "/quire.v1.GenerationService/Generate", request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  ASSERT_TRUE(queue.Next(&tag, &ok));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(absl::StrContains(status.error_details(), "BAD_UTF8"));
  EXPECT_TRUE(absl::StrContains(status.error_message(), "byte 0"));
}

TEST_F(StreamContractTest, EdgeMetricsAddUp) {
  EXPECT_TRUE(Generate(Request(kPrompt, 3)).status.ok());
  EXPECT_EQ(Generate(Request("", 3)).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  v1::GenerateRequest bad = Request(kPrompt, 3);
  bad.mutable_sampling()->set_top_p(2);
  EXPECT_FALSE(Generate(bad).status.ok());
  EXPECT_TRUE(served().engine->WaitIdle(MonotonicNow() + absl::Seconds(5)));
  EXPECT_EQ(Metric("quire_requests_received_total{"), 3);
  EXPECT_EQ(Metric("quire_requests_accepted_total{"), 1);
  EXPECT_EQ(Metric("quire_requests_rejected_total{reason=\"PROMPT_MISSING\"}"), 1);
  EXPECT_EQ(Metric("quire_requests_rejected_total{reason=\"BAD_SAMPLING_PARAM\"}"), 1);
}

}  // namespace
}  // namespace quire::server

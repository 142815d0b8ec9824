// Translation of generation events to protocol messages.

#include "server/vllm/vllm_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "quire/v1/generation.pb.h"
#include "vllm/grpc/engine/vllm_engine.pb.h"

namespace quire::server {
namespace {

using ::testing::ElementsAre;
namespace wire = ::vllm::grpc::engine;

v1::GenerateResponse Started(std::vector<int> prompt_ids = {}) {
  v1::GenerateResponse event;
  event.mutable_started()->set_prompt_tokens(6);
  event.mutable_started()->set_cached_tokens(4);
  event.mutable_started()->mutable_prompt_token_ids()->Assign(prompt_ids.begin(), prompt_ids.end());
  return event;
}

v1::GenerateResponse Delta(int index, std::vector<int> ids) {
  v1::GenerateResponse event;
  event.mutable_delta()->set_index(index);
  event.mutable_delta()->mutable_token_ids()->Assign(ids.begin(), ids.end());
  return event;
}

v1::GenerateResponse Completed(int index, v1::FinishReason reason) {
  v1::GenerateResponse event;
  v1::Completed* completed = event.mutable_completed();
  completed->set_index(index);
  completed->set_finish_reason(reason);
  completed->mutable_usage()->set_completion_tokens(7);
  return event;
}

void AddLogprob(v1::TokenLogprob* token, int id, float logprob, std::vector<int> top) {
  token->set_token_id(id);
  token->set_logprob(logprob);
  for (const int other : top) {
    token->add_top()->set_token_id(other);
    token->mutable_top(token->top_size() - 1)->set_logprob(-0.5F * static_cast<float>(other));
  }
}

wire::GenerateResponse Take(VllmAnswer* answer, const v1::GenerateResponse& event) {
  wire::GenerateResponse message;
  EXPECT_TRUE(answer->Take(event, &message));
  return message;
}

bool IsSilent(VllmAnswer* answer, const v1::GenerateResponse& event) {
  wire::GenerateResponse message;
  return !answer->Take(event, &message);
}

TEST(VllmAnswerTest, ChunksCountNewTokensAndCompleteCountsAll) {
  VllmAnswer answer;
  EXPECT_TRUE(IsSilent(&answer, Started()));
  const wire::GenerateResponse chunk = Take(&answer, Delta(1, {3, 5}));
  EXPECT_THAT(chunk.chunk().token_ids(), ElementsAre(3, 5));
  EXPECT_EQ(chunk.chunk().index(), 1u);
  EXPECT_EQ(chunk.chunk().prompt_tokens(), 6u);
  EXPECT_EQ(chunk.chunk().cached_tokens(), 4u);
  EXPECT_EQ(chunk.chunk().completion_tokens(), 2u);
  EXPECT_FALSE(chunk.chunk().has_output_logprobs());
  EXPECT_FALSE(chunk.chunk().has_input_logprobs());
  const wire::GenerateResponse end = Take(&answer, Completed(1, v1::FINISH_REASON_LENGTH));
  EXPECT_EQ(end.complete().index(), 1u);
  EXPECT_EQ(end.complete().finish_reason(), "length");
  EXPECT_EQ(end.complete().prompt_tokens(), 6u);
  EXPECT_EQ(end.complete().cached_tokens(), 4u);
  EXPECT_EQ(end.complete().completion_tokens(), 7u);
  EXPECT_TRUE(end.complete().output_ids().empty());
  EXPECT_EQ(end.complete().matched_stop_case(), wire::GenerateComplete::MATCHED_STOP_NOT_SET);
}

TEST(VllmAnswerTest, WholeAnswersContainAllIds) {
  VllmAnswer answer;
  EXPECT_TRUE(IsSilent(&answer, Started()));
  v1::GenerateResponse event = Completed(0, v1::FINISH_REASON_CONTEXT_FULL);
  for (const int id : {8, 9}) event.mutable_completed()->add_token_ids(id);
  AddLogprob(event.mutable_completed()->add_logprobs(), 8, -1, {});
  const wire::GenerateResponse end = Take(&answer, event);
  EXPECT_THAT(end.complete().output_ids(), ElementsAre(8, 9));
  EXPECT_EQ(end.complete().finish_reason(), "length");
  EXPECT_THAT(end.complete().output_logprobs().token_logprobs(), ElementsAre(-1.0F));
}

TEST(VllmAnswerTest, ReportsTheMatchedStopForStopsOnly) {
  const auto end = [](v1::FinishReason reason) {
    VllmAnswer answer;
    v1::GenerateResponse event = Completed(0, reason);
    if (reason == v1::FINISH_REASON_STOP_TEXT) {
      event.mutable_completed()->set_stop_text("dog");
    } else {
      event.mutable_completed()->set_stop_token_id(2);
    }
    return Take(&answer, event).complete();
  };
  EXPECT_EQ(end(v1::FINISH_REASON_STOP_TEXT).finish_reason(), "stop");
  EXPECT_EQ(end(v1::FINISH_REASON_STOP_TEXT).matched_stop_str(), "dog");
  EXPECT_EQ(end(v1::FINISH_REASON_STOP_TOKEN).finish_reason(), "stop");
  EXPECT_EQ(end(v1::FINISH_REASON_STOP_TOKEN).matched_token_id(), 2u);
  EXPECT_EQ(end(v1::FINISH_REASON_EOS).finish_reason(), "stop");
  EXPECT_EQ(end(v1::FINISH_REASON_EOS).matched_stop_case(),
            wire::GenerateComplete::MATCHED_STOP_NOT_SET);
}

TEST(VllmAnswerTest, OutputLogprobs) {
  VllmAnswer answer;
  v1::GenerateResponse event = Delta(0, {8, 9});
  AddLogprob(event.mutable_delta()->add_logprobs(), 8, -1, {1, 2});
  AddLogprob(event.mutable_delta()->add_logprobs(), 9, -2, {3, 4});
  const wire::GenerateResponse message = Take(&answer, event);
  const wire::OutputLogProbs& output = message.chunk().output_logprobs();
  EXPECT_THAT(output.token_logprobs(), ElementsAre(-1.0F, -2.0F));
  EXPECT_THAT(output.token_ids(), ElementsAre(8, 9));
  ASSERT_EQ(output.top_logprobs_size(), 2);
  EXPECT_THAT(output.top_logprobs(1).token_ids(), ElementsAre(3, 4));
  EXPECT_THAT(output.top_logprobs(1).values(), ElementsAre(-1.5F, -2.0F));
}

// Each prompt token has one entry, and the first has no value. The first message of every choice
// has the list, although the engine reports it once and in parts.
TEST(VllmAnswerTest, EveryChoiceStartsWithInputLogprobs) {
  VllmAnswer answer;
  EXPECT_TRUE(IsSilent(&answer, Started({20, 21, 22})));
  for (const int id : {21, 22}) {
    v1::GenerateResponse event;
    AddLogprob(event.mutable_prompt_logprobs()->add_tokens(), id, -3, {id});
    EXPECT_TRUE(IsSilent(&answer, event));
  }
  for (const int index : {0, 1}) {
    const wire::GenerateResponse message = Take(&answer, Delta(index, {5}));
    const wire::InputLogProbs& input = message.chunk().input_logprobs();
    EXPECT_THAT(input.token_ids(), ElementsAre(20, 21, 22));
    ASSERT_EQ(input.token_logprobs_size(), 3);
    EXPECT_FALSE(input.token_logprobs(0).has_value());
    EXPECT_EQ(input.token_logprobs(2).value(), -3);
    ASSERT_EQ(input.top_logprobs_size(), 3);
    EXPECT_TRUE(input.top_logprobs(0).values().empty());
    EXPECT_THAT(input.top_logprobs(2).token_ids(), ElementsAre(22));
  }
  EXPECT_FALSE(Take(&answer, Delta(0, {6})).chunk().has_input_logprobs());
  const v1::FinishReason length = v1::FINISH_REASON_LENGTH;
  EXPECT_FALSE(Take(&answer, Completed(0, length)).complete().has_input_logprobs());
  EXPECT_TRUE(Take(&answer, Completed(2, length)).complete().has_input_logprobs());
}

}  // namespace
}  // namespace quire::server

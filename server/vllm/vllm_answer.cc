#include "server/vllm/vllm_answer.h"

namespace quire::server {
namespace {

namespace wire = ::vllm::grpc::engine;

template <typename List>
void AddTop(const v1::TokenLogprob& token, List* list) {
  wire::TopLogProbs* const entry = list->Add();
  for (const v1::TopLogprob& top : token.top()) {
    entry->add_values(top.logprob());
    entry->add_token_ids(static_cast<std::uint32_t>(top.token_id()));
  }
}

// Omits the lists of alternatives if the tokens have none.
template <typename List>
void FillOutput(const List& tokens, wire::OutputLogProbs* output) {
  for (const v1::TokenLogprob& token : tokens) {
    output->add_token_logprobs(token.logprob());
    output->add_token_ids(static_cast<std::uint32_t>(token.token_id()));
    if (token.top_size() > 0) AddTop(token, output->mutable_top_logprobs());
  }
}

template <typename From, typename To>
void Append(const From& ids, To* list) {
  list->Reserve(ids.size());
  for (const std::int32_t id : ids) list->Add(static_cast<std::uint32_t>(id));
}

const char* FinishReasonName(v1::FinishReason reason) {
  return reason == v1::FINISH_REASON_LENGTH || reason == v1::FINISH_REASON_CONTEXT_FULL ? "length"
                                                                                        : "stop";
}

// Reports the stop token or text that ended the choice. Like vLLM, omits the model's own
// end-of-sequence token.
void FillStop(const v1::Completed& completed, wire::GenerateComplete* message) {
  if (completed.finish_reason() == v1::FINISH_REASON_STOP_TOKEN) {
    message->set_matched_token_id(static_cast<std::uint32_t>(completed.stop_token_id()));
  } else if (completed.finish_reason() == v1::FINISH_REASON_STOP_TEXT) {
    message->set_matched_stop_str(completed.stop_text());
  }
}

}  // namespace

bool VllmAnswer::Take(const v1::GenerateResponse& event, wire::GenerateResponse* message) {
  switch (event.event_case()) {
    case v1::GenerateResponse::kStarted:
      Store(event.started());
      return false;
    case v1::GenerateResponse::kPromptLogprobs:
      Store(event.prompt_logprobs());
      return false;
    case v1::GenerateResponse::kDelta:
      Write(event.delta(), message);
      return true;
    case v1::GenerateResponse::kCompleted:
      Write(event.completed(), message);
      return true;
    case v1::GenerateResponse::EVENT_NOT_SET:
      return false;
  }
  return false;
}

// Stores only the id of token 0, because the prompt's log-probabilities begin at position 1.
void VllmAnswer::Store(const v1::Started& started) {
  prompt_tokens_ = static_cast<std::uint32_t>(started.prompt_tokens());
  cached_tokens_ = static_cast<std::uint32_t>(started.cached_tokens());
  if (started.prompt_token_ids().empty()) return;
  input_.add_token_logprobs();
  input_.add_token_ids(static_cast<std::uint32_t>(started.prompt_token_ids(0)));
}

void VllmAnswer::Store(const v1::PromptLogprobs& logprobs) {
  for (const v1::TokenLogprob& token : logprobs.tokens()) {
    input_.add_token_logprobs()->set_value(token.logprob());
    input_.add_token_ids(static_cast<std::uint32_t>(token.token_id()));
    if (token.top_size() == 0) continue;
    if (input_.top_logprobs().empty()) input_.add_top_logprobs();  // position 0 has no alternatives
    AddTop(token, input_.mutable_top_logprobs());
  }
}

bool VllmAnswer::ClaimInput(int index) {
  return started_choices_.insert(index).second && !input_.token_ids().empty();
}

void VllmAnswer::Write(const v1::Delta& delta, wire::GenerateResponse* message) {
  wire::GenerateStreamChunk* const chunk = message->mutable_chunk();
  chunk->set_index(static_cast<std::uint32_t>(delta.index()));
  Append(delta.token_ids(), chunk->mutable_token_ids());
  chunk->set_prompt_tokens(prompt_tokens_);
  chunk->set_completion_tokens(static_cast<std::uint32_t>(delta.token_ids_size()));
  chunk->set_cached_tokens(cached_tokens_);
  if (!delta.logprobs().empty()) FillOutput(delta.logprobs(), chunk->mutable_output_logprobs());
  if (ClaimInput(delta.index())) *chunk->mutable_input_logprobs() = input_;
}

void VllmAnswer::Write(const v1::Completed& completed, wire::GenerateResponse* message) {
  wire::GenerateComplete* const complete = message->mutable_complete();
  complete->set_index(static_cast<std::uint32_t>(completed.index()));
  Append(completed.token_ids(), complete->mutable_output_ids());
  complete->set_finish_reason(FinishReasonName(completed.finish_reason()));
  complete->set_prompt_tokens(prompt_tokens_);
  complete->set_completion_tokens(
      static_cast<std::uint32_t>(completed.usage().completion_tokens()));
  complete->set_cached_tokens(cached_tokens_);
  FillStop(completed, complete);
  if (!completed.logprobs().empty()) {
    FillOutput(completed.logprobs(), complete->mutable_output_logprobs());
  }
  if (ClaimInput(completed.index())) *complete->mutable_input_logprobs() = input_;
}

}  // namespace quire::server

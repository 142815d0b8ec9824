#include "server/api/response_translator.h"

#include <google/protobuf/duration.pb.h>
#include <google/protobuf/timestamp.pb.h>

#include <cstdint>
#include <utility>
#include <variant>

#include "base/check.h"
#include "quire/v1/admin.pb.h"
#include "quire/v1/generation.pb.h"
#include "quire/v1/model.pb.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tools/tool_format.h"

namespace quire::server {
namespace {

template <typename List>
void Assign(const std::vector<std::int32_t>& ids, List* list) {
  list->Assign(ids.begin(), ids.end());
}

v1::FinishReason ToFinishReason(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kEos:
      return v1::FINISH_REASON_EOS;
    case engine::FinishReason::kStopText:
      return v1::FINISH_REASON_STOP_TEXT;
    case engine::FinishReason::kStopToken:
      return v1::FINISH_REASON_STOP_TOKEN;
    case engine::FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case engine::FinishReason::kContextFull:
      return v1::FINISH_REASON_CONTEXT_FULL;
    case engine::FinishReason::kConstraintDone:
      return v1::FINISH_REASON_CONSTRAINT_DONE;
    case engine::FinishReason::kToolCall:
      return v1::FINISH_REASON_TOOL_CALL;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

v1::RequestState ToRequestState(engine::RequestState state) {
  switch (state) {
    case engine::RequestState::kPreparing:
      return v1::REQUEST_STATE_PREPARING;
    case engine::RequestState::kQueued:
      return v1::REQUEST_STATE_QUEUED;
    case engine::RequestState::kPrefill:
      return v1::REQUEST_STATE_PREFILL;
    case engine::RequestState::kDecode:
      return v1::REQUEST_STATE_DECODE;
    case engine::RequestState::kPreempted:
      return v1::REQUEST_STATE_PREEMPTED;
    case engine::RequestState::kStalled:
      return v1::REQUEST_STATE_STALLED;
    case engine::RequestState::kFinished:
      return v1::REQUEST_STATE_FINISHED;
  }
  return v1::REQUEST_STATE_UNSPECIFIED;
}

void FillTimings(const engine::Timings& timings, v1::Timings* message) {
  ToProto(timings.queue, message->mutable_queue());
  ToProto(timings.prefill, message->mutable_prefill());
  ToProto(timings.decode, message->mutable_decode());
  ToProto(timings.time_to_first_token, message->mutable_time_to_first_token());
  message->set_preemption_count(timings.preemption_count);
  message->set_recomputed_tokens(timings.recomputed_tokens);
}

// Fills a ToolCall or ToolCallDelta.
template <typename Message>
void FillCall(engine::ToolCallOutput&& call, Message* message) {
  message->set_id(std::move(call.id));
  message->set_name(std::move(call.name));
  message->set_arguments_json(std::move(call.arguments_json));
}

// Fills the event of a response.
struct EventWriter {
  v1::GenerateResponse* response;
  const Clock& clock;

  void operator()(engine::StartedEvent&& event) const {
    v1::Started* message = response->mutable_started();
    message->set_model(std::move(event.model));
    message->set_prompt_tokens(event.prompt_tokens);
    message->set_cached_tokens(event.cached_tokens);
    message->set_seed(event.seed);
    ToProto(clock.ToWall(event.schedule_time), message->mutable_schedule_time());
    message->set_prompt_text(std::move(event.prompt_text));
    Assign(event.prompt_token_ids, message->mutable_prompt_token_ids());
    message->set_max_tokens(event.max_tokens);
    message->mutable_unenforced_keywords()->Assign(
        std::make_move_iterator(event.unenforced.begin()),
        std::make_move_iterator(event.unenforced.end()));
  }

  void operator()(engine::PromptLogprobsEvent&& event) const {
    v1::PromptLogprobs* message = response->mutable_prompt_logprobs();
    message->set_start_position(event.start_position);
    AddLogprobs(std::move(event.tokens), message->mutable_tokens());
  }

  void operator()(engine::DeltaEvent&& event) const {
    v1::Delta* message = response->mutable_delta();
    message->set_index(event.index);
    message->set_text(std::move(event.text));
    Assign(event.token_ids, message->mutable_token_ids());
    AddLogprobs(std::move(event.logprobs), message->mutable_logprobs());
    if (event.usage) ToProto(*event.usage, message->mutable_usage());
    message->set_reasoning_text(std::move(event.parsed.reasoning_text));
    for (engine::ToolCallOutput& call : event.parsed.tool_calls) {
      v1::ToolCallDelta* const added = message->add_tool_calls();
      added->set_call_index(call.index);
      FillCall(std::move(call), added);
    }
    message->set_parse_error(std::move(event.parsed.parse_error));
  }

  void operator()(engine::CompletedEvent&& event) const {
    v1::Completed* message = response->mutable_completed();
    message->set_index(event.index);
    message->set_finish_reason(ToFinishReason(event.finish_reason));
    if (event.stop_token_id) message->set_stop_token_id(*event.stop_token_id);
    if (event.stop_text) message->set_stop_text(*std::move(event.stop_text));
    message->set_text(std::move(event.text));
    Assign(event.token_ids, message->mutable_token_ids());
    AddLogprobs(std::move(event.logprobs), message->mutable_logprobs());
    ToProto(event.usage, message->mutable_usage());
    if (event.timings) FillTimings(*event.timings, message->mutable_timings());
    message->set_reasoning_text(std::move(event.parsed.reasoning_text));
    for (engine::ToolCallOutput& call : event.parsed.tool_calls) {
      FillCall(std::move(call), message->add_tool_calls());
    }
    message->set_parse_error(std::move(event.parsed.parse_error));
  }

  void operator()(engine::PooledEvent&&) const {
    QUIRE_CHECK(false);
  }  // a generation has no pooled output
};

}  // namespace

void AddLogprobs(std::vector<engine::TokenLogprob>&& tokens,
                 google::protobuf::RepeatedPtrField<v1::TokenLogprob>* list) {
  list->Reserve(list->size() + static_cast<int>(tokens.size()));
  for (engine::TokenLogprob& token : tokens) {
    v1::TokenLogprob* message = list->Add();
    message->set_token_id(token.token);
    message->set_logprob(token.logprob);
    message->set_rank(token.rank);
    message->set_token_bytes(std::move(token.bytes));
    if (token.processed_logprob) message->set_processed_logprob(*token.processed_logprob);
    message->set_text_offset(token.text_offset);
    for (engine::TopToken& top : token.top) {
      v1::TopLogprob* entry = message->add_top();
      entry->set_token_id(top.token);
      entry->set_logprob(top.logprob);
      entry->set_token_bytes(std::move(top.bytes));
    }
  }
}

void ToProto(absl::Duration duration, google::protobuf::Duration* message) {
  absl::Duration rest;
  message->set_seconds(absl::IDivDuration(duration, absl::Seconds(1), &rest));
  message->set_nanos(static_cast<std::int32_t>(absl::ToInt64Nanoseconds(rest)));
}

void ToProto(absl::Time time, google::protobuf::Timestamp* message) {
  // The nanoseconds of a Timestamp are never negative, even before 1970.
  const std::int64_t seconds = absl::ToUnixSeconds(time);
  message->set_seconds(seconds);
  message->set_nanos(
      static_cast<std::int32_t>(absl::ToInt64Nanoseconds(time - absl::FromUnixSeconds(seconds))));
}

void ToProto(const engine::Usage& usage, v1::Usage* message) {
  message->set_prompt_tokens(usage.prompt_tokens);
  message->set_completion_tokens(usage.completion_tokens);
  message->set_cached_tokens(usage.cached_tokens);
  message->set_reasoning_tokens(usage.reasoning_tokens);
}

void ToProto(engine::OutputEvent&& event, const std::string& request_id, const Clock& clock,
             v1::GenerateResponse* message) {
  message->set_request_id(request_id);
  std::visit(EventWriter{message, clock}, std::move(event));
}

void ToProto(const engine::RequestInfo& info, const Clock& clock, v1::RequestInfo* message) {
  message->set_request_id(info.id);
  message->set_model(info.model);
  message->set_state(ToRequestState(info.state));
  ToProto(clock.ToWall(info.accept_time), message->mutable_accept_time());
  if (info.deadline != absl::InfiniteFuture()) {
    ToProto(clock.ToWall(info.deadline), message->mutable_deadline_time());
  }
  message->set_prompt_tokens(info.prompt_tokens);
  message->set_output_tokens(info.output_tokens);
  message->set_kv_page_count(info.kv_pages);
  message->set_priority(info.priority);
  message->set_tenant(info.tenant);
  message->set_principal(info.principal);
  for (const auto& [key, value] : info.labels) (*message->mutable_labels())[key] = value;
}

void ToProto(const engine::EngineStats& stats, const Clock& clock, v1::Stats* message) {
  ToProto(clock.WallNow(), message->mutable_sample_time());
  message->set_running_count(stats.running);
  message->set_waiting_count(stats.waiting);
  message->set_waiting_uncached_tokens(stats.waiting_uncached_tokens);
  message->set_total_kv_page_count(static_cast<std::int32_t>(stats.cache.usable_pages));
  message->set_used_kv_page_count(static_cast<std::int32_t>(stats.cache.used_pages));
  message->set_cached_kv_page_count(static_cast<std::int32_t>(stats.cache.cached_pages));
  message->set_prompt_tokens_per_second(stats.prompt_tokens_per_second);
  message->set_generation_tokens_per_second(stats.generation_tokens_per_second);
  if (stats.cache.queried_tokens > 0) {
    message->set_prefix_hit_ratio(static_cast<double>(stats.cache.hit_tokens) /
                                  static_cast<double>(stats.cache.queried_tokens));
  }
  message->set_step_count(stats.steps);
  ToProto(stats.last_step_age, message->mutable_last_step_age());
  message->set_preemption_count(stats.preemptions);
}

v1::ServerState ToProto(LifeState state) {
  switch (state) {
    case LifeState::kLoading:
      return v1::SERVER_STATE_LOADING;
    case LifeState::kReady:
      return v1::SERVER_STATE_READY;
    case LifeState::kDraining:
      return v1::SERVER_STATE_DRAINING;
    case LifeState::kFailed:
      return v1::SERVER_STATE_FAILED;
  }
  return v1::SERVER_STATE_UNSPECIFIED;
}

void ToProto(const engine::SamplingParams& defaults, v1::SamplingParams* message) {
  message->set_temperature(defaults.temperature);
  message->set_top_p(defaults.top_p);
  message->set_top_k(defaults.top_k);
  message->set_min_p(defaults.min_p);
  message->set_repetition_penalty(defaults.repetition_penalty);
  message->set_presence_penalty(defaults.presence_penalty);
  message->set_frequency_penalty(defaults.frequency_penalty);
}

void ToProto(const ServedModel& served, v1::Model* model) {
  const ModelDescription& description = served.description;
  const std::shared_ptr<const TranslatorOptions> options = served.translator.options();
  model->set_id(options->model_id);
  for (const std::string& alias : options->aliases) model->add_aliases(alias);
  model->set_state(v1::MODEL_STATE_READY);
  model->set_architecture(description.architecture);
  model->set_dtype(description.dtype);
  model->set_quantization(description.quantization);
  model->set_max_context_tokens(description.max_context_tokens);
  model->set_vocab_size(description.vocab_size);
  for (const std::int32_t id : description.eos_token_ids) model->add_eos_token_ids(id);
  if (description.bos_token_id) model->set_bos_token_id(*description.bos_token_id);
  if (description.pad_token_id) model->set_pad_token_id(*description.pad_token_id);
  model->set_tokenizer_sha256(served.tokenizer->sha256());
  model->set_weights_fingerprint(description.weights_fingerprint);
  if (description.has_head) {
    model->add_capabilities("generate");
    model->add_capabilities("score");
  }
  if (description.has_constraints) model->add_capabilities("constraint");
  if (description.embedding_width > 0) model->add_capabilities("embed");
  if (description.classifier) model->add_capabilities("classify");
  const bool has_one_label = description.classifier && description.classifier->labels.size() == 1;
  if (has_one_label || (description.yes_no && description.has_head)) {
    model->add_capabilities("rerank");
  }
  const bool has_chat =
      description.has_head && options->chat != nullptr && options->chat->has_default();
  model->set_has_chat_template(has_chat);
  if (has_chat) model->add_capabilities("chat");
  if (has_chat && options->tool_format != nullptr) {
    const text::ToolFormat& format = *options->tool_format;
    const bool is_harmony = format.shape == text::CallShape::kHarmony;
    if (format.shape != text::CallShape::kNone) model->add_capabilities("tools");
    if (is_harmony || options->has_reasoning) model->add_capabilities("reasoning");
  }
  if (description.batch_invariant) model->add_capabilities("batch_invariant");
  ToProto(options->sampling_defaults, model->mutable_sampling_defaults());
  model->set_parameter_count(description.parameter_count);
  ToProto(description.load_time, model->mutable_load_time());
  model->set_kv_page_size(description.kv_page_size);
  model->set_kv_page_count(description.kv_page_count);
  model->set_kv_dtype(description.kv_dtype);
}

}  // namespace quire::server

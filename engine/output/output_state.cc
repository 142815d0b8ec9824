#include "engine/output/output_state.h"

#include <algorithm>
#include <functional>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/utf8.h"
#include "text/tools/format_text.h"

namespace quire::engine {
namespace {

// Returns a predicate for the special tokens whose text the output parser needs.
std::function<bool(absl::string_view)> MarkersOf(const Request& request) {
  if (!request.parsing) return {};
  const text::ToolFormat* const format = request.parsing->format;
  const bool has_tools = !request.parsing->tools->empty();
  return [format, has_tools](absl::string_view token) {
    return text::IsMarker(*format, token, has_tools);
  };
}

}  // namespace

OutputState::OutputState(std::shared_ptr<const AcceptedRequest> accepted,
                         const text::Tokenizer& tokenizer, const HashKey& id_key)
    : accepted_(std::move(accepted)),
      request_(accepted_->request),
      tokenizer_(tokenizer),
      params_(request_.output),
      id_key_(id_key) {
  const auto& stops = request_.stopping.stop;
  if (!stops.empty()) stops_ = std::make_unique<text::StopAutomaton>(stops);
  choices_.reserve(request_.choices());
  for (std::uint32_t i = 0; i < request_.choices(); ++i) {
    choices_.emplace_back(
        text::Detokenizer(tokenizer, params_.skip_special_tokens, MarkersOf(request_)),
        stops_.get());
    choices_.back().pending.index = static_cast<std::int32_t>(i);
  }
}

void OutputState::Start(const OutputItem& item) {
  schedule_time_ = item.time;
  StartedEvent started;
  started.model = request_.model;
  started.prompt_tokens = prompt_tokens();
  cached_tokens_ = item.start->cached_tokens;
  started.cached_tokens = cached_tokens_;
  started.seed = static_cast<std::int64_t>(request_.sampling.seed);
  started.schedule_time = item.time;
  started.max_tokens = item.start->max_tokens;
  started.unenforced = std::move(item.start->unenforced);
  if (params_.echo_prompt) {
    if (params_.text) started.prompt_text = std::move(item.start->prompt_text);
    if (params_.token_ids) started.prompt_token_ids = std::move(item.start->prompt_token_ids);
  }
  accepted_->stream->Write(std::move(started));
  for (Choice& choice : choices_) choice.detokenizer.Begin(item.start->text_start);
  if (!request_.parsing) return;
  for (Choice& choice : choices_) {
    choice.parser = std::make_unique<text::OutputParser>(
        *request_.parsing->format, request_.parsing->tools, item.start->opens_reasoning);
    choice.is_reasoning = item.start->opens_reasoning;
  }
}

TokenLogprob OutputState::MakeLogprob(const OutputItem::Logprob& item_logprob) const {
  TokenLogprob logprob{.token = item_logprob.token,
                       .logprob = item_logprob.logprob,
                       .rank = item_logprob.rank,
                       .bytes = tokenizer_.TokenBytes(item_logprob.token),
                       .processed_logprob = std::nullopt,
                       .text_offset = 0,
                       .top = {}};
  logprob.top.reserve(item_logprob.top.size());
  for (const kernels::TopLogprob& top : item_logprob.top) {
    logprob.top.push_back({top.token, top.logprob, tokenizer_.TokenBytes(top.token)});
  }
  return logprob;
}

void OutputState::AddPromptLogprobs(const OutputItem& item) {
  constexpr std::size_t kMaxPerEvent = 4096;
  for (std::size_t begin = 0; begin < item.prompt_logprobs.size(); begin += kMaxPerEvent) {
    const std::size_t end = std::min(begin + kMaxPerEvent, item.prompt_logprobs.size());
    PromptLogprobsEvent event;
    event.start_position = item.start_position + static_cast<std::int32_t>(begin);
    for (std::size_t i = begin; i < end; ++i)
      event.tokens.push_back(MakeLogprob(item.prompt_logprobs[i]));
    accepted_->stream->Write(std::move(event));
  }
}

void OutputState::CountToken(const OutputItem& item, const Clock& clock, EngineProbe& probe) {
  Choice& choice = choices_[static_cast<std::size_t>(item.choice)];
  if (choice.ended) return probe.steps.AddDiscarded(DiscardCause::kAfterStop, 1);
  if (choice.tokens == 0) {
    first_handed_over_ = std::min(first_handed_over_, clock.Now());
    choice.first_token_time = item.time;
  } else {
    probe.answers.ObserveInterToken(item.time - choice.last_token_time);
  }
  choice.last_token_time = item.time;
  ++choice.tokens;
  probe.answers.AddGenerated(1);
}

bool OutputState::AddToken(const OutputItem& item, const Clock& clock, EngineProbe& probe) {
  Choice& choice = choices_[static_cast<std::size_t>(item.choice)];
  CountToken(item, clock, probe);
  if (choice.ended) return false;
  DeltaEvent& pending = choice.pending;
  ++pending.num_tokens;
  if (params_.token_ids) pending.token_ids.push_back(item.token.token);
  if (params_.logprobs >= 0) AddLogprob(choice, item);
  PushText(choice, item);
  const bool matched =
      choice.reason == FinishReason::kStopText || choice.reason == FinishReason::kToolCall;
  if (matched) choice.ended = true;
  if (params_.stream && !item.finish.has_value()) WriteDelta(choice, matched);
  return matched;
}

// REQUIRES: the token has not been pushed to the detokenizer yet.
void OutputState::AddLogprob(Choice& choice, const OutputItem& item) {
  TokenLogprob logprob = MakeLogprob(item.token);
  logprob.text_offset =
      static_cast<std::int32_t>(choice.characters + choice.detokenizer.open_characters());
  if (params_.processed_logprobs) logprob.processed_logprob = item.token.processed_logprob;
  choice.pending.logprobs.push_back(std::move(logprob));
}

// The text of a stop or end-of-sequence token is dropped, unless include_stop_text is set.
void OutputState::PushText(Choice& choice, const OutputItem& item) {
  const StoppingParams& stopping = request_.stopping;
  const bool is_stop_token =
      item.finish == FinishReason::kEos || item.finish == FinishReason::kStopToken;
  if (!is_stop_token || stopping.include_stop_text) {
    const bool may_stop = choice.tokens >= stopping.min_tokens;
    const std::string emitted = choice.detokenizer.Push(item.token.token);
    choice.characters += CountUtf8Characters(emitted);
    std::string text;
    choice.stop_string = choice.matcher.Push(emitted, may_stop, stopping.include_stop_text, &text);
    const bool matched = choice.stop_string.has_value();
    if (matched) choice.reason = FinishReason::kStopText;
    AddText(choice, std::move(text), /*is_last=*/matched);
    if (choice.is_reasoning) ++choice.reasoning_tokens;
    if (matched || choice.reason == FinishReason::kToolCall) return;
  }
  if (item.finish.has_value()) {
    choice.reason = item.finish;
    if (is_stop_token) choice.stop_token = item.token.token;
    Flush(choice);
  }
}

// The text that the detokenizer still buffers may complete a stop string.
void OutputState::Flush(Choice& choice) {
  const StoppingParams& stopping = request_.stopping;
  const bool may_stop = choice.tokens >= stopping.min_tokens;
  std::string text;
  choice.stop_string =
      choice.matcher.Push(choice.detokenizer.Finish(), may_stop, stopping.include_stop_text, &text);
  if (choice.stop_string.has_value()) {
    choice.reason = FinishReason::kStopText;
    choice.stop_token.reset();
  } else {
    choice.matcher.Finish(&text);
  }
  AddText(choice, std::move(text), /*is_last=*/true);
}

void OutputState::AddText(Choice& choice, std::string text, bool is_last) {
  if (choice.parser == nullptr) {
    choice.pending.text += text;
    return;
  }
  std::vector<text::OutputPart> parts;
  choice.parser->Push(text, &parts);
  if (is_last) choice.parser->Finish(&parts);
  AddParts(choice, std::move(parts));
}

void OutputState::AddParts(Choice& choice, std::vector<text::OutputPart> parts) {
  using Kind = text::OutputPart::Kind;
  ParsedOutput& parsed = choice.pending.parsed;
  for (text::OutputPart& part : parts) {
    choice.is_reasoning = part.kind == Kind::kReasoning;
    switch (part.kind) {
      case Kind::kMarkup:
        break;
      case Kind::kReasoning:
        parsed.reasoning_text += part.source;
        break;
      case Kind::kFailed:
        ++choice.num_failed;
        if (parsed.parse_error.empty()) {
          const text::ToolCall& call = part.call;
          parsed.parse_error = absl::StrCat(call.error, call.name.empty() ? "" : ": ", call.name);
        }
        choice.pending.text += part.source;
        break;
      case Kind::kContent:
        choice.pending.text += part.source;
        break;
      case Kind::kCall:
        parsed.tool_calls.push_back({.index = choice.num_calls,
                                     .id = CallId(choice),
                                     .name = std::move(part.call.name),
                                     .arguments_json = std::move(part.call.arguments_json)});
        ++choice.num_calls;
        if (!request_.parsing->ends_after_call) break;
        // The text after the call is dropped, as after a stop string.
        if (!choice.reason) choice.reason = FinishReason::kToolCall;
        return;
    }
  }
}

// Returns the same id for the same call of the same request. Ids of other requests cannot be
// guessed from it.
std::string OutputState::CallId(const Choice& choice) const {
  const std::string name =
      absl::StrCat(choice.pending.index, ":", choice.num_calls, ":", request_.id);
  const Hash128 hash = KeyedHash(id_key_, std::as_bytes(std::span(name)));
  return absl::StrFormat("call_%016x%08x", hash.lo, hash.hi & 0xFFFFFFFF);
}

void OutputState::WriteDelta(Choice& choice, bool is_last) {
  DeltaEvent& pending = choice.pending;
  if (!params_.text) pending.text.clear();
  const bool has_content = !pending.text.empty() || !pending.parsed.empty() ||
                           !pending.token_ids.empty() || !pending.logprobs.empty();
  if (!has_content) return;
  if (!is_last && pending.num_tokens < params_.stream_interval_tokens) return;
  DeltaEvent delta = std::move(pending);
  pending = DeltaEvent{.index = delta.index,
                       .text = {},
                       .parsed = {},
                       .token_ids = {},
                       .logprobs = {},
                       .num_tokens = 0,
                       .usage = {}};
  if (params_.usage_every_chunk) delta.usage = UsageOf(choice);
  accepted_->stream->Write(std::move(delta));
}

void OutputState::EndChoice(const OutputItem& item) {
  Choice& choice = choices_[static_cast<std::size_t>(item.choice)];
  if (!choice.reason.has_value()) {  // the choice ended without another token
    choice.reason = item.finish;
    Flush(choice);
  }
  QUIRE_CHECK(choice.reason.has_value());
  choice.ended = true;
  if (params_.stream) WriteDelta(choice, /*is_last=*/true);
  CompletedEvent completed;
  completed.index = item.choice;
  completed.finish_reason = *choice.reason;
  completed.stop_token_id = choice.stop_token;
  if (choice.stop_string.has_value()) {
    completed.stop_text = request_.stopping.stop[static_cast<std::size_t>(*choice.stop_string)];
  }
  if (!params_.stream) {
    if (params_.text) completed.text = std::move(choice.pending.text);
    completed.parsed = std::move(choice.pending.parsed);
    completed.token_ids = std::move(choice.pending.token_ids);
    completed.logprobs = std::move(choice.pending.logprobs);
  }
  completed.usage = UsageOf(choice);
  if (params_.timings) {
    completed.timings = {.queue = schedule_time_ - request_.accept_time,
                         .prefill = choice.first_token_time - schedule_time_,
                         .decode = choice.last_token_time - choice.first_token_time,
                         .time_to_first_token = TimeToFirstToken(),
                         .preemption_count = item.preemptions,
                         .recomputed_tokens = item.recomputed_tokens};
  }
  accepted_->stream->Write(std::move(completed));
}

Usage OutputState::UsageOf(const Choice& choice) const {
  return {.prompt_tokens = prompt_tokens(),
          .completion_tokens = choice.tokens,
          .cached_tokens = cached_tokens_,
          .reasoning_tokens = choice.reasoning_tokens};
}

absl::Duration OutputState::TimeToFirstToken() const {
  if (first_handed_over_ == absl::InfiniteFuture()) return absl::ZeroDuration();
  return first_handed_over_ - request_.accept_time;
}

Usage OutputState::TotalUsage() const {
  Usage usage{
      .prompt_tokens = prompt_tokens(), .completion_tokens = 0, .cached_tokens = cached_tokens_};
  for (const Choice& choice : choices_) {
    usage.completion_tokens += choice.tokens;
    usage.reasoning_tokens += choice.reasoning_tokens;
  }
  return usage;
}

void OutputState::EndRequest(const OutputItem& item, absl::Time now, EngineProbe& probe) {
  const Usage usage = TotalUsage();
  for (const Choice& choice : choices_) {
    if (choice.parser == nullptr) continue;
    probe.answers.ToolsParsed(request_.parsing->format->name, choice.num_calls, choice.num_failed);
  }
  if (item.was_accepted) {
    probe.answers.ObserveEnd(now - request_.accept_time);
    if (usage.completion_tokens > 0) {
      absl::Time first = absl::InfiniteFuture();
      absl::Time last = absl::InfinitePast();
      for (const Choice& choice : choices_) {
        if (choice.tokens == 0) continue;
        first = std::min(first, choice.first_token_time);
        last = std::max(last, choice.last_token_time);
      }
      probe.answers.ObservePhases({.time_to_first_token = TimeToFirstToken(),
                                   .prefill = first - schedule_time_,
                                   .decode = last - first});
    }
  }
  if (item.status.ok()) {
    probe.answers.ObserveCompleted(usage.prompt_tokens, request_.deadline - now);
    if (!request_.generates()) return;
    for (const Choice& choice : choices_) {
      probe.answers.ObserveChoice(*choice.reason, choice.tokens,
                                  choice.last_token_time - choice.first_token_time);
    }
  }
}

}  // namespace quire::engine

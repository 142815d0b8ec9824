#include "engine/request/engine_options.h"

#include <variant>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "text/chat/chat_template.h"

namespace quire::engine {
namespace {

absl::Status CheckStartBounds(const HotOptions& start, const HotOptions& next) {
  auto check = [](absl::string_view name, std::int32_t value, std::int32_t limit) {
    if (value <= limit) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is ", value, ", it must be at most the value in effect at start, ", limit));
  };
  QUIRE_RETURN_IF_ERROR(check("scheduler.max_running_sequences", next.max_running_sequences,
                              start.max_running_sequences));
  QUIRE_RETURN_IF_ERROR(
      check("scheduler.max_step_tokens", next.max_step_tokens, start.max_step_tokens));
  return check("limits.max_logprobs", next.limits.max_logprobs, start.limits.max_logprobs);
}

}  // namespace

absl::Status CheckOptions(const EngineOptions& options, std::uint32_t page_tokens) {
  const auto page_size = static_cast<std::int32_t>(page_tokens);
  const struct {
    absl::string_view name;
    std::int64_t value, min;
  } bounds[] = {
      {"scheduler.max_running_sequences", options.max_running_sequences, 1},
      {"scheduler.prefill_chunk_tokens", options.prefill_chunk_tokens, page_size},
      {"scheduler.max_step_tokens", options.max_step_tokens,
       options.max_running_sequences + page_size},
      {"model.max_context_tokens", options.max_context_tokens, 2},
      {"tokenizer.threads", options.text_threads, 1},
      {"the number of mask threads", options.mask_threads, 1},
      {"limits.max_queued_requests", options.max_queued_requests, 1},
  };
  for (const auto& [name, value, min] : bounds) {
    if (value >= min) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", value, ", must be at least ", min));
  }
  if (options.vocab_size > kGeneratedTag) {
    return absl::InvalidArgumentError(absl::StrCat("the vocabulary has ", options.vocab_size,
                                                   " tokens, the limit is ", kGeneratedTag));
  }
  for (const std::int32_t token : options.eos_token_ids) {
    if (token >= 0 && token < options.vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat("end-of-sequence token ", token,
                                                   " is not in the vocabulary of ",
                                                   options.vocab_size, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status CheckHotOptions(const EngineOptions& start, const HotOptions& next,
                             std::uint32_t page_size) {
  EngineOptions all = start;
  static_cast<HotOptions&>(all) = next;
  QUIRE_RETURN_IF_ERROR(CheckOptions(all, page_size));
  return CheckStartBounds(start, next);
}

std::int64_t InputBytes(const Request& request) {
  if (const auto* text = std::get_if<TextPrompt>(&request.prompt)) {
    return static_cast<std::int64_t>(text->text.size());
  }
  if (const auto* prompt = std::get_if<ChatPrompt>(&request.prompt)) {
    return text::InputBytes(prompt->chat);
  }
  if (const auto* prompt = std::get_if<ScorePrompt>(&request.prompt)) {
    const std::size_t ids = prompt->context_ids.size() + prompt->continuation_ids.size();
    const std::int64_t chat =
        prompt->context_chat ? text::InputBytes(prompt->context_chat->chat) : 0;
    return chat +
           static_cast<std::int64_t>(prompt->context_text.size() +
                                     prompt->continuation_text.size() + ids * sizeof(std::int32_t));
  }
  return static_cast<std::int64_t>(std::get<TokenPrompt>(request.prompt).size() *
                                   sizeof(std::int32_t));
}

}  // namespace quire::engine

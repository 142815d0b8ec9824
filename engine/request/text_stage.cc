#include "engine/request/text_stage.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "base/thread_name.h"
#include "base/utf8.h"
#include "base/within_memory.h"
#include "cache_manager/prefix/page_hash.h"
#include "text/chat/chat_template.h"

namespace quire::engine {
namespace {

absl::Status TooLong(absl::string_view at_least, std::size_t prompt_tokens, std::int32_t context) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat("prompt has ", at_least, prompt_tokens,
                                                            " tokens, model context is ", context)),
                    Reason::kPromptTooLong,
                    {{"prompt_tokens", absl::StrCat(prompt_tokens)},
                     {"max_context_tokens", absl::StrCat(context)}});
}

// truncate_prompt leaves the end of a prompt of any length.
bool IsCut(const EngineOptions& options, const Request& request) {
  return request.truncate_prompt && options.max_context_tokens > request.stopping.max_tokens;
}

// PROMPT_TOO_LONG for a text that no tokens make short enough, before anything of it is read: it
// would take a text worker seconds to find their number.
absl::Status CheckBytes(const EngineOptions& options, const text::Tokenizer& tokenizer,
                        const Request& request, absl::string_view text) {
  const std::optional<std::size_t> longest = tokenizer.max_token_bytes();
  if (!longest || IsCut(options, request)) return absl::OkStatus();
  const std::size_t fewest = (text.size() + *longest - 1) / *longest;
  if (fewest < static_cast<std::size_t>(options.max_context_tokens)) return absl::OkStatus();
  return TooLong("at least ", fewest, options.max_context_tokens);
}

absl::StatusOr<std::vector<std::int32_t>> TokensOfChat(const EngineOptions& options,
                                                       const text::Tokenizer& tokenizer,
                                                       const Clock& clock, const Request& request,
                                                       std::string* rendered) {
  const auto& prompt = std::get<ChatPrompt>(request.prompt);
  QUIRE_ASSIGN_OR_RETURN(text::RenderedChat chat,
                         prompt.templates->Render(prompt.chat, clock.ToWall(request.accept_time)));
  *rendered = std::move(chat.text);
  QUIRE_RETURN_IF_ERROR(CheckBytes(options, tokenizer, request, *rendered));
  // The template prints what the tokenizer would add.
  return tokenizer.Encode(*rendered, {.add_special_tokens = false,
                                      .parse_special_tokens = prompt.parse_special_tokens,
                                      .from_template = true,
                                      .literal = chat.literal});
}

// `rendered` gets the text of a chat.
absl::StatusOr<std::vector<std::int32_t>> TokensOf(const EngineOptions& options,
                                                   const text::Tokenizer& tokenizer,
                                                   const Clock& clock, const Request& request,
                                                   std::string* rendered) {
  if (const auto* ids = std::get_if<TokenPrompt>(&request.prompt)) {
    for (std::size_t i = 0; i < ids->size(); ++i) {
      const std::int32_t token = (*ids)[i];
      if (token >= 0 && token < options.vocab_size) continue;
      return WithReason(absl::InvalidArgumentError(absl::StrCat("prompt token ", i, " is ", token,
                                                                ", the vocabulary has ",
                                                                options.vocab_size, " tokens")),
                        Reason::kBadTokenId,
                        {{"token_id", absl::StrCat(token)},
                         {"position", absl::StrCat(i)},
                         {"vocab_size", absl::StrCat(options.vocab_size)}});
    }
    return *ids;
  }
  if (std::holds_alternative<ChatPrompt>(request.prompt)) {
    return TokensOfChat(options, tokenizer, clock, request, rendered);
  }
  const auto& prompt = std::get<TextPrompt>(request.prompt);
  QUIRE_RETURN_IF_ERROR(CheckBytes(options, tokenizer, request, prompt.text));
  if (const auto offset = FirstInvalidUtf8(prompt.text); offset.has_value()) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat("prompt text is not UTF-8 at byte ", *offset)),
        Reason::kBadUtf8, {{"field", "text"}, {"byte_offset", absl::StrCat(*offset)}});
  }
  return tokenizer.Encode(prompt.text, {.add_special_tokens = prompt.add_special_tokens,
                                        .parse_special_tokens = prompt.parse_special_tokens});
}

// Applies truncate_prompt and clips max_tokens, so that the answer fits the context.
absl::Status FitContext(const EngineOptions& options, const Request& request,
                        PreparedPrompt& prompt) {
  const std::int32_t context = options.max_context_tokens;
  const std::int32_t wanted = request.stopping.max_tokens;
  const std::int32_t room = context - wanted;
  std::vector<std::int32_t>& tokens = prompt.tokens;
  const auto prompt_tokens = static_cast<std::int64_t>(tokens.size());
  if (IsCut(options, request) && prompt_tokens > room) {
    tokens.erase(tokens.begin(), tokens.end() - room);
  }
  if (tokens.size() >= static_cast<std::size_t>(context)) {
    return TooLong("", tokens.size(), context);
  }
  const auto left = context - static_cast<std::int32_t>(tokens.size());
  prompt.max_tokens = std::min(wanted, left);
  prompt.clipped_by_context = wanted > left;
  return absl::OkStatus();
}

absl::Status FitPool(const CacheShape& shape, std::uint32_t choices, PreparedPrompt& prompt) {
  const auto prompt_tokens = static_cast<std::uint32_t>(prompt.tokens.size());
  prompt.limit_tokens = prompt_tokens + static_cast<std::uint32_t>(prompt.max_tokens) - 1;
  prompt.worst_pages_first = shape.demand.PagesFor(prompt.limit_tokens);
  prompt.shared_pages = choices > 1 ? shape.demand.SharedPagesFor(prompt_tokens) : 0;
  const std::uint32_t needed = prompt.WorstPages(choices);
  if (needed <= shape.usable_pages) return absl::OkStatus();
  const std::uint32_t groups = shape.demand.num_groups();
  const std::string over = groups > 1 ? absl::StrCat(" over ", groups, " layer groups") : "";
  return WithReason(absl::InvalidArgumentError(absl::StrCat("request needs ", needed, " pages of ",
                                                            shape.page_size, " tokens", over,
                                                            ", the pool has ", shape.usable_pages)),
                    Reason::kNeverFits,
                    {{"prompt_tokens", absl::StrCat(prompt_tokens)},
                     {"max_tokens", absl::StrCat(prompt.max_tokens)},
                     {"page_size", absl::StrCat(shape.page_size)},
                     {"pages_needed", absl::StrCat(needed)},
                     {"pages_total", absl::StrCat(shape.usable_pages)}});
}

void CollectEndIds(const EngineOptions& options, const Request& request, PreparedPrompt& prompt) {
  const StoppingParams& stopping = request.stopping;
  std::vector<std::int32_t>& ids = prompt.end_ids;
  ids = stopping.stop_token_ids;
  if (!stopping.ignore_eos) {
    ids.insert(ids.end(), options.eos_token_ids.begin(), options.eos_token_ids.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    prompt.bias.push_back({.token = token, .bias = bias});
  }
}

absl::Status FillEcho(const text::Tokenizer& tokenizer, const Request& request,
                      std::string rendered, PreparedPrompt& prompt) {
  const OutputParams& output = request.output;
  if (!output.echo_prompt) return absl::OkStatus();
  if (output.token_ids) prompt.echo_ids = prompt.tokens;
  if (!output.text) return absl::OkStatus();
  const auto* text = std::get_if<TextPrompt>(&request.prompt);
  if (text != nullptr && !request.truncate_prompt) {
    prompt.echo_text = text->text;
    return absl::OkStatus();
  }
  if (!rendered.empty() && !request.truncate_prompt) {
    prompt.echo_text = std::move(rendered);
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(prompt.echo_text,
                         tokenizer.Decode(prompt.tokens, output.skip_special_tokens));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreparedPrompt>> PrepareRequest(
    const EngineOptions& options, const CacheShape& shape, const text::Tokenizer& tokenizer,
    const Clock& clock, AdmissionLimiter* queue, AcceptedRequest& accepted) {
  const Request& request = accepted.request;
  auto prepared = std::make_unique<PreparedPrompt>();
  PreparedPrompt& prompt = *prepared;
  std::string rendered;
  QUIRE_ASSIGN_OR_RETURN(prompt.tokens, TokensOf(options, tokenizer, clock, request, &rendered));
  if (prompt.tokens.empty()) {
    return WithReason(absl::InvalidArgumentError("prompt has no tokens"), Reason::kPromptMissing);
  }
  QUIRE_RETURN_IF_ERROR(FitContext(options, request, prompt));
  const auto prompt_tokens = static_cast<std::int32_t>(prompt.tokens.size());
  accepted.progress.prompt_tokens.store(prompt_tokens, std::memory_order_relaxed);
  QUIRE_RETURN_IF_ERROR(FitPool(shape, request.choices(), prompt));
  QUIRE_RETURN_IF_ERROR(FillEcho(tokenizer, request, std::move(rendered), prompt));
  CollectEndIds(options, request, prompt);
  prompt.root = cache::HashRoot(
      shape.hash_key,
      {.tenant = request.tenant, .fingerprint = options.fingerprint, .salt = request.cache.salt});
  if (request.sampling.uses_history()) prompt.history.SetPrompt(prompt.tokens);
  prompt.keys = cache::HashPages(shape.hash_key, prompt.root, prompt.tokens, shape.page_size);
  QUIRE_RETURN_IF_ERROR(queue->AddTokens(request.tenant, prompt_tokens));
  prompt.queued_tokens = prompt_tokens;
  return prepared;
}

TextStage::TextStage(const EngineOptions& options, const CacheShape& shape,
                     const text::Tokenizer* tokenizer, const Clock* clock, AdmissionLimiter* queue,
                     EngineProbe* probe, std::shared_ptr<Inbox> inbox)
    : options_(options),
      shape_(shape),
      tokenizer_(tokenizer),
      clock_(clock),
      queue_(queue),
      probe_(probe),
      inbox_(std::move(inbox)),
      prompts_(options.max_queued_requests, options.max_queued_bytes) {
  for (std::int32_t i = 0; i < options.text_threads; ++i) {
    workers_.emplace_back([this] { Work(); });
  }
}

TextStage::~TextStage() {
  Stop();
}

void TextStage::Stop() {
  prompts_.Close();
  for (std::thread& worker : workers_) {
    if (worker.joinable()) worker.join();
  }
}

absl::StatusOr<std::unique_ptr<PreparedPrompt>> TextStage::Prepare(AcceptedRequest& accepted) {
  return WithinMemory(
      [&] { return PrepareRequest(options_, shape_, *tokenizer_, *clock_, queue_, accepted); });
}

void TextStage::Work() {
  SetThreadName("text");
  while (std::shared_ptr<AcceptedRequest> next = prompts_.Pop()) {
    Signal signal{.kind = Signal::Kind::kPrepared, .request = std::move(next)};
    if (!signal.request->cancel_requested.load(std::memory_order_acquire)) {
      const absl::Time start = clock_->Now();
      absl::StatusOr<std::unique_ptr<PreparedPrompt>> prompt = Prepare(*signal.request);
      probe_->ObserveTokenize(clock_->Now() - start);
      signal.status = prompt.status();
      if (prompt.ok()) signal.prompt = *std::move(prompt);
    } else {
      signal.status = absl::CancelledError("request was cancelled while it was prepared");
    }
    inbox_->Post(std::move(signal));
  }
}

}  // namespace quire::engine

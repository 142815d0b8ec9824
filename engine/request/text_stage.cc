#include "engine/request/text_stage.h"

#include <algorithm>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "base/utf8.h"
#include "cache_manager/prefix/page_hash.h"
#include "text/chat/chat_template.h"

namespace quire::engine {
namespace {

absl::StatusOr<std::vector<std::int32_t>> TokensOfChat(const text::Tokenizer& tokenizer,
                                                       const Request& request,
                                                       std::string* rendered) {
  const auto& prompt = std::get<ChatPrompt>(request.prompt);
  QUIRE_ASSIGN_OR_RETURN(text::RenderedChat chat,
                         prompt.templates->Render(prompt.chat, request.accept_time));
  *rendered = std::move(chat.text);
  // The template prints what the tokenizer would add.
  return tokenizer.Encode(*rendered, {.add_special_tokens = false,
                                      .parse_special_tokens = prompt.parse_special_tokens,
                                      .from_template = true,
                                      .literal = chat.literal});
}

// `rendered` gets the text of a chat.
absl::StatusOr<std::vector<std::int32_t>> TokensOf(const EngineOptions& options,
                                                   const text::Tokenizer& tokenizer,
                                                   const Request& request,
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
    return TokensOfChat(tokenizer, request, rendered);
  }
  const auto& prompt = std::get<TextPrompt>(request.prompt);
  if (const auto offset = text::FirstInvalidUtf8(prompt.text); offset.has_value()) {
    return WithReason(
        absl::InvalidArgumentError(absl::StrCat("prompt text is not UTF-8 at byte ", *offset)),
        Reason::kBadUtf8, {{"field", "text"}, {"byte_offset", absl::StrCat(*offset)}});
  }
  return tokenizer.Encode(prompt.text, {.add_special_tokens = prompt.add_special_tokens,
                                        .parse_special_tokens = prompt.parse_special_tokens});
}

absl::Status TooLong(std::size_t prompt_tokens, std::int32_t context) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat("prompt has ", prompt_tokens,
                                                            " tokens, model context is ", context)),
                    Reason::kPromptTooLong,
                    {{"prompt_tokens", absl::StrCat(prompt_tokens)},
                     {"max_context_tokens", absl::StrCat(context)}});
}

// Applies truncate_prompt and clips max_tokens, so that the answer fits the context.
absl::Status FitContext(const EngineOptions& options, LiveRequest& live) {
  const std::int32_t context = options.max_context_tokens;
  const std::int32_t wanted = live.request.stopping.max_tokens;
  const std::int32_t room = context - wanted;
  const auto prompt_tokens = static_cast<std::int64_t>(live.prompt.size());
  if (live.request.truncate_prompt && room > 0 && prompt_tokens > room) {
    live.prompt.erase(live.prompt.begin(), live.prompt.end() - room);
  }
  if (live.prompt.size() >= static_cast<std::size_t>(context))
    return TooLong(live.prompt.size(), context);
  const auto left = context - static_cast<std::int32_t>(live.prompt.size());
  live.max_tokens = std::min(wanted, left);
  live.clipped_by_context = wanted > left;
  return absl::OkStatus();
}

absl::Status FitPool(const CacheShape& shape, LiveRequest& live) {
  const auto prompt_tokens = static_cast<std::uint32_t>(live.prompt.size());
  live.limit_tokens = prompt_tokens + static_cast<std::uint32_t>(live.max_tokens) - 1;
  live.worst_pages_first = shape.demand.PagesFor(live.limit_tokens);
  live.shared_pages = live.choices() > 1 ? shape.demand.SharedPagesFor(prompt_tokens) : 0;
  const std::uint32_t needed = live.worst_pages();
  if (needed <= shape.usable_pages) return absl::OkStatus();
  const std::uint32_t groups = shape.demand.num_groups();
  const std::string over = groups > 1 ? absl::StrCat(" over ", groups, " layer groups") : "";
  return WithReason(absl::InvalidArgumentError(absl::StrCat("request needs ", needed, " pages of ",
                                                            shape.page_size, " tokens", over,
                                                            ", the pool has ", shape.usable_pages)),
                    Reason::kNeverFits,
                    {{"prompt_tokens", absl::StrCat(prompt_tokens)},
                     {"max_tokens", absl::StrCat(live.max_tokens)},
                     {"page_size", absl::StrCat(shape.page_size)},
                     {"pages_needed", absl::StrCat(needed)},
                     {"pages_total", absl::StrCat(shape.usable_pages)}});
}

void CollectEndIds(const EngineOptions& options, LiveRequest& live) {
  const StoppingParams& stopping = live.request.stopping;
  live.end_ids = stopping.stop_token_ids;
  if (!stopping.ignore_eos) {
    live.end_ids.insert(live.end_ids.end(), options.eos_token_ids.begin(),
                        options.eos_token_ids.end());
  }
  std::sort(live.end_ids.begin(), live.end_ids.end());
  live.end_ids.erase(std::unique(live.end_ids.begin(), live.end_ids.end()), live.end_ids.end());
  for (const auto& [token, bias] : live.request.sampling.logit_bias) {
    live.bias.push_back({.token = token, .bias = bias});
  }
}

absl::Status FillEcho(const text::Tokenizer& tokenizer, std::string rendered,
                      LiveRequest& live) {
  const OutputParams& output = live.request.output;
  if (!output.echo_prompt) return absl::OkStatus();
  if (output.token_ids) live.echo_ids = live.prompt;
  if (!output.text) return absl::OkStatus();
  const auto* prompt = std::get_if<TextPrompt>(&live.request.prompt);
  if (prompt != nullptr && !live.request.truncate_prompt) {
    live.prompt_text = prompt->text;
    return absl::OkStatus();
  }
  if (!rendered.empty() && !live.request.truncate_prompt) {
    live.prompt_text = std::move(rendered);
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(live.prompt_text,
                         tokenizer.Decode(live.prompt, output.skip_special_tokens));
  return absl::OkStatus();
}

}  // namespace

absl::Status PrepareRequest(const EngineOptions& options, const CacheShape& shape,
                            const text::Tokenizer& tokenizer, AdmissionQueue* queue,
                            LiveRequest& live) {
  std::string rendered;
  QUIRE_ASSIGN_OR_RETURN(live.prompt, TokensOf(options, tokenizer, live.request, &rendered));
  if (live.prompt.empty()) {
    return WithReason(absl::InvalidArgumentError("prompt has no tokens"), Reason::kPromptMissing);
  }
  QUIRE_RETURN_IF_ERROR(FitContext(options, live));
  live.shown_prompt_tokens.store(static_cast<std::int32_t>(live.prompt.size()),
                                 std::memory_order_relaxed);
  QUIRE_RETURN_IF_ERROR(FitPool(shape, live));
  QUIRE_RETURN_IF_ERROR(FillEcho(tokenizer, std::move(rendered), live));
  CollectEndIds(options, live);
  live.root = cache::HashRoot(shape.hash_key, {.tenant = live.request.tenant,
                                               .fingerprint = options.fingerprint,
                                               .salt = live.request.cache.salt});
  live.keys = cache::HashPages(shape.hash_key, live.root, live.prompt, shape.page_size);
  QUIRE_RETURN_IF_ERROR(
      queue->AddTokens(live.request.tenant, static_cast<std::int64_t>(live.prompt.size())));
  live.queued_tokens = static_cast<std::int32_t>(live.prompt.size());
  return absl::OkStatus();
}

TextStage::TextStage(const EngineOptions& options, const CacheShape& shape,
                     const text::Tokenizer* tokenizer, const Clock* clock, AdmissionQueue* queue,
                     EngineProbe* probe, std::shared_ptr<Inbox> inbox)
    : options_(options),
      shape_(shape),
      tokenizer_(tokenizer),
      clock_(clock),
      queue_(queue),
      probe_(probe),
      inbox_(std::move(inbox)),
      jobs_(static_cast<std::size_t>(options.max_queued_requests)) {
  for (std::int32_t i = 0; i < options.text_threads; ++i) {
    workers_.emplace_back([this] { Work(); });
  }
}

TextStage::~TextStage() {
  Stop();
}

bool TextStage::Submit(std::shared_ptr<LiveRequest> live) {
  return jobs_.TryPush(std::move(live));
}

void TextStage::Stop() {
  jobs_.Close();
  for (std::thread& worker : workers_) {
    if (worker.joinable()) worker.join();
  }
}

absl::Status TextStage::Prepare(LiveRequest& live) {
  try {
    return PrepareRequest(options_, shape_, *tokenizer_, queue_, live);
  } catch (const std::bad_alloc&) {
    return WithReason(absl::ResourceExhaustedError("no memory to prepare the prompt"),
                      Reason::kQueueFull, {{"limit", "memory"}}, queue_->RetryDelay());
  }
}

void TextStage::Work() {
  while (std::optional<std::shared_ptr<LiveRequest>> job = jobs_.Pop()) {
    LiveRequest& live = **job;
    if (!live.cancel_requested.load(std::memory_order_acquire)) {
      const absl::Time start = clock_->Now();
      live.prepare_status = Prepare(live);
      probe_->ObserveTokenize(clock_->Now() - start);
    } else {
      live.prepare_status = absl::CancelledError("request was cancelled while it was prepared");
    }
    inbox_->Post({.kind = Signal::Kind::kPrepared, .request = std::move(*job)});
  }
}

}  // namespace quire::engine

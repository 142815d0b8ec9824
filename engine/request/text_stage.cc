#include "engine/request/text_stage.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <span>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "base/thread_name.h"
#include "base/utf8.h"
#include "cache_manager/prefix/page_hash.h"
#include "engine/constraint/constraint_compiler.h"
#include "engine/masks/banned_text.h"
#include "engine/masks/repeat_penalty.h"
#include "engine/masks/token_texts.h"
#include "text/chat/chat_template.h"
#include "text/detokenizer.h"
#include "text/tools/format_text.h"

namespace quire::engine {
namespace {

// Number of distinct answer tokens for which a prompt's history reserves memory in advance.
constexpr std::int32_t kReservedHistory = 1024;

absl::Status TooLongError(absl::string_view qualifier, std::size_t prompt_tokens,
                          std::int32_t context) {
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat(
          "prompt has ", qualifier, prompt_tokens,
          " tokens, but this model's maximum context length is ", context, "; shorten the prompt")),
      Reason::kPromptTooLong,
      {{"field", "prompt"},
       {"prompt_tokens", absl::StrCat(prompt_tokens)},
       {"max_context_tokens", absl::StrCat(context)}});
}

// Returns whether a prompt that is longer than the context is truncated.
bool TruncatesPrompt(const EngineOptions& options, const Request& request) {
  if (request.generates() && request.max_prompt_tokens < options.max_context_tokens) return true;
  return request.truncate_prompt &&
         (!request.generates() || options.max_context_tokens > request.stopping.max_tokens);
}

// Returns PROMPT_TOO_LONG for a text that has too many tokens in every possible tokenization. The
// check precedes tokenization, which would take a text worker seconds for such a text.
absl::Status CheckBytes(const EngineOptions& options, const text::Tokenizer& tokenizer,
                        const Request& request, absl::string_view text) {
  const std::optional<std::size_t> max_bytes = tokenizer.max_token_bytes();
  if (!max_bytes || TruncatesPrompt(options, request)) return absl::OkStatus();
  const std::size_t min_tokens = (text.size() + *max_bytes - 1) / *max_bytes;
  if (min_tokens < static_cast<std::size_t>(options.max_context_tokens)) return absl::OkStatus();
  return TooLongError("at least ", min_tokens, options.max_context_tokens);
}

absl::StatusOr<std::vector<std::int32_t>> TokenizeChat(const EngineOptions& options,
                                                       const text::Tokenizer& tokenizer,
                                                       const Clock& clock, const Request& request,
                                                       const ChatPrompt& prompt,
                                                       std::string* rendered) {
  QUIRE_ASSIGN_OR_RETURN(text::RenderedChat chat,
                         prompt.templates->Render(prompt.chat, clock.ToWall(request.accept_time)));
  *rendered = std::move(chat.text);
  QUIRE_RETURN_IF_ERROR(CheckBytes(options, tokenizer, request, *rendered));
  // The template already renders the special tokens that the tokenizer would add.
  return tokenizer.Encode(*rendered, {.add_special_tokens = false,
                                      .parse_special_tokens = prompt.parse_special_tokens,
                                      .from_template = true,
                                      .literal = chat.literal});
}

absl::Status CheckIds(const EngineOptions& options, absl::string_view name,
                      const TokenPrompt& ids) {
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const std::int32_t token = ids[i];
    if (token >= 0 && token < options.vocab_size) continue;
    return WithReason(absl::InvalidArgumentError(absl::StrCat(name, " token ", i, " is ", token,
                                                              ", the vocabulary has ",
                                                              options.vocab_size, " tokens")),
                      Reason::kBadTokenId,
                      {{"field", std::string(name)},
                       {"token_id", absl::StrCat(token)},
                       {"position", absl::StrCat(i)},
                       {"vocab_size", absl::StrCat(options.vocab_size)}});
  }
  return absl::OkStatus();
}

absl::Status CheckUtf8(absl::string_view name, absl::string_view text) {
  const auto offset = FirstInvalidUtf8(text);
  if (!offset.has_value()) return absl::OkStatus();
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat(name, " text is not UTF-8 at byte ", *offset)),
      Reason::kBadUtf8, {{"field", std::string(name)}, {"byte_offset", absl::StrCat(*offset)}});
}

// Truncates a text to embed: keeps its beginning and all tokens that the tokenizer adds. `bare`
// has the tokens of the text without added ones.
void CutToContext(const std::vector<std::int32_t>& bare, std::size_t context,
                  std::vector<std::int32_t>* tokens) {
  if (tokens->size() <= context) return;
  const auto begin = std::search(tokens->begin(), tokens->end(), bare.begin(), bare.end());
  const auto end = begin == tokens->end() ? begin : begin + std::ssize(bare);
  const std::ptrdiff_t surplus =
      std::min(std::ssize(*tokens) - static_cast<std::ptrdiff_t>(context), end - tokens->begin());
  tokens->erase(end - surplus, end);
}

absl::StatusOr<std::vector<std::int32_t>> TokenizeText(const EngineOptions& options,
                                                       const text::Tokenizer& tokenizer,
                                                       const Request& request) {
  const auto& prompt = std::get<TextPrompt>(request.prompt);
  QUIRE_RETURN_IF_ERROR(CheckBytes(options, tokenizer, request, prompt.text));
  QUIRE_RETURN_IF_ERROR(CheckUtf8("prompt", prompt.text));
  text::EncodeOptions encode{.add_special_tokens = prompt.add_special_tokens,
                             .parse_special_tokens = prompt.parse_special_tokens};
  QUIRE_ASSIGN_OR_RETURN(std::vector<std::int32_t> tokens, tokenizer.Encode(prompt.text, encode));
  if (request.generates() || !request.truncate_prompt) return tokens;
  encode.add_special_tokens = false;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::int32_t> bare,
                         tokenizer.Encode(prompt.text, encode));
  CutToContext(bare, static_cast<std::size_t>(options.max_context_tokens), &tokens);
  return tokens;
}

absl::StatusOr<std::vector<std::int32_t>> TokenizeContext(const EngineOptions& options,
                                                          const text::Tokenizer& tokenizer,
                                                          const Clock& clock,
                                                          const Request& request) {
  const auto& prompt = std::get<ScorePrompt>(request.prompt);
  std::vector<std::int32_t> tokens = prompt.context_ids;
  if (prompt.context_chat) {
    std::string rendered;
    QUIRE_ASSIGN_OR_RETURN(
        tokens, TokenizeChat(options, tokenizer, clock, request, *prompt.context_chat, &rendered));
  } else if (!prompt.context_text.empty()) {
    QUIRE_RETURN_IF_ERROR(CheckBytes(options, tokenizer, request, prompt.context_text));
    QUIRE_ASSIGN_OR_RETURN(tokens, tokenizer.Encode(prompt.context_text, {}));
  }
  if (!tokens.empty()) return tokens;
  if (!options.bos_token_id) {
    return WithReason(absl::InvalidArgumentError("the context is empty, and the model has no "
                                                 "beginning-of-sequence token to replace it"),
                      Reason::kPromptMissing, {{"field", "context"}});
  }
  return std::vector<std::int32_t>{*options.bos_token_id};
}

// Returns the tokens of the context followed by the continuation. `score_from` becomes the length
// of the context.
absl::StatusOr<std::vector<std::int32_t>> TokenizeScore(const EngineOptions& options,
                                                        const text::Tokenizer& tokenizer,
                                                        const Clock& clock, const Request& request,
                                                        std::uint32_t* score_from) {
  const auto& prompt = std::get<ScorePrompt>(request.prompt);
  QUIRE_RETURN_IF_ERROR(CheckIds(options, "context", prompt.context_ids));
  QUIRE_RETURN_IF_ERROR(CheckIds(options, "continuation", prompt.continuation_ids));
  QUIRE_RETURN_IF_ERROR(CheckUtf8("context", prompt.context_text));
  QUIRE_RETURN_IF_ERROR(CheckUtf8("continuation", prompt.continuation_text));
  QUIRE_ASSIGN_OR_RETURN(std::vector<std::int32_t> tokens,
                         TokenizeContext(options, tokenizer, clock, request));
  std::vector<std::int32_t> continuation = prompt.continuation_ids;
  if (!prompt.continuation_text.empty()) {
    QUIRE_RETURN_IF_ERROR(CheckBytes(options, tokenizer, request, prompt.continuation_text));
    QUIRE_ASSIGN_OR_RETURN(
        continuation, tokenizer.Encode(prompt.continuation_text, {.add_special_tokens = false}));
  }
  if (continuation.empty()) {
    return WithReason(absl::InvalidArgumentError("the continuation has no tokens"),
                      Reason::kPromptMissing, {{"field", "continuation"}});
  }
  *score_from = static_cast<std::uint32_t>(tokens.size());
  tokens.insert(tokens.end(), continuation.begin(), continuation.end());
  return tokens;
}

// Sets `rendered` to the rendered text of a chat.
absl::StatusOr<std::vector<std::int32_t>> TokenizePrompt(const EngineOptions& options,
                                                         const text::Tokenizer& tokenizer,
                                                         const Clock& clock, const Request& request,
                                                         std::string* rendered) {
  if (const auto* ids = std::get_if<TokenPrompt>(&request.prompt)) {
    QUIRE_RETURN_IF_ERROR(CheckIds(options, "prompt", *ids));
    return *ids;
  }
  if (const auto* chat = std::get_if<ChatPrompt>(&request.prompt)) {
    return TokenizeChat(options, tokenizer, clock, request, *chat, rendered);
  }
  return TokenizeText(options, tokenizer, request);
}

// Truncates the prompt if the request asks for it, and clips max_tokens, so that prompt and answer
// fit into the context. The prompt of a task that does not generate may fill the whole context.
absl::Status FitContext(const EngineOptions& options, const Request& request,
                        PreparedPrompt& prompt) {
  const std::int32_t context = options.max_context_tokens;
  std::vector<std::int32_t>& tokens = prompt.tokens;
  if (!request.generates()) {
    if (std::cmp_less_equal(tokens.size(), context)) return absl::OkStatus();
    if (!request.truncate_prompt) return TooLongError("", tokens.size(), context);
    tokens.resize(static_cast<std::size_t>(context));
    return absl::OkStatus();
  }
  const std::int32_t requested = request.stopping.max_tokens;
  std::int32_t max_prompt = request.max_prompt_tokens;
  if (request.truncate_prompt && context > requested) {
    max_prompt = std::min(max_prompt, context - requested);
  }
  if (std::cmp_greater(tokens.size(), max_prompt)) {
    tokens.erase(tokens.begin(), tokens.end() - max_prompt);
    prompt.is_truncated = true;
  }
  if (tokens.size() >= static_cast<std::size_t>(context)) {
    return TooLongError("", tokens.size(), context);
  }
  const auto remaining = context - static_cast<std::int32_t>(tokens.size());
  prompt.max_tokens = std::min(requested, remaining);
  prompt.clipped_by_context = requested > remaining;
  return absl::OkStatus();
}

absl::Status FitPool(const CacheShape& shape, std::uint32_t choices, PreparedPrompt& prompt) {
  const auto prompt_tokens = static_cast<std::uint32_t>(prompt.tokens.size());
  // The last token of an answer is never an input of the model.
  const std::int32_t answer_tokens = std::max(prompt.max_tokens - 1, 0);
  prompt.max_cached_tokens = prompt_tokens + static_cast<std::uint32_t>(answer_tokens);
  prompt.max_pages_of_one_choice = shape.demand.PagesFor(prompt.max_cached_tokens);
  prompt.shared_pages = choices > 1 ? shape.demand.SharedPagesFor(prompt_tokens) : 0;
  const std::uint32_t needed = prompt.WorstPages(choices);
  if (needed <= shape.usable_pages) return absl::OkStatus();
  const std::uint32_t groups = shape.demand.num_groups();
  const std::string over = groups > 1 ? absl::StrCat(" over ", groups, " layer groups") : "";
  return WithReason(absl::InvalidArgumentError(absl::StrCat("request needs ", needed, " pages of ",
                                                            shape.page_size, " tokens", over,
                                                            ", the pool has ", shape.usable_pages)),
                    Reason::kExceedsCapacity,
                    {{"field", "prompt"},
                     {"prompt_tokens", absl::StrCat(prompt_tokens)},
                     {"max_tokens", absl::StrCat(prompt.max_tokens)},
                     {"page_size", absl::StrCat(shape.page_size)},
                     {"pages_needed", absl::StrCat(needed)},
                     {"pages_total", absl::StrCat(shape.usable_pages)}});
}

void CollectEndIds(const EngineOptions& options, const text::Tokenizer& tokenizer,
                   const Request& request, PreparedPrompt& prompt) {
  const StoppingParams& stopping = request.stopping;
  std::vector<std::int32_t>& ids = prompt.end_ids;
  ids = stopping.stop_token_ids;
  if (!stopping.ignore_eos) {
    ids.insert(ids.end(), options.eos_token_ids.begin(), options.eos_token_ids.end());
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  // With a constraint, a stop id of an ordinary text token is not an end token. It ends the answer
  // only where the constraint allows its text.
  if (request.constraint.has_value()) {
    std::ranges::copy_if(
        ids, std::back_inserter(prompt.mask_rules.end_tokens), [&](std::int32_t id) {
          return tokenizer.IsSpecial(id) || std::ranges::count(options.eos_token_ids, id) > 0;
        });
  }
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    prompt.bias.push_back({.token = token, .bias = bias});
  }
}

void SetAllowedTokens(const EngineOptions& options, const Request& request, MaskRules* rules) {
  const std::vector<std::int32_t>& ids = request.sampling.allowed_token_ids;
  if (ids.empty()) return;
  std::vector<std::uint32_t> words(
      kernels::MaskWords(static_cast<std::uint32_t>(options.vocab_size)));
  for (const std::int32_t id : ids) {
    words[static_cast<std::size_t>(id) / 32] |= std::uint32_t{1} << (id % 32);
  }
  rules->allowed = std::make_shared<const std::vector<std::uint32_t>>(std::move(words));
}

// The text of an answer continues the decoded prompt. The text of a constrained answer is the
// concatenation of its tokens' unchanged texts, as the masks assume.
text::DetokenizerState ComputeAnswerStart(const text::Tokenizer& tokenizer, const Request& request,
                                          std::span<const std::int32_t> prompt) {
  if (!request.generates()) return {};
  if (request.constraint.has_value()) return text::Detokenizer::Verbatim();
  return text::Detokenizer::StateAfter(tokenizer, request.output.skip_special_tokens, prompt);
}

// REQUIRES: prompt.answer_start is set.
absl::Status FillEcho(const text::Tokenizer& tokenizer, const Request& request,
                      std::string rendered, PreparedPrompt& prompt) {
  const OutputParams& output = request.output;
  if (!output.echo_prompt) return absl::OkStatus();
  if (output.token_ids) prompt.echo_ids = prompt.tokens;
  if (!output.text) return absl::OkStatus();
  const auto* text = std::get_if<TextPrompt>(&request.prompt);
  if (text != nullptr && !prompt.is_truncated) {
    prompt.echo_text = text->text;
    return absl::OkStatus();
  }
  if (!rendered.empty() && !prompt.is_truncated) {
    prompt.echo_text = std::move(rendered);
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(prompt.echo_text,
                         tokenizer.Decode(prompt.tokens, output.skip_special_tokens));
  // If the prompt ends inside a character, the echo omits this character and each choice emits it.
  // The echo followed by the text of a choice then equals the decoded concatenation.
  text::DetokenizerState& start = prompt.answer_start;
  if (start.is_cut() && absl::EndsWith(prompt.echo_text, kReplacementCharacter)) {
    prompt.echo_text.resize(prompt.echo_text.size() - kReplacementCharacter.size());
    start.emits_replacement = true;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PreparedPrompt>> PrepareRequest(const EngineOptions& options,
                                                               const CacheShape& shape,
                                                               const text::Tokenizer& tokenizer,
                                                               const Clock& clock,
                                                               AcceptedRequest& accepted) {
  const Request& request = accepted.request;
  auto prepared = std::make_unique<PreparedPrompt>();
  PreparedPrompt& prompt = *prepared;
  std::string rendered;
  if (std::holds_alternative<ScorePrompt>(request.prompt)) {
    QUIRE_ASSIGN_OR_RETURN(prompt.tokens,
                           TokenizeScore(options, tokenizer, clock, request, &prompt.score_from));
  } else {
    QUIRE_ASSIGN_OR_RETURN(prompt.tokens,
                           TokenizePrompt(options, tokenizer, clock, request, &rendered));
  }
  if (prompt.tokens.empty()) {
    return WithReason(absl::InvalidArgumentError("prompt has no tokens"), Reason::kPromptMissing,
                      {{"field", "prompt"}});
  }
  QUIRE_RETURN_IF_ERROR(FitContext(options, request, prompt));
  const auto prompt_tokens = static_cast<std::int32_t>(prompt.tokens.size());
  accepted.progress.prompt_tokens.store(prompt_tokens, std::memory_order_relaxed);
  QUIRE_RETURN_IF_ERROR(FitPool(shape, request.choices(), prompt));
  if (request.parsing) {
    const auto* chat = std::get_if<ChatPrompt>(&request.prompt);
    std::optional<absl::string_view> continued;
    if (chat != nullptr && chat->chat.continue_final_message && !chat->chat.messages.empty()) {
      continued = chat->chat.messages.back().content;
    }
    const text::ToolFormat& format = *request.parsing->format;
    prompt.opens_reasoning = text::OpensReasoning(format, rendered, continued);
    prompt.is_after_reasoning = text::IsAfterReasoning(format, rendered, continued);
  }
  prompt.answer_start = ComputeAnswerStart(tokenizer, request, prompt.tokens);
  QUIRE_RETURN_IF_ERROR(FillEcho(tokenizer, request, std::move(rendered), prompt));
  CollectEndIds(options, tokenizer, request, prompt);
  SetAllowedTokens(options, request, &prompt.mask_rules);
  prompt.root = cache::HashRoot(
      shape.hash_key,
      {.tenant = request.tenant, .fingerprint = options.fingerprint, .salt = request.cache.salt});
  if (request.sampling.uses_history()) {
    const std::int32_t reserved_outputs = std::min(prompt.max_tokens, kReservedHistory);
    prompt.history.SetPrompt(prompt.tokens, static_cast<std::size_t>(reserved_outputs));
  }
  prompt.keys = cache::HashPages(shape.hash_key, prompt.root, prompt.tokens, shape.page_size);
  return prepared;
}

bool NeedsTokenTexts(const Request& request) {
  return !request.sampling.banned_text.empty() || request.sampling.dry.is_on();
}

void AddTextRules(const Request& request, std::shared_ptr<const TokenTexts> texts,
                  PreparedPrompt* prompt) {
  MaskRules& rules = prompt->mask_rules;
  const SamplingParams& sampling = request.sampling;
  if (!sampling.banned_text.empty()) {
    rules.banned = std::make_shared<BannedText>(sampling.banned_text, texts);
  }
  if (!sampling.dry.is_on()) return;
  rules.repeat_penalty =
      std::make_shared<RepeatPenalty>(sampling.dry, std::move(texts), prompt->tokens);
  rules.bias = prompt->bias;
  std::ranges::sort(rules.bias, {}, &kernels::LogitBias::token);
}

// Sets the fields that depend on whether the prompt ends inside or after reasoning. A tool-call
// constraint keeps its format, because calls need it.
ConstraintSpec ResolveConstraint(ConstraintSpec spec, const PreparedPrompt& prompt) {
  spec.opens_reasoning = prompt.opens_reasoning;
  if (std::exchange(spec.start_depends_on_prompt, false) && prompt.is_after_reasoning) {
    spec.starts_after_reasoning = false;
    if (spec.kind != ConstraintKind::kToolCalls) spec.tool_format = nullptr;
  }
  return spec;
}

absl::Status CountPrompt(const Request& request, AdmissionLimiter* limiter,
                         PreparedPrompt* prompt) {
  const auto tokens = static_cast<std::int32_t>(prompt->tokens.size());
  QUIRE_RETURN_IF_ERROR(limiter->AddTokens(request.tenant, tokens));
  prompt->queued_tokens = tokens;
  return absl::OkStatus();
}

TextStage::TextStage(const EngineOptions& options, const CacheShape& shape,
                     const text::Tokenizer* tokenizer, const Clock* clock,
                     AdmissionLimiter* limiter, EngineProbe* probe, std::shared_ptr<Inbox> inbox)
    : options_(options),
      shape_(shape),
      tokenizer_(tokenizer),
      clock_(clock),
      limiter_(limiter),
      probe_(probe),
      inbox_(std::move(inbox)),
      prompts_(options.max_queued_requests, options.max_queued_bytes) {
  for (std::int32_t i = 0; i < options.text_threads; ++i) {
    workers_.emplace_back([this] { Work(); });
  }
}

void TextStage::Stop() {
  prompts_.Close();
  for (std::thread& worker : workers_) {
    if (worker.joinable()) worker.join();
  }
}

absl::StatusOr<std::unique_ptr<PreparedPrompt>> TextStage::Prepare(AcceptedRequest& accepted) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<PreparedPrompt> prompt,
                         PrepareRequest(options_, shape_, *tokenizer_, *clock_, accepted));
  const Request& request = accepted.request;
  if (NeedsTokenTexts(request)) AddTextRules(request, GetTokenTexts(), prompt.get());
  QUIRE_RETURN_IF_ERROR(CountPrompt(request, limiter_, prompt.get()));
  return prompt;
}

std::shared_ptr<const TokenTexts> TextStage::GetTokenTexts() {
  MutexLock lock(&token_texts_mutex_);
  if (token_texts_ == nullptr) {
    token_texts_ = std::make_shared<const TokenTexts>(*tokenizer_, options_.vocab_size);
  }
  return token_texts_;
}

void TextStage::CompileConstraintAndPost(const std::shared_ptr<AcceptedRequest>& accepted,
                                         std::unique_ptr<PreparedPrompt> prompt) {
  RequestState preparing = RequestState::kPreparing;
  accepted->progress.state.compare_exchange_strong(preparing, RequestState::kQueued);
  // std::function copies its target, so the signal is shared until the compiler has called `done`.
  const auto waiting = std::make_shared<Signal>(
      Signal{.kind = Signal::Kind::kPrepared, .request = accepted, .prompt = std::move(prompt)});
  const auto done = [inbox = inbox_, vocab_size = options_.vocab_size,
                     waiting](ConstraintCompiler::Result constraint) {
    waiting->status = constraint.status();
    if (constraint.ok() && (*constraint)->vocab_size() != static_cast<std::uint32_t>(vocab_size)) {
      waiting->status = absl::InternalError(
          absl::StrCat("the constraint was compiled for ", (*constraint)->vocab_size(),
                       " tokens, the vocabulary has ", vocab_size));
    }
    if (waiting->status.ok()) waiting->prompt->mask_rules.constraint = *std::move(constraint);
    inbox->Post(std::move(*waiting));
  };
  const ConstraintCompiler::Ticket ticket = options_.constraints->Compile(
      ResolveConstraint(*accepted->request.constraint, *waiting->prompt), done);
  accepted->compile_ticket.store(ticket, std::memory_order_release);
}

void TextStage::Work() {
  SetThreadName("text");
  while (const std::shared_ptr<AcceptedRequest> next = prompts_.Pop()) {
    Signal signal = {.kind = Signal::Kind::kPrepared, .request = next};
    if (!next->cancel_requested.load(std::memory_order_acquire)) {
      const absl::Time start = clock_->Now();
      absl::StatusOr<std::unique_ptr<PreparedPrompt>> prompt = Prepare(*next);
      probe_->answers.ObserveTokenize(clock_->Now() - start);
      signal.status = prompt.status();
      if (prompt.ok() && next->request.constraint.has_value()) {
        CompileConstraintAndPost(next, *std::move(prompt));
        continue;
      }
      if (prompt.ok()) signal.prompt = *std::move(prompt);
    } else {
      signal.status = absl::CancelledError("the request was cancelled during preparation");
    }
    inbox_->Post(std::move(signal));
  }
}

}  // namespace quire::engine

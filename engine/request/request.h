#pragma once

// One request to generate, score or embed, immutable after Accept, and the enums of its life cycle.

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/constraint/constraint.h"
#include "engine/request/sampling_params.h"
#include "text/chat/chat_input.h"

namespace quire::text {
class ChatTemplates;
class DeclaredTools;
struct ToolFormat;
}  // namespace quire::text

namespace quire::engine {

struct TextPrompt {
  std::string text;
  bool add_special_tokens = true;
  bool parse_special_tokens = true;
};
using TokenPrompt = std::vector<std::int32_t>;
// A conversation, with the templates that were configured when it was accepted.
struct ChatPrompt {
  text::ChatInput chat;
  std::shared_ptr<const text::ChatTemplates> templates;  // never null
  bool parse_special_tokens = true;
};

// A context and its continuation, tokenized separately. Task::kScore scores the continuation, and
// Task::kEmbed embeds both. If text is present, the ids are ignored. If the context has neither
// text nor ids, it is the beginning-of-sequence token. A conversation replaces context text and
// ids.
struct ScorePrompt {
  std::optional<ChatPrompt> context_chat = std::nullopt;
  std::string context_text;
  TokenPrompt context_ids;
  std::string continuation_text;
  TokenPrompt continuation_ids;
};

// The kind of result. Tasks that do not generate end when their prompt is computed. Nothing is
// sampled for them, and they ignore stopping and sampling.
enum class Task : std::uint8_t {
  kGenerate,
  kScore,  // the log-probabilities of a ScorePrompt's continuation, as prompt log-probabilities
  kEmbed   // one vector, from the prompt's hidden states after the final norm
};

// The tokens whose hidden states are pooled. With causal attention the first token does not depend
// on the others.
enum class Pooling : std::uint8_t { kLast, kMean, kCls };

// How answers are split into content, reasoning and tool calls.
struct AnswerParsing {
  const text::ToolFormat* format = nullptr;          // a constant, never null
  std::shared_ptr<const text::DeclaredTools> tools;  // never null
  bool ends_after_call = false;  // the choice ends after one call (parallel_tool_calls: false)
};

struct CacheParams {
  bool skip_read = false;
  bool skip_write = false;
  std::string salt;
};

// The owner of a request; other callers cannot see it. One principal may act for several tenants,
// and a tenant may have several principals.
struct Caller {
  std::string tenant;
  std::string principal;  // the authenticated caller
};

struct Request {
  std::string id;         // unique among live requests of one caller
  std::string principal;  // the authenticated caller
  std::string tenant = "default";
  std::string model;
  Task task = Task::kGenerate;
  Pooling pooling = Pooling::kLast;  // only for Task::kEmbed
  std::variant<TextPrompt, TokenPrompt, ChatPrompt, ScorePrompt> prompt;
  // Truncates a prompt that is too long. Generating tasks keep its last tokens, so that max_tokens
  // tokens of the context are left. Other tasks keep its first tokens.
  bool truncate_prompt = false;
  // Generating tasks keep only this many last tokens of the prompt.
  std::int32_t max_prompt_tokens = std::numeric_limits<std::int32_t>::max();
  SamplingParams sampling;
  StoppingParams stopping;
  OutputParams output;
  std::optional<AnswerParsing> parsing;      // none: the whole answer is its text
  std::optional<ConstraintSpec> constraint;  // none: free text
  CacheParams cache;
  std::int32_t priority = 0;  // [-100, 100], lower values first
  absl::Time accept_time;
  absl::Time deadline = absl::InfiniteFuture();  // the whole request must end by then
  // The first step must begin within this time.
  absl::Duration queue_timeout = absl::InfiniteDuration();
  std::map<std::string, std::string> labels;

  Caller caller() const { return {tenant, principal}; }
  std::uint32_t choices() const { return static_cast<std::uint32_t>(sampling.choice_count); }
  bool generates() const { return task == Task::kGenerate; }
  // Pooling of all tokens or of the first token needs hidden states, which the KV pages do not
  // contain.
  bool reads_cache() const {
    return !cache.skip_read && (task != Task::kEmbed || pooling == Pooling::kLast);
  }
};

enum class RequestState : std::uint8_t {
  kPreparing,
  kQueued,
  kPrefill,
  kDecode,
  kPreempted,
  kStalled,
  kFinished
};
inline constexpr int kNumRequestStates = 7;
absl::string_view RequestStateName(RequestState state);  // such as "preparing"

enum class FinishReason : std::uint8_t {
  kEos,
  kStopText,
  kStopToken,
  kLength,
  kContextFull,
  kConstraintDone,
  kToolCall  // the one call that the request allows is complete
};
inline constexpr int kNumFinishReasons = 7;
absl::string_view FinishReasonName(FinishReason reason);  // such as "eos" or "stop_text"

enum class CancelSource : std::uint8_t {
  kClient,  // the stream was closed
  kApi,     // the method Cancel
  kAdmin,
  kDeadline,
  kSlowClient,
  kShutdown,
  kQueueTimeout,
  kRevoked  // the caller lost the permission
};
inline constexpr int kNumCancelSources = 8;
absl::string_view CancelSourceName(
    CancelSource source);  // the label of quire_requests_cancelled_total

}  // namespace quire::engine

#pragma once

// One generation request, immutable once it is accepted, and the words that describe its life.

#include <cstdint>
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
// A conversation, with the templates that were in effect when it was accepted.
struct ChatPrompt {
  text::ChatInput chat;
  std::shared_ptr<const text::ChatTemplates> templates;  // never null
  bool parse_special_tokens = true;
};

// A context and a continuation of it, tokenized apart: to score the continuation, or to embed the
// whole. Where there is text it counts, and not the ids; a context without either is the
// beginning-of-sequence token. A conversation is the context in place of both.
struct ScorePrompt {
  std::optional<ChatPrompt> context_chat = std::nullopt;
  std::string context_text;
  TokenPrompt context_ids;
  std::string continuation_text;
  TokenPrompt continuation_ids;
};

// What a request wants. Those that do not generate end when their prompt is computed, with nothing
// sampled: stopping and sampling mean nothing to them.
enum class Task : std::uint8_t {
  kGenerate,
  kScore,  // the log-probabilities of a ScorePrompt's continuation, as those of a prompt
  kEmbed   // one vector of the prompt's hidden states behind the final norm
};

// Of which tokens. Behind causal attention the first one's says nothing of the others.
enum class Pooling : std::uint8_t { kLast, kMean, kCls };

// How answers are taken apart into content, reasoning and tool calls.
struct AnswerParsing {
  const text::ToolFormat* format = nullptr;          // a constant, never null
  std::shared_ptr<const text::DeclaredTools> tools;  // never null
  bool ends_after_call = false;                      // parallel_tool_calls: false
};

struct CacheParams {
  bool skip_read = false;
  bool skip_write = false;
  std::string salt;
};

// Whose a request is: no other caller sees it. One principal may speak for several tenants, and a
// tenant may have several principals.
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
  Pooling pooling = Pooling::kLast;  // of kEmbed
  std::variant<TextPrompt, TokenPrompt, ChatPrompt, ScorePrompt> prompt;
  // Keeps the last tokens of a prompt that generates, the first ones of one to embed.
  bool truncate_prompt = false;
  SamplingParams sampling;
  StoppingParams stopping;
  OutputParams output;
  std::optional<AnswerParsing> parsing;      // none: all of an answer is its text
  std::optional<ConstraintSpec> constraint;  // none: free text
  CacheParams cache;
  std::int32_t priority = 0;  // [-100, 100], lower first
  absl::Time accept_time;
  absl::Time deadline = absl::InfiniteFuture();             // of the whole request
  absl::Duration queue_timeout = absl::InfiniteDuration();  // until the first step
  std::map<std::string, std::string> labels;

  Caller caller() const { return {tenant, principal}; }
  std::uint32_t choices() const { return static_cast<std::uint32_t>(sampling.choice_count); }
  bool generates() const { return task == Task::kGenerate; }
  // The hidden states of all tokens, or of the first one, are in no page.
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
absl::string_view RequestStateName(RequestState state);  // "preparing" ...

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
absl::string_view FinishReasonName(FinishReason reason);  // "eos", "stop_text" ...

enum class CancelSource : std::uint8_t {
  kClient,  // the stream was closed
  kApi,     // Cancel from elsewhere
  kAdmin,
  kDeadline,
  kSlowClient,
  kShutdown,
  kQueueTimeout,
  kRevoked  // its caller lost the right to it
};
inline constexpr int kNumCancelSources = 8;
absl::string_view CancelSourceName(
    CancelSource source);  // the label of quire_requests_cancelled_total

}  // namespace quire::engine

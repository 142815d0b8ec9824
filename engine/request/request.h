#pragma once

// One generation request, immutable once it is accepted, and the words that describe its life.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/request/sampling_params.h"
#include "text/chat/chat_input.h"

namespace quire::text {
class ChatTemplates;
}

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
  std::variant<TextPrompt, TokenPrompt, ChatPrompt> prompt;
  bool truncate_prompt = false;
  SamplingParams sampling;
  StoppingParams stopping;
  OutputParams output;
  CacheParams cache;
  std::int32_t priority = 0;  // [-100, 100], lower first
  absl::Time accept_time;
  absl::Time deadline = absl::InfiniteFuture();             // of the whole request
  absl::Duration queue_timeout = absl::InfiniteDuration();  // until the first step
  std::map<std::string, std::string> labels;

  Caller caller() const { return {tenant, principal}; }
  std::uint32_t choices() const { return static_cast<std::uint32_t>(sampling.choice_count); }
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

enum class FinishReason : std::uint8_t { kEos, kStopText, kStopToken, kLength, kContextFull };
inline constexpr int kNumFinishReasons = 5;
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

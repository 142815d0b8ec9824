#pragma once

// The options of an engine, and the checks of their values at start and at changes.
//
// Place:      filled by the server, checked by Engine, read by every part of it.
// Threads:    plain values and pure functions.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/request/request.h"
#include "engine/request/sampling_params.h"
#include "engine/request/tenant_limits.h"

namespace quire::engine {

class ConstraintCompiler;

// A bit that no token id has. In prefix keys it marks generated tokens if prompts must not reuse
// the pages of generated tokens.
inline constexpr std::int32_t kGeneratedTag = 1 << 30;

enum class AdmissionMode : std::uint8_t { kSafe, kOvercommit };

// The options that can change while the engine runs.
struct HotOptions {
  // scheduler.*
  std::int32_t max_step_tokens = 8192;  // must not exceed its value at Create
  std::int32_t prefill_chunk_tokens = 512;
  std::int32_t max_step_prompt_tokens = 512;  // maximum prompt tokens in one step
  // While a client waits for the next token of a decode row, prompt tokens are added to a step only
  // while the step's expected time is below this target. Infinite: there is no target. If absent,
  // the target is automatic. It is 3 times the expected time of the decode rows alone. The factor
  // is 4 if the number of prompts is more than half the number of decode rows. The target is at
  // least 20 ms (1 ms with several tenants) and at most 500 ms. While no client waits, the
  // automatic target is 16 times the expected time of one decode row, between 5 and 500 ms.
  std::optional<absl::Duration> step_time_target;
  std::int32_t max_running_sequences = 64;  // must not exceed its value at Create
  absl::Duration queue_timeout = absl::InfiniteDuration();
  absl::Duration priority_aging_interval = absl::Seconds(10);
  // limits.*
  ParamLimits limits;  // max_logprobs must not exceed its value at Create
  std::int32_t max_queued_requests = 1024;
  std::int64_t max_queued_tokens = 4 << 20;
  std::int64_t max_queued_bytes = 64 << 20;  // bytes of prompts that wait for tokenization
  std::int64_t max_input_bytes = 8 << 20;
  absl::Duration max_request_duration = absl::InfiniteDuration();
  // stream.*
  absl::Duration slow_client_timeout = absl::Seconds(30);
  TenantOptions tenants;
  // kv_cache.*. Engine::Create does not apply this value, because the cache was created with it.
  bool partial_page_reuse = true;
};

// Plain values; the server fills them from the configuration.
struct EngineOptions : HotOptions {
  // model
  std::string model_id;
  std::string fingerprint;      // part of the root of prefix keys
  std::string kv_dtype;         // shown in quire_kv_cache_info
  std::int32_t vocab_size = 0;  // number of token ids, including padding
  std::int32_t max_context_tokens = 0;
  std::vector<std::int32_t> eos_token_ids;
  std::optional<std::int32_t> bos_token_id;  // replaces an empty context of a ScorePrompt
  bool has_head = true;                      // false: the model supports Task::kEmbed only
  // scheduler.*
  AdmissionMode admission = AdmissionMode::kSafe;
  // Whether prompts may reuse pages with generated tokens. It is false if prefill and decode
  // compute different bits and the results must not depend on the cache. Then a sequence reuses
  // such pages only if it generated the same tokens itself, for example before a preemption.
  bool share_generated_pages = true;
  // stream.*
  std::int32_t stream_queue_tokens = 1024;
  // tokenizer.*
  std::int32_t text_threads = 1;  // number of text workers, and also of output workers
  // Null if structured output is not available. Must outlive the engine.
  ConstraintCompiler* constraints = nullptr;
  std::int32_t mask_threads = 1;
  // Maximum number of steps in flight. A runner that supports fewer steps lowers it.
  std::int32_t max_steps_in_flight = 2;
  // Time that a failing engine waits for its output workers before it calls on_fatal.
  absl::Duration answer_timeout = absl::Seconds(5);
  // Called once on the engine thread before the thread does anything else. May be empty.
  std::function<void()> on_engine_thread;
  // on_failing and on_fatal are called at most once, on the engine thread, when the engine cannot
  // continue. Neither may wait for the engine. on_failing is called first, while all requests are
  // still open, so that health checks can fail. Then every live request ends with UNAVAILABLE /
  // DEVICE_ERROR, its usage and a retry delay. Then on_fatal is called, and the process should
  // exit. The status is the runner's error with reason DEVICE_LOST, or INTERNAL / ENGINE_DIED if
  // the engine thread itself failed.
  std::function<void(const absl::Status&)> on_failing, on_fatal;
};

// If options are invalid, returns INVALID_ARGUMENT with the key, the value and the limit of the
// first of them.
absl::Status CheckOptions(const EngineOptions& options, std::uint32_t page_size);

// Checks new options of an engine that was created with `start`. Some limits must not exceed their
// value at start, because that value determined the size of allocations.
absl::Status CheckHotOptions(const EngineOptions& start, const HotOptions& next,
                             std::uint32_t page_size);

// Returns the maximum prompt tokens of one row in a step, from the options at start. For a model
// with sliding windows, later options do not raise this maximum, because the page demand of a row
// was computed with it.
inline std::uint32_t MaxChunkTokens(const HotOptions& start, std::uint32_t page_size) {
  const auto page_tokens = static_cast<std::int32_t>(page_size);
  return static_cast<std::uint32_t>(
      std::min({start.prefill_chunk_tokens, start.max_step_tokens,
                std::max(start.max_step_prompt_tokens, page_tokens)}));
}

// Returns the size in bytes of the request's input, which is a text, a conversation or token ids.
std::int64_t InputBytes(const Request& request);

}  // namespace quire::engine

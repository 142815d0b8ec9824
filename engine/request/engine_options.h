#pragma once

// The options of an engine, which of them it can work with, at start and later, and what its limits
// count.
//
// Place:      filled by the server, checked by Engine, read by every part of it.
// Invariants: pure.
// Threads:    any.
// Lifetime:   none.

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

// Above every vocabulary: marks generated tokens where prompts must not find their pages.
inline constexpr std::int32_t kGeneratedMark = 1 << 30;

enum class AdmissionMode : std::uint8_t { kSafe, kOvercommit };

// The part of the options that a running engine can change.
struct HotOptions {
  // scheduler.*
  std::int32_t max_step_tokens = 8192;  // at most its value at Create
  std::int32_t prefill_chunk_tokens = 512;
  std::int32_t max_step_prompt_tokens = 512;  // prompt tokens in one step
  // While rows decode, prompts share a step only as far as it is expected to end within this.
  // Absent: no target, or with `auto_step_time_target` 3 times what the rows alone are expected to
  // take, 4 times with more than half as many prompts, within 20 and 500 ms, or 5 with several
  // tenants; and for steps of prompts alone 16 times what one row is, within 5 and 500 ms.
  std::optional<absl::Duration> step_time_target;
  bool auto_step_time_target = false;
  std::int32_t max_running_sequences = 64;  // at most its value at Create
  absl::Duration queue_timeout = absl::InfiniteDuration();
  absl::Duration priority_aging_interval = absl::Seconds(10);
  // limits.*
  ParamLimits limits;  // max_logprobs: at most its value at Create
  std::int32_t max_queued_requests = 1024;
  std::int64_t max_queued_tokens = 4 << 20;
  std::int64_t max_queued_bytes = 64 << 20;  // of prompts that wait for tokenization
  std::int64_t max_input_bytes = 8 << 20;
  absl::Duration max_request_duration = absl::InfiniteDuration();
  // stream.*
  absl::Duration slow_client_timeout = absl::Seconds(30);
  TenantOptions tenants;
  // kv_cache.*; Create leaves it as the cache has it.
  bool partial_page_reuse = true;
};

// Plain values; the server fills them from the configuration.
struct EngineOptions : HotOptions {
  // model
  std::string model_id;
  std::string fingerprint;      // roots the prefix keys
  std::string kv_dtype;         // shown in quire_kv_cache_info
  std::int32_t vocab_size = 0;  // rows of the output matrix
  std::int32_t max_context_tokens = 0;
  std::vector<std::int32_t> eos_token_ids;
  std::optional<std::int32_t> bos_token_id;  // an empty context of Task::kScore
  bool has_head = true;                      // else the model can be asked for Task::kEmbed alone
  // scheduler.*
  AdmissionMode admission = AdmissionMode::kSafe;
  // Prompts may find pages with generated tokens. False where the two are computed differently and
  // a warm cache must give the bits of a cold one: then only the sequence that generated them, and
  // choices that share its tokens, find them again.
  bool share_generated_pages = true;
  // stream.*
  std::int32_t stream_queue_tokens = 1024;
  // tokenizer.*
  std::int32_t text_threads = 1;  // text workers, and as many output workers
  // Null: no structured output. Outlives the engine.
  ConstraintCompiler* constraints = nullptr;
  std::int32_t mask_threads = 1;
  // Steps launched before the oldest is collected: the lesser of this and what the runner can do.
  std::int32_t max_steps_in_flight = 2;
  // How long an engine that cannot go on waits for its output workers before on_fatal.
  absl::Duration answer_timeout = absl::Seconds(5);
  // Called once on the engine thread before anything else. May be empty.
  std::function<void()> on_engine_thread;
  // The engine cannot go on; each is called once, on the engine thread, and may do nothing that
  // waits for the engine. First on_failing, with everything still unanswered: health turns. Then
  // every live request ends with UNAVAILABLE / DEVICE_ERROR, its usage and a retry delay; then
  // on_fatal: the process should end. The status is the runner's (IsDeviceLost of
  // base/cuda_status.h: reason DEVICE_LOST), or INTERNAL / ENGINE_DIED when the engine thread
  // itself came to an end.
  std::function<void(const absl::Status&)> on_failing, on_fatal;
};

// INVALID_ARGUMENT names the key, its value and the least or the most possible.
absl::Status CheckOptions(const EngineOptions& options, std::uint32_t page_size);

// The same for an engine that was made with `start`. Memory was taken for some limits then, so they
// may not exceed their value of that time.
absl::Status CheckHotOptions(const EngineOptions& start, const HotOptions& next,
                             std::uint32_t page_size);

// Most prompt tokens of one row in a step, with the options of the start. For a model with windows
// later ones do not raise it: what its rows ask of the pool is counted by it.
inline std::uint32_t MaxChunkTokens(const HotOptions& start, std::uint32_t page_size) {
  const auto page_tokens = static_cast<std::int32_t>(page_size);
  return static_cast<std::uint32_t>(
      std::min({start.prefill_chunk_tokens, start.max_step_tokens,
                std::max(start.max_step_prompt_tokens, page_tokens)}));
}

// Bytes of text, of a conversation or of token ids that the request brings.
std::int64_t InputBytes(const Request& request);

}  // namespace quire::engine

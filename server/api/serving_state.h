#pragma once

// The state of the server and the model that it serves, for all handlers.
//
//   LOADING -> READY -> DRAINING -> READY (Resume) or exit; any -> FAILED -> exit
//
// Place:      written by the daemon, read by the gRPC and HTTP handlers. Owns nothing.
// Invariants: model() is null until Publish. READY implies a model.
// Threads:    thread-safe, without locks, so that health checks never wait for the engine.
// Lifetime:   this object and the published model outlive the listeners.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "engine/engine.h"
#include "runtime/device_description.h"
#include "server/api/request_translator.h"

namespace quire::text {
class Tokenizer;
}

namespace quire::server {

enum class LifeState : std::uint8_t { kLoading, kReady, kDraining, kFailed };
inline constexpr int kNumLifeStates = 4;
// Returns "loading", "ready", "draining" or "failed".
absl::string_view LifeStateName(LifeState state);

// A linear classifier on the last token's hidden state.
struct Classifier {
  std::vector<std::string> labels;
  const std::vector<float>* weights = nullptr;  // [labels, hidden], owned by the model
};

// Two tokens whose logits after the prompt determine a reranker's score.
struct YesNoTokens {
  std::int32_t yes = 0;
  std::int32_t no = 0;
};

// The description of the model in GetModel and GetServerInfo.
struct ModelDescription {
  std::string architecture;
  std::string dtype;            // type of the activations
  std::string quantization;     // "none" or a format
  bool batch_invariant = true;  // results do not depend on other requests in a step
  std::int32_t max_context_tokens = 0;
  std::int32_t vocab_size = 0;
  std::vector<std::int32_t> eos_token_ids;
  std::optional<std::int32_t> bos_token_id, pad_token_id;
  std::string weights_fingerprint;
  // Identifies weights, numeric types and build. While it is unchanged, equal requests with a seed
  // produce equal output.
  std::string system_fingerprint;
  std::int64_t parameter_count = 0;
  absl::Time load_time;
  std::int32_t kv_page_size = 0;
  std::int32_t kv_page_count = 0;
  std::int32_t kv_group_count = 1;  // layer groups; each has pages of its own
  std::string kv_dtype;
  bool has_head = true;                              // false: the model cannot generate text
  bool has_constraints = false;                      // structured output
  std::int32_t embedding_width = 0;                  // 0: the model cannot embed
  engine::Pooling pooling = engine::Pooling::kLast;  // default for requests
  bool normalizes_embeddings = false;                // default for requests
  std::optional<Classifier> classifier;
  std::optional<YesNoTokens> yes_no;  // set for a reranker
  std::int64_t weight_bytes = 0, pool_bytes = 0, workspace_bytes = 0;
};

struct ServedModel {
  ServedModel(RequestTranslator the_translator, ModelDescription the_description,
              runtime::DeviceDescription the_device, const text::Tokenizer* the_tokenizer,
              engine::Engine* the_engine)
      : model_id(the_translator.options()->model_id),
        translator(std::move(the_translator)),
        description(std::move(the_description)),
        device(std::move(the_device)),
        tokenizer(the_tokenizer),
        engine(the_engine) {}

  const std::string& id() const { return model_id; }

  const std::string model_id;
  RequestTranslator translator;
  ModelDescription description;
  runtime::DeviceDescription device;
  const text::Tokenizer* tokenizer;
  engine::Engine* engine;
};

class ServingState {
 public:
  explicit ServingState(absl::Duration stall_timeout) { SetStallTimeout(stall_timeout); }

  // Sets how long requests may wait while no step finishes (health.engine_stall_timeout).
  void SetStallTimeout(absl::Duration timeout) {
    stall_nanos_.store(absl::ToInt64Nanoseconds(timeout), std::memory_order_release);
  }

  LifeState state() const { return state_.load(std::memory_order_acquire); }
  // FAILED is final.
  void SetState(LifeState state);
  const ServedModel* model() const { return model_.load(std::memory_order_acquire); }
  void Publish(const ServedModel* model) { model_.store(model, std::memory_order_release); }

  // Set from the beginning of a drain until Resume. While set, the server is not ready, even if the
  // engine still admits requests.
  void SetDrainStarted(bool drain_started) {
    drain_started_.store(drain_started, std::memory_order_release);
  }
  bool drain_started() const { return drain_started_.load(std::memory_order_acquire); }
  // Set once the process is certain to exit; Resume then fails.
  void SetExiting() { exiting_.store(true, std::memory_order_release); }
  bool exiting() const { return exiting_.load(std::memory_order_acquire); }

  // The name of a listener that does not answer, as a string literal, or null. If it is not null,
  // the process is neither live nor ready.
  void SetUnresponsiveListener(const char* name) {
    unresponsive_listener_.store(name, std::memory_order_release);
  }
  const char* unresponsive_listener() const {
    return unresponsive_listener_.load(std::memory_order_acquire);
  }

  // The three health checks (docs/api.md, Lifecycle and health).
  bool is_live() const;
  bool is_ready() const { return state() == LifeState::kReady && !drain_started() && is_live(); }
  bool is_started() const { return state() != LifeState::kLoading; }
  // Returns "ready", or why the server is not ready: "loading", "draining", "failed", "a port does
  // not answer" or "the engine does not answer".
  absl::string_view DescribeReadiness() const;

  // Returns the model. Returns UNAVAILABLE / MODEL_LOADING before Publish, and UNAVAILABLE /
  // DEVICE_ERROR if the state is FAILED. A draining server returns its model, because the engine
  // itself refuses new requests then.
  absl::StatusOr<const ServedModel*> ModelOrError() const;

 private:
  std::atomic<std::int64_t> stall_nanos_{0};
  std::atomic<LifeState> state_{LifeState::kLoading};
  std::atomic<const ServedModel*> model_{nullptr};
  std::atomic<bool> drain_started_{false};
  std::atomic<const char*> unresponsive_listener_{nullptr};
  std::atomic<bool> exiting_{false};
};

}  // namespace quire::server

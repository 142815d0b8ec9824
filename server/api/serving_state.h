#pragma once

// What every handler must know: where the server is in its life, and the model it serves.
//
//   LOADING -> READY -> DRAINING -> READY (Resume) or exit; any -> FAILED -> exit
//
// Place:      written by the daemon, read by the gRPC and HTTP handlers. Owns nothing.
// Invariants: model() is null exactly until Publish; READY implies a model.
// Threads:    every method from any thread, without locks: health must answer while the engine is
//             busy.
// Lifetime:   outlives the listeners; so does what Publish is given.

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
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
// "loading", "ready", "draining", "failed".
absl::string_view LifeStateName(LifeState state);

// A head over the last token's hidden state.
struct Classifier {
  std::vector<std::string> labels;
  const std::vector<float>* weights = nullptr;  // [labels, hidden]; the model's
};

// Two tokens whose logits behind a prompt are a score.
struct YesNoTokens {
  std::int32_t yes = 0;
  std::int32_t no = 0;
};

// What GetModel and GetServerInfo say about the model.
struct ModelDescription {
  std::string architecture;
  std::string dtype;            // of the activations
  std::string quantization;     // "none"
  bool batch_invariant = true;  // bits never depend on what else is in a step
  std::int32_t max_context_tokens = 0;
  std::int32_t vocab_size = 0;
  std::vector<std::int32_t> eos_token_ids;
  std::optional<std::int32_t> bos_token_id, pad_token_id;
  std::string weights_fingerprint;
  std::int64_t parameter_count = 0;
  absl::Time load_time;
  std::int32_t kv_page_size = 0;
  std::int32_t kv_page_count = 0;
  std::int32_t kv_group_count = 1;  // a token without window has a row in a page of each
  std::string kv_dtype;
  bool has_head = true;                              // else it embeds, and nothing else
  bool has_constraints = false;                      // structured output
  std::int32_t embedding_width = 0;                  // 0: it does not embed
  engine::Pooling pooling = engine::Pooling::kLast;  // unless a request says otherwise
  bool normalizes_embeddings = false;                // likewise
  std::optional<Classifier> classifier;
  std::optional<YesNoTokens> yes_no;  // of a reranker
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

  // How long work may wait without a finished step (health.engine_stall_timeout).
  void SetStallTimeout(absl::Duration timeout) {
    stall_nanos_.store(absl::ToInt64Nanoseconds(timeout), std::memory_order_release);
  }

  LifeState state() const { return state_.load(std::memory_order_acquire); }
  // FAILED is final.
  void SetState(LifeState state);
  const ServedModel* model() const { return model_.load(std::memory_order_acquire); }
  void Publish(const ServedModel* model) { model_.store(model, std::memory_order_release); }

  // True from the beginning of a drain on: not ready, even while requests are still admitted.
  void SetLeaving(bool leaving) { leaving_.store(leaving, std::memory_order_release); }
  bool leaving() const { return leaving_.load(std::memory_order_acquire); }
  // True once the process is certain to end: Resume is refused.
  void SetExiting() { exiting_.store(true, std::memory_order_release); }
  bool exiting() const { return exiting_.load(std::memory_order_acquire); }

  // The name of a port for calls that does not answer, a literal, or null: with one the process is
  // neither live nor ready.
  void SetSilentPort(const char* port) { silent_port_.store(port, std::memory_order_release); }
  const char* silent_port() const { return silent_port_.load(std::memory_order_acquire); }

  // The three answers of health (docs/api.md, Lifecycle and health).
  bool is_live() const;
  bool is_ready() const { return state() == LifeState::kReady && !leaving() && is_live(); }
  bool is_started() const { return state() != LifeState::kLoading; }

  // The model, or UNAVAILABLE / MODEL_LOADING or DEVICE_ERROR. Draining is the engine's answer to
  // give.
  absl::StatusOr<const ServedModel*> ModelOrError() const;

 private:
  std::atomic<std::int64_t> stall_nanos_{0};
  std::atomic<LifeState> state_{LifeState::kLoading};
  std::atomic<const ServedModel*> model_{nullptr};
  std::atomic<bool> leaving_{false};
  std::atomic<const char*> silent_port_{nullptr};
  std::atomic<bool> exiting_{false};
};

}  // namespace quire::server

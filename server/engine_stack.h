#pragma once

// The model as it is served: a loaded ModelStack, the engine over it, and what handlers are told.
//
// Place:      built by the daemon once.
// Invariants: members are declared in the order in which they need each other, so destruction is
//             safe.
// Threads:    Build from one thread; what it returns is used as its parts say.
// Lifetime:   `metrics` and `clock` outlive it.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/probe.h"
#include "engine/constraint/constraint_compiler.h"
#include "engine/engine.h"
#include "runtime/model_stack.h"
#include "server/api/serving_state.h"
#include "server/config/live_config.h"
#include "server/config/options.h"

namespace quire::server {

class EngineStack {
 public:
  // Opens the device, loads the model and starts the engine. Errors name the file or the key, its
  // value and the limit.
  static absl::StatusOr<std::unique_ptr<EngineStack>> Build(const DaemonOptions& options,
                                                            const Clock* clock,
                                                            probe::Registry* metrics);

  // Takes the hot keys of `live` from now on, those in effect first. INVALID_ARGUMENT when they
  // cannot be served, which is possible when they changed since Build had its options. `live` may
  // reload as long as the stack lives.
  absl::Status Follow(LiveConfig* live);

  const ServedModel& served() const { return *served_; }
  const runtime::ModelStack& loaded() const { return *loaded_; }

 private:
  EngineStack() = default;

  engine::EngineOptions EngineOptionsFor(const DaemonOptions& options) const;
  absl::StatusOr<TranslatorOptions> TranslationFor(const DaemonOptions& options) const;
  ModelDescription Describe(const DaemonOptions& options) const;

  std::unique_ptr<runtime::ModelStack> loaded_;
  std::unique_ptr<engine::ConstraintCompiler> constraints_;  // null: no structured output
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<ServedModel> served_;
};

// What --validate does beyond the configuration itself: the model's config.json and tokenizer
// parse, and a pool of pages fits. Loads no weights.
absl::Status ValidateModel(const DaemonOptions& options);

// The served name: model.id, else the name of the directory, else "story" for the embedded model.
std::string ServedModelId(const DaemonOptions& options);

}  // namespace quire::server

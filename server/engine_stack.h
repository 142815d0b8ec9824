#pragma once

// The served model: a loaded ModelStack, its engine, and its description for handlers.
//
// Place:      built by the daemon once.
// Invariants: members are declared in dependency order, so that destruction is safe.
// Threads:    one thread calls Build. Engine and ModelStack document which threads may use them.
// Lifetime:   `metrics` and `clock` outlive it.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/probe.h"
#include "engine/constraint/constraint_compiler.h"
#include "engine/engine.h"
#include "kernels/backend/kernel_check.h"
#include "runtime/model_stack.h"
#include "server/api/serving_state.h"
#include "server/config/live_config.h"
#include "server/config/options.h"

namespace quire::server {

class EngineStack {
 public:
  // Opens the device, loads the model and starts the engine. Errors name the file or the key, its
  // value and the limit. `cpu_check` is the result of CheckCpu for options.device.
  static absl::StatusOr<std::unique_ptr<EngineStack>> Build(const DaemonOptions& options,
                                                            const runtime::CpuCheck& cpu_check,
                                                            const Clock* clock,
                                                            probe::Registry* metrics);

  // Applies the hot keys of `live` now and after every reload. Returns INVALID_ARGUMENT if the
  // current values cannot be applied, which can happen if they changed since Build. `live` may
  // reload while the stack exists.
  absl::Status Follow(LiveConfig* live);

  const ServedModel& served() const { return *served_; }
  const runtime::ModelStack& loaded() const { return *loaded_; }

 private:
  EngineStack() = default;

  engine::EngineOptions MakeEngineOptions(const DaemonOptions& options) const;
  absl::StatusOr<TranslatorOptions> TranslatorOptionsFor(const DaemonOptions& options) const;
  ModelDescription Describe(const DaemonOptions& options) const;

  std::unique_ptr<runtime::ModelStack> loaded_;
  std::unique_ptr<engine::ConstraintCompiler> constraints_;  // null without structured output
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<ServedModel> served_;
};

// Implements the part of --validate that concerns the device and the model. Runs CheckCpu. Checks
// that this build supports the device, that the model's files can be parsed, and that weights and
// KV pool fit into memory. Compiles preloaded constraints. Loads no weights. Appends one message
// per error to `errors`. REQUIRES: the process has not started other threads.
void ValidateModel(const DaemonOptions& options, std::vector<std::string>* errors);

// Implements the part of --self-check that concerns a GPU: loads the model and compares the kernels
// with their references. `checks` receives the results of all comparisons, even if one fails.
// Returns the errors of Build. REQUIRES: ChooseDevice returns kCuda.
absl::Status CheckGpuKernels(const DaemonOptions& options, const runtime::CpuCheck& cpu_check,
                             std::vector<kernels::KernelCheck>* checks);

// Returns the name under which the model is served. It is model.id if set, "story" for the embedded
// model, the repository of a cached model, or the name of the model's directory or GGUF file.
std::string ServedModelId(const DaemonOptions& options);

}  // namespace quire::server

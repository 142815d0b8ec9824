#include "server/config/per_device_options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quire::server {
namespace {

// Maximum tokens of one step: one per running sequence, plus the limit of prompt tokens.
std::uint32_t MaxStepTokens(const engine::EngineOptions& engine, std::uint32_t page_size) {
  const std::int64_t prompt = std::max<std::int64_t>(engine.max_step_prompt_tokens, page_size);
  return static_cast<std::uint32_t>(
      std::min<std::int64_t>(engine.max_step_tokens, prompt + engine.max_running_sequences));
}

}  // namespace

engine::EngineOptions AdaptEngineOptions(engine::EngineOptions engine, DeviceKind device) {
  if (device == DeviceKind::kCuda) engine.max_step_prompt_tokens = engine.max_step_tokens;
  return engine;
}

runtime::RuntimeOptions RuntimeOptionsFor(const DaemonOptions& options, DeviceKind device) {
  const engine::EngineOptions engine = AdaptEngineOptions(options.engine, device);
  const std::uint32_t page_size = options.pool.page_size;
  // The CPU never has more than one step in flight.
  const int steps = device == DeviceKind::kCuda ? engine.max_steps_in_flight : 1;
  return {.device = options.device,
          .model = options.model,
          .pool = options.pool,
          .steps = {.max_rows = static_cast<std::uint32_t>(engine.max_running_sequences),
                    .may_lower_rows = options.running_sequences_is_default,
                    .max_tokens = MaxStepTokens(engine, page_size),
                    .max_overlap_tokens = engine::MaxChunkTokens(engine, page_size) *
                                          static_cast<std::uint32_t>(steps),
                    .max_logprobs = static_cast<std::uint32_t>(engine.limits.max_logprobs)}};
}

std::string PageFingerprint(absl::string_view model_fingerprint,
                            kernels::CpuActivations activations) {
  if (activations == kernels::CpuActivations::kInt8) return std::string(model_fingerprint);
  return absl::StrCat(model_fingerprint, "-", kernels::CpuActivationsName(activations));
}

}  // namespace quire::server

#include "engine/scheduler/step_time_target.h"

#include <algorithm>

namespace quire::engine {

absl::Duration StepTimeTarget::Choose(const HotOptions& options, const StepLoad& load,
                                      absl::Time now) {
  if (load.has_several_tenants) shared_until_ = now + policy_.tenant_return_time;
  if (options.step_time_target.has_value()) {
    return load.has_waiting_stream ? *options.step_time_target : absl::InfiniteDuration();
  }
  if (!load.has_waiting_stream) {
    StepWork row;
    row.AddDecode(/*stored=*/0);
    if (!model_->CanPredict(row)) return absl::InfiniteDuration();
    return std::clamp(policy_.target_factor_prefill_only * model_->Predict(row),
                      policy_.min_target_prefill_only, policy_.max_target);
  }
  const bool has_many_prompts = 2 * load.num_prompts > load.num_decodes;
  const int factor =
      has_many_prompts ? policy_.target_factor_with_many_prompts : policy_.target_factor;
  const bool is_shared = now < shared_until_;
  return std::clamp(factor * model_->Predict(load.decodes),
                    is_shared ? policy_.min_target_several_tenants : policy_.min_target,
                    policy_.max_target);
}

}  // namespace quire::engine

#include "tests/models/model_check.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "cache_manager/pool/kv_pool.h"
#include "runtime/cpu_runner.h"
#include "runtime/memory_plan.h"

namespace quire::models {

void ExpectWorks(const runtime::Model& model, const kernels::Backend& backend, bool sound) {
  const LayerGroups layers = PlanLayerGroups(model.spec);
  const auto num_groups = static_cast<std::uint32_t>(layers.groups.size());
  const std::uint32_t num_slots = layers.state_bytes > 0 ? 2 : 0;  // the null slot and one more
  const auto geometry = runtime::KvGeometryFor(model.spec, 16, DType::kF32, 1 + num_groups);
  ASSERT_TRUE(geometry.ok()) << geometry.status();
  auto pool = cache::KvPool::Create(*geometry);
  ASSERT_TRUE(pool.ok()) << pool.status();
  auto runner = runtime::CpuRunner::Create(model, backend, &*pool,
                                           {.max_rows = 1,
                                            .max_step_tokens = 3,
                                            .num_state_slots = num_slots,
                                            .max_context_tokens = 16});
  ASSERT_TRUE(runner.ok()) << runner.status();
  struct alignas(64) Table {
    std::uint32_t pages[32] = {};
  };
  std::vector<Table> tables(num_groups);  // one page for each group
  const std::uint32_t length = 0;
  const std::uint32_t tokens = std::min({3u, model.spec.max_position, model.spec.vocab_size});
  std::vector<cache::KvStepInputs> inputs;
  for (Table& table : tables) {
    inputs.push_back({table.pages, &length, 24, 1, tokens, tokens, 0});
    table.pages[0] = static_cast<std::uint32_t>(inputs.size());
  }
  runtime::StepBatch batch;
  for (std::uint32_t i = 0; i < tokens; ++i) {
    batch.token_ids.push_back(static_cast<std::int32_t>(i));
  }
  batch.rows.push_back({BatchRow{0}, 0, 0, tokens});
  batch.logits_tokens = {tokens - 1};
  batch.kv = inputs;
  const std::uint32_t state_slot = 1, no_snapshot = 0;
  if (num_slots > 0) {
    batch.states = {.state_in = &state_slot,
                    .state_out = &state_slot,
                    .snapshot_at = &no_snapshot,
                    .snapshot_slot = &no_snapshot,
                    .max_rows = 1};
  }
  std::vector<float> logits(model.spec.vocab_size);
  batch.logits_out = logits.data();
  const absl::Status status = (*runner)->Run(batch);
  ASSERT_TRUE(status.ok()) << status;
  for (const float value : logits) ASSERT_TRUE(!sound || std::isfinite(value));
}

}  // namespace quire::models

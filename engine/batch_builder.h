#pragma once

// Writes a StepPlan into the ragged arrays of a StepBatch, and remembers which draw and which score
// belongs to whom.
//
// Place:      between EngineCore and StepRunner.
// Invariants: draws and scores are in the order of owners() and scored(); pointers in the draws
//             stay valid until the sequences change, which is after Collect.
// Threads:    engine thread only.
// Lifetime:   the cache outlives it.

#include <cstdint>
#include <vector>

#include "cache_manager/cache_manager.h"
#include "engine/step_plan.h"
#include "models/step_batch.h"

namespace quire::engine {

struct DrawOwner {
  Sequence* sequence;  // the choice that gets the token
};

struct ScoreOwner {
  LiveRequest* request;
  std::uint32_t position;  // of the prompt token that is scored
};

class BatchBuilder {
 public:
  explicit BatchBuilder(cache::CacheManager* cache) : cache_(cache) {}

  // The batch is valid until the next call.
  const models::StepBatch& Fill(const StepPlan& plan);
  // Only what the cache wants copied and cleared; no rows. Null when there is nothing.
  const models::StepBatch* FillCacheWork();
  // The step did not run: its clears must precede the next one.
  void KeepClears();

  const std::vector<DrawOwner>& draw_owners() const { return draw_owners_; }
  const std::vector<ScoreOwner>& score_owners() const { return score_owners_; }

 private:
  void AddRow(Sequence& sequence, std::uint32_t num_tokens);
  void AddScores(Sequence& sequence, std::uint32_t first_token, std::uint32_t num_tokens);
  void AddDraw(Sequence& sequence);
  void TakeCacheWork();

  cache::CacheManager* const cache_;
  models::StepBatch batch_;
  std::vector<cache::RowStep> row_steps_;
  std::vector<DrawOwner> draw_owners_;
  std::vector<ScoreOwner> score_owners_;
  std::vector<BlockId> kept_clears_;
};

}  // namespace quire::engine

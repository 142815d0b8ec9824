#pragma once

// Writes the plan of an InFlightStep into the ragged arrays of its StepBatch, and records the owner
// of each sample and prompt log-probability. A token that the step in flight has yet to sample is
// given by the index of its sample.
//
// Place:      part of StepPipeline, between it and StepRunner.
// Invariants: pointers in the samples stay valid while the requests live. Pointers to the history
//             of a sequence stay valid until its next token is appended.
// Threads:    engine thread only.
// Lifetime:   the cache outlives it.

#include <cstdint>
#include <vector>

#include "cache_manager/cache_manager.h"
#include "engine/scheduler/step_plan.h"
#include "engine/step/in_flight_step.h"
#include "runtime/step/step_batch.h"

namespace quire::engine {

class BatchBuilder {
 public:
  explicit BatchBuilder(cache::CacheManager* cache) : cache_(cache) {}

  // Fills the batch and the owners of its results from flight->plan, with the queued copies and
  // clears of the cache. Adds the tokens and samples of each row to those that its sequence has in
  // flight.
  void Fill(InFlightStep* flight);
  // Completes a late sample (StepSample::is_late) with its mask, its penalties and its history, now
  // that all tokens before it are known.
  void CompleteSample(InFlightStep* flight, std::size_t index) const;
  // Fills a step without rows with the queued copies and clears of the cache. Returns false if
  // there are none.
  bool FillCacheWork(InFlightStep* flight);
  // Called for a step that did not run. Adds its clears to the next step.
  void KeepClears(const InFlightStep& flight);

 private:
  void Begin(InFlightStep* flight);
  void AddRow(Sequence& sequence, std::uint32_t num_tokens);
  void AddPromptLogprobRows(Sequence& sequence, std::uint32_t first_token,
                            std::uint32_t num_tokens);
  void AddPool(const Sequence& sequence, std::uint32_t first_token, std::uint32_t num_tokens);
  void AddSample(Sequence& sequence, std::uint32_t position);
  void TakeCacheWork();

  cache::CacheManager* const cache_;
  InFlightStep* flight_ = nullptr;  // being filled
  std::vector<cache::RowStep> row_steps_;
  std::vector<BlockId> kept_clears_;
};

}  // namespace quire::engine

#pragma once

// Writes the plan of an InFlightStep into the ragged arrays of its StepBatch, and remembers which
// sample and which prompt logprob belongs to whom. A token that the step before samples is named by
// its sample.
//
// Place:      between EngineCore and StepRunner.
// Invariants: pointers in the samples stay valid while the requests live, those to histories until
//             the sequences get their next token.
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

  // From flight->plan on; the sequences count what they have in flight.
  void Fill(InFlightStep* flight);
  // Gives a late sample its mask and penalties, and the history as it is now that all tokens before
  // it are known.
  void CompleteSample(InFlightStep* flight, std::size_t index) const;
  // Only what the cache wants copied and cleared; no rows. False when there is nothing.
  bool FillCacheWork(InFlightStep* flight);
  // The step did not run: its clears must precede the next one.
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
  InFlightStep* flight_ = nullptr;  // that is being filled
  std::vector<cache::RowStep> row_steps_;
  std::vector<BlockId> kept_clears_;
};

}  // namespace quire::engine

#pragma once

// Plans the decode rows of a step.
//
// Pages are reserved for all rows before any row is planned, so that a planned row cannot be
// preempted for a later one.
//
// Place:      part of Scheduler; the first planner of a step.
// Invariants: the members describe the step being planned; Select replaces their contents.
// Threads:    engine thread only.
// Lifetime:   the row pool and the draft outlive it.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/scheduler/admission.h"
#include "engine/scheduler/row_pool.h"
#include "engine/scheduler/sequence.h"
#include "engine/scheduler/step_draft.h"

namespace quire::engine {

class DecodePlanner {
 public:
  DecodePlanner(std::uint32_t page_size, RowPool* rows, StepDraft* draft);

  // Finds the rows that can decode. Returns false if the step in flight must be collected first,
  // because it samples the first tokens of a request with several choices. Collecting the step
  // forks this request, and the coming plan must not take the pages that the fork needs.
  bool Select();
  // Reserves pages for the next tokens of the rows that Select found. A row that gets too few pages
  // is left out. Returns false if the step in flight must be collected first.
  bool TakePages(bool has_step_in_flight);
  // Adds the rows that still have their pages to the draft. If there are prompts, page_size tokens
  // of the budget are left for them.
  void AddRows(const Admission& admission);

  // Returns whether a decoding request has a client that waits for its next token. Includes rows
  // stalled by their output worker or mask, and excludes requests whose client does not read.
  bool has_waiting_stream() const { return has_waiting_stream_; }
  // Number of sequences that run or were preempted before this step and have prompt tokens left to
  // compute.
  std::size_t num_prompts() const { return num_prompts_; }

 private:
  const std::uint32_t page_size_;
  RowPool* const rows_;
  StepDraft* const draft_;
  std::vector<Sequence*> selected_rows_;
  std::vector<Sequence*> ready_rows_;  // the selected rows that have their pages
  bool has_waiting_stream_ = false;
  std::size_t num_prompts_ = 0;
};

}  // namespace quire::engine

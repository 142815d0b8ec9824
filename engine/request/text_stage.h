#pragma once

// Prompts to token ids and page keys, off the engine thread, and the checks that need the token
// count.
//
// Place:      between Accept and the engine's inbox.
// Invariants: every job ends in one kPrepared signal, whatever happened to it.
// Threads:    Submit from any thread; owns `num_workers` threads.
// Lifetime:   tokenizer, queue and probe outlive it.

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/keyed_hash.h"
#include "cache_manager/pool/page_demand.h"
#include "engine/request/accepted_request.h"
#include "engine/request/admission_limiter.h"
#include "engine/request/engine_options.h"
#include "engine/request/engine_probe.h"
#include "engine/request/inbox.h"
#include "engine/request/prepared_prompt.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

// What preparing needs to know of the cache.
struct CacheShape {
  HashKey hash_key;
  std::uint32_t page_size = 0;
  std::uint32_t usable_pages = 0;
  cache::PageDemand demand;
};

// What the engine needs of the prompt of `accepted`, whose tokens are counted. The status is
// PROMPT_MISSING, PROMPT_TOO_LONG, NEVER_FITS, BAD_TOKEN_ID, BAD_UTF8 or QUEUE_FULL with their
// numbers, or one of ChatTemplates::Render.
absl::StatusOr<std::unique_ptr<PreparedPrompt>> PrepareRequest(
    const EngineOptions& options, const CacheShape& shape, const text::Tokenizer& tokenizer,
    const Clock& clock, AdmissionLimiter* queue, AcceptedRequest& accepted);

class TextStage {
 public:
  TextStage(const EngineOptions& options, const CacheShape& shape, const text::Tokenizer* tokenizer,
            const Clock* clock, AdmissionLimiter* queue, EngineProbe* probe,
            std::shared_ptr<Inbox> inbox);
  ~TextStage();

  // At least so many jobs may wait.
  void Reserve(std::size_t jobs) { jobs_.Reserve(jobs); }
  // False when too many jobs wait or the stage has stopped.
  bool Submit(std::shared_ptr<AcceptedRequest> accepted);
  // Finishes what waits and joins the workers.
  void Stop();

 private:
  void Work();
  // PrepareRequest, or NO_MEMORY when memory does not suffice for this request.
  absl::StatusOr<std::unique_ptr<PreparedPrompt>> Prepare(AcceptedRequest& accepted);

  const EngineOptions& options_;
  const CacheShape shape_;
  const text::Tokenizer* const tokenizer_;
  const Clock* const clock_;
  AdmissionLimiter* const queue_;
  EngineProbe* const probe_;
  const std::shared_ptr<Inbox> inbox_;
  BoundedQueue<std::shared_ptr<AcceptedRequest>> jobs_;
  std::vector<std::thread> workers_;
};

}  // namespace quire::engine

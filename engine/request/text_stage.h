#pragma once

// Tokenizes prompts and hashes their pages off the engine thread, and checks the limits that need
// the token count.
//
// Place:      between Accept and the engine's inbox.
// Invariants: every submitted prompt causes one kPrepared signal, whether preparation succeeds or
//             fails, unless the compilation of its constraint is cancelled. Workers take prompts
//             round-robin across tenants.
// Threads:    Submit may be called from any thread. Owns `options.text_threads` workers.
// Lifetime:   tokenizer, limiter and probe outlive it.

#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/keyed_hash.h"
#include "base/mutex.h"
#include "cache_manager/pool/page_demand.h"
#include "engine/request/accepted_request.h"
#include "engine/request/admission_limiter.h"
#include "engine/request/engine_options.h"
#include "engine/request/engine_probe.h"
#include "engine/request/inbox.h"
#include "engine/request/prepared_prompt.h"
#include "engine/request/text_queue.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::engine {

class TokenTexts;

// The properties of the cache that preparation needs.
struct CacheShape {
  HashKey hash_key;
  std::uint32_t page_size = 0;
  std::uint32_t usable_pages = 0;
  cache::PageDemand demand;
};

// Prepares the prompt of `accepted` for the engine. Returns PROMPT_MISSING, PROMPT_TOO_LONG,
// EXCEEDS_CAPACITY, BAD_TOKEN_ID, BAD_UTF8 or an error of ChatTemplates::Render.
absl::StatusOr<std::unique_ptr<PreparedPrompt>> PrepareRequest(const EngineOptions& options,
                                                               const CacheShape& shape,
                                                               const text::Tokenizer& tokenizer,
                                                               const Clock& clock,
                                                               AcceptedRequest& accepted);
// Returns whether the masks of the request need the texts of tokens.
bool NeedsTokenTexts(const Request& request);
// Adds the mask rules that need token texts. REQUIRES: `prompt` is the request's, and
// NeedsTokenTexts(request).
void AddTextRules(const Request& request, std::shared_ptr<const TokenTexts> texts,
                  PreparedPrompt* prompt);
// Counts the prompt's tokens against the limits. Returns QUEUE_FULL or TENANT_LIMIT if a limit is
// reached. Called last, because the tokens of a prompt that is dropped later would stay counted.
absl::Status CountPrompt(const Request& request, AdmissionLimiter* limiter, PreparedPrompt* prompt);

class TextStage {
 public:
  TextStage(const EngineOptions& options, const CacheShape& shape, const text::Tokenizer* tokenizer,
            const Clock* clock, AdmissionLimiter* limiter, EngineProbe* probe,
            std::shared_ptr<Inbox> inbox);
  ~TextStage() { Stop(); }

  // Applies to later prompts.
  void SetLimits(const HotOptions& options) {
    prompts_.SetLimits(options.max_queued_requests, options.max_queued_bytes);
  }
  // Returns an error if too many prompts wait or the stage has stopped; see TextQueue::Push.
  absl::Status Submit(std::shared_ptr<AcceptedRequest> accepted) {
    return prompts_.Push(std::move(accepted), limiter_->RetryDelay());
  }
  // Finishes the queued prompts and joins the workers.
  void Stop();

 private:
  void Work();
  // Starts the compilation of the request's constraint. Its completion posts the prompt.
  void CompileConstraintAndPost(const std::shared_ptr<AcceptedRequest>& accepted,
                                std::unique_ptr<PreparedPrompt> prompt);
  absl::StatusOr<std::unique_ptr<PreparedPrompt>> Prepare(AcceptedRequest& accepted);
  // Returns the texts, which are created when the first request needs them.
  std::shared_ptr<const TokenTexts> GetTokenTexts();

  const EngineOptions& options_;
  const CacheShape shape_;
  const text::Tokenizer* const tokenizer_;
  const Clock* const clock_;
  AdmissionLimiter* const limiter_;
  EngineProbe* const probe_;
  const std::shared_ptr<Inbox> inbox_;
  TextQueue prompts_;
  Mutex token_texts_mutex_;
  std::shared_ptr<const TokenTexts> token_texts_ ABSL_GUARDED_BY(token_texts_mutex_);
  std::vector<std::thread> workers_;
};

}  // namespace quire::engine

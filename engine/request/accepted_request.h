#pragma once

// The data of a request that all threads share, from Accept until its stream is finished. Data that
// only one thread uses is elsewhere. PreparedPrompt belongs to the text worker and later to the
// engine thread, ScheduledRequest to the engine thread, and OutputState to the output worker.
//
// Place:      referenced by the RequestTable, by signals to the engine thread and by items to the
//             output workers.
// Invariants: `request` and the constants never change.
// Threads:    any. The engine thread writes the atomics, unless a comment names another writer.
// Lifetime:   shared; freed when no thread needs it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "engine/request/request.h"

namespace quire::engine {

class TokenStream;

// The progress of a request, for ListRequests and for the metrics at its end.
struct RequestProgress {
  // Also written by the text worker, which changes it from kPreparing to kQueued if only the
  // constraint is missing.
  std::atomic<RequestState> state{RequestState::kPreparing};
  std::atomic<std::int32_t> output_tokens{0};
  std::atomic<std::int32_t> pages{0};
  std::atomic<bool> is_prepared{false};  // the metrics count the request as accepted
  // The request is counted in quire_requests_running and not in quire_requests_waiting.
  std::atomic<bool> is_counted_running{false};
  // Written by the text worker.
  std::atomic<std::int32_t> prompt_tokens{0};
};

struct AcceptedRequest {
  AcceptedRequest(Request accepted, std::uint64_t number, std::size_t worker,
                  std::shared_ptr<TokenStream> output)
      : request(std::move(accepted)),
        arrival(number),
        queue_deadline(request.accept_time + request.queue_timeout),
        output_worker(worker),
        stream(std::move(output)) {}
  AcceptedRequest(const AcceptedRequest&) = delete;
  AcceptedRequest& operator=(const AcceptedRequest&) = delete;

  const Request request;
  const std::uint64_t arrival;  // sequence number in the order of Accept
  const absl::Time queue_deadline;
  const std::size_t output_worker;
  const std::shared_ptr<TokenStream> stream;

  RequestProgress progress;
  std::atomic<bool> cancel_requested{false};  // written by the first thread that cancels it
  // The ConstraintCompiler::Ticket of its constraint, written by the text worker; 0: none yet.
  std::atomic<std::uint64_t> compile_ticket{0};
  // Tokens in the queue to the output worker: the engine thread adds, the worker subtracts.
  std::atomic<std::int32_t> in_ring_tokens{0};
};

}  // namespace quire::engine

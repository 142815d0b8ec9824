#pragma once

// What all threads know of a request from Accept until its stream is finished. What only one of
// them may touch is elsewhere: PreparedPrompt is the text worker's until it hands it over,
// ScheduledRequest the engine thread's, OutputState the output worker's.
//
// Place:      in the RequestTable, the signals to the engine thread and the items to the output
//             workers.
// Invariants: `request` and the constants never change.
// Threads:    any; who writes an atomic stands next to it.
// Lifetime:   shared; the last thread that has to do with it frees it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "engine/request/request.h"

namespace quire::engine {

class TokenStream;

// How far a request has come, for ListRequests and for the numbers of its end.
struct RequestProgress {
  // By the engine thread; from kPreparing to kQueued also by the text worker, when only the
  // constraint is missing.
  std::atomic<RequestState> state{RequestState::kPreparing};
  std::atomic<std::int32_t> output_tokens{0};
  std::atomic<std::int32_t> pages{0};
  // What the metrics count it as: prepared and thus accepted, and in requests_running rather than
  // in requests_waiting.
  std::atomic<bool> is_prepared{false};
  std::atomic<bool> is_counted_running{false};
  // By the text worker.
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
  const std::uint64_t arrival;  // number, in the order of Accept
  const absl::Time queue_deadline;
  const std::size_t output_worker;
  const std::shared_ptr<TokenStream> stream;

  RequestProgress progress;
  std::atomic<bool> cancel_requested{false};  // by the first thread that cancels it
  // ConstraintCompiler::Ticket of its constraint, by the text worker; 0: none yet.
  std::atomic<std::uint64_t> compile_ticket{0};
  // On their way to the output worker: the engine thread adds, the worker subtracts.
  std::atomic<std::int32_t> in_ring_tokens{0};
};

}  // namespace quire::engine

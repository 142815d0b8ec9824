#pragma once

// Requests that are cancelled, expired, disconnected, aborted, or left unread in every state of
// their life, in a pool that is far too small. Each cause and each state must have ended at least
// one request in twenty; a survivor must have the tokens of an undisturbed run.

#include <cstdint>

#include "tests/stress/stress_model.h"

namespace quire::engine {

// QUIRE_STORM_REQUESTS, or 10 000.
std::int64_t StormRequests();

// What survives must be what `calm_model` answers, undisturbed.
void RunStorm(StressModel& model, StressModel& calm_model, std::int64_t num_requests,
              std::uint32_t usable_pages = 36);

}  // namespace quire::engine

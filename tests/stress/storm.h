#pragma once

// Requests are cancelled, expired, disconnected, aborted, or left unread in every state, in a pool
// that is far too small. Each cause and each state must have ended at least one request in twenty.
// A survivor must have the tokens of an undisturbed run.

#include <cstdint>

#include "tests/stress/stress_model.h"

namespace quire::engine {

// Returns QUIRE_STORM_REQUESTS, or 10 000.
std::int64_t StormRequests();

// Surviving requests must have the answers of `calm_model`, undisturbed.
void RunStorm(StressModel& model, StressModel& calm_model, std::int64_t num_requests,
              std::uint32_t usable_pages = 36);

}  // namespace quire::engine

#pragma once

// A message of another thread to the engine thread (inbox.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "engine/request/prepared_prompt.h"
#include "engine/request/request.h"

namespace quire::engine {

struct AcceptedRequest;

struct Signal {
  enum class Kind : std::uint8_t { kArrived, kPrepared, kCancel, kStopMatched, kCall };
  Kind kind = Kind::kCall;
  std::shared_ptr<AcceptedRequest> request = nullptr;
  absl::Status status = {};  // kPrepared: result of the text worker or of the constraint compiler
  // Set for kPrepared with an OK status, or if the constraint was rejected.
  std::unique_ptr<PreparedPrompt> prompt = nullptr;
  CancelSource source = CancelSource::kClient;  // kCancel
  std::string reason_text = {};                 // kCancel by kAdmin
  std::int32_t choice = 0;                      // kStopMatched
  std::function<void()> call = {};  // kCall: runs on the engine thread between two steps
};

}  // namespace quire::engine

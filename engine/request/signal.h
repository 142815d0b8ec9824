#pragma once

// One thing that another thread tells the engine thread (inbox.h).

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "engine/request/prepared_prompt.h"
#include "engine/request/request.h"

namespace quire::engine {

struct AcceptedRequest;

struct Signal {
  enum class Kind : std::uint8_t { kArrived, kPrepared, kCancel, kStopMatched, kNoMemory, kCall };
  Kind kind = Kind::kCall;
  std::shared_ptr<AcceptedRequest> request = nullptr;
  // kPrepared: what its text worker says, or the compiler; kNoMemory: how the request ends.
  absl::Status status = {};
  // kPrepared with an OK status, or when the constraint was refused.
  std::unique_ptr<PreparedPrompt> prompt = nullptr;
  CancelSource source = CancelSource::kClient;  // kCancel
  std::string reason_text = {};                 // kCancel by kAdmin
  std::int32_t choice = 0;                      // kStopMatched
  std::function<void()> call = {};  // kCall: runs on the engine thread between two steps
};

// Signals with memory of their own: what was made before cannot fail to be posted.
using Signals = std::list<Signal>;

}  // namespace quire::engine

#pragma once

// The readers after a request message: ranges, the chat template, the tokenizer.
//
// Place:      targets that convert bytes to quire.v1.GenerateRequest.
// Threads:    one.
// Lifetime:   loads a tokenizer of the test data at the first use and keeps it.

#include "absl/status/status.h"
#include "quire/v1/generation.pb.h"

namespace quire::fuzz {

// Processes a request like the daemon until its tokens are counted. Aborts if a rejection has no
// reason.
void ReadPrompt(const v1::GenerateRequest& message);

// Aborts if the rejection has no reason or is INTERNAL. REQUIRES: !status.ok().
void CheckRefusal(const absl::Status& status);

}  // namespace quire::fuzz

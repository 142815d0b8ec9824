#pragma once

// The readers behind a request message: ranges, the chat template, the tokenizer.
//
// Place:      targets that make quire.v1.GenerateRequest of bytes.
// Threads:    one.
// Lifetime:   reads a tokenizer of the test data at the first use and keeps it.

#include "absl/status/status.h"
#include "quire/v1/generation.pb.h"

namespace quire::fuzz {

// What the daemon does with a request until its tokens are counted. Ends the process when a refusal
// has no reason.
void ReadPrompt(const v1::GenerateRequest& message);

// Ends the process when the refusal has no reason or is INTERNAL. REQUIRES: !status.ok().
void CheckRefusal(const absl::Status& status);

}  // namespace quire::fuzz

#pragma once

// Reads request traces in two formats:
//
//   CSV          TIMESTAMP,ContextTokens,GeneratedTokens (Azure/AzurePublicDataset)
//   JSON lines   timestamp in ms, input_length, output_length, hash_ids (kvcache-ai/Mooncake)
//
// Place:   used by `quire bench --trace`.
// Threads: any.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/quire/bench_load.h"

namespace quire::client {

// Returns the requests in order of time. The first is at 0; intervals are divided by `speed`. A
// token count of 0 becomes 1. Returns INVALID_ARGUMENT if a line is malformed (naming the line),
// there are no requests, or the divided intervals last longer than 1e9 s. REQUIRES: speed > 0.
absl::StatusOr<std::vector<TraceEntry>> ParseTrace(absl::string_view text, double speed);
// Reads a file in the same way. Returns NOT_FOUND if it cannot be read.
absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& path, double speed);

}  // namespace quire::client

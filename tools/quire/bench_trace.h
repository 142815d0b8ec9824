#pragma once

// Reads recorded loads: the CSV of the Azure LLM inference traces
// (TIMESTAMP,ContextTokens,GeneratedTokens; Azure/AzurePublicDataset) and the JSON lines of
// Mooncake (timestamp in ms, input_length, output_length, hash_ids; kvcache-ai/Mooncake).
//
// Place:   behind `quire bench --trace`.
// Threads: any.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/quire/bench_load.h"

namespace quire::client {

// Requests in the order of their times; the first is at 0, the others `speed` times sooner than
// recorded. INVALID_ARGUMENT with the line that is wrong, or for a trace of more than 1e9 s.
// REQUIRES: speed > 0.
absl::StatusOr<std::vector<TraceEntry>> ParseTrace(absl::string_view text, double speed);
// The same of a file; NOT_FOUND when it cannot be read.
absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& path, double speed);

}  // namespace quire::client

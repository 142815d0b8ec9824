#pragma once

// Labels, names and bucket bounds that several probes register.
//
// Place:      included by the sources of the probes.
// Threads:    pure.

#include <string>

#include "absl/strings/string_view.h"
#include "base/probe.h"

namespace quire::engine {

inline constexpr absl::string_view kPromptTokensFamily = "quire_prompt_tokens_total";
inline constexpr absl::string_view kPromptTokensHelp =
    "Prompt tokens of admitted requests by origin.";

// Bucket bounds of histograms of host times, in seconds.
inline constexpr double kMicros[] = {1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, .001,
                                     .002, .005, .01,  .02,  .05,  .1,   1};

// Returns `labels` with the additional label `key`.
inline probe::Labels With(probe::Labels labels, absl::string_view key, absl::string_view value) {
  labels.emplace_back(std::string(key), std::string(value));
  return labels;
}

}  // namespace quire::engine

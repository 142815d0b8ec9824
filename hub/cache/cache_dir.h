#pragma once

// The directory of the model cache, which quire shares with huggingface_hub and other programs.
//
// Threads: any, as long as no thread changes the environment.
// Source:  constants.py of huggingface_hub.

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::hub {

// Returns the value of an environment variable, or nullopt if it is not set or empty.
using Environment = std::function<std::optional<std::string>(const char* name)>;
std::optional<std::string> ProcessEnvironment(const char* name);

// Returns HF_HOME, else $XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface. Returns
// FAILED_PRECONDITION if HF_HOME, XDG_CACHE_HOME and HOME are all unset.
absl::StatusOr<std::string> HomeDir(const Environment& environment);

// Returns HF_HUB_CACHE, else HUGGINGFACE_HUB_CACHE, else HomeDir()/hub, as an absolute path.
absl::StatusOr<std::string> CacheDir(const Environment& environment = ProcessEnvironment);

}  // namespace quire::hub

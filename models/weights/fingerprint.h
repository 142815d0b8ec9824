#pragma once

// The identity of a model: equal fingerprints mean the same weights, configuration and tokenizer,
// so that cached pages of one may serve the other.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/model_files.h"
#include "models/weights/checkpoint.h"

namespace quire::models {

// 32 hex digits over config.json and the tokenizer's file if there is one, or a GGUF file's header
// and its rope factors, and over every tensor's name, type, shape and bytes; how tensors are spread
// over files does not count. Of a checkpoint above 64 MiB each tensor gives its first and last 4
// KiB and 14 places between, so that start-up does not read all of a large model: a change that
// misses all of them is not seen. `choices` is what was chosen when the model was loaded and
// changes what it computes; empty: nothing.
absl::StatusOr<std::string> Fingerprint(const formats::ModelFiles& files,
                                        const Checkpoint& checkpoint,
                                        absl::string_view choices = "");

}  // namespace quire::models

#pragma once

// The fingerprint of a model. Equal fingerprints mean equal weights, configuration and tokenizer,
// so cached pages of one model are valid for the other.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "formats/model_files.h"
#include "models/weights/checkpoint.h"

namespace quire::models {

// Returns 32 hex digits: a hash of every tensor's name, type, shape and bytes. The hash also
// covers config.json and the tokenizer's file if it exists, or the header and rope factors of a
// GGUF file. The distribution of tensors over files has no effect.
//
// For checkpoints above 64 MiB only 16 samples of 4 KiB per tensor are hashed, so that start-up
// does not read a large model completely. A change outside the samples is not detected. `choices`
// is text about load options that change the computation; it may be empty.
absl::StatusOr<std::string> Fingerprint(const formats::ModelFiles& files,
                                        const Checkpoint& checkpoint,
                                        absl::string_view choices = "");

}  // namespace quire::models

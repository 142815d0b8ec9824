#pragma once

// The name of a model on a Hugging Face hub: ORG/NAME[@REVISION][:FILE.gguf].
//
// Place:      below the cache and the client of the hub. Commands and model.path accept such names.
// Invariants: every part of a parsed name is safe as part of a path and of a URL after escaping.
// Threads:    pure functions.
// Source:     validate_repo_id of huggingface_hub.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::hub {

inline constexpr absl::string_view kDefaultRevision = "main";

struct ModelName {
  std::string repository;  // "ORG/NAME"
  std::string revision;    // branch, tag or commit; empty: not given
  std::string file;        // GGUF file of the repository; empty: not given

  friend bool operator==(const ModelName&, const ModelName&) = default;

  std::string revision_or_default() const;
  // Returns ORG/NAME[@REVISION][:FILE.gguf].
  std::string ToString() const;
};

// If the name is invalid, returns INVALID_ARGUMENT with the part that is wrong.
absl::StatusOr<ModelName> ParseModelName(absl::string_view text);

// Returns the command that downloads the model: "quire pull ORG/NAME@REVISION --gguf FILE".
std::string PullCommand(const ModelName& name);

// Checks a file name that a server or a user gave. It must be a relative path of at most 1024 bytes
// that stays inside its directory. Empty names, ".", "..", backslashes and control characters are
// rejected. Returns INVALID_ARGUMENT with the quoted name.
absl::Status CheckFileName(absl::string_view name);

// Returns whether `text` is a commit: 40 hexadecimal digits in lower case.
bool IsCommit(absl::string_view text);

// Returns whether `text` is the hash that names a blob: a git SHA-1 or a SHA-256, in 40 or 64
// hexadecimal digits in lower case.
bool IsContentHash(absl::string_view text);

// Returns whether the name ends in .gguf, in any case.
bool IsGguf(absl::string_view file);

// Returns "model-@-of-00003.gguf" for shards of a split GGUF file such as
// model-00001-of-00003.gguf, and the name itself for other files.
std::string ShardSet(absl::string_view file);

// Formats a size for messages: "512 B", "1.5 KiB", "3.20 GiB".
std::string FormatBytes(std::int64_t bytes);

}  // namespace quire::hub

#pragma once

// Parses the hub's list of a repository's files, and selects those that quired reads.
//
// Place:   below hub/pull.h.
// Threads: pure functions.
// Source:  https://huggingface.co/docs/hub/api, GET /api/models/ORG/NAME/revision/REV?blobs=true

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "hub/cache/model_name.h"

namespace quire::hub {

// Limits of the hub's answer. Larger answers are rejected.
inline constexpr std::size_t kMaxListingBytes = std::size_t{32} << 20;
inline constexpr std::size_t kMaxListedFiles = 100'000;
inline constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 44;

struct RepositoryFile {
  std::string name;              // relative path; CheckFileName accepts it
  std::int64_t size_bytes = -1;  // -1: the hub did not report it
  std::string hash;              // IsContentHash accepts it; empty: the hub did not report it
};

struct Listing {
  std::string commit;
  std::vector<RepositoryFile> files;  // names are distinct
};

// Parses the hub's answer. Returns INVALID_ARGUMENT with the path of the wrong value, also for a
// file name that leads outside the repository.
absl::StatusOr<Listing> ParseListing(absl::string_view json);

// Returns the files to download. If `name.file` is given, these are the GGUF file and its shards.
// Otherwise they are safetensors weights, configuration, tokenizer, chat templates, and the modules
// of sentence-transformers.
//
// Returns NOT_FOUND with the repository's GGUF files if `name.file` is not one of them. Returns
// INVALID_ARGUMENT with the same list if the repository has only GGUF files, and
// FAILED_PRECONDITION if it has neither kind of weights.
absl::StatusOr<std::vector<RepositoryFile>> SelectFiles(const std::vector<RepositoryFile>& files,
                                                        const ModelName& name);

}  // namespace quire::hub

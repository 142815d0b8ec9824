// Fuzzes the answer of a hub with the list of a repository's files, and names of models.

#include "hub/cache/model_name.h"
#include "hub/repository_files.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using quire::hub::CheckFileName, quire::hub::IsCommit, quire::hub::IsContentHash,
      quire::hub::ParseListing, quire::hub::ParseModelName, quire::hub::RepositoryFile,
      quire::hub::SelectFiles;
  const absl::string_view text = quire::fuzz::AsText(data, size);
  const auto name = ParseModelName(text);
  if (name.ok()) QUIRE_CHECK(ParseModelName(name->ToString()).value() == *name);
  const auto listing = ParseListing(text);
  if (!listing.ok()) {
    QUIRE_CHECK(listing.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  QUIRE_CHECK(IsCommit(listing->commit));
  for (const RepositoryFile& file : listing->files) {
    QUIRE_CHECK(CheckFileName(file.name).ok());
    QUIRE_CHECK(file.hash.empty() || (IsContentHash(file.hash) && file.size_bytes >= 0));
  }
  for (const char* const gguf : {"", "a.gguf"}) {
    const auto selected = SelectFiles(listing->files, {"org/name", "", gguf});
    QUIRE_CHECK(!selected.ok() || !selected->empty());
  }
  return 0;
}

#pragma once

// Readers of the recorded cases in tests/testdata/tokenizers.
//
// Place:      tests of text/ only.
// Threads:    pure.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/testing/paths.h"

namespace quire::text {

inline std::filesystem::path TokenizerData() {
  return paths::TestData("tokenizers");
}

// Returns the sorted names of the folders in `directory`.
std::vector<std::string> FolderNames(const std::filesystem::path& directory);

// Returns the whole file. Ends the test program if the file does not exist.
std::string ReadTestFile(const std::filesystem::path& path);

// Returns one JSON value per line.
std::vector<nlohmann::json> ReadJsonLines(const std::filesystem::path& path);

// Returns text for messages, with everything outside printable ASCII as \xHH.
std::string Escaped(absl::string_view text);

}  // namespace quire::text

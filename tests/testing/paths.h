#pragma once

// Where tests find the repository's files.

#include <string>

#include "absl/strings/string_view.h"

namespace quire::paths {

// Of the repository's root, "docs/api.md".
std::string Source(absl::string_view path);
// Below the folder that the environment's QUIRE_TESTDATA names; else testdata/ beside the program,
// where scripts/gpu_bundle puts it; else the test data of the build folder
// (tests/testdata/README.md).
std::string TestData(absl::string_view path);

}  // namespace quire::paths

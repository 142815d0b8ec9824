#pragma once

// Finds the repository's files for tests.

#include <string>

#include "absl/strings/string_view.h"

namespace quire::paths {

// Returns the full path of a file that is named relative to the repository root ("docs/api.md").
std::string Source(absl::string_view path);
// Returns a path below the test data folder: QUIRE_TESTDATA if the environment sets it, else
// testdata/ next to the executable (scripts/gpu_bundle installs it there), else the test data of
// the build folder (tests/testdata/README.md).
std::string TestData(absl::string_view path);

}  // namespace quire::paths

#include "tests/testing/paths.h"

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace quire::paths {

std::string Source(absl::string_view path) {
  return absl::StrCat(QUIRE_SOURCE_DIR "/", path);
}

std::string TestData(absl::string_view path) {
  const char* const folder = std::getenv("QUIRE_TESTDATA");
  return absl::StrCat(folder == nullptr ? QUIRE_TEST_DATA : folder, "/", path);
}

}  // namespace quire::paths

#include "tests/testing/paths.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace quire::paths {

std::string Source(absl::string_view path) {
  return absl::StrCat(QUIRE_SOURCE_DIR "/", path);
}

namespace {

std::string TestDataFolder() {
  if (const char* const folder = std::getenv("QUIRE_TESTDATA")) return folder;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  const auto beside = program.parent_path() / "testdata";
  if (!error && std::filesystem::is_directory(beside, error)) return beside;
  return QUIRE_TEST_DATA;
}

}  // namespace

std::string TestData(absl::string_view path) {
  return absl::StrCat(TestDataFolder(), "/", path);
}

}  // namespace quire::paths

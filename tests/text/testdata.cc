#include "tests/text/testdata.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/escaping.h"
#include "base/check.h"

namespace quire::text {

std::vector<std::string> FolderNames(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string ReadTestFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  QUIRE_CHECK(file.good());
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

std::vector<nlohmann::json> ReadJsonLines(const std::filesystem::path& path) {
  std::istringstream lines(ReadTestFile(path));
  std::vector<nlohmann::json> values;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) values.push_back(nlohmann::json::parse(line));
  }
  return values;
}

std::string Escaped(absl::string_view text) {
  return absl::CHexEscape(text);
}

}  // namespace quire::text

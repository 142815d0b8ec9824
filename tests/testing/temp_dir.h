#pragma once

// A fresh folder for a test's files. The destructor removes it with its content.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/string_view.h"
#include "base/check.h"

namespace quire::testing {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "quire-test-XXXXXX").string();
    QUIRE_CHECK(mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }

  // Writes a file below the folder and returns its full name.
  std::string Write(absl::string_view name, absl::string_view content) const {
    const std::filesystem::path file = std::filesystem::path(path_) / std::string(name);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary)
        .write(content.data(), static_cast<std::streamsize>(content.size()));
    return file.string();
  }

 private:
  std::string path_;
};

}  // namespace quire::testing

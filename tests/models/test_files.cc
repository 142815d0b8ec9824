#include "tests/models/test_files.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/testing/paths.h"

namespace quire::models {

std::string TestDataPath(absl::string_view path) {
  return paths::TestData(path);
}

std::string ReadTestFile(absl::string_view path) {
  std::ifstream stream(TestDataPath(path), std::ios::binary);
  QUIRE_CHECK(stream.good());
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

EditableFiles::EditableFiles(absl::string_view directory) {
  const auto files = formats::ModelFiles::FromDirectory(TestDataPath(directory));
  QUIRE_CHECK(files.ok());
  for (const std::string& name : files->names()) {
    Set(name, ReadTestFile(absl::StrCat(directory, "/", name)));
  }
}

void EditableFiles::Set(absl::string_view name, std::string text) {
  Remove(name);
  files_.emplace_back(std::string(name), std::move(text));
}

void EditableFiles::Remove(absl::string_view name) {
  std::erase_if(files_, [&](const auto& file) { return file.first == name; });
}

const std::string& EditableFiles::Get(absl::string_view name) const {
  const auto it = std::find_if(files_.begin(), files_.end(),
                               [&](const auto& file) { return file.first == name; });
  QUIRE_CHECK(it != files_.end());
  return it->second;
}

formats::ModelFiles EditableFiles::Files() const {
  std::vector<formats::ModelFiles::MemoryFile> files;
  for (const auto& [name, text] : files_) {
    files.push_back({name, std::as_bytes(std::span(text.data(), text.size()))});
  }
  return formats::ModelFiles::FromMemory("edited", std::move(files));
}

TestBackend::TestBackend(int threads, kernels::CpuActivations activations)
    : pool(threads), backend(*kernels::Backend::Create(Device::Cpu(), &pool, activations)) {}

std::string SafetensorsFile(absl::string_view header, absl::string_view data) {
  std::string file;
  for (int i = 0; i < 8; ++i) {
    file.push_back(static_cast<char>((header.size() >> (8 * i)) & 0xff));
  }
  absl::StrAppend(&file, header, data);
  return file;
}

}  // namespace quire::models

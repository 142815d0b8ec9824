#include "formats/model_files.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/small_file.h"
#include "base/status.h"

namespace quire::formats {
namespace {

namespace fs = std::filesystem;

// Returns whether `name` is a single file name, so that the joined path stays inside the directory.
// A symbolic link of that name may still lead elsewhere, as in a cache snapshot.
bool IsPlainName(absl::string_view name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of(absl::string_view("/\\\0", 3)) == absl::string_view::npos;
}

}  // namespace

bool IsNestedName(absl::string_view name) {
  const std::size_t slash = name.find('/');
  return slash != absl::string_view::npos && IsPlainName(name.substr(0, slash)) &&
         IsPlainName(name.substr(slash + 1));
}

namespace {

bool IsNameInside(absl::string_view name) {
  return IsPlainName(name) || IsNestedName(name);
}

absl::Status NotADirectory(absl::string_view path) {
  absl::string_view hint = "it must be a Hugging Face model directory or a .gguf file";
  if (absl::EndsWith(path, ".safetensors") || absl::EndsWith(path, ".json")) {
    hint = "set the path to the directory that contains the file";
  } else if (absl::EndsWith(path, ".bin") || absl::EndsWith(path, ".pth") ||
             absl::EndsWith(path, ".pt")) {
    hint =
        "pickled weights are not supported because loading them may run code; convert them to "
        "safetensors and set the path to their directory";
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": not a directory: ", hint));
}

bool IsGgufName(absl::string_view name) {
  return absl::EndsWithIgnoreCase(name, ".gguf");
}

}  // namespace

absl::StatusOr<ModelFiles> ModelFiles::FromPath(absl::string_view path) {
  std::error_code error;
  const fs::path file{std::string(path)};
  if (!IsGgufName(path) || fs::status(file, error).type() != fs::file_type::regular) {
    return FromDirectory(path);
  }
  if (fs::file_size(file, error) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the file is empty, so its magic is missing"));
  }
  ModelFiles files;
  files.source_ = std::string(path);
  files.gguf_ = file.filename().string();
  files.prefix_ = files.source_.substr(0, files.source_.size() - files.gguf_.size());
  files.names_ = {files.gguf_};
  return files;
}

absl::StatusOr<ModelFiles> ModelFiles::FromDirectory(absl::string_view path) {
  std::error_code error;
  const fs::path directory{std::string(path)};
  const fs::file_status status = fs::status(directory, error);
  if (status.type() == fs::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat(path, ": no such directory"));
  }
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  if (status.type() != fs::file_type::directory) return NotADirectory(path);

  ModelFiles files;
  files.source_ = std::string(path);
  while (files.source_.size() > 1 && files.source_.back() == '/') files.source_.pop_back();
  files.prefix_ = absl::StrCat(files.source_, "/");
  fs::directory_iterator it(directory, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    files.names_.push_back(it->path().filename().string());
  }
  if (error) return absl::InvalidArgumentError(absl::StrCat(path, ": ", error.message()));
  std::sort(files.names_.begin(), files.names_.end());
  return files;
}

ModelFiles ModelFiles::FromMemory(absl::string_view source, std::vector<MemoryFile> files) {
  ModelFiles result;
  result.source_ = std::string(source);
  result.prefix_ = absl::StrCat(source, "/");
  result.in_memory_ = true;
  if (files.size() == 1 && IsGgufName(files.front().name)) result.gguf_ = files.front().name;
  std::ranges::sort(files, {}, &MemoryFile::name);
  for (const MemoryFile& file : files) result.names_.push_back(file.name);
  result.files_ = std::move(files);
  return result;
}

bool ModelFiles::Has(absl::string_view name) const {
  if (!in_memory_ && IsNestedName(name)) {
    std::error_code error;
    return fs::exists(LabelOf(name), error);
  }
  return std::binary_search(names_.begin(), names_.end(), name, std::less<>());
}

std::string ModelFiles::LabelOf(absl::string_view name) const {
  return absl::StrCat(prefix_, name);
}

absl::StatusOr<ModelFile> ModelFiles::Open(absl::string_view name) const {
  if (!IsNameInside(name)) {
    return absl::InvalidArgumentError(absl::StrCat(
        source_, ": \"", name, "\" is not a file name, it must be NAME or FOLDER/NAME"));
  }
  if (!in_memory_) {
    QUIRE_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(LabelOf(name)));
    return ModelFile(LabelOf(name), std::move(mapping));
  }
  for (const MemoryFile& file : files_) {
    if (file.name != name) continue;
    if (file.bytes.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(LabelOf(name), ": the file is empty"));
    }
    return ModelFile(LabelOf(name), file.bytes);
  }
  return absl::NotFoundError(absl::StrCat(LabelOf(name), ": no such file"));
}

absl::StatusOr<std::string> ModelFiles::ReadText(absl::string_view name,
                                                 std::size_t max_bytes) const {
  if (!in_memory_ && IsNameInside(name)) return ReadSmallFile(LabelOf(name), max_bytes);
  QUIRE_ASSIGN_OR_RETURN(const ModelFile file, Open(name));
  return std::string(file.text());
}

}  // namespace quire::formats

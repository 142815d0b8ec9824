#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mapped_file.h"

namespace quire::formats {

// One file's bytes, mapped or embedded. Valid as long as it lives; moving keeps spans valid.
class ModelFile {
 public:
  ModelFile(std::string label, MappedFile mapping)
      : label_(std::move(label)), mapping_(std::move(mapping)), bytes_(mapping_->bytes()) {}
  ModelFile(std::string label, std::span<const std::byte> bytes)
      : label_(std::move(label)), bytes_(bytes) {}

  std::span<const std::byte> bytes() const { return bytes_; }
  absl::string_view text() const {
    return {reinterpret_cast<const char*>(bytes_.data()), bytes_.size()};
  }
  // False: the bytes are part of the program, or of a test.
  bool is_mapped() const { return mapping_.has_value(); }
  // For messages: the path, or "embedded model/config.json".
  const std::string& label() const { return label_; }

 private:
  std::string label_;
  std::optional<MappedFile> mapping_;  // none: the bytes outlive this object
  std::span<const std::byte> bytes_;
};

// Whether it is "FOLDER/NAME" of two plain file names.
bool IsNestedName(absl::string_view name);

// Where a model's files come from: a directory, one GGUF file, or bytes that are part of the
// program.
//
// Place:      under every reader of a model, the tokenizer's files included.
// Invariants: names are plain file names, or those of one folder down; a name that leaves the
//             directory is refused.
// Threads:    const methods from any thread.
// Lifetime:   an opened ModelFile does not need the ModelFiles. FromMemory's bytes must outlive
//             both.
class ModelFiles {
 public:
  struct MemoryFile {
    std::string name;  // "config.json"
    std::span<const std::byte> bytes;
  };

  // A directory, as FromDirectory, or a file whose name ends in ".gguf".
  static absl::StatusOr<ModelFiles> FromPath(absl::string_view path);
  // A Hugging Face directory, or a cache snapshot whose files are symbolic links. Returns NOT_FOUND
  // or INVALID_ARGUMENT (not a directory, with a hint for a single weight file).
  static absl::StatusOr<ModelFiles> FromDirectory(absl::string_view path);
  // One file alone whose name ends in ".gguf" is a GGUF file as from FromPath.
  static ModelFiles FromMemory(absl::string_view source, std::vector<MemoryFile> files);

  // The directory, the GGUF file, or the name given to FromMemory.
  const std::string& source() const { return source_; }
  // Name of the one file that holds configuration, tokenizer and weights; empty: files in Hugging
  // Face layout.
  const std::string& gguf() const { return gguf_; }
  // Names of all files, sorted; those in folders of a directory are not among them.
  const std::vector<std::string>& names() const { return names_; }
  bool Has(absl::string_view name) const;
  // For messages; the file need not exist.
  std::string LabelOf(absl::string_view name) const;

  // Returns NOT_FOUND for an absent file, INVALID_ARGUMENT for an empty one; the message starts
  // with the file's label.
  absl::StatusOr<ModelFile> Open(absl::string_view name) const;
  // The same of a file that may be written again while the process runs, such as a template: a
  // copy of at most `max_bytes`, may be empty. Errors also as those of ReadSmallFile.
  absl::StatusOr<std::string> ReadText(absl::string_view name, std::size_t max_bytes) const;

 private:
  std::string source_;
  std::string prefix_;  // of every file's label
  std::string gguf_;
  bool in_memory_ = false;
  std::vector<std::string> names_;
  std::vector<MemoryFile> files_;  // sorted by name; empty for a directory
};

}  // namespace quire::formats

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

// The bytes of one file, mapped or embedded. Spans of the bytes are valid as long as the ModelFile
// exists, even if it is moved.
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
  // False if the bytes are part of the program or of a test.
  bool is_mapped() const { return mapping_.has_value(); }
  // Name of the file in messages: its path, or "embedded model/config.json".
  const std::string& label() const { return label_; }

 private:
  std::string label_;
  std::optional<MappedFile> mapping_;  // nullopt: the bytes outlive this object
  std::span<const std::byte> bytes_;
};

// Returns whether `name` is "FOLDER/NAME" with two plain file names.
bool IsNestedName(absl::string_view name);

// The source of a model's files: a directory, one GGUF file, or embedded bytes.
//
// Place:      below every reader of model files, tokenizer files included.
// Invariants: a name is a plain file name, or FOLDER/NAME. Names that lead outside the directory
//             are rejected.
// Threads:    const methods are thread-safe.
// Lifetime:   an opened ModelFile may outlive the ModelFiles. The bytes given to FromMemory must
//             outlive both.
class ModelFiles {
 public:
  struct MemoryFile {
    std::string name;  // "config.json"
    std::span<const std::byte> bytes;
  };

  // Opens a directory, or a file whose name ends in ".gguf".
  static absl::StatusOr<ModelFiles> FromPath(absl::string_view path);
  // Opens a Hugging Face directory, or a cache snapshot whose files are symbolic links. Returns
  // NOT_FOUND if `path` does not exist, and INVALID_ARGUMENT if it is not a directory. For a single
  // weight file, the message has a hint.
  static absl::StatusOr<ModelFiles> FromDirectory(absl::string_view path);
  // A single file whose name ends in ".gguf" is treated as in FromPath.
  static ModelFiles FromMemory(absl::string_view source, std::vector<MemoryFile> files);

  // The path of the directory or GGUF file, or the name given to FromMemory.
  const std::string& source() const { return source_; }
  // Name of the GGUF file with configuration, tokenizer and weights; empty for files in Hugging
  // Face layout.
  const std::string& gguf() const { return gguf_; }
  // Names of all files, sorted, without those in subdirectories.
  const std::vector<std::string>& names() const { return names_; }
  bool Has(absl::string_view name) const;
  // Returns the name of the file in messages. The file need not exist.
  std::string LabelOf(absl::string_view name) const;

  // Returns NOT_FOUND for an absent file and INVALID_ARGUMENT for an empty one. The message starts
  // with the file's label.
  absl::StatusOr<ModelFile> Open(absl::string_view name) const;
  // Returns the content of a file that may change while the process runs, such as a template. The
  // file may be empty and has at most `max_bytes`. Errors are those of Open and ReadSmallFile.
  absl::StatusOr<std::string> ReadText(absl::string_view name, std::size_t max_bytes) const;

 private:
  std::string source_;
  std::string prefix_;  // prefix of every file's label
  std::string gguf_;
  bool in_memory_ = false;
  std::vector<std::string> names_;
  std::vector<MemoryFile> files_;  // sorted by name; empty for a directory
};

}  // namespace quire::formats

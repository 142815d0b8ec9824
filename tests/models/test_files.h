#pragma once

// In-memory model files that a test can change, and a small backend.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/thread_pool.h"
#include "formats/model_files.h"
#include "kernels/backend/backend.h"

namespace quire::models {

// Returns "<tests/testdata>/<path>".
std::string TestDataPath(absl::string_view path);
std::string ReadTestFile(absl::string_view path);  // relative to tests/testdata

// Copies of a directory's files.
class EditableFiles {
 public:
  // `directory` is relative to tests/testdata.
  explicit EditableFiles(absl::string_view directory);
  EditableFiles() = default;

  void Set(absl::string_view name, std::string text);
  void Remove(absl::string_view name);
  const std::string& Get(absl::string_view name) const;
  // The result is valid until the next change.
  formats::ModelFiles Files() const;

 private:
  std::vector<std::pair<std::string, std::string>> files_;
};

// A CPU backend with its threads.
struct TestBackend {
  explicit TestBackend(int threads = 1,
                       kernels::CpuActivations activations = kernels::CpuActivations::kInt8);
  ThreadPool pool;
  kernels::Backend backend;
};

// Returns a safetensors file: length, header, data.
std::string SafetensorsFile(absl::string_view header, absl::string_view data);

}  // namespace quire::models

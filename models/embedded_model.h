#pragma once

// The model that is part of the program: assets/story, a small writer of children's stories, so that
// quired serves real text without any file beside it. Its own target, quire::embedded_model, keeps the 12
// MB out of programs that do not ask for them.

#include <cstddef>
#include <span>
#include <vector>

#include "models/checkpoint/model_files.h"

namespace quire::models {

// The files of assets/story under their names; `source()` is "embedded model". The bytes live as long as
// the process and are 64-byte aligned.
ModelFiles EmbeddedModel();

namespace internal {

struct EmbeddedFile {
  const char* name;
  std::span<const std::byte> bytes;
};

// Defined by the build (cmake/embed_assets.cmake).
std::vector<EmbeddedFile> StoryFiles();

}  // namespace internal
}  // namespace quire::models

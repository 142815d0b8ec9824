#pragma once

// The model that is built into the binary (assets/story), so that `quired` without arguments serves
// a real model.
//
// Place:      between the embedded assets and EngineStack (engine_stack.cc).
// Threads:    any.

#include <vector>

#include "formats/model_files.h"

namespace quire::server {

// Returns the files of the model. cmake/embed_assets.cmake generates the definition.
std::vector<formats::ModelFiles::MemoryFile> StoryFiles();

inline formats::ModelFiles EmbeddedModelFiles() {
  return formats::ModelFiles::FromMemory("embedded model", StoryFiles());
}

}  // namespace quire::server

#include "models/embedded_model.h"

#include <utility>
#include <vector>

namespace quire::models {

ModelFiles EmbeddedModel() {
  std::vector<ModelFiles::MemoryFile> files;
  for (const internal::EmbeddedFile& file : internal::StoryFiles()) {
    files.push_back({file.name, file.bytes});
  }
  return ModelFiles::FromMemory("embedded model", std::move(files));
}

}  // namespace quire::models

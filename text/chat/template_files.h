#pragma once

// Reads the chat templates of a model from its files.
//
// Place:      between the model's files and FindTemplates (chat_template.h). The daemon and
//             `quire inspect` call it.
// Threads:    pure functions.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/model_files.h"
#include "text/chat/chat_template.h"

namespace quire::text {

// Returns an error if a file exists but cannot be read, or if a GGUF file's metadata are invalid.
absl::StatusOr<TemplateFiles> ReadTemplateFiles(const formats::ModelFiles& files);

// Returns the names of the files that ReadTemplateFiles reads: the default files, which may not
// exist, and the existing named files. Empty for a GGUF file, which must not change while it is
// served.
std::vector<std::string> TemplateFileNames(const formats::ModelFiles& files);

}  // namespace quire::text

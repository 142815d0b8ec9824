#pragma once

// Reads the chat templates of a model from the files that may hold them.
//
// Place:      between the model's files and FindTemplates (chat_template.h). The daemon and
//             `quire inspect` call it.
// Threads:    pure.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/model_files.h"
#include "text/chat/chat_template.h"

namespace quire::text {

// Errors: those of files that are there and cannot be read, and of a GGUF file's metadata.
absl::StatusOr<TemplateFiles> ReadTemplateFiles(const formats::ModelFiles& files);

// Returns the names of the files that ReadTemplateFiles reads: the default ones, which may be
// absent, and the named ones that exist. Empty for a GGUF file, which must not change while it is
// served.
std::vector<std::string> TemplateFileNames(const formats::ModelFiles& files);

}  // namespace quire::text

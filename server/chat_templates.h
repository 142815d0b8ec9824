#pragma once

// The chat templates of a model and a configuration: which files may hold them, and what is said
// about those that cannot be used.
//
// Place:      between the model's files and text::ChatTemplates; EngineStack calls it at the start
//             and for every reload.
// Threads:    any.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/model_files.h"
#include "server/config/live_config.h"
#include "server/config/options.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::server {

// A model without a usable template is no error; the log says what is wrong with it, and the caller
// decides whether it may replace another one. Errors:
// INVALID_ARGUMENT or NOT_FOUND that name chat.template_file, chat.default_vars or a file that
// cannot be read.
absl::StatusOr<std::shared_ptr<const text::ChatTemplates>> LoadChatTemplates(
    const ChatTemplateOptions& options, const formats::ModelFiles& files,
    const text::Tokenizer& tokenizer);

// The files that LoadChatTemplates reads of a model in `model_path`, whether they are there or not.
// Of a GGUF file, which is not to be written while it is served, none is.
std::vector<NamedFile> ChatTemplateFiles(const ChatTemplateOptions& options,
                                         const std::string& model_path);

}  // namespace quire::server

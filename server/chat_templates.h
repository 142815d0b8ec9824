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
#include "text/tools/tool_format.h"

namespace quire::server {

struct LoadedChat {
  std::shared_ptr<const text::ChatTemplates> templates;  // never null
  // By chat.tool_format, or by the templates; null: none is known.
  const text::ToolFormat* tool_format = nullptr;
  bool has_reasoning = false;  // by the templates
};

// A model without a usable template is no error; the log says what is wrong with it, and the caller
// decides whether it may replace another one. Errors:
// INVALID_ARGUMENT or NOT_FOUND that name chat.template_file (also when its template cannot be
// used), chat.default_vars, chat.tool_format or a file that cannot be read.
absl::StatusOr<LoadedChat> LoadChatTemplates(const ChatTemplateOptions& options,
                                             const formats::ModelFiles& files,
                                             const text::Tokenizer& tokenizer);

// The files that LoadChatTemplates reads of a model in `model_path`, whether they are there or not.
// Of a GGUF file, which is not to be written while it is served, none is.
std::vector<NamedFile> ChatTemplateFiles(const ChatTemplateOptions& options,
                                         const std::string& model_path);

}  // namespace quire::server

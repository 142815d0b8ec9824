#pragma once

// Loads the chat templates of the model or the configuration, and logs those that cannot be used.
//
// Place:      between the model's files and text::ChatTemplates. EngineStack calls it at start and
//             on every reload.
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
  // From chat.tool_format or detected from the templates; null: unknown.
  const text::ToolFormat* tool_format = nullptr;
  bool has_reasoning = false;  // detected from the templates
};

// A model without a usable template is not an error. The problem is logged, and the caller decides
// whether the result may replace an earlier template. An unusable template in chat.template_file,
// however, is an error. Errors are INVALID_ARGUMENT or NOT_FOUND. The message names the
// configuration key or the file.
absl::StatusOr<LoadedChat> LoadChatTemplates(const ChatTemplateOptions& options,
                                             const formats::ModelFiles& files,
                                             const text::Tokenizer& tokenizer);

// Returns the files that LoadChatTemplates reads for the model in `model_path`, even if they do not
// exist. A GGUF file is not in the list, because it must not be modified while it is served.
std::vector<NamedFile> ChatTemplateFiles(const ChatTemplateOptions& options,
                                         const std::string& model_path);

}  // namespace quire::server

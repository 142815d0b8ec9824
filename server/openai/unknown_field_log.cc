#include "server/openai/unknown_field_log.h"

#include "absl/strings/str_cat.h"
#include "base/logging.h"

namespace quire::server {
namespace {

// Returns "messages[].x" for "messages[3].x".
std::string WithoutIndexes(absl::string_view path) {
  std::string name;
  bool is_index = false;
  for (const char c : path) {
    if (c == ']') is_index = false;
    if (!is_index) name += c;
    if (c == '[') is_index = true;
  }
  return name;
}

}  // namespace

bool UnknownFieldLog::Warn(absl::string_view path) {
  std::string name = WithoutIndexes(path);
  bool is_last = false;
  {
    MutexLock lock(&mutex_);
    if (names_.size() >= kMaxNames || !names_.insert(name).second) return false;
    is_last = names_.size() == kMaxNames;
  }
  log::Warn("openai", "unknown request field is ignored", {{"field", name}});
  if (is_last) {
    log::Warn("openai", "further names of unknown request fields are not logged",
              {{"max_names", kMaxNames}});
  }
  return true;
}

absl::Status UnknownFieldLog::CheckIntegrity() const {
  MutexLock lock(&mutex_);
  if (names_.size() <= kMaxNames) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the log of unknown fields has ", names_.size(),
                                          " names, at most ", kMaxNames, " are allowed"));
}

}  // namespace quire::server

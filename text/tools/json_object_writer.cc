#include "text/tools/json_object_writer.h"

#include "absl/strings/str_cat.h"

namespace quire::text {

bool JsonObjectWriter::Set(std::string key, std::string value) {
  const auto [entry, is_new] = indices_.try_emplace(key, members_.size());
  if (is_new) {
    members_.emplace_back(std::move(key), std::move(value));
  } else {
    members_[entry->second].second = std::move(value);
  }
  return is_new;
}

std::string JsonObjectWriter::Text() const {
  std::string text = "{";
  for (const auto& [key, value] : members_) {
    absl::StrAppend(&text, text.size() > 1 ? ", " : "", key, ": ", value);
  }
  return text + "}";
}

}  // namespace quire::text

#include "text/tokenizer/tokenizer_parts.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::text {
namespace {

absl::StatusOr<formats::JsonDocument> ParseObject(absl::string_view text) {
  QUIRE_ASSIGN_OR_RETURN(formats::JsonDocument document,
                         formats::JsonDocument::Parse(text.empty() ? "{}" : text));
  QUIRE_RETURN_IF_ERROR(document.root().CheckObject());
  return document;
}

}  // namespace

absl::Status WithFileName(absl::string_view file, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(file, ": ", status.message()));
}

absl::StatusOr<formats::JsonDocument> ParseTokenizerConfig(absl::string_view text) {
  absl::StatusOr<formats::JsonDocument> document = ParseObject(text);
  if (!document.ok()) return WithFileName(kConfigFile, document.status());
  return document;
}

absl::StatusOr<std::optional<std::string>> NamedTokenText(const formats::JsonValue& config,
                                                          absl::string_view key) {
  const std::optional<formats::JsonValue> member = config.Find(key);
  if (!member || member->is_null()) return std::optional<std::string>();
  QUIRE_ASSIGN_OR_RETURN(std::string text,
                         member->is_object() ? member->GetString("content") : member->AsString());
  return std::optional<std::string>(std::move(text));
}

absl::Status CheckAddedTokensAreKnown(const formats::JsonValue& config, absl::string_view file,
                                      const Encoder& encoder) {
  const std::optional<formats::JsonValue> added = config.Find("added_tokens_decoder");
  if (!added || added->is_null()) return absl::OkStatus();
  if (const absl::Status status = added->CheckObject(); !status.ok()) {
    return WithFileName(kConfigFile, status);
  }
  for (const auto& [id, value] : added->raw().items()) {
    const formats::JsonValue token(value, added->PathOf(id));
    const absl::StatusOr<std::string> content = token.GetString("content");
    if (!content.ok()) return WithFileName(kConfigFile, content.status());
    const std::optional<std::int32_t> known = encoder.TokenToId(*content);
    if (known && absl::StrCat(*known) == id) continue;
    return absl::UnimplementedError(absl::StrCat(
        kConfigFile, ": ", token.path(), " is \"", *content, "\", but ", file,
        known ? absl::StrCat(" gives this token the id ", *known) : " does not have this token",
        "; add a tokenizer.json, which can define tokens that differ from ", file));
  }
  return absl::OkStatus();
}

}  // namespace quire::text

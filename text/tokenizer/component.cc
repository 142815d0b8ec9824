#include "text/tokenizer/component.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"

namespace quire::text {

absl::Status UnsupportedType(const formats::JsonValue& config, absl::string_view type) {
  return absl::UnimplementedError(
      absl::StrCat(config.PathOf("type"), " \"", type, "\" is not supported"));
}

absl::StatusOr<Regex> PatternOf(const formats::JsonValue& config) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue pattern, config.Get("pattern"));
  QUIRE_RETURN_IF_ERROR(pattern.CheckObject());
  const bool is_regex = pattern.Find("Regex").has_value();
  if (is_regex == pattern.Find("String").has_value()) {
    return pattern.Error("must have exactly one of the keys String and Regex");
  }
  const absl::string_view key = is_regex ? "Regex" : "String";
  QUIRE_ASSIGN_OR_RETURN(const std::string text, pattern.GetString(key));
  absl::StatusOr<Regex> regex = is_regex ? Regex::FromOniguruma(text) : Regex::FromLiteral(text);
  if (!regex.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(pattern.PathOf(key), ": ", regex.status().message()));
  }
  return regex;
}

absl::StatusOr<std::string> CharacterOf(const formats::JsonValue& config, absl::string_view key) {
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonValue member, config.Get(key));
  QUIRE_ASSIGN_OR_RETURN(std::string text, member.AsString());
  if (text.empty() || Utf8Length(text[0]) != text.size()) {
    return member.Error("must be one character");
  }
  return text;
}

absl::StatusOr<PrependScheme> PrependSchemeOf(const formats::JsonValue& config) {
  QUIRE_ASSIGN_OR_RETURN(const auto scheme, config.GetOptionalString("prepend_scheme"));
  QUIRE_ASSIGN_OR_RETURN(const bool adds_prefix, config.GetBoolOr("add_prefix_space", true));
  if (!adds_prefix && scheme != "never") {
    return absl::InvalidArgumentError(absl::StrCat(
        config.PathOf("add_prefix_space"), " is false, which requires prepend_scheme \"never\""));
  }
  if (!scheme || *scheme == "always") return PrependScheme::kAlways;
  if (*scheme == "first") return PrependScheme::kFirst;
  if (*scheme == "never") return PrependScheme::kNever;
  return absl::InvalidArgumentError(absl::StrCat(config.PathOf("prepend_scheme"), " is \"", *scheme,
                                                 "\", must be always, first or never"));
}

}  // namespace quire::text

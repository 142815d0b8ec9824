#include "engine/constraint/constraint.h"

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"

namespace quire::engine {

namespace {

constexpr std::size_t kMaxMessageBytes = 1500;

}  // namespace

absl::string_view ConstraintKindName(ConstraintKind kind) {
  static constexpr absl::string_view kNames[kNumConstraintKinds] = {
      "json_schema", "regex",           "ebnf_grammar", "json_object",
      "choice",      "structural_tags", "tool_calls"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::int64_t ConstraintSpec::InputBytes() const {
  std::size_t bytes = text.size();
  for (const std::string& choice : choices) bytes += choice.size();
  for (const ConstraintTag& tag : tags) {
    bytes += tag.begin.size() + tag.text.size() + tag.end.size();
  }
  for (const std::string& trigger : triggers) bytes += trigger.size();
  return static_cast<std::int64_t>(bytes);
}

absl::Status BadConstraint(absl::string_view stage, absl::string_view message) {
  return WithReason(absl::InvalidArgumentError(Shorten(message, kMaxMessageBytes)),
                    Reason::kBadConstraint, {{"stage", std::string(stage)}});
}

std::string Shorten(absl::string_view text, std::size_t max_bytes) {
  if (text.size() <= max_bytes) return std::string(text);
  std::size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return absl::StrCat(text.substr(0, end), "...");
}

}  // namespace quire::engine

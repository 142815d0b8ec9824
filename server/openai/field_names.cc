#include "server/openai/field_names.h"

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace quire::server {
namespace {

struct NamePair {
  absl::string_view ours;    // path in the gRPC API
  absl::string_view theirs;  // path in the OpenAI API; "": omitted
};

constexpr NamePair kNames[] = {
    {"sampling", ""},
    {"sampling.choice_count", "n"},
    {"sampling.dry_window_tokens", "dry_penalty_last_n"},
    {"sampling.banned_text", "bad_words"},
    {"stopping", ""},
    {"stopping.include_stop_text", "include_stop_str_in_output"},
    {"output", ""},
    {"output.prompt_logprobs", "logprobs"},
    {"cache", ""},
    {"cache.salt", "cache_salt"},
    {"labels", "user"},
    {"constraint", "response_format"},
    {"constraint.start", "constraint_start"},
    {"constraint.whitespace", "constraint_whitespace"},
    {"constraint.unenforced", "constraint_unenforced"},
    {"chat", "messages"},
    {"chat.messages", "messages"},
    {"chat.messages[].tool_calls[].name", "messages[].tool_calls[].function.name"},
    {"chat.messages[].tool_calls[].arguments_json", "messages[].tool_calls[].function.arguments"},
    {"chat.tools", "tools"},
    {"chat.tools[].tool_json", "tools[]"},
    {"chat.tools[].name", "tools[].function.name"},
    {"chat.tools[].description", "tools[].function.description"},
    {"chat.tools[].parameters", "tools[].function.parameters"},
    {"chat.tools[].parameters_json_schema", "tools[].function.parameters"},
    {"chat.tools[].strict", "tools[].function.strict"},
    {"chat.tool_choice", "tool_choice"},
    {"chat.tool_name", "tool_choice.function.name"},
    {"chat.parallel_tool_calls", "parallel_tool_calls"},
    {"chat.add_generation_prompt", "add_generation_prompt"},
    {"chat.continue_final_message", "continue_final_message"},
    {"chat.template_text", "chat_template"},
    {"chat.template_vars", "chat_template_kwargs"},
    {"chat.template_name", "messages"},
    {"inputs", "input"},
    {"text", "prompt"},
    {"token_ids", "prompt"},
};

// Kinds of constraints, as named in the gRPC API.
constexpr absl::string_view kConstraintKinds[] = {"json_schema", "regex",  "ebnf_grammar",
                                                  "json_object", "choice", "structural_tags"};

// Returns true for patterns that match only a whole path. Configuration keys, which must not be
// renamed, also begin with these names.
bool MatchesOnlyWholePath(absl::string_view pattern) {
  return pattern == "chat" || pattern == "constraint";
}

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_';
}

struct Match {
  std::vector<absl::string_view> indexes;  // with brackets
  absl::string_view rest;                  // the part of the field after the pattern
};

// Matches a prefix of `field` that ends after a name or an index.
std::optional<Match> MatchPrefix(absl::string_view field, absl::string_view pattern) {
  Match match;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (field.empty() || field[0] != pattern[i]) return std::nullopt;
    if (pattern.substr(i, 2) != "[]") {
      field.remove_prefix(1);
      continue;
    }
    const std::size_t end = field.find(']');
    if (end == field.npos) return std::nullopt;
    match.indexes.push_back(field.substr(0, end + 1));
    field.remove_prefix(end + 1);
    ++i;  // skip the pattern's closing bracket
  }
  if (!field.empty() && field[0] != '.' && field[0] != '[') return std::nullopt;
  match.rest = field;
  return match;
}

// Returns `theirs` with the matched indexes filled in, followed by the rest of the field.
std::string FillIndexes(absl::string_view theirs, const Match& match) {
  std::string written;
  std::size_t next = 0;
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    if (theirs.substr(i, 2) != "[]") {
      written += theirs[i];
      continue;
    }
    if (next < match.indexes.size()) absl::StrAppend(&written, match.indexes[next++]);
    ++i;
  }
  absl::string_view rest = match.rest;
  if (written.empty()) absl::ConsumePrefix(&rest, ".");
  return absl::StrCat(written, rest);
}

// Returns the length of the path at the start of `text`: names separated by dots, and indexes.
std::size_t MeasurePath(absl::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    if (IsNameCharacter(text[at])) {
      ++at;
    } else if (text[at] == '.' && at + 1 < text.size() && IsNameCharacter(text[at + 1])) {
      ++at;
    } else if (text[at] == '[' && text.find(']', at) != text.npos) {
      at = text.find(']', at) + 1;
    } else {
      break;
    }
  }
  return at;
}

}  // namespace

void FieldNames::Set(std::string ours, std::string theirs) {
  names_.emplace_back(std::move(ours), std::move(theirs));
}

void FieldNames::SetConstraint(const std::string& theirs) {
  Set("constraint", theirs);
  for (const absl::string_view kind : kConstraintKinds) {
    Set(absl::StrCat("constraint.", kind), theirs);
  }
}

std::string FieldNames::Rename(absl::string_view original) const {
  std::string field(original);
  constexpr absl::string_view kTools = "chat.tools[";
  std::size_t index = 0;
  if (absl::StartsWith(field, kTools) &&
      absl::SimpleAtoi(field.substr(kTools.size(), field.find(']') - kTools.size()), &index) &&
      index < tool_indexes_.size()) {
    field = absl::StrCat(kTools, tool_indexes_[index], field.substr(field.find(']')));
  }
  std::string best = field;
  std::size_t longest = 0;
  const auto consider = [&](absl::string_view ours, absl::string_view theirs) {
    if (ours.size() <= longest) return;
    const std::optional<Match> match = MatchPrefix(field, ours);
    if (!match || (MatchesOnlyWholePath(ours) && !match->rest.empty())) return;
    if (theirs.empty() && match->rest.empty()) return;
    longest = ours.size();
    best = FillIndexes(theirs, *match);
  };
  // Iterates in reverse, so that the last of equally long paths applies.
  for (auto name = names_.rbegin(); name != names_.rend(); ++name) {
    consider(name->first, name->second);
  }
  for (const auto& [ours, theirs] : kNames) consider(ours, theirs);
  return best;
}

std::string FieldNames::RenameIn(absl::string_view message) const {
  std::string text;
  bool is_quoted = false;
  for (std::size_t at = 0; at < message.size();) {
    const std::size_t length = is_quoted ? 0 : MeasurePath(message.substr(at));
    if (length == 0) {
      const bool is_escape = is_quoted && message[at] == '\\' && at + 1 < message.size();
      if (message[at] == '"') is_quoted = !is_quoted;
      absl::StrAppend(&text, message.substr(at, is_escape ? 2 : 1));
      at += is_escape ? 2 : 1;
      continue;
    }
    const absl::string_view path = message.substr(at, length);
    // A field begins the message or follows a space or '('. After any other character, the path is
    // part of something else, such as a JSON pointer. A name without a dot or index is usually an
    // ordinary word.
    const bool is_field = (at == 0 || message[at - 1] == ' ' || message[at - 1] == '(') &&
                          path.find_first_of(".[") != path.npos;
    absl::StrAppend(&text, is_field ? Rename(path) : std::string(path));
    at += length;
  }
  return text;
}

}  // namespace quire::server

#include "engine/constraint/tag_grammar.h"

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/constraint/code_points.h"
#include "engine/constraint/free_text.h"
#include "text/tools/tool_format.h"

namespace quire::engine {
namespace {

using Expression = GrammarText::Expression;

absl::Status TagError(absl::string_view why) {
  return BadConstraint("compile", absl::StrCat("constraint.structural_tags.", why));
}

absl::Status CheckMarker(absl::string_view field, absl::string_view text, std::size_t min_bytes) {
  if (text.size() < min_bytes || text.size() > kMaxMarkerBytes) {
    return TagError(absl::StrCat(field, " has ", text.size(), " bytes, it must have ", min_bytes,
                                 " to ", kMaxMarkerBytes));
  }
  if (FirstInvalidUtf8(text)) return TagError(absl::StrCat(field, " is not UTF-8"));
  return absl::OkStatus();
}

absl::Status CheckTriggers(const std::vector<std::string>& triggers, const SpecialTokens& special) {
  if (triggers.empty() || triggers.size() > kMaxTags) {
    return TagError(
        absl::StrCat("triggers has ", triggers.size(), " texts, it must have 1 to ", kMaxTags));
  }
  std::size_t bytes = 0;
  std::set<std::string> known;
  for (std::size_t i = 0; i < triggers.size(); ++i) {
    const std::string field = absl::StrCat("triggers[", i, "]");
    QUIRE_RETURN_IF_ERROR(CheckMarker(field, triggers[i], 1));
    bytes += triggers[i].size();
    if (!known.insert(triggers[i]).second) {
      return TagError(
          absl::StrCat(field, " is ", JsonQuoted(triggers[i]),
                       ", which is already used by an earlier trigger; triggers must be unique"));
    }
    for (std::size_t at = 1; at < triggers[i].size(); ++at) {
      const absl::string_view rest = absl::string_view(triggers[i]).substr(at);
      if (const auto token = special.FindAtStart(rest)) {
        return TagError(absl::StrCat(field, " contains the special token ",
                                     JsonQuoted(rest.substr(0, token->first)),
                                     ", which is allowed only at the beginning of a trigger"));
      }
    }
  }
  if (bytes <= kMaxTriggerBytes) return absl::OkStatus();
  return TagError(absl::StrCat("triggers have ", bytes, " bytes, the limit is ", kMaxTriggerBytes));
}

absl::Status CheckTags(const ConstraintSpec& spec) {
  if (spec.tags.empty() || spec.tags.size() > kMaxTags) {
    return TagError(
        absl::StrCat("tags has ", spec.tags.size(), " tags, it must have 1 to ", kMaxTags));
  }
  std::vector<bool> is_used(spec.triggers.size());
  for (std::size_t i = 0; i < spec.tags.size(); ++i) {
    const std::string field = absl::StrCat("tags[", i, "]");
    QUIRE_RETURN_IF_ERROR(CheckMarker(field + ".begin", spec.tags[i].begin, 1));
    QUIRE_RETURN_IF_ERROR(CheckMarker(field + ".end", spec.tags[i].end, 0));
    bool has_trigger = false;
    for (std::size_t t = 0; t < spec.triggers.size(); ++t) {
      if (!absl::StartsWith(spec.tags[i].begin, spec.triggers[t])) continue;
      has_trigger = is_used[t] = true;
    }
    if (!has_trigger) {
      return TagError(absl::StrCat(field, ".begin is ", JsonQuoted(spec.tags[i].begin),
                                   ", which does not begin with a trigger"));
    }
  }
  for (std::size_t t = 0; t < spec.triggers.size(); ++t) {
    if (is_used[t]) continue;
    return TagError(absl::StrCat("triggers[", t, "] is ", JsonQuoted(spec.triggers[t]),
                                 ", but no tag begins with it"));
  }
  return absl::OkStatus();
}

// Writes the text after `beginning`, which is a trigger or a special token that begins a tag.
Expression WriteAfterTrigger(const ConstraintSpec& spec, const SpecialTokens& special,
                             const std::vector<Expression>& contents, absl::string_view beginning,
                             const Expression& next) {
  std::vector<Expression> options;
  for (std::size_t i = 0; i < spec.tags.size(); ++i) {
    absl::string_view begin = spec.tags[i].begin;
    if (!absl::ConsumePrefix(&begin, beginning)) continue;
    options.push_back(GrammarText::Sequence({special.Write(begin), contents[i]}));
  }
  return GrammarText::Sequence({GrammarText::Choice(options), next});
}

// Writes free text with tags. `next` follows each tag.
Expression WriteTaggedText(const ConstraintSpec& spec, const SpecialTokens& special,
                           const std::vector<Expression>& contents, const Expression& next,
                           bool may_end, GrammarText::Rule start, GrammarText* grammar) {
  std::vector<FreeTextEnd> ends;
  ends.reserve(spec.triggers.size());
  for (const std::string& trigger : spec.triggers) {
    ends.push_back(
        {.text = trigger,
         .next = grammar->Share(WriteAfterTrigger(spec, special, contents, trigger, next))});
  }
  std::map<std::string, std::int32_t> tokens;  // special tokens with which tags begin
  for (const ConstraintTag& tag : spec.tags) {
    if (const auto token = special.FindAtStart(tag.begin)) {
      tokens.emplace(tag.begin.substr(0, token->first), token->second);
    }
  }
  std::vector<Expression> token_ends;
  token_ends.reserve(tokens.size());
  for (const auto& [text, id] : tokens) {
    token_ends.push_back(GrammarText::Sequence(
        {GrammarText::Token(id),
         grammar->Share(WriteAfterTrigger(spec, special, contents, text, next))}));
  }
  return WriteFreeText(ends, token_ends, may_end, start, grammar);
}

// Returns the markers of reasoning; empty if the format has no such section.
std::pair<absl::string_view, absl::string_view> ReasoningMarkers(const text::ToolFormat& format) {
  const text::CallWriting& writing = format.writing;
  if (!writing.reasoning_begin.empty()) return {writing.reasoning_begin, writing.reasoning_end};
  return {format.reasoning_begin, format.reasoning_end};
}

// Writes reasoning up to and including its end marker, then at most two newlines, then `next`.
// With `may_end` the output may end inside the reasoning.
Expression WriteReasoning(const text::ToolFormat& format, const SpecialTokens& special,
                          const Expression& next, bool may_end, GrammarText* grammar) {
  const absl::string_view marker = ReasoningMarkers(format).second;
  // Only the first token of the marker ends the text; the rest of the marker must then follow.
  const auto token = special.FindAtStart(marker);
  const absl::string_view end = marker.substr(0, token ? token->first : marker.size());
  const Expression rest = grammar->Share(
      GrammarText::Sequence({special.Write(marker.substr(end.size())),
                             grammar->Repeat(GrammarText::Literal("\n"), 0, 2), next}));
  std::vector<FreeTextEnd> ends = {{.text = std::string(end), .next = rest}};
  for (const absl::string_view text : format.writing.forbidden_in_reasoning) {
    if (!text.empty()) ends.push_back({.text = std::string(text), .next = std::nullopt});
  }
  std::vector<Expression> token_ends;
  if (token) token_ends.push_back(GrammarText::Sequence({GrammarText::Token(token->second), rest}));
  return WriteFreeText(ends, token_ends, may_end, grammar->Reserve(), grammar);
}

// Matches 0 to 999.
Expression WriteIndex(GrammarText* grammar) {
  const Expression digit = grammar->Character(CodePoints({{'0', '9'}}), Spelling::kPlain);
  const Expression first = grammar->Character(CodePoints({{'1', '9'}}), Spelling::kPlain);
  return GrammarText::Choice(
      {GrammarText::Literal("0"), GrammarText::Sequence({first, grammar->Repeat(digit, 0, 2)})});
}

// Writes a call of any of the tools, starting after its call_begin.
absl::StatusOr<Expression> WriteCall(const ConstraintSpec& spec, const SpecialTokens& special,
                                     const WriteContent& content, GrammarText* grammar) {
  const text::CallWriting& writing = spec.tool_format->writing;
  std::vector<Expression> options;
  for (std::size_t i = 0; i < spec.tags.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(const Expression arguments, content(i));
    std::vector<Expression> parts = {special.Write(spec.tags[i].begin)};
    if (!writing.index_begin.empty()) {
      parts.push_back(special.Write(writing.index_begin));
      parts.push_back(WriteIndex(grammar));
    }
    parts.push_back(special.Write(writing.arguments_begin));
    parts.push_back(arguments);
    options.push_back(GrammarText::Sequence(parts));
  }
  return grammar->Share(
      GrammarText::Sequence({GrammarText::Choice(options), special.Write(writing.call_end)}));
}

// Writes free text in which the trigger of the format begins calls. `opening` is the beginning of
// the calls and starts with the trigger; `calls` is everything after `opening`.
Expression WriteCallsInText(const text::ToolFormat& format, const SpecialTokens& special,
                            absl::string_view opening, const Expression& calls,
                            GrammarText* grammar) {
  const absl::string_view trigger = format.trigger();
  QUIRE_CHECK(!trigger.empty() && absl::StartsWith(opening, trigger));
  const GrammarText::Rule start = grammar->Reserve();
  const Expression after_trigger = grammar->Share(GrammarText::Sequence(
      {special.Write(opening.substr(trigger.size())), calls, GrammarText::Reference(start)}));
  std::vector<FreeTextEnd> ends = {{.text = std::string(trigger), .next = after_trigger}};
  // The parser of the output would also treat these markers as the beginning of a call or of
  // reasoning.
  for (const absl::string_view marker : {format.section_begin, format.call_begin[0],
                                         format.call_begin[1], ReasoningMarkers(format).first}) {
    if (marker.empty() || marker == trigger) continue;
    ends.push_back({.text = std::string(marker), .next = std::nullopt});
  }
  std::vector<Expression> token_ends;
  if (const auto token = special.FindAtStart(trigger)) {
    token_ends.push_back(
        GrammarText::Sequence({GrammarText::Token(token->second),
                               special.Write(trigger.substr(token->first)), after_trigger}));
  }
  return WriteFreeText(ends, token_ends, /*may_end=*/true, start, grammar);
}

}  // namespace

absl::StatusOr<Expression> WriteStructuralTags(const ConstraintSpec& spec,
                                               const SpecialTokens& special,
                                               const WriteContent& content, GrammarText* grammar) {
  QUIRE_RETURN_IF_ERROR(CheckTriggers(spec.triggers, special));
  QUIRE_RETURN_IF_ERROR(CheckTags(spec));
  std::vector<Expression> contents;
  for (std::size_t i = 0; i < spec.tags.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(const Expression inside, content(i));
    contents.push_back(
        grammar->Share(GrammarText::Sequence({inside, special.Write(spec.tags[i].end)})));
  }
  const auto write = [&](const Expression& next, bool may_end, GrammarText::Rule rule) {
    return WriteTaggedText(spec, special, contents, next, may_end, rule, grammar);
  };
  const GrammarText::Rule start = grammar->Reserve();
  if (spec.stop_after_first_tag) {
    return write(GrammarText::Empty(), /*may_end=*/!spec.at_least_one_tag, start);
  }
  const Expression text = write(GrammarText::Reference(start), /*may_end=*/true, start);
  return spec.at_least_one_tag ? write(text, /*may_end=*/false, grammar->Reserve()) : text;
}

absl::StatusOr<Expression> WriteToolCalls(const ConstraintSpec& spec, const SpecialTokens& special,
                                          const WriteContent& content, GrammarText* grammar) {
  const text::ToolFormat& format = *spec.tool_format;
  const text::CallWriting& writing = format.writing;
  QUIRE_ASSIGN_OR_RETURN(const Expression call, WriteCall(spec, special, content, grammar));
  std::vector<Expression> parts = {call};
  if (!spec.stop_after_first_tag && !writing.is_single) {
    const Expression next = GrammarText::Sequence(
        {special.Write(writing.separator), special.Write(writing.call_begin), call});
    parts.push_back(grammar->Repeat(next, 0, std::nullopt));
  }
  parts.push_back(special.Write(writing.end));
  const std::string opening = absl::StrCat(writing.begin, writing.call_begin);
  const Expression calls = GrammarText::Sequence(parts);
  if (spec.calls_are_optional) return WriteCallsInText(format, special, opening, calls, grammar);
  return GrammarText::Sequence({special.Write(opening), calls});
}

Expression WriteAfterReasoning(const ConstraintSpec& spec, const SpecialTokens& special,
                               const Expression& answer, GrammarText* grammar) {
  const absl::string_view marker = ReasoningMarkers(*spec.tool_format).first;
  if (marker.empty()) return answer;
  const Expression shared = grammar->Share(answer);
  const Expression reasoning =
      WriteReasoning(*spec.tool_format, special, shared, spec.calls_are_optional, grammar);
  if (spec.opens_reasoning) return reasoning;
  return GrammarText::Choice({GrammarText::Sequence({special.Write(marker), reasoning}), shared});
}

}  // namespace quire::engine

#include "engine/constraint/constraint_grammar.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "base/utf8.h"
#include "engine/constraint/gbnf.h"
#include "engine/constraint/grammar_text.h"
#include "engine/constraint/marked_arguments.h"
#include "engine/constraint/regex.h"
#include "engine/constraint/schema_check.h"
#include "engine/constraint/schema_grammar.h"
#include "engine/constraint/tag_grammar.h"
#include "text/tools/tool_format.h"

namespace quire::engine {

namespace {

using Expression = GrammarText::Expression;

absl::Status BadSpec(ConstraintKind kind, absl::string_view why) {
  return BadConstraint("compile", absl::StrCat("constraint.", ConstraintKindName(kind), ": ", why));
}

absl::StatusOr<Expression> WriteChoice(const std::vector<std::string>& choices) {
  std::vector<Expression> options;
  if (choices.empty() || choices.size() > kMaxChoices) {
    return BadSpec(ConstraintKind::kChoice, absl::StrCat("has ", choices.size(), " values, 1 to ",
                                                         kMaxChoices, " are allowed"));
  }
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const std::string& choice = choices[i];
    if (choice.empty() || choice.size() > kMaxChoiceBytes) {
      return BadSpec(ConstraintKind::kChoice,
                     absl::StrCat("values[", i, "] has ", choice.size(), " bytes, 1 to ",
                                  kMaxChoiceBytes, " are allowed"));
    }
    if (FirstInvalidUtf8(choice)) {
      return BadSpec(ConstraintKind::kChoice, absl::StrCat("values[", i, "] is not UTF-8"));
    }
    options.push_back(GrammarText::Literal(choice));
  }
  return GrammarText::Choice(options);
}

// Adds to the status the request field that contains the content of the tag.
absl::Status WithTagField(const absl::Status& status, absl::string_view field,
                          absl::string_view kind) {
  const auto reason = GetErrorReason(status);
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, absl::StrCat("constraint.", kind, ": "));
  absl::Status with_field(status.code(), absl::StrCat(field, ": ", message));
  if (!reason) return BadConstraint("compile", with_field.message());
  std::vector<std::pair<std::string, std::string>> metadata = reason->metadata;
  metadata.emplace_back("field", field);
  return WithReason(std::move(with_field), reason->reason, metadata);
}

class ConstraintWriter {
 public:
  ConstraintWriter(const ConstraintSpec& spec, const SpecialTokens& special)
      : spec_(spec), special_(special) {}

  absl::StatusOr<ConstraintGrammar> Write() {
    QUIRE_ASSIGN_OR_RETURN(Expression root, WriteSpec());
    std::size_t bytes = 0;
    for (const std::string& keyword : unenforced_) bytes += keyword.size();
    if (unenforced_.size() > kMaxUnenforcedKeywords || bytes > kMaxUnenforcedBytes) {
      return BadSpec(spec_.kind,
                     absl::StrCat(unenforced_.size(), " keywords of ", bytes,
                                  " bytes cannot be enforced, the limits are ",
                                  kMaxUnenforcedKeywords, " and ", kMaxUnenforcedBytes));
    }
    if (spec_.starts_after_reasoning) root = WriteAfterReasoning(spec_, special_, root, &grammar_);
    auto text = grammar_.Finish(root);
    if (!text.ok()) return BadSpec(spec_.kind, text.status().message());
    return ConstraintGrammar{.text = *std::move(text), .unenforced = std::move(unenforced_)};
  }

 private:
  absl::StatusOr<Expression> WriteSpec() {
    const WriteContent content = [&](std::size_t i) { return WriteTagContent(spec_.tags[i]); };
    switch (spec_.kind) {
      case ConstraintKind::kStructuralTags:
        return WriteStructuralTags(spec_, special_, content, &grammar_);
      case ConstraintKind::kToolCalls:
        return WriteToolCalls(spec_, special_, content, &grammar_);
      default:
        return WriteText(spec_.kind, spec_.text, /*field=*/"");
    }
  }

  // Writes a spec that has no tags, or the content of a tag. `field` is the request field that
  // contains the content of the tag.
  absl::StatusOr<Expression> WriteText(ConstraintKind kind, const std::string& text,
                                       absl::string_view field) {
    switch (kind) {
      case ConstraintKind::kJsonSchema:
        return WriteSchema(text, field);
      case ConstraintKind::kJsonObject:
        return WriteSchema(R"({"type": "object"})", field);
      case ConstraintKind::kRegex: {
        auto regex = ParseRegex(text, RegexMeaning::kWhole);
        if (!regex.ok()) return BadSpec(kind, regex.status().message());
        return WriteRegex(*regex, Spelling::kPlain, &grammar_);
      }
      case ConstraintKind::kGrammar: {
        auto written = WriteGbnf(text, &grammar_);
        if (!written.ok()) return BadSpec(kind, written.status().message());
        return written;
      }
      case ConstraintKind::kChoice:
        return WriteChoice(spec_.choices);
      case ConstraintKind::kStructuralTags:
      case ConstraintKind::kToolCalls:
        break;
    }
    return BadSpec(kind, "tags cannot be nested");
  }

  absl::StatusOr<Expression> WriteSchema(absl::string_view text, absl::string_view field) {
    QUIRE_ASSIGN_OR_RETURN(const auto document, ReadSchema(text, field));
    const SchemaId root = document->root();
    return WriteSchemas(*document, {&root, 1}, spec_.whitespace, &grammar_)[0];
  }

  // Parses and checks the schema. Adds to unenforced_ the pointers to the keywords that are not
  // enforced, each prefixed with `field`.
  absl::StatusOr<std::unique_ptr<SchemaDocument>> ReadSchema(absl::string_view text,
                                                             absl::string_view field) {
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<SchemaDocument> document, SchemaDocument::Parse(text));
    QUIRE_RETURN_IF_ERROR(document->Check(spec_.unenforced));
    for (const std::string& pointer : document->unenforced()) {
      unenforced_.push_back(absl::StrCat(field, pointer));
    }
    return document;
  }

  absl::StatusOr<Expression> WriteTagContent(const ConstraintTag& tag) {
    const bool is_call = spec_.kind == ConstraintKind::kToolCalls;
    const bool is_marked = is_call && !spec_.tool_format->writing.key_begin.empty();
    const bool is_python = is_call && spec_.tool_format->shape == text::CallShape::kPythonAtStart;
    auto written = is_marked   ? WriteMarked(tag)
                   : is_python ? WritePythonic(tag)
                               : WriteText(tag.kind, tag.text, tag.field);
    if (written.ok()) return written;
    return WithTagField(written.status(), tag.field, ConstraintKindName(tag.kind));
  }

  // Writes the arguments of a tool, for a tool format in which they are not JSON.
  absl::StatusOr<Expression> WriteMarked(const ConstraintTag& tag) {
    QUIRE_ASSIGN_OR_RETURN(const auto document, ReadSchema(tag.text, tag.field));
    const bool annotates = spec_.unenforced == UnenforcedPolicy::kAnnotate;
    const MarkedSpec marked{.schema = tag.text,
                            .document = *document,
                            .writing = spec_.tool_format->writing,
                            .whitespace = spec_.whitespace,
                            .unenforced = annotates ? &unenforced_ : nullptr,
                            .field = tag.field};
    return WriteMarkedArguments(marked, special_, &grammar_);
  }

  // Writes the arguments of a tool, for a tool format in which they are keyword arguments of a
  // Python call.
  absl::StatusOr<Expression> WritePythonic(const ConstraintTag& tag) {
    QUIRE_ASSIGN_OR_RETURN(const auto document, ReadSchema(tag.text, tag.field));
    for (const Shape& shape : document->ShapesOf(document->root())) {
      for (const OrderedJson& value : shape.values) {
        if (!value.is_object()) continue;
        for (const auto& [name, member] : value.items()) {
          QUIRE_RETURN_IF_ERROR(CheckArgumentName(name));
        }
      }
      if (!shape.object) continue;
      for (const ObjectShape::Property& property : shape.object->properties) {
        if (!document->HasValue(property.schema)) continue;
        QUIRE_RETURN_IF_ERROR(CheckArgumentName(property.name));
      }
    }
    auto arguments = WritePythonArguments(*document, spec_.whitespace, &grammar_);
    if (arguments) return *std::move(arguments);
    return SchemaError(
        {{.pointer = "",
          .keyword = "",
          .text = "every allowed object has a name that the schema does not declare"}});
  }

  const ConstraintSpec& spec_;
  const SpecialTokens& special_;
  GrammarText grammar_;
  std::vector<std::string> unenforced_;
};

}  // namespace

absl::StatusOr<ConstraintGrammar> WriteConstraint(const ConstraintSpec& spec,
                                                  const SpecialTokens& special) {
  return ConstraintWriter(spec, special).Write();
}

}  // namespace quire::engine

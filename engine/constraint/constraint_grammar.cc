#include "engine/constraint/constraint_grammar.h"

#include <memory>
#include <utility>
#include <vector>

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

// Parses and checks the schema. Appends to `unenforced` the pointers to the keywords that are not
// enforced, each prefixed with `field`.
absl::StatusOr<std::unique_ptr<SchemaDocument>> ReadSchema(absl::string_view text,
                                                           UnenforcedPolicy policy,
                                                           absl::string_view field,
                                                           std::vector<std::string>* unenforced) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<SchemaDocument> document, SchemaDocument::Parse(text));
  QUIRE_RETURN_IF_ERROR(document->Check(policy));
  for (const std::string& pointer : document->unenforced()) {
    unenforced->push_back(absl::StrCat(field, pointer));
  }
  return document;
}

absl::StatusOr<Expression> WriteSchemaText(absl::string_view text, const ConstraintSpec& spec,
                                           absl::string_view field, GrammarText* grammar,
                                           std::vector<std::string>* unenforced) {
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<SchemaDocument> document,
                         ReadSchema(text, spec.unenforced, field, unenforced));
  const SchemaId root = document->root();
  return WriteSchemas(*document, {&root, 1}, spec.whitespace, grammar)[0];
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

// Writes a spec that has no tags. If the spec is the content of a tag, `field` is the request field
// that contains the schema. Otherwise `field` is empty.
absl::StatusOr<Expression> WritePlainSpec(const ConstraintSpec& spec, absl::string_view field,
                                          GrammarText* grammar,
                                          std::vector<std::string>* unenforced) {
  switch (spec.kind) {
    case ConstraintKind::kJsonSchema:
      return WriteSchemaText(spec.text, spec, field, grammar, unenforced);
    case ConstraintKind::kJsonObject:
      return WriteSchemaText(R"({"type": "object"})", spec, field, grammar, unenforced);
    case ConstraintKind::kRegex: {
      auto regex = ParseRegex(spec.text, RegexMeaning::kWhole);
      if (!regex.ok()) return BadSpec(spec.kind, regex.status().message());
      return WriteRegex(*regex, Spelling::kPlain, grammar);
    }
    case ConstraintKind::kGrammar: {
      auto written = WriteGbnf(spec.text, grammar);
      if (!written.ok()) return BadSpec(spec.kind, written.status().message());
      return written;
    }
    case ConstraintKind::kChoice:
      return WriteChoice(spec.choices);
    case ConstraintKind::kStructuralTags:
    case ConstraintKind::kToolCalls:
      break;
  }
  return BadSpec(spec.kind, "tags cannot be nested");
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

// Writes the arguments of a tool, for a tool format in which they are not JSON.
absl::StatusOr<Expression> WriteMarked(const ConstraintSpec& spec, const ConstraintTag& tag,
                                       const SpecialTokens& special, GrammarText* grammar,
                                       std::vector<std::string>* unenforced) {
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<SchemaDocument> document,
                         ReadSchema(tag.text, spec.unenforced, tag.field, unenforced));
  const bool annotates = spec.unenforced == UnenforcedPolicy::kAnnotate;
  const MarkedSpec marked{.schema = tag.text,
                          .document = *document,
                          .writing = spec.tool_format->writing,
                          .whitespace = spec.whitespace,
                          .unenforced = annotates ? unenforced : nullptr,
                          .field = tag.field};
  return WriteMarkedArguments(marked, special, grammar);
}

// Writes the arguments of a tool, for a tool format in which they are keyword arguments of a Python
// call.
absl::StatusOr<Expression> WritePythonic(const ConstraintSpec& spec, const ConstraintTag& tag,
                                         GrammarText* grammar,
                                         std::vector<std::string>* unenforced) {
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<SchemaDocument> document,
                         ReadSchema(tag.text, spec.unenforced, tag.field, unenforced));
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
  auto arguments = WritePythonArguments(*document, spec.whitespace, grammar);
  if (arguments) return *std::move(arguments);
  return SchemaError(
      {{.pointer = "",
        .keyword = "",
        .text = "every allowed object has a name that the schema does not declare"}});
}

absl::StatusOr<Expression> WriteTagContent(const ConstraintSpec& spec, const ConstraintTag& tag,
                                           const SpecialTokens& special, GrammarText* grammar,
                                           std::vector<std::string>* unenforced) {
  const auto write = [&]() -> absl::StatusOr<Expression> {
    const text::ToolFormat* const format =
        spec.kind == ConstraintKind::kToolCalls ? spec.tool_format : nullptr;
    if (format != nullptr && !format->writing.key_begin.empty()) {
      return WriteMarked(spec, tag, special, grammar, unenforced);
    }
    if (format != nullptr && format->shape == text::CallShape::kPythonAtStart) {
      return WritePythonic(spec, tag, grammar, unenforced);
    }
    ConstraintSpec inner;
    inner.kind = tag.kind;
    inner.text = tag.text;
    inner.whitespace = spec.whitespace;
    inner.unenforced = spec.unenforced;
    return WritePlainSpec(inner, tag.field, grammar, unenforced);
  };
  auto written = write();
  if (written.ok()) return written;
  return WithTagField(written.status(), tag.field, ConstraintKindName(tag.kind));
}

absl::StatusOr<Expression> WriteSpec(const ConstraintSpec& spec, const SpecialTokens& special,
                                     GrammarText* grammar, std::vector<std::string>* unenforced) {
  const WriteContent content = [&](std::size_t i) {
    return WriteTagContent(spec, spec.tags[i], special, grammar, unenforced);
  };
  switch (spec.kind) {
    case ConstraintKind::kStructuralTags:
      return WriteStructuralTags(spec, special, content, grammar);
    case ConstraintKind::kToolCalls:
      return WriteToolCalls(spec, special, content, grammar);
    default:
      return WritePlainSpec(spec, /*field=*/"", grammar, unenforced);
  }
}

}  // namespace

absl::StatusOr<ConstraintGrammar> WriteConstraint(const ConstraintSpec& spec,
                                                  const SpecialTokens& special) {
  GrammarText grammar;
  std::vector<std::string> unenforced;
  QUIRE_ASSIGN_OR_RETURN(Expression root, WriteSpec(spec, special, &grammar, &unenforced));
  std::size_t bytes = 0;
  for (const std::string& keyword : unenforced) bytes += keyword.size();
  if (unenforced.size() > kMaxUnenforcedKeywords || bytes > kMaxUnenforcedBytes) {
    return BadSpec(spec.kind, absl::StrCat(unenforced.size(), " keywords of ", bytes,
                                           " bytes cannot be enforced, the limits are ",
                                           kMaxUnenforcedKeywords, " and ", kMaxUnenforcedBytes));
  }
  if (spec.starts_after_reasoning) root = WriteAfterReasoning(spec, special, root, &grammar);
  auto text = grammar.Finish(root);
  if (!text.ok()) return BadSpec(spec.kind, text.status().message());
  return ConstraintGrammar{.text = *std::move(text), .unenforced = std::move(unenforced)};
}

}  // namespace quire::engine

#include "engine/constraint/marked_arguments.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status.h"
#include "engine/constraint/free_text.h"
#include "engine/constraint/schema_grammar.h"
#include "text/tools/python_call.h"

namespace quire::engine {
namespace {

using Expression = GrammarText::Expression;
using nlohmann::ordered_json;

constexpr absl::string_view kArgumentKeywords[] = {
    "type", "properties", "required", "additionalProperties", "$schema", "$id"};
constexpr absl::string_view kStringKeywords[] = {"type", "enum", "const"};
// Keywords that contain patterns, which may need the omitted character `<`.
constexpr absl::string_view kPatternKeywords[] = {"pattern", "patternProperties", "propertyNames"};

absl::Status KeywordError(const std::string& pointer, absl::string_view keyword,
                          absl::string_view why) {
  return SchemaError(
      {{.pointer = pointer, .keyword = std::string(keyword), .text = std::string(why)}});
}

bool IsAmong(absl::string_view word, std::span<const absl::string_view> words) {
  return std::ranges::find(words, word) != words.end();
}

absl::Status CheckKeywords(const ordered_json& schema, const std::string& pointer,
                           std::span<const absl::string_view> known) {
  for (const auto& [keyword, value] : schema.items()) {
    if (IsAmong(keyword, known) || IsSchemaAnnotation(keyword)) continue;
    return KeywordError(absl::StrCat(pointer, "/", keyword), keyword,
                        "the tool format of the model cannot express this keyword");
  }
  return absl::OkStatus();
}

bool HasPattern(const ordered_json& json) {
  if (json.is_object()) {
    for (const auto& [key, value] : json.items()) {
      if (IsAmong(key, kPatternKeywords) || HasPattern(value)) return true;
    }
  }
  return json.is_array() && std::ranges::any_of(json, HasPattern);
}

// Whether the `type` of a schema allows strings.
enum class StringAllowance { kOnly, kAmongOthers, kUnspecified, kNone };

StringAllowance AllowanceOf(const ordered_json& schema) {
  const auto type = schema.is_object() ? schema.find("type") : schema.end();
  if (!schema.is_object() || type == schema.end()) return StringAllowance::kUnspecified;
  if (*type == "string") return StringAllowance::kOnly;
  const bool has_strings =
      type->is_array() && std::find(type->begin(), type->end(), "string") != type->end();
  if (!has_strings) return StringAllowance::kNone;
  return type->size() == 1 ? StringAllowance::kOnly : StringAllowance::kAmongOthers;
}

class MarkedWriter {
 public:
  MarkedWriter(const ordered_json& schema, const MarkedSpec& spec, const SpecialTokens& special,
               GrammarText* grammar)
      : schema_(schema),
        spec_(spec),
        writing_(spec.writing),
        special_(special),
        grammar_(*grammar) {}

  absl::StatusOr<Expression> WriteArguments() {
    QUIRE_RETURN_IF_ERROR(CheckKeywords(schema_, "", kArgumentKeywords));
    // Only declared arguments can be written.
    const auto found = schema_.find("properties");
    const ordered_json declared = found == schema_.end() ? ordered_json::object() : *found;
    std::vector<Argument> arguments;
    for (const Shape& shape : spec_.document.ShapesOf(spec_.document.root())) {
      if (!shape.object) continue;
      for (const ObjectShape::Property& property : shape.object->properties) {
        if (!declared.contains(property.name)) {
          return KeywordError(
              "/required", "required",
              absl::StrCat(JsonQuoted(property.name), " is not among the properties"));
        }
        // A property without a valid value cannot be required, so it is left out.
        if (!spec_.document.HasValue(property.schema)) continue;
        arguments.push_back({.property = &property, .is_string = false, .value = {}});
        QUIRE_RETURN_IF_ERROR(PrepareValue(declared.at(property.name), &arguments.back()));
      }
    }
    WriteValues(&arguments);
    std::vector<Expression> parts;
    for (const Argument& argument : arguments) {
      const Expression written = GrammarText::Sequence(
          {special_.Write(absl::StrCat(writing_.key_begin, argument.property->name)),
           special_.Write(writing_.value_begin), argument.value, GrammarText::Literal("\n")});
      parts.push_back(argument.property->required ? written : grammar_.Repeat(written, 0, 1));
    }
    return GrammarText::Sequence(parts);
  }

 private:
  struct Argument {
    const ObjectShape::Property* property;
    bool is_string;
    Expression value;  // includes the end marker
  };

  // Writes the value of an argument that is written as plain text. For other arguments, only checks
  // that their values can be written.
  absl::Status PrepareValue(const ordered_json& schema, Argument* argument) {
    const std::string& key = argument->property->name;
    const std::string pointer = absl::StrCat("/properties", PointerStep(key));
    QUIRE_RETURN_IF_ERROR(CheckArgumentName(key));
    switch (AllowanceOf(schema)) {
      case StringAllowance::kOnly: {
        QUIRE_ASSIGN_OR_RETURN(argument->value, WriteString(schema, pointer));
        argument->is_string = true;
        return absl::OkStatus();
      }
      case StringAllowance::kAmongOthers:
        return KeywordError(
            pointer + "/type", "type",
            "the tool format of the model does not distinguish strings from other values");
      case StringAllowance::kUnspecified:
      case StringAllowance::kNone:
        break;
    }
    QUIRE_RETURN_IF_ERROR(CheckJson(schema, pointer));
    for (const char* definitions : {"$defs", "definitions"}) {
      const auto found = schema_.find(definitions);
      if (found == schema_.end()) continue;
      QUIRE_RETURN_IF_ERROR(CheckJson(*found, absl::StrCat("/", definitions)));
    }
    const std::vector<Shape>& shapes = spec_.document.ShapesOf(argument->property->schema);
    if (AreTexts(shapes)) {
      QUIRE_RETURN_IF_ERROR(CheckTexts(shapes, pointer));
      argument->value = WriteTexts(shapes);
      argument->is_string = true;
    }
    return absl::OkStatus();
  }

  // Returns whether every value is a string or null, and at least one is a string. ArgumentSchema
  // (text/tools) reads such a value as a plain string, without JSON quotes.
  static bool AreTexts(const std::vector<Shape>& shapes) {
    bool has_strings = false;
    for (const Shape& shape : shapes) {
      if (shape.boolean || shape.number || shape.array || shape.object) return false;
      has_strings |= shape.string.has_value();
      for (const ordered_json& value : shape.values) {
        if (!value.is_string() && !value.is_null()) return false;
        has_strings |= value.is_string();
      }
    }
    return has_strings;
  }

  // Rejects values that would be read back differently. Newlines at the ends would be removed, and
  // the string "null" would be read as null where null is allowed.
  static absl::Status CheckTexts(const std::vector<Shape>& shapes, const std::string& pointer) {
    const bool allows_null = std::ranges::any_of(shapes, [](const Shape& shape) {
      return shape.null || std::ranges::count(shape.values, ordered_json(nullptr)) > 0;
    });
    for (const Shape& shape : shapes) {
      for (const ordered_json& value : shape.values) {
        if (!value.is_string()) continue;
        const std::string& text = value.get_ref<const std::string&>();
        const bool is_cut = absl::StartsWith(text, "\n") || absl::EndsWith(text, "\n");
        if (is_cut || (allows_null && text == "null")) {
          return KeywordError(pointer, "enum",
                              absl::StrCat(JsonText(value), " cannot be written as a string"));
        }
      }
    }
    return absl::OkStatus();
  }

  // Writes the values of shapes for which AreTexts is true, without quotes. Strings with a bounded
  // length or a format do not contain `<`.
  Expression WriteTexts(const std::vector<Shape>& shapes) {
    std::vector<Expression> options;
    const auto add = [&](const ordered_json& value) {
      const std::string text = value.is_null() ? "null" : value.get<std::string>();
      options.push_back(text.empty() ? GrammarText::Empty() : GrammarText::Literal(text));
    };
    grammar_.Omit(CodePoints({{'<', '<'}}));
    for (const Shape& shape : shapes) {
      std::ranges::for_each(shape.values, add);
      if (shape.null) add(nullptr);
      if (!shape.string) continue;
      const StringShape& string = *shape.string;
      if (string.pattern) {
        options.push_back(WriteRegex(*string.pattern, Spelling::kPlain, &grammar_));
      } else if (string.min > 0 || string.max) {
        options.push_back(
            grammar_.RepeatCharacter(CodePoints::All(), Spelling::kPlain, string.min, string.max));
      } else {
        grammar_.Omit({});
        return WriteFreeString();  // includes all other options
      }
    }
    grammar_.Omit({});
    return GrammarText::Sequence({GrammarText::Choice(options), WriteEnd()});
  }

  // Rejects schemas whose values might need `<`.
  static absl::Status CheckJson(const ordered_json& schema, const std::string& pointer) {
    if (absl::StrContains(JsonText(schema), "<")) {
      return KeywordError(pointer, "",
                          "the tool format of the model cannot express the character <");
    }
    if (HasPattern(schema)) {
      return KeywordError(pointer, "pattern",
                          "the tool format of the model cannot express patterns");
    }
    return absl::OkStatus();
  }

  // Writes the values of the arguments that are JSON.
  void WriteValues(std::vector<Argument>* arguments) {
    std::vector<SchemaId> schemas;
    for (const Argument& argument : *arguments) {
      if (!argument.is_string) schemas.push_back(argument.property->schema);
    }
    grammar_.Omit(CodePoints({{'<', '<'}}));
    const std::vector<Expression> written =
        WriteSchemas(spec_.document, schemas, spec_.whitespace, &grammar_);
    grammar_.Omit({});
    auto next = written.begin();
    for (Argument& argument : *arguments) {
      if (!argument.is_string) argument.value = GrammarText::Sequence({*next++, WriteEnd()});
    }
  }

  absl::StatusOr<Expression> WriteString(const ordered_json& schema, const std::string& pointer) {
    if (spec_.unenforced == nullptr) {
      QUIRE_RETURN_IF_ERROR(CheckKeywords(schema, pointer, kStringKeywords));
    } else {
      ListKeywords(schema, pointer);
    }
    const auto constant = schema.find("const"), list = schema.find("enum");
    if (constant == schema.end() && list == schema.end()) return WriteFreeString();
    std::vector<Expression> options;
    const auto add = [&](const ordered_json& value) -> absl::Status {
      const std::string text = value.is_string() ? value.get<std::string>() : "<";
      if (absl::StrContains(text, "<") || absl::StrContains(text, "\n")) {
        return KeywordError(pointer, "enum",
                            absl::StrCat(JsonText(value), " cannot be written as a string"));
      }
      options.push_back(text.empty() ? GrammarText::Empty() : GrammarText::Literal(text));
      return absl::OkStatus();
    };
    if (constant != schema.end()) {
      QUIRE_RETURN_IF_ERROR(add(*constant));
    } else if (list->is_array() && !list->empty()) {
      for (const ordered_json& value : *list) QUIRE_RETURN_IF_ERROR(add(value));
    } else {
      return KeywordError(pointer + "/enum", "enum", "must be a list with at least one value");
    }
    return GrammarText::Sequence({GrammarText::Choice(options), WriteEnd()});
  }

  // Lists the keywords of a string that are not enforced, unless they are already listed.
  void ListKeywords(const ordered_json& schema, const std::string& pointer) const {
    for (const auto& [keyword, value] : schema.items()) {
      if (IsAmong(keyword, kStringKeywords) || IsSchemaAnnotation(keyword)) continue;
      std::string listed =
          absl::StrCat(spec_.field, PointerFragment(absl::StrCat(pointer, PointerStep(keyword))));
      if (std::ranges::find(*spec_.unenforced, listed) != spec_.unenforced->end()) continue;
      spec_.unenforced->push_back(std::move(listed));
    }
  }

  Expression WriteEnd() const {
    return special_.Write(absl::StrCat(writing_.value_space, writing_.value_end));
  }

  // Writes free text up to its closing marker.
  Expression WriteFreeString() {
    Expression& cached = grammar_.CachedExpression("string in tags");
    if (!cached.empty()) return cached;
    std::vector<FreeTextEnd> ends = {
        {.text = std::string(writing_.value_end), .next = GrammarText::Empty()}};
    if (!writing_.forbidden_in_value.empty()) {
      ends.push_back({.text = std::string(writing_.forbidden_in_value), .next = std::nullopt});
    }
    std::vector<Expression> token_ends;
    if (const auto token = special_.FindAtStart(writing_.value_end)) {
      if (token->first == writing_.value_end.size()) {
        token_ends.push_back(GrammarText::Token(token->second));
      }
    }
    cached = WriteFreeText(ends, token_ends, /*may_end=*/false, grammar_.Reserve(), &grammar_);
    return cached;
  }

  const ordered_json& schema_;
  const MarkedSpec& spec_;
  const text::CallWriting& writing_;
  const SpecialTokens& special_;
  GrammarText& grammar_;
};

}  // namespace

absl::Status CheckArgumentName(absl::string_view name) {
  if (!name.empty() && std::ranges::all_of(name, text::IsPythonNameByte)) return absl::OkStatus();
  return SchemaError({{.pointer = absl::StrCat("/properties", PointerStep(name)),
                       .keyword = "properties",
                       .text = "a name must consist of [A-Za-z0-9_.-]"}});
}

absl::StatusOr<Expression> WriteMarkedArguments(const MarkedSpec& spec,
                                                const SpecialTokens& special,
                                                GrammarText* grammar) {
  const ordered_json schema = ordered_json::parse(spec.schema);
  return MarkedWriter(schema, spec, special, grammar).WriteArguments();
}

}  // namespace quire::engine

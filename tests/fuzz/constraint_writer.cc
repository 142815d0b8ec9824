#include "tests/fuzz/constraint_writer.h"

#include <cstddef>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace quire::fuzz {

namespace {

using engine::ConstraintKind;

constexpr int kMaxDepth = 5;

class ConstraintWriter {
 public:
  explicit ConstraintWriter(absl::string_view bytes) : bytes_(bytes) {}

  std::string Regex(int depth) {
    std::string out;
    const std::size_t parts = 1 + Below(4);
    for (std::size_t i = 0; i < parts; ++i) absl::StrAppend(&out, RegexPart(depth));
    return out;
  }

  std::string Grammar() {
    const std::size_t rules = 1 + Below(5);
    std::string out = absl::StrCat("root ::= ", GrammarChoice(rules, 0), "\n");
    for (std::size_t i = 0; i < rules; ++i) {
      absl::StrAppend(&out, "r", i, " ::= ", GrammarChoice(rules, 0), "\n");
    }
    return out;
  }

  std::string SchemaDocument() {
    return absl::StrCat("{\"$defs\":{\"d0\":", Schema(1), ",\"d1\":", Schema(1),
                        ",\"d2\":", Schema(1), "},", Keywords(0), "}");
  }

 private:
  // Returns 0 once the bytes are used up, so that all recursion ends.
  std::size_t Below(std::size_t n) {
    if (at_ == bytes_.size()) return 0;
    return static_cast<unsigned char>(bytes_[at_++]) % n;
  }
  template <std::size_t kSize>
  std::string OneOf(const char* const (&texts)[kSize]) {
    return texts[Below(kSize)];
  }
  std::string Number() {
    return OneOf({"0", "1", "2", "3", "7", "12", "100", "-1", "-20", "0.5", "1.25", "-3.75", "1e3",
                  "1000000", "123456789012345678", "0.1"});
  }
  std::string Count() { return OneOf({"0", "1", "2", "3", "5", "17", "40", "1000"}); }

  std::string RegexPart(int depth) {
    static constexpr const char* kAtoms[] = {"a",   "b",       "\\d",       "[a-c]", "[^a]", ".",
                                             "\\w", "\\\\",    "é",         "\\s",   "😀",    "\"",
                                             "x",   "\\u0041", "[\"\\\\é]", "\\S"};
    std::string atom;
    const std::size_t kind = depth < kMaxDepth ? Below(6) : 0;
    if (kind == 4) {
      atom = absl::StrCat("(", Regex(depth + 1), ")");
    } else if (kind == 5) {
      atom = absl::StrCat("(?:", Regex(depth + 1), "|", Regex(depth + 1), ")");
    } else {
      atom = OneOf(kAtoms);
    }
    return absl::StrCat(atom, OneOf({"", "", "", "*", "+", "?", "{2}", "{0,3}", "{1,}", "{3,20}",
                                     "{0,300}", "*?"}));
  }

  std::string GrammarChoice(std::size_t rules, int depth) {
    std::string out;
    const std::size_t options = 1 + Below(3);
    for (std::size_t i = 0; i < options; ++i) {
      if (i > 0) out += " | ";
      for (std::size_t parts = 1 + Below(3); parts > 0; --parts) {
        absl::StrAppend(&out, GrammarElement(rules, depth), " ");
      }
    }
    return out;
  }

  std::string GrammarElement(std::size_t rules, int depth) {
    std::string element;
    switch (Below(5)) {
      case 0:
        element = OneOf({"\"a\"", "\"ab\"", "\"\"", "\"é\\n\"", "\"\\\"\""});
        break;
      case 1:
        element = OneOf({"[a-c]", "[^x]", ".", "[0-9é]", "[\\x00-\\x1f]"});
        break;
      case 2:
        element =
            depth < kMaxDepth ? absl::StrCat("(", GrammarChoice(rules, depth + 1), ")") : "\"c\"";
        break;
      default:
        element = absl::StrCat("r", Below(rules));
    }
    return absl::StrCat(element,
                        OneOf({"", "", "", "*", "+", "?", "{2}", "{0,3}", "{1,}", "{2,40}"}));
  }

  std::string Name() { return OneOf({"a", "b", "ab", "abc", "é", "\\\"", "kind", "", "z"}); }

  std::string Value(int depth) {
    switch (depth < kMaxDepth ? Below(6) : 0) {
      case 1:
        return absl::StrCat("[", Value(depth + 1), ",", Value(depth + 1), "]");
      case 2:
        return absl::StrCat("{\"", Name(), "\":", Value(depth + 1), "}");
      case 3:
        return Number();
      default:
        return OneOf({"null", "true", "\"a\"", "\"ab\"", "\"é\\n\"", "[]", "{}", "1.0"});
    }
  }

  std::string Schema(int depth) {
    if (depth > kMaxDepth) return OneOf({"true", "{}", "{\"type\":\"null\"}", "false"});
    switch (Below(8)) {
      case 0:
        return OneOf({"true", "false", "{}", "{\"type\":\"string\"}"});
      case 1:
        return absl::StrCat("{\"$ref\":\"#", OneOf({"/$defs/d0", "/$defs/d1", "/$defs/d2", ""}),
                            "\"}");
      default:
        return absl::StrCat("{", Keywords(depth), "}");
    }
  }

  std::string Keywords(int depth) {
    std::string out = Keyword(depth);
    for (std::size_t more = Below(4); more > 0; --more) absl::StrAppend(&out, ",", Keyword(depth));
    return out;
  }

  std::string Schemas(int depth) {
    std::string out = Schema(depth + 1);
    for (std::size_t more = Below(3); more > 0; --more)
      absl::StrAppend(&out, ",", Schema(depth + 1));
    return absl::StrCat("[", out, "]");
  }

  std::string Members(int depth) {
    std::string out;
    for (std::size_t i = 1 + Below(3); i > 0; --i) {
      absl::StrAppend(&out, out.empty() ? "" : ",", "\"", Name(), "\":", Schema(depth + 1));
    }
    return absl::StrCat("{", out, "}");
  }

  // Writes an expression as a JSON string.
  std::string Pattern() {
    std::string out = "\"^";
    for (const char c : Regex(2))
      absl::StrAppend(&out, c == '"' || c == '\\' ? "\\" : "", std::string(1, c));
    return absl::StrCat(out, OneOf({"$", ""}), "\"");
  }

  std::string Keyword(int depth) {
    switch (Below(22)) {
      case 0:
        return absl::StrCat(
            "\"type\":\"",
            OneOf({"object", "array", "string", "number", "integer", "boolean", "null"}), "\"");
      case 1:
        return absl::StrCat("\"type\":[\"", OneOf({"object", "array", "string"}),
                            "\",\"integer\"]");
      case 2:
        return absl::StrCat("\"properties\":", Members(depth));
      case 3:
        return absl::StrCat("\"required\":[\"", Name(), "\",\"", Name(), "\"]");
      case 4:
        return absl::StrCat("\"additionalProperties\":", Schema(depth + 1));
      case 5:
        return absl::StrCat("\"items\":", Schema(depth + 1));
      case 6:
        return absl::StrCat("\"prefixItems\":", Schemas(depth));
      case 7:
        return absl::StrCat("\"",
                            OneOf({"minItems", "maxItems", "minLength", "maxLength",
                                   "minProperties", "maxProperties"}),
                            "\":", Count());
      case 8:
        return absl::StrCat(
            "\"",
            OneOf({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
            "\":", Number());
      case 9:
        return absl::StrCat("\"pattern\":", Pattern());
      case 10:
        return absl::StrCat("\"format\":\"", OneOf({"date", "ipv4", "uuid", "email", "duration"}),
                            "\"");
      case 11:
        return absl::StrCat("\"enum\":[", Value(0), ",", Value(0), ",", Value(0), "]");
      case 12:
        return absl::StrCat("\"const\":", Value(0));
      case 13:
        return absl::StrCat("\"anyOf\":", Schemas(depth));
      case 14:
        return absl::StrCat("\"oneOf\":", Schemas(depth));
      case 15:
        return absl::StrCat("\"allOf\":", Schemas(depth));
      case 16:
        return absl::StrCat("\"patternProperties\":{", Pattern(), ":", Schema(depth + 1), "}");
      case 17:
        return absl::StrCat("\"propertyNames\":", Schema(depth + 1));
      case 18:
        return absl::StrCat("\"not\":{\"type\":\"", OneOf({"object", "string", "number"}), "\"}");
      case 19:
        return absl::StrCat("\"dependentRequired\":{\"", Name(), "\":[\"", Name(), "\"]}");
      case 20:
        return absl::StrCat("\"", OneOf({"unevaluatedProperties", "unevaluatedItems"}),
                            "\":", Schema(depth + 1));
      default:
        return absl::StrCat("\"", OneOf({"uniqueItems", "nullable"}), "\":true");
    }
  }

  const absl::string_view bytes_;
  std::size_t at_ = 0;
};

}  // namespace

std::string WrittenConstraint(ConstraintKind kind, absl::string_view bytes) {
  ConstraintWriter writer(bytes);
  switch (kind) {
    case ConstraintKind::kRegex:
      return writer.Regex(0);
    case ConstraintKind::kGrammar:
      return writer.Grammar();
    default:
      return writer.SchemaDocument();
  }
}

}  // namespace quire::fuzz

// Reads values written as text, for formats without JSON. Expected values follow the rule in
// argument_schema.h. The Python package jsonschema 4.26 determines validity (JSON Schema 2020-12).

#include "text/tools/argument_schema.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "text/tools/declared_tools.h"

namespace quire::text {
namespace {

std::string JsonOf(const std::string& schema, absl::string_view text) {
  auto document = formats::JsonDocument::Parse(schema);
  EXPECT_TRUE(document.ok()) << document.status();
  return ArgumentSchema(*std::move(document)).JsonOf("a", text);
}

struct Case {
  const char *schema, *text, *json;
};

constexpr char kDefinitions[] =
    R"("$defs": {"Color": {"enum": ["red", "blue", 5]}, "Name": {"type": "string"}, "P": {
         "type": "object", "required": ["x"], "additionalProperties": false, "properties": {
           "x": {"type": "integer"},
           "next": {"anyOf": [{"$ref": "#/$defs/P"}, {"type": "null"}]}}}})";

constexpr Case kCases[] = {
    {R"({"type": "string"})", R"(5)", R"("5")"},
    {R"({"type": "string"})", R"(null)", R"("null")"},
    {R"({"type": "string"})", R"("q")", R"("\"q\"")"},
    {R"({"type": "string"})", R"(True)", R"("True")"},
    {R"({"type": "string"})", R"( a )", R"(" a ")"},
    {R"({"type": "string"})", R"()", R"("")"},
    {R"({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null})", R"(abc)", R"("abc")"},
    {R"({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null})", R"(5)", R"("5")"},
    {R"({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null})", R"(true)",
     R"("true")"},
    {R"({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null})", R"({"a": 1})",
     R"("{\"a\": 1}")"},
    {R"({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null})", R"("q")",
     R"("\"q\"")"},
    {R"({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null})", R"(null)", R"(null)"},
    {R"({"anyOf": [{"type": "string"}, {"type": "null"}], "default": null})", R"(None)",
     R"("None")"},
    {R"({"type": ["string", "null"]})", R"(12)", R"("12")"},
    {R"({"type": ["string", "null"]})", R"(null)", R"(null)"},
    {R"({"type": ["string", "null"]})", R"([1])", R"("[1]")"},
    {R"({"oneOf": [{"$ref": "#/$defs/Name"}, {"type": "null"}]})", R"(7)", R"("7")"},
    {R"({"oneOf": [{"$ref": "#/$defs/Name"}, {"type": "null"}]})", R"(null)", R"(null)"},
    {R"({"oneOf": [{"$ref": "#/$defs/Name"}, {"type": "null"}]})", R"(false)", R"("false")"},
    {R"({"allOf": [{"type": "string"}]})", R"(8)", R"("8")"},
    {R"({"$ref": "#/$defs/Name"})", R"(9)", R"("9")"},
    {R"({"$ref": "#/$defs/Name"})", R"("q")", R"("\"q\"")"},
    {R"({"anyOf": [{"type": "integer"}, {"type": "null"}]})", R"(5)", R"(5)"},
    {R"({"anyOf": [{"type": "integer"}, {"type": "null"}]})", R"(null)", R"(null)"},
    {R"({"anyOf": [{"type": "integer"}, {"type": "null"}]})", R"(five)",
     R"("five")"},  // neither is valid
    {R"({"anyOf": [{"type": "integer"}, {"type": "null"}]})", R"( 6 )", R"(6)"},
    {R"({"anyOf": [{"type": "integer"}, {"type": "null"}]})", R"(None)", R"(null)"},
    {R"({"anyOf": [{"type": "integer"}, {"type": "string"}]})", R"(5)", R"(5)"},
    {R"({"anyOf": [{"type": "integer"}, {"type": "string"}]})", R"(5a)", R"("5a")"},
    {R"({"anyOf": [{"type": "integer"}, {"type": "string"}]})", R"("5")", R"("5")"},
    {R"({"anyOf": [{"type": "integer"}, {"type": "string"}]})", R"(5.5)", R"("5.5")"},
    {R"({"type": ["integer", "string"]})", R"(5)", R"(5)"},
    {R"({"type": ["integer", "string"]})", R"(x)", R"("x")"},
    {R"({"type": ["integer", "string"]})", R"("q")", R"("q")"},
    {R"({"anyOf": [{"type": "integer", "minimum": 10}, {"type": "string"}]})", R"(5)", R"("5")"},
    {R"({"anyOf": [{"type": "integer", "minimum": 10}, {"type": "string"}]})", R"(15)", R"(15)"},
    {R"({"oneOf": [{"type": "number", "multipleOf": 2}, {"type": "string", "minLength": 3}]})",
     R"(4)", R"(4)"},
    {R"({"oneOf": [{"type": "number", "multipleOf": 2}, {"type": "string", "minLength": 3}]})",
     R"(555)", R"("555")"},
    {R"({"oneOf": [{"type": "number", "multipleOf": 2}, {"type": "string", "minLength": 3}]})",
     R"(3)", R"("3")"},  // neither is valid
    {R"({"enum": ["1", "2", null]})", R"(1)", R"("1")"},
    {R"({"enum": ["1", "2", null]})", R"(null)", R"(null)"},
    {R"({"enum": ["1", "2", null]})", R"(3)", R"("3")"},  // neither is valid
    {R"({"enum": [1, 2, "auto"]})", R"(1)", R"(1)"},
    {R"({"enum": [1, 2, "auto"]})", R"(auto)", R"("auto")"},
    {R"({"enum": [1, 2, "auto"]})", R"("auto")", R"("auto")"},
    {R"({"enum": [1, 2, "auto"]})", R"(3)", R"("3")"},  // neither is valid
    {R"({"enum": ["on", "off"]})", R"(on)", R"("on")"},
    {R"({"enum": ["on", "off"]})", R"("on")", R"("on")"},
    {R"({"const": 7})", R"(7)", R"(7)"},
    {R"({"const": 7})", R"("7")", R"("7")"},  // neither is valid
    {R"({"const": "7"})", R"(7)", R"("7")"},
    {R"({"type": "string", "enum": ["a"]})", R"("a")", R"("a")"},
    {R"({"type": "string", "enum": ["a"]})", R"(a)", R"("a")"},
    {R"({"$ref": "#/$defs/Color"})", R"(red)", R"("red")"},
    {R"({"$ref": "#/$defs/Color"})", R"(5)", R"(5)"},
    {R"({"$ref": "#/$defs/Color"})", R"("blue")", R"("blue")"},
    {R"({"allOf": [{"$ref": "#/$defs/Color"}], "default": "red"})", R"(blue)", R"("blue")"},
    {R"({"allOf": [{"$ref": "#/$defs/Color"}], "default": "red"})", R"(5)", R"(5)"},
    {R"({"allOf": [{"anyOf": [{"type": "string"}, {"type": "integer"}]}, {"type": "string"}]})",
     R"(3)", R"("3")"},
    {R"({"$ref": "#/$defs/P"})", R"({"x": 1, "next": {"x": 2, "next": null}})",
     R"({"x": 1, "next": {"x": 2, "next": null}})"},
    {R"({"$ref": "#/$defs/P"})", R"({'x': 1, 'next': None})", R"({"x": 1, "next": null})"},
    {R"({"anyOf": [{"$ref": "#/$defs/P"}, {"type": "string"}]})", R"({"x": 1})", R"({"x": 1})"},
    {R"({"anyOf": [{"$ref": "#/$defs/P"}, {"type": "string"}]})", R"({"y": 1})", R"("{\"y\": 1}")"},
    {R"({"anyOf": [{"$ref": "#/$defs/P"}, {"type": "string"}]})", R"({"x": "1"})",
     R"("{\"x\": \"1\"}")"},
    {R"({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]})",
     R"([1, 2])", R"([1, 2])"},
    {R"({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]})",
     R"([1, "a"])", R"("[1, \"a\"]")"},
    {R"({"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]})", R"([])",
     R"([])"},
    {R"({"anyOf": [{"type": "array", "items": {"type": "string"}, )"
     R"("minItems": 1}, {"type": "null"}]})",
     R"(["a"])", R"(["a"])"},
    {R"({"anyOf": [{"type": "array", "items": {"type": "string"}, )"
     R"("minItems": 1}, {"type": "null"}]})",
     R"(null)", R"(null)"},
    {R"({"anyOf": [{"type": "array", "items": {"type": "string"}, )"
     R"("minItems": 1}, {"type": "null"}]})",
     R"(['a', 'b'])", R"(["a", "b"])"},
    {R"({"type": "boolean"})", R"(true)", R"(true)"},
    {R"({"type": "boolean"})", R"(True)", R"(true)"},
    {R"({"type": "boolean"})", R"(False)", R"(false)"},
    {R"({"type": "boolean"})", R"(yes)", R"("yes")"},  // neither is valid
    {R"({"type": "number"})", R"(1e2)", R"(1e2)"},
    {R"({"type": "number"})", R"(0.10)", R"(0.10)"},
    {R"({"type": "number"})", R"(-3)", R"(-3)"},
    {R"({"type": "integer"})", R"(5.0)", R"(5.0)"},
    {R"({"type": "object"})", R"({"a": [1]})", R"({"a": [1]})"},
    {R"({})", R"(5)", R"(5)"},
    {R"({})", R"(text)", R"("text")"},
    {R"({})", R"("q")", R"("q")"},
    {R"({})", R"(null)", R"(null)"},
    {R"({})", R"({"a": 1})", R"({"a": 1})"},
    {R"({"description": "Anything."})", R"(true)", R"(true)"},
    {R"({"not": {"type": "integer"}})", R"(5)", R"("5")"},
    {R"({"not": {"type": "integer"}})", R"(a)", R"("a")"},
    {R"({"if": {"type": "integer"}, "then": {"maximum": 3}})", R"(2)", R"(2)"},
    {R"({"if": {"type": "integer"}, "then": {"maximum": 3}})", R"(5)", R"("5")"},
    {R"(true)", R"(5)", R"(5)"},
};

TEST(ArgumentSchemaTest, ChoosesTheValidReading) {
  for (const auto& [schema, text, json] : kCases) {
    EXPECT_EQ(
        JsonOf(absl::StrCat("{\"properties\": {\"a\": ", schema, "}, ", kDefinitions, "}"), text),
        json)
        << schema << " " << text;
  }
}

// The schema of all arguments may declare an argument in other ways than `properties`.
TEST(ArgumentSchemaTest, FindsTheArgumentWhereverItIsDeclared) {
  constexpr char kInteger[] = R"({"properties": {"a": {"type": "integer"}}})";
  EXPECT_EQ(JsonOf(kInteger, "5"), "5");
  EXPECT_EQ(JsonOf(absl::StrCat(R"({"allOf": [{}, )", kInteger, "]}"), "5"), "5");
  EXPECT_EQ(JsonOf(absl::StrCat(R"({"$ref": "#/$defs/A", "$defs": {"A": )", kInteger, "}}"), "5"),
            "5");
  EXPECT_EQ(JsonOf(absl::StrCat(R"({"$ref": "#/x/1", "x": [0, )", kInteger, "]}"), "5"), "5");
  EXPECT_EQ(JsonOf(absl::StrCat(R"({"oneOf": [{"properties": {"b": {}}}, )", kInteger, "]}"), "5"),
            "5");
  EXPECT_EQ(JsonOf(R"({"additionalProperties": {"type": "boolean"}})", "true"), "true");
  EXPECT_EQ(JsonOf(R"({"properties": {"a/b": {}}, "$ref": "#/properties/a~1b"})", "5"), "\"5\"");
  // The argument is not declared.
  for (const char* schema :
       {"{}", R"({"properties": {"b": {"type": "integer"}}})", R"({"additionalProperties": true})",
        R"({"additionalProperties": false})", R"({"$ref": "https://example.org/schema"})"}) {
    EXPECT_EQ(JsonOf(schema, "5"), "\"5\"") << schema;
  }
}

// The number is outside the range of doubles, which the JSON reader rejects.
TEST(ArgumentSchemaTest, LargeNumbersAreNumbers) {
  const std::string digits(400, '7');
  const auto read = [](const std::string& schema, const std::string& text) {
    return JsonOf("{\"properties\": {\"a\": " + schema + "}}", text);
  };
  for (const std::string& number :
       {digits, "-" + digits, digits + ".5e10", std::string("1E+999")}) {
    EXPECT_EQ(read(R"({"type": "number"})", " " + number), number);
    EXPECT_EQ(read(R"({"type": "string"})", number), "\"" + number + "\"");
  }
  for (const std::string& text :
       {digits + "a", "0" + digits, digits + ".", std::string("1e"), "--" + digits}) {
    EXPECT_EQ(read(R"({"type": "number"})", text), "\"" + text + "\"");
  }
  EXPECT_EQ(read(R"({"type": ["integer", "string"], "maximum": 5})", digits), "\"" + digits + "\"");
}

// If nothing else is known, a string with the text is correct.
TEST(ArgumentSchemaTest, DanglingReferencesAllowEverything) {
  for (const char* reference : {"#/$defs/none", "other.json", "#anchor", "#/properties/a/x/9"}) {
    const std::string schema =
        absl::StrCat(R"({"properties": {"a": {"$ref": ")", reference, "\"}}}");
    EXPECT_EQ(JsonOf(schema, "5"), "5") << schema;
    EXPECT_EQ(JsonOf(schema, "x"), "\"x\"") << schema;
  }
}

TEST(ArgumentSchemaTest, BoundsEvaluation) {
  // Each reference leads to two more, and one leads to itself.
  std::string schema = R"({"properties": {"a": {"$ref": "#/$defs/0"}}, "$defs": {)";
  for (int i = 0; i < 60; ++i) {
    absl::StrAppend(&schema, "\"", i, "\": {\"allOf\": [{\"$ref\": \"#/$defs/", i + 1,
                    "\"}, {\"$ref\": \"#/$defs/", i + 1, "\"}]}, ");
  }
  const std::clock_t begin = std::clock();
  EXPECT_EQ(JsonOf(schema + R"("60": {"type": "integer"}}})", "5"), "5");
  EXPECT_EQ(JsonOf(R"({"properties": {"a": {"$ref": "#/properties/a"}}})", "5"), "5");
  EXPECT_EQ(JsonOf(R"({"$ref": "#", "properties": {"a": {"type": "string"}}})", "5"), "\"5\"");
  EXPECT_LT(std::clock() - begin, 5 * CLOCKS_PER_SEC);
}

TEST(DeclaredToolsTest, ToolWithoutParametersHasStrings) {
  const auto tools = DeclaredTools::Create(std::vector<ChatTool>{{.name = "now"}});
  EXPECT_EQ(tools->JsonOfValue("now", "a", "5"), "\"5\"");
}

}  // namespace
}  // namespace quire::text

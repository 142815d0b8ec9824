#include "tools/bench/constraint_cases.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "text/tools/tool_format.h"

namespace quire::engine {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kEnumValues = 500;
constexpr int kTools = 32;

std::string ToolName(int index) {
  return absl::StrCat("tool_", index, "_list_files");
}

Json ToolArguments() {
  return {{"type", "object"},
          {"properties",
           {{"path", {{"type", "string"}}},
            {"limit", {{"type", "integer"}, {"minimum", 0}}},
            {"recursive", {{"type", "boolean"}}}}},
          {"required", {"path"}},
          {"additionalProperties", false}};
}

ConstraintCase Enums() {
  Json values = Json::array();
  for (int i = 0; i < kEnumValues; ++i) {
    values.push_back(absl::StrCat("category-", i * 7919 % 1000, "/item-", i));
  }
  Json schema = {{"type", "object"},
                 {"properties", {{"first", {{"enum", values}}}, {"second", {{"enum", values}}}}},
                 {"required", {"first", "second"}},
                 {"additionalProperties", false}};
  return {
      "two enums of 500", schema.dump(),
      absl::StrCat("{\"first\": ", values[17].dump(), ", \"second\": ", values[499].dump(), "}")};
}

ConstraintCase Tools() {
  Json options = Json::array();
  for (int i = 0; i < kTools; ++i) {
    options.push_back(
        {{"type", "object"},
         {"properties", {{"name", {{"const", ToolName(i)}}}, {"arguments", ToolArguments()}}},
         {"required", {"name", "arguments"}},
         {"additionalProperties", false}});
  }
  return {"anyOf of 32 tools", Json{{"anyOf", options}}.dump(),
          R"({"name": "tool_17_list_files", "arguments": {"path": "/srv/data", "limit": 20, )"
          R"("recursive": true}})"};
}

ConstraintSpec SpecOf(ConstraintKind kind, std::string text) {
  ConstraintSpec spec;
  spec.kind = kind;
  spec.text = std::move(text);
  return spec;
}

// Adds two cases with the same schema of `count` properties. The document of the first has one
// line. The document of the second has a line per property, indented by four spaces.
void AddProperties(int count, std::vector<SpecCase>* cases) {
  Json properties;
  Json names = Json::array();
  std::string line, lines;
  for (int i = 0; i < count; ++i) {
    const std::string name = absl::StrCat("field_", i);
    properties[name] = {{"type", i % 2 == 0 ? "string" : "integer"}};
    names.push_back(name);
    const std::string member =
        absl::StrCat(Json(name).dump(), ": ", i % 2 == 0 ? R"("some words")" : absl::StrCat(i));
    absl::StrAppend(&line, i == 0 ? "{" : ", ", member);
    absl::StrAppend(&lines, i == 0 ? "{\n    " : ",\n    ", member);
  }
  const Json schema = {{"type", "object"},
                       {"properties", properties},
                       {"required", names},
                       {"additionalProperties", false}};
  const ConstraintSpec spec = SpecOf(ConstraintKind::kJsonSchema, schema.dump());
  cases->push_back({absl::StrCat(count, " properties"), spec, line + "}"});
  cases->push_back({absl::StrCat(count, " properties, indented"), spec, lines + "\n}"});
}

// Adds cases of forced tool calls. The document is one call; formats that do not write arguments as
// JSON get no document.
void AddForcedCalls(std::vector<SpecCase>* cases) {
  for (const char* name : {"hermes", "harmony", "qwen3-coder"}) {
    const text::ToolFormat* const format = text::FindToolFormat(name);
    for (const int tools : {1, 8, kTools}) {
      SpecCase& added = cases->emplace_back();
      added.name = absl::StrCat(name, ", tools: ", tools);
      added.spec.kind = ConstraintKind::kToolCalls;
      added.spec.tool_format = format;
      added.spec.starts_after_reasoning = true;
      for (int i = 0; i < tools; ++i) {
        added.spec.tags.push_back({.begin = ToolName(i), .text = ToolArguments().dump()});
      }
      const text::CallWriting& writing = format->writing;
      if (!writing.key_begin.empty()) continue;
      added.document = absl::StrCat(writing.begin, writing.call_begin, ToolName(tools / 2),
                                    writing.arguments_begin,
                                    R"({"path": "/srv/data", "limit": 20, "recursive": true})",
                                    writing.call_end, writing.end);
    }
  }
}

}  // namespace

std::vector<SpecCase> SpecCases() {
  std::vector<SpecCase> cases;
  for (const int count : {64, 128, 256}) AddProperties(count, &cases);
  cases.push_back(
      {.name = "format hostname",
       .spec = SpecOf(ConstraintKind::kJsonSchema, R"({"type": "string", "format": "hostname"})"),
       .document = R"("www.a-rather-long-name.example.org")"});
  cases.push_back(
      {.name = "grammar (a | \"\\\\\" b){1,24}",
       .spec = SpecOf(ConstraintKind::kGrammar, R"(root ::= "<" ([a-z] | "\\" [a-z]){1,24} ">")"),
       .document = R"(<abc\d\efghij\klmnop>)"});
  cases.push_back({.name = "grammar (abc){2,50}",
                   .spec = SpecOf(ConstraintKind::kGrammar, R"(root ::= "<" ("abc"){2,50} ">")"),
                   .document = "<abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc>"});
  AddForcedCalls(&cases);
  return cases;
}

std::vector<ConstraintCase> ConstraintCases() {
  return {
      {"flat, 5 keys",
       R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type":)"
       R"( "integer"}, "email": {"type": "string"}, "active": {"type": "boolean"}, "score":)"
       R"( {"type": "number"}}, "required": ["name", "age", "email", "active", "score"],)"
       R"( "additionalProperties": false})",
       R"({"name": "Grace Hopper", "age": 85, "email": "grace@example.org", "active": true,)"
       R"( "score": 99.5})"},
      {"order: $ref, array, anyOf null",
       R"({"type": "object", "properties": {"id": {"type": "string"}, "lines": {"type": "array",)"
       R"( "items": {"$ref": "#/$defs/line"}}, "note": {"anyOf": [{"type": "string"}, {"type":)"
       R"( "null"}]}}, "required": ["id", "lines", "note"], "additionalProperties": false,)"
       R"( "$defs": {"line": {"type": "object", "properties": {"sku": {"type": "string"},)"
       R"( "count": {"type": "integer"}, "price": {"type": "number"}}, "required": ["sku",)"
       R"( "count", "price"], "additionalProperties": false}}})",
       R"({"id": "2026-0042", "lines": [{"sku": "A-1", "count": 2, "price": 9.75}, {"sku":)"
       R"( "B-22", "count": 1, "price": 120}], "note": null})"},
      {"recursive tree",
       R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"value":)"
       R"( {"type": "integer"}, "children": {"type": "array", "items": {"$ref":)"
       R"( "#/$defs/node"}}}, "required": ["value", "children"], "additionalProperties":)"
       R"( false}}})",
       R"({"value": 1, "children": [{"value": 22, "children": []}, {"value": 333, "children":)"
       R"( [{"value": 4, "children": []}]}]})"},
      Enums(),
      {"lengths, ranges, pattern, date-time, maxItems",
       R"({"type": "object", "properties": {"title": {"type": "string", "minLength": 3,)"
       R"( "maxLength": 200}, "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},)"
       R"( "at": {"type": "string", "format": "date-time"}, "percent": {"type": "integer",)"
       R"( "minimum": 0, "maximum": 100}, "tags": {"type": "array", "items": {"type": "string",)"
       R"( "maxLength": 40}, "maxItems": 20}}, "required": ["title", "code", "at", "percent",)"
       R"( "tags"], "additionalProperties": false})",
       R"({"title": "The title of a report", "code": "AB-1234", "at": "2026-11-26T12:00:00Z",)"
       R"( "percent": 42, "tags": ["alpha", "beta", "gamma"]})"},
      Tools(),
      {"any object", R"({"type": "object"})",
       R"({"name": "Ada", "list": [1, 2, {"deep": [true, null]}], "text": "free words here"})"},
  };
}

}  // namespace quire::engine

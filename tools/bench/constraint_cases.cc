#include "tools/bench/constraint_cases.h"

#include <nlohmann/json.hpp>

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

}  // namespace

std::vector<ForcedCallsCase> ForcedCallsCases() {
  std::vector<ForcedCallsCase> cases;
  for (const char* format : {"hermes", "harmony", "qwen3-coder"}) {
    for (const int tools : {1, 8, kTools}) {
      ForcedCallsCase& added = cases.emplace_back();
      added.name = absl::StrCat(format, ", tools: ", tools);
      added.spec.kind = ConstraintKind::kToolCalls;
      added.spec.tool_format = text::FindToolFormat(format);
      added.spec.starts_after_reasoning = true;
      for (int i = 0; i < tools; ++i) {
        added.spec.tags.push_back({.begin = ToolName(i), .text = ToolArguments().dump()});
      }
    }
  }
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

#include "server/openai/openapi.h"

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "server/openai/request_fields.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;

constexpr const char* kJson = "application/json";

// Returns "post_v1_completions" for POST /v1/completions.
std::string OperationId(absl::string_view method, absl::string_view path) {
  std::string id(method);
  for (const char c : path) {
    if (c == '/') {
      id += '_';
    } else if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_') {
      id += c;
    }
  }
  return id;
}

// Writes the schemas of bodies, and of the objects in them.
class SchemaWriter {
 public:
  // Returns a reference to the schema of an object, which is named `name` if it is new.
  ordered_json Refer(const FieldTable& table, std::uint32_t owner, const std::string& name) {
    const auto [known, is_new] = names_.try_emplace({&table, owner}, name);
    const std::string chosen = known->second;
    if (is_new) schemas_[chosen] = Describe(table, owner, chosen);
    return {{"$ref", absl::StrCat("#/components/schemas/", chosen)}};
  }

  ordered_json TakeSchemas() { return std::move(schemas_); }

 private:
  ordered_json Describe(const FieldTable& table, std::uint32_t owner, const std::string& name) {
    ordered_json properties = ordered_json::object();
    for (const RequestField& field : table) {
      if ((field.owners & owner) == 0) continue;
      ordered_json schema = DescribeField(table, field, name);
      if (!schema.is_null()) properties[std::string(field.name)] = std::move(schema);
    }
    return {
        {"type", "object"}, {"properties", std::move(properties)}, {"additionalProperties", false}};
  }

  // Returns null for a field that is always refused.
  ordered_json DescribeField(const FieldTable& table, const RequestField& field,
                             const std::string& parent) {
    switch (field.outcome) {
      case FieldOutcome::kSupported: {
        // With members_if, the value may also be an object with other members.
        if (field.members == 0 || !field.members_if.empty()) return ordered_json::object();
        ordered_json object = Refer(table, field.members, absl::StrCat(parent, ".", field.name));
        ordered_json element = {{"anyOf", {std::move(object), {{"type", "string"}}}}};
        ordered_json list = {{"type", "array"}, {"items", element}};
        element["anyOf"].push_back(std::move(list));
        return element;
      }
      case FieldOutcome::kNoMeaning:
        return {{"type", TypeNames(field.types)},
                {"description", "Accepted. It does not change the answer."}};
      case FieldOutcome::kRefused:
        break;
    }
    ordered_json neutral = ordered_json::parse(field.neutral);
    if (neutral.empty()) return nullptr;
    return {{"enum", std::move(neutral)},
            {"description", absl::StrCat("Other values are refused: ", field.remedy, ".")}};
  }

  static ordered_json TypeNames(std::uint8_t types) {
    ordered_json names = ordered_json::array();
    for (const auto& [type, name] :
         {std::pair(kBoolean, "boolean"), std::pair(kNumber, "number"),
          std::pair(kString, "string"), std::pair(kArray, "array"), std::pair(kObject, "object")}) {
      if ((types & type) != 0) names.push_back(name);
    }
    return names;
  }

  std::map<std::pair<const FieldTable*, std::uint32_t>, std::string> names_;
  ordered_json schemas_ = ordered_json::object();
};

ordered_json Content(absl::string_view type) {
  return {{std::string(type), {{"schema", ordered_json::object()}}}};
}

ordered_json Responses(ordered_json content) {
  return {{"200", {{"description", "The answer."}, {"content", std::move(content)}}},
          {"default",
           {{"description", "An error, with its HTTP status."}, {"content", Content(kJson)}}}};
}

// Describes a POST with a JSON body. Types of supported fields are not described. `stream_type` is
// empty if the answer is never streamed.
ordered_json DescribePost(absl::string_view path, absl::string_view method, const BodyFields& body,
                          absl::string_view stream_type, SchemaWriter* schemas) {
  const std::string id = OperationId("post", path);
  ordered_json schema = {{"type", "object"}};
  if (body.table != nullptr) schema = schemas->Refer(body.table(), body.owner, id);
  ordered_json content = Content(kJson);
  if (!stream_type.empty()) content.update(Content(stream_type));
  return {{"operationId", id},
          {"summary", std::string(method)},
          {"requestBody",
           {{"required", true}, {"content", {{kJson, {{"schema", std::move(schema)}}}}}}},
          {"responses", Responses(std::move(content))}};
}

ordered_json DescribeInfo(const InfoEndpoint& endpoint, absl::string_view method) {
  ordered_json operation = {{"operationId", OperationId(method, endpoint.path)},
                            {"summary", std::string(endpoint.summary)},
                            {"responses", Responses(Content("*/*"))}};
  if (!endpoint.scope) operation["security"] = ordered_json::array();
  const std::size_t wildcard = endpoint.path.find('{');
  if (wildcard != endpoint.path.npos) {
    const absl::string_view name =
        endpoint.path.substr(wildcard + 1, endpoint.path.size() - wildcard - 2);
    operation["parameters"] = ordered_json::array({{{"name", std::string(name)},
                                                    {"in", "path"},
                                                    {"required", true},
                                                    {"schema", {{"type", "string"}}}}});
  }
  return operation;
}

}  // namespace

ordered_json OpenApiDocument(absl::string_view version, std::span<const EndpointTables> tables) {
  ordered_json paths = ordered_json::object();
  SchemaWriter schemas;
  for (const EndpointTables& table : tables) {
    for (const GenerationEndpoint& endpoint : table.generation) {
      paths[std::string(endpoint.path)]["post"] = DescribePost(
          endpoint.path, endpoint.method, endpoint.body, endpoint.stream_type, &schemas);
    }
    for (const EvaluationEndpoint& endpoint : table.evaluation) {
      paths[std::string(endpoint.path)]["post"] =
          DescribePost(endpoint.path, endpoint.method, endpoint.body, "", &schemas);
    }
    for (const InfoEndpoint& endpoint : table.info) {
      ordered_json& path = paths[std::string(endpoint.path)];
      path["get"] = DescribeInfo(endpoint, "get");
      if (endpoint.allows_post) path["post"] = DescribeInfo(endpoint, "post");
    }
  }
  // Credentials are optional here because they depend on auth.mode.
  return {{"openapi", "3.1.0"},
          {"info", {{"title", "quire"}, {"version", std::string(version)}}},
          {"security", {{{"bearer", ordered_json::array()}}, ordered_json::object()}},
          {"paths", std::move(paths)},
          {"components",
           {{"securitySchemes", {{"bearer", {{"type", "http"}, {"scheme", "bearer"}}}}},
            {"schemas", schemas.TakeSchemas()}}}};
}

}  // namespace quire::server

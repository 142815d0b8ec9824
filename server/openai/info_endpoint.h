#pragma once

// Endpoints that answer at once, from memory: health, the list of models, metrics, versions.
//
// Place:   OpenAiService finds the endpoint of a path and checks the caller; server/dialects adds
//          the endpoints of other APIs.
// Threads: any; the functions have no state.

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/probe.h"
#include "server/api/generation.h"
#include "server/auth/authenticator.h"
#include "server/http/http_message.h"
#include "server/openai/evaluation_bodies.h"
#include "server/openai/generation_endpoint.h"
#include "server/openai/openai_error.h"

namespace quire::server {

struct InfoEndpoint;

// Paths of an API that are not served.
struct RefusedPath {
  absl::string_view path;         // includes all paths below it
  absl::string_view remedy = "";  // the end of the message, such as "; use /v1/embeddings"
  WriteErrorBody write_error = &OpenAiErrorBody;
};

// The endpoints of one or more APIs. The arrays outlive the service.
struct EndpointTables {
  std::span<const GenerationEndpoint> generation = {};
  std::span<const EvaluationEndpoint> evaluation = {};
  std::span<const InfoEndpoint> info = {};
  std::span<const RefusedPath> refused = {};
};

// The daemon's own properties.
struct ServerIdentity {
  std::string version;
  std::string model_path;                    // the path that model.path resolves to
  bool has_own_files = true;                 // false: the embedded model, which has no path
  const probe::Registry* metrics = nullptr;  // null: there is no /metrics
};

struct InfoContext {
  const HandlerContext& handlers;
  const ServerIdentity& server;
  const std::string& openapi;  // the body of /openapi.json
};

struct InfoEndpoint {
  // A last segment {name} stands for the rest of the path, which is not empty.
  absl::string_view path;
  absl::string_view summary;  // one sentence, for /openapi.json
  absl::StatusOr<HttpAnswer> (*answer)(const InfoContext& context, const HttpRequest& request);
  // The caller needs this scope; absent: no credentials are needed.
  std::optional<Scope> scope = Scope::kGenerate;
  bool allows_post = false;  // in addition to GET and HEAD
  WriteErrorBody write_error = &OpenAiErrorBody;
};

HttpAnswer JsonAnswer(const nlohmann::ordered_json& body);

// /health, /metrics, /openapi.json, /v1/models and /v1/models/{model}.
std::span<const InfoEndpoint> OpenAiInfoEndpoints();

}  // namespace quire::server

#pragma once

// The description of all endpoints in OpenAPI 3.1, written from their tables.
//
// Place:   OpenAiService writes it once and answers /openapi.json with it.
// Threads: any.
// Source:  OpenAPI Specification 3.1.0, https://spec.openapis.org/oas/v3.1.0.

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "absl/strings/string_view.h"
#include "server/openai/info_endpoint.h"

namespace quire::server {

nlohmann::ordered_json OpenApiDocument(absl::string_view version,
                                       std::span<const EndpointTables> tables);

}  // namespace quire::server

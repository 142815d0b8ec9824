#pragma once

// The endpoints of APIs other than OpenAI's completions and chat completions. A generation endpoint
// has a reader, which converts its body to v1::GenerateRequest, and an AnswerWriter.
//
// Place:   above server/openai, whose listener serves these endpoints.
// Threads: any.

#include <vector>

#include "server/openai/info_endpoint.h"

namespace quire::server {

// Returns all endpoints and refused paths of OpenAI's Responses API, Anthropic, Ollama, vLLM and
// sglang.
std::vector<EndpointTables> DialectTables();

// Return the endpoints of one API.
EndpointTables OllamaTables();
EndpointTables VllmTables();
EndpointTables SglangTables();

}  // namespace quire::server

#pragma once

// The generation endpoints of APIs other than OpenAI's completions and chat completions. Each API
// is a reader that converts its body to v1::GenerateRequest, and an AnswerWriter.
//
// Place:   above server/openai, whose listener serves these endpoints.
// Threads: any.

#include <span>
#include <vector>

#include "server/openai/generation_endpoint.h"
#include "server/openai/info_endpoint.h"

namespace quire::server {

std::span<const GenerationEndpoint> DialectEndpoints();

// Returns DialectEndpoints and the tables of Ollama, vLLM and sglang.
std::vector<EndpointTables> DialectTables();

}  // namespace quire::server

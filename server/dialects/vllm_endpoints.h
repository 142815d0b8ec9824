#pragma once

// vLLM's endpoints besides those of OpenAI: POST /tokenize and /detokenize, GET /version, GET or
// POST /ping, and GET /load.
//
// Place:      above server/openai, whose listener serves them.
// Invariants: token_strs are the decoded tokens, with U+FFFD in place of invalid UTF-8. vLLM
//             returns the spelling of the vocabulary instead, such as "Ġthe".
// Threads:    any.
// Source:     vllm/entrypoints/serve/tokenize/protocol.py of vLLM at 030ea52e.

#include "server/openai/info_endpoint.h"

namespace quire::server {

EndpointTables VllmTables();

}  // namespace quire::server

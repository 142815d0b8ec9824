#pragma once

// Ollama's API: GET /, /api/tags, /api/version and /api/ps, POST /api/show, /api/generate and
// /api/chat. Calls that change models, and /api/embed, are refused. The message names the
// alternative if there is one.
//
// Place:   above server/openai, whose listener serves them.
// Threads: any.
// Source:  docs/openapi.yaml of Ollama at 017eb8ae.

#include "server/openai/info_endpoint.h"

namespace quire::server {

EndpointTables OllamaTables();

}  // namespace quire::server

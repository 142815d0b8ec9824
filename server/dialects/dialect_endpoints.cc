#include "server/dialects/dialect_endpoints.h"

#include "server/dialects/ollama_endpoints.h"
#include "server/dialects/sglang_endpoints.h"
#include "server/dialects/vllm_endpoints.h"

namespace quire::server {

std::span<const GenerationEndpoint> DialectEndpoints() {
  return {};
}

std::vector<EndpointTables> DialectTables() {
  return {{.generation = DialectEndpoints()}, OllamaTables(), VllmTables(), SglangTables()};
}

}  // namespace quire::server

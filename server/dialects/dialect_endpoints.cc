#include "server/dialects/dialect_endpoints.h"

namespace quire::server {

std::span<const GenerationEndpoint> DialectEndpoints() {
  return {};
}

std::vector<EndpointTables> DialectTables() {
  return {{.generation = DialectEndpoints()}};
}

}  // namespace quire::server

#include "server/dialects/dialect_endpoints.h"

namespace quire::server {

std::span<const GenerationEndpoint> DialectEndpoints() {
  return {};
}

}  // namespace quire::server

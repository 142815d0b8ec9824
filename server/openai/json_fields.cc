#include "server/openai/json_fields.h"

#include <nlohmann/json.hpp>

namespace quire::server {

std::optional<double> JsonFields::AsNumber(const text::JsonValue& value) {
  if (!value.is_number()) return std::nullopt;
  return value.raw().get<double>();
}

}  // namespace quire::server

#include "base/json_text.h"

#include <nlohmann/json.hpp>

namespace quire {
namespace {

template <typename Json>
std::string Dump(const Json& value) {
  return value.dump(/*indent=*/-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

std::string JsonText(const nlohmann::json& value) {
  return Dump(value);
}

std::string JsonText(const nlohmann::ordered_json& value) {
  return Dump(value);
}

std::string JsonQuoted(absl::string_view text) {
  return Dump(nlohmann::json(std::string(text)));
}

}  // namespace quire

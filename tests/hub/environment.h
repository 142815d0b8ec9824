#pragma once

// An environment for tests, in place of the variables of the process.

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "hub/cache/cache_dir.h"

namespace quire::hub {

inline Environment FakeEnvironment(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> std::optional<std::string> {
    const auto value = values.find(name);
    if (value == values.end()) return std::nullopt;
    return value->second;
  };
}

}  // namespace quire::hub

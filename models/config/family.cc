#include "models/config/family.h"

#include <algorithm>

namespace quire::models {

bool ReadsKey(const Family& family, absl::string_view key) {
  return std::find(family.keys.begin(), family.keys.end(), key) != family.keys.end();
}

}  // namespace quire::models

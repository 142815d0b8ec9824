#include "engine/step/engine_stats.h"

namespace quire::engine {

absl::Status IntegrityReport::status() const {
  return failures.empty() ? absl::OkStatus() : absl::InternalError(failures.front());
}

}  // namespace quire::engine

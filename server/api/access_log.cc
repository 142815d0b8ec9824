#include "server/api/access_log.h"

#include "absl/strings/str_join.h"
#include "base/logging.h"

namespace quire::server {

void WriteAccessLog(const AccessRecord& record) {
  log::Info("access", "request finished",
            {{"method", record.method},
             {"request_id", record.request_id},
             {"principal", record.principal},
             {"tenant", record.tenant},
             {"model", record.model},
             {"traceparent", record.traceparent},
             {"labels", absl::StrJoin(record.labels, ",", absl::PairFormatter("="))},
             {"code", record.code},
             {"reason", record.reason ? ReasonName(*record.reason) : std::string()},
             {"prompt_tokens", record.prompt_tokens},
             {"cached_tokens", record.cached_tokens},
             {"completion_tokens", record.completion_tokens},
             {"time_to_first_token", record.time_to_first_token},
             {"duration", record.duration}});
}

}  // namespace quire::server

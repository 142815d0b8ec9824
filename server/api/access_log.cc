#include "server/api/access_log.h"

#include <utility>

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

TracedRequest MakeTrace(const AccessRecord& record, absl::Time end) {
  TracedRequest trace = {.name = std::string(record.method),
                         .traceparent = record.traceparent,
                         .start = end - record.duration,
                         .duration = record.duration,
                         .stages = {},
                         .attributes = {},
                         .error = ""};
  if (record.reason) trace.error = ReasonName(*record.reason);
  if (record.queue_time) {
    trace.stages.push_back({"queue", *record.queue_time});
    if (record.time_to_first_token > *record.queue_time) {
      trace.stages.push_back({"prefill", record.time_to_first_token - *record.queue_time});
      trace.stages.push_back({"decode", record.duration - record.time_to_first_token});
    }
  }
  const auto add = [&](const char* name, TracedRequest::Value value) {
    trace.attributes.emplace_back(name, std::move(value));
  };
  add("gen_ai.request.model", record.model);
  add("gen_ai.usage.input_tokens", std::int64_t{record.prompt_tokens});
  add("gen_ai.usage.output_tokens", std::int64_t{record.completion_tokens});
  add("quire.cached_tokens", std::int64_t{record.cached_tokens});
  add("quire.request_id", record.request_id);
  add("quire.tenant", record.tenant);
  add("rpc.grpc.status_code", record.code);
  if (record.time_to_first_token > absl::ZeroDuration()) {
    add("gen_ai.server.time_to_first_token", absl::ToDoubleSeconds(record.time_to_first_token));
  }
  return trace;
}

}  // namespace quire::server

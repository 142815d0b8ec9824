#include "server/openai/openai_error.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json_text.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;

// OpenAI's names for kinds of errors.
absl::string_view TypeOf(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    case 501:
      return "invalid_request_error";
    default:
      return http_status >= 500 ? "server_error" : "invalid_request_error";
  }
}

constexpr std::pair<absl::string_view, absl::string_view> kParams[] = {
    {"sampling.choice_count", "n"},
    {"output.prompt_logprobs", "logprobs"},
    {"sampling.dry_window_tokens", "dry_penalty_last_n"},
    {"cache.salt", "cache_salt"},
    {"constraint", "response_format"},
    {"constraint.start", "constraint_start"},
    {"constraint.whitespace", "constraint_whitespace"},
    {"constraint.unenforced", "constraint_unenforced"},
    {"chat", "messages"},
    {"text", "prompt"},
    {"token_ids", "prompt"},
    {"chat.tool_choice", "tool_choice"},
    {"chat.tools", "tools"},
    {"chat.tool_name", "tool_choice.function.name"},
    {"chat.parallel_tool_calls", "parallel_tool_calls"},
};

HttpAnswer Answer(int http_status, Reason reason, absl::string_view message,
                  absl::string_view param) {
  const ordered_json error = {
      {"message", std::string(message)},
      {"type", std::string(TypeOf(http_status))},
      {"param", param.empty() ? ordered_json() : ordered_json(std::string(param))},
      {"code", ReasonName(reason)}};
  return {.status = http_status,
          .content_type = "application/json",
          .body = JsonText(ordered_json{{"error", error}})};
}

}  // namespace

std::string OpenAiParam(absl::string_view field) {
  for (const auto& [ours, theirs] : kParams) {
    if (field == ours) return std::string(theirs);
  }
  // chat.tools[0].parameters_json_schema, chat.tools[0].strict
  if (absl::ConsumePrefix(&field, "chat.tools[")) {
    return absl::StrCat("tools[", field.substr(0, field.find(']')), "].function.",
                        absl::EndsWith(field, ".strict") ? "strict" : "parameters");
  }
  if (absl::ConsumePrefix(&field, "inputs")) return absl::StrCat("input", field);
  if (absl::ConsumePrefix(&field, "sampling.dry_breakers")) {
    return absl::StrCat("dry_sequence_breakers", field);
  }
  for (const absl::string_view section : {"sampling.", "stopping.", "output."}) {
    if (absl::ConsumePrefix(&field, section)) break;
  }
  return std::string(field);
}

HttpAnswer OpenAiError(Reason reason, absl::string_view message, absl::string_view param) {
  return Answer(RowOf(reason).http_status, reason, message, param);
}

HttpAnswer OpenAiError(const absl::Status& status) {
  const WireError error = ToWireError(status);
  const absl::string_view field = error.Find("field");
  const std::string param = OpenAiParam(field);
  std::string message = error.message;
  if (!field.empty() && absl::StartsWith(message, field)) {
    message = absl::StrCat(param, message.substr(field.size()));
  }
  // The client is gone when the table has no status.
  HttpAnswer answer =
      Answer(error.http_status == 0 ? 499 : error.http_status, error.reason, message, param);
  if (error.retry_delay) {
    const std::int64_t seconds = std::max<std::int64_t>(
        1, absl::ToInt64Seconds(absl::Ceil(*error.retry_delay, absl::Seconds(1))));
    answer.headers.emplace_back("Retry-After", absl::StrCat(seconds));
  }
  if (answer.status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  return answer;
}

HttpAnswer RefuseAsOpenAi(Reason reason, absl::string_view message) {
  HttpAnswer answer = OpenAiError(reason, message, "");
  if (answer.status == 503) answer.headers.emplace_back("Retry-After", "1");
  return answer;
}

}  // namespace quire::server

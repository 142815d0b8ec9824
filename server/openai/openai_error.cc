#include "server/openai/openai_error.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/json_text.h"

namespace quire::server {
namespace {

using nlohmann::ordered_json;

// Returns OpenAI's error type.
absl::string_view ErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status >= 500 ? "server_error" : "invalid_request_error";
  }
}

// Returns the field of an error. If the error's metadata has none, returns the path at the start of
// the message, or the field that the reason implies.
std::string FindField(const WireError& error, const FieldNames& names) {
  const absl::string_view field = error.Find("field");
  if (!field.empty()) return std::string(field);
  const std::string first = error.message.substr(0, error.message.find_first_of(" :"));
  const bool is_path = first.find_first_of(".[") != first.npos;
  if (is_path && names.Rename(first) != first) return first;
  switch (error.reason) {
    case Reason::kBadConstraint:
      return "constraint";
    case Reason::kBadChatTemplateInput:
    case Reason::kChatTemplateMissing:
      return "chat";
    case Reason::kPromptMissing:
    case Reason::kPromptTooLong:
    case Reason::kExceedsCapacity:
    case Reason::kInputTooLarge:
    case Reason::kBadTokenId:
      return "prompt";
    default:
      return "";
  }
}

// Returns the message with the client's field names. The result contains `param`.
std::string MessageFor(const WireError& error, absl::string_view field, absl::string_view param,
                       const FieldNames& names) {
  absl::string_view message = error.message;
  // "constraint" is the only field that is a single word at the start of a message.
  if (field == "constraint" && (absl::ConsumePrefix(&message, "constraint ") ||
                                absl::ConsumePrefix(&message, "constraint: "))) {
    const absl::string_view separator = absl::StartsWith(error.message, "constraint:") ? ": " : " ";
    return absl::StrCat(param, separator, names.RenameIn(message));
  }
  const std::string text = names.RenameIn(message);
  if (absl::StrContains(text, param)) return text;
  return absl::StrCat(param, ": ", text);
}

// Returns OpenAI's code if clients act on it, else the reason in lower case.
std::string ErrorCode(Reason reason) {
  constexpr std::pair<Reason, const char*> kCodes[] = {
      {Reason::kPromptTooLong, "context_length_exceeded"},
      {Reason::kExceedsCapacity, "context_length_exceeded"},
      {Reason::kTokenMissing, "invalid_api_key"},
      {Reason::kTokenInvalid, "invalid_api_key"},
      {Reason::kQueueFull, "rate_limit_exceeded"},
      {Reason::kQueueTimeout, "rate_limit_exceeded"},
      {Reason::kTenantLimit, "rate_limit_exceeded"},
      {Reason::kPromptMissing, "missing_required_parameter"},
      {Reason::kBadParameter, "invalid_value"},
      {Reason::kBadSamplingParam, "invalid_value"},
      {Reason::kFeatureUnsupported, "unsupported"},
      {Reason::kUnknownEndpoint, "unknown_url"}};
  for (const auto& [known, code] : kCodes) {
    if (known == reason) return code;
  }
  return absl::AsciiStrToLower(ReasonName(reason));
}

HttpAnswer Answer(int http_status, Reason reason, absl::string_view message,
                  absl::string_view param, WriteErrorBody write,
                  absl::string_view request_id = "") {
  const ApiError error = {.http_status = http_status,
                          .message = std::string(message),
                          .type = std::string(ErrorType(http_status)),
                          .param = std::string(param),
                          .code = ErrorCode(reason),
                          .request_id = std::string(request_id)};
  return {.status = http_status, .content_type = "application/json", .body = write(error)};
}

}  // namespace

std::string OpenAiErrorBody(const ApiError& error) {
  const ordered_json body = {
      {"message", error.message},
      {"type", error.type},
      {"param", error.param.empty() ? ordered_json() : ordered_json(error.param)},
      {"code", error.code}};
  return JsonText(ordered_json{{"error", body}});
}

HttpAnswer OpenAiError(Reason reason, absl::string_view message, absl::string_view param,
                       WriteErrorBody write) {
  return Answer(RowOf(reason).http_status, reason, message, param, write);
}

HttpAnswer OpenAiError(const absl::Status& status, const FieldNames& names, WriteErrorBody write,
                       absl::string_view request_id) {
  const WireError error = ToWireError(status);
  // An error with `param` already names the client's field, so its text is not renamed.
  std::string param(error.Find("param"));
  std::string message = error.message;
  if (param.empty()) {
    const std::string field = FindField(error, names);
    param = names.Rename(field);
    message = MessageFor(error, field, param, names);
  }
  // A reason without an HTTP status means that the client has disconnected.
  HttpAnswer answer = Answer(error.http_status == 0 ? 499 : error.http_status, error.reason,
                             message, param, write, request_id);
  if (error.retry_delay) {
    const std::int64_t seconds = std::max<std::int64_t>(
        1, absl::ToInt64Seconds(absl::Ceil(*error.retry_delay, absl::Seconds(1))));
    answer.headers.emplace_back("Retry-After", absl::StrCat(seconds));
  }
  if (answer.status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  return answer;
}

}  // namespace quire::server

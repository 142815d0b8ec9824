#include "server/grpc/error_details.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace quire::server {
namespace {

constexpr absl::string_view kTypePrefix = "type.googleapis.com/google.rpc.";

void AppendVarint(std::string* out, std::uint64_t value) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

// Omits a zero, the default of proto3.
void AppendInteger(std::string* out, std::uint32_t field, std::int64_t value) {
  if (value == 0) return;
  AppendVarint(out, field << 3);
  AppendVarint(out, static_cast<std::uint64_t>(value));
}

void AppendBytes(std::string* out, std::uint32_t field, absl::string_view value) {
  AppendVarint(out, field << 3 | 2);
  AppendVarint(out, value.size());
  out->append(value.data(), value.size());
}

void AppendText(std::string* out, std::uint32_t field, absl::string_view value) {
  if (!value.empty()) AppendBytes(out, field, value);
}

std::string Any(absl::string_view type, absl::string_view value) {
  std::string any;
  AppendBytes(&any, 1, absl::StrCat(kTypePrefix, type));
  AppendText(&any, 2, value);
  return any;
}

std::string ErrorInfo(const WireError& error) {
  std::string info;
  AppendText(&info, 1, RowOf(error.reason).name);
  AppendText(&info, 2, "quire");
  for (const auto& [key, value] : error.metadata) {
    std::string entry;
    AppendText(&entry, 1, key);
    AppendText(&entry, 2, value);
    AppendBytes(&info, 3, entry);
  }
  return info;
}

std::string RetryInfo(absl::Duration delay) {
  std::string duration;
  absl::Duration rest;
  AppendInteger(&duration, 1, absl::IDivDuration(delay, absl::Seconds(1), &rest));
  AppendInteger(&duration, 2, absl::ToInt64Nanoseconds(rest));
  std::string info;
  AppendBytes(&info, 1, duration);
  return info;
}

std::string BadRequest(const WireError& error) {
  std::string violation;
  AppendText(&violation, 1, error.Find("field"));
  AppendText(&violation, 2, error.message);
  std::string request;
  AppendBytes(&request, 1, violation);
  return request;
}

std::string PreconditionFailure(const WireError& error) {
  std::string violation;
  AppendText(&violation, 1, RowOf(error.reason).name);
  AppendText(&violation, 2, error.Find(error.Find("key").empty() ? "field" : "key"));
  AppendText(&violation, 3, error.message);
  std::string failure;
  AppendBytes(&failure, 1, violation);
  return failure;
}

}  // namespace

std::string EncodeErrorDetails(const WireError& error) {
  std::string status;
  AppendInteger(&status, 1, static_cast<int>(error.code));
  AppendText(&status, 2, error.message);
  AppendBytes(&status, 3, Any("ErrorInfo", ErrorInfo(error)));
  if (error.retry_delay) AppendBytes(&status, 3, Any("RetryInfo", RetryInfo(*error.retry_delay)));
  if (error.detail == ErrorDetail::kBadRequest) {
    AppendBytes(&status, 3, Any("BadRequest", BadRequest(error)));
  }
  if (error.detail == ErrorDetail::kPrecondition) {
    AppendBytes(&status, 3, Any("PreconditionFailure", PreconditionFailure(error)));
  }
  return status;
}

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status();
  const WireError error = ToWireError(status);
  return grpc::Status(static_cast<grpc::StatusCode>(error.code), error.message,
                      EncodeErrorDetails(error));
}

}  // namespace quire::server

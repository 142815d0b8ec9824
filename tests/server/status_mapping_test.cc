#include "server/api/status_mapping.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/error_reason.h"
#include "tests/engine/harness.h"
#include "tests/testing/paths.h"

namespace quire::server {
namespace {

// Returns the HTTP statuses allowed for a code (docs/api.md, Errors).
const std::set<int>& HttpOf(absl::StatusCode code) {
  static const auto* table = new std::map<absl::StatusCode, std::set<int>>{
      {absl::StatusCode::kInvalidArgument, {400, 413, 415, 431}},
      {absl::StatusCode::kNotFound, {404}},
      {absl::StatusCode::kAlreadyExists, {409}},
      {absl::StatusCode::kResourceExhausted, {429, 503}},
      {absl::StatusCode::kUnavailable, {503}},
      {absl::StatusCode::kFailedPrecondition, {400, 409}},
      {absl::StatusCode::kUnimplemented, {400, 405}},
      {absl::StatusCode::kDeadlineExceeded, {408, 504}},
      {absl::StatusCode::kCancelled, {0, 499, 503}},
      {absl::StatusCode::kUnauthenticated, {401}},
      {absl::StatusCode::kPermissionDenied, {403}},
      {absl::StatusCode::kDataLoss, {500}},
      {absl::StatusCode::kInternal, {500}}};
  return table->at(code);
}

TEST(StatusMappingTest, ReasonsMapToTheirCodeAndStatus) {
  for (const ReasonRow& row : ReasonTable()) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(HttpOf(row.code).contains(row.http_status));
    if (row.code == absl::StatusCode::kInternal) continue;
    const WireError error = ToWireError(
        WithReason(absl::Status(row.code, "what went wrong"), row.reason, {{"field", "a.b"}}));
    EXPECT_EQ(error.code, row.code);
    EXPECT_EQ(error.reason, row.reason);
    EXPECT_EQ(error.http_status, row.http_status);
    EXPECT_EQ(error.message, "what went wrong");
    EXPECT_EQ(error.Find("field"), "a.b");
    EXPECT_EQ(error.retry_delay.has_value(), row.detail == ErrorDetail::kRetryInfo);
    // Overload must not be reported as UNAVAILABLE, because blind retries would amplify it.
    EXPECT_EQ(row.http_status == 429, row.code == absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(row.detail == ErrorDetail::kPrecondition,
              row.code == absl::StatusCode::kFailedPrecondition);
    EXPECT_FALSE(row.retry == Retry::kNo && row.detail == ErrorDetail::kRetryInfo);
  }
}

std::string CodeCell(const ReasonRow& row) {
  if (row.reason >= Reason::kDeviceLost) return "log only";
  if (row.reason >= Reason::kBadRequest) return "HTTP only";
  return absl::StatusCodeToString(row.code);
}

std::string RetryCell(Retry retry) {
  switch (retry) {
    case Retry::kNo:
      return "no";
    case Retry::kSameServer:
      return "same server, later";
    case Retry::kOtherServer:
      return "another server";
  }
  return "";
}

// The table of docs/api.md also has a column for the metadata.
TEST(StatusMappingTest, ApiPageListsAllReasons) {
  std::ifstream file(paths::Source("docs/api.md"));
  std::string line;
  while (std::getline(file, line) && !absl::StartsWith(line, "| Code | Reason |")) continue;
  std::getline(file, line);  // the line below the table head
  std::string code;
  for (const ReasonRow& row : ReasonTable()) {
    SCOPED_TRACE(row.name);
    ASSERT_TRUE(std::getline(file, line) && absl::StartsWith(line, "|"));
    std::vector<std::string> cells = absl::StrSplit(line, '|');
    ASSERT_EQ(cells.size(), 8u) << line;
    for (std::string& cell : cells) absl::StripAsciiWhitespace(&cell);
    if (!cells[1].empty()) code = cells[1];
    EXPECT_EQ(code, CodeCell(row));
    EXPECT_EQ(cells[2], row.name);
    EXPECT_EQ(cells[3], row.text);
    EXPECT_EQ(cells[5], RetryCell(row.retry));
    EXPECT_EQ(cells[6], row.http_status == 0 ? "-" : absl::StrCat(row.http_status));
  }
  std::getline(file, line);
  EXPECT_EQ(line, "") << "a row without a reason";
}

TEST(StatusMappingTest, ErrorsWithoutReasonAreInternalAndHideTheirText) {
  for (const absl::Status& status :
       {absl::InternalError("secret"), absl::UnknownError("secret"), absl::AbortedError("secret"),
        absl::UnavailableError("secret"), absl::NotFoundError("secret"),
        WithReason(absl::UnavailableError("secret"), Reason::kDeviceLost)}) {
    const WireError error = ToWireError(status);
    EXPECT_EQ(error.code, absl::StatusCode::kInternal) << status;
    EXPECT_EQ(error.reason, Reason::kEngineError);
    EXPECT_FALSE(absl::StrContains(error.message, "secret"));
    EXPECT_EQ(error.Find("incident_id").size(), 16u);
  }
  EXPECT_EQ(ToWireError(absl::InvalidArgumentError("x")).reason, Reason::kBadParameter);
  EXPECT_EQ(ToWireError(absl::DeadlineExceededError("x")).reason, Reason::kTimeout);
}

// Before min_tokens the stop ids are banned. Here they are the whole vocabulary.
TEST(StatusMappingTest, ExcludingEveryTokenIsInvalidArgument) {
  engine::Harness harness(engine::MakeHarnessOptions({}));
  engine::Request request = engine::MakeRequest("a", {1, 2, 3}, 5);
  request.stopping.min_tokens = 2;
  for (std::int32_t id = 0; id < engine::kByteVocab; ++id) {
    request.stopping.stop_token_ids.push_back(id);
  }
  harness.Submit(std::move(request));
  harness.RunUntilIdle();
  const WireError error = ToWireError(harness.output("a").status);
  EXPECT_EQ(error.code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error.reason, Reason::kBadConstraint);
  EXPECT_EQ(error.http_status, 400);
  EXPECT_EQ(error.Find("stage"), "decode");
}

TEST(StatusMappingTest, SanitizedStatusesKeepTheirIncident) {
  const absl::Status sanitized = SanitizeInternalError(absl::InternalError("secret"));
  EXPECT_EQ(ToWireError(sanitized).Find("incident_id"), ToWireError(sanitized).Find("incident_id"));
  EXPECT_EQ(SanitizeInternalError(sanitized), sanitized);
  EXPECT_TRUE(SanitizeInternalError(absl::OkStatus()).ok());
}

TEST(StatusMappingTest, CutsLongTextsBetweenCharacters) {
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "\xC3\xA4";  // two bytes each
  std::vector<std::pair<std::string, std::string>> metadata;
  for (int i = 0; i < 100; ++i) metadata.emplace_back("key" + std::to_string(i), text);
  const WireError error = ToWireError(
      WithReason(absl::InvalidArgumentError("x" + text), Reason::kBadParameter, metadata));
  EXPECT_LE(error.message.size(), 1024u);
  EXPECT_EQ(error.message.size() % 2, 1u);
  std::size_t bytes = error.message.size();
  for (const auto& [key, value] : error.metadata) bytes += key.size() + value.size();
  EXPECT_LT(bytes, 3500u);
  EXPECT_FALSE(error.metadata.empty());
}

}  // namespace
}  // namespace quire::server

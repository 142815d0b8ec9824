#include "server/grpc/error_details.h"

#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "server/api/access_log.h"
#include "server/openai/openai_error.h"
#include "server/vllm/vllm_request.h"
#include "tests/testing/temp_dir.h"

namespace quire::server {
namespace {

using google::protobuf::UnknownFieldSet;

// Reads the bytes as fields by number, without any declaration of google.rpc. Each access parses
// them again, since UnknownFieldSet cannot be copied.
class Fields {
 public:
  explicit Fields(std::string bytes = "") : bytes_(std::move(bytes)) {}

  // Returns all length-delimited values of a field.
  std::vector<std::string> Texts(int number) const {
    std::vector<std::string> texts;
    UnknownFieldSet fields;
    EXPECT_TRUE(fields.ParseFromString(bytes_));
    for (int i = 0; i < fields.field_count(); ++i) {
      if (fields.field(i).number() == number) texts.push_back(fields.field(i).length_delimited());
    }
    return texts;
  }
  std::string Text(int number) const {
    const std::vector<std::string> texts = Texts(number);
    return texts.empty() ? "" : texts[0];
  }
  std::uint64_t Integer(int number) const {
    UnknownFieldSet fields;
    EXPECT_TRUE(fields.ParseFromString(bytes_));
    for (int i = 0; i < fields.field_count(); ++i) {
      if (fields.field(i).number() == number) return fields.field(i).varint();
    }
    return 0;
  }

 private:
  std::string bytes_;
};

// Maps type names to the values of the details in a serialized google.rpc.Status.
std::map<std::string, Fields> Details(const std::string& status) {
  std::map<std::string, Fields> details;
  for (const std::string& bytes : Fields(status).Texts(3)) {
    const Fields any(bytes);
    details[any.Text(1)] = Fields(any.Text(2));
  }
  return details;
}

TEST(ErrorDetailsTest, StatusContainsCodeMessageAndErrorInfo) {
  const grpc::Status status = ToGrpcStatus(WithReason(
      absl::InvalidArgumentError("prompt has 9000 tokens, context is 8192"), Reason::kPromptTooLong,
      {{"prompt_tokens", "9000"}, {"max_context_tokens", "8192"}}));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(), "prompt has 9000 tokens, context is 8192");
  const Fields wire(status.error_details());
  EXPECT_EQ(wire.Integer(1), 3u);
  EXPECT_EQ(wire.Text(2), status.error_message());
  const auto details = Details(status.error_details());
  ASSERT_EQ(details.size(), 1u);
  const Fields& info = details.at("type.googleapis.com/google.rpc.ErrorInfo");
  EXPECT_EQ(info.Text(1), "PROMPT_TOO_LONG");
  EXPECT_EQ(info.Text(2), "quire");
  std::map<std::string, std::string> metadata;
  for (const std::string& bytes : info.Texts(3)) {
    metadata[Fields(bytes).Text(1)] = Fields(bytes).Text(2);
  }
  EXPECT_EQ(metadata, (std::map<std::string, std::string>{{"prompt_tokens", "9000"},
                                                          {"max_context_tokens", "8192"}}));
}

TEST(ErrorDetailsTest, RetryDelayIsADuration) {
  const grpc::Status status =
      ToGrpcStatus(WithReason(absl::ResourceExhaustedError("queue is full"), Reason::kQueueFull, {},
                              absl::Milliseconds(2500)));
  const auto details = Details(status.error_details());
  const Fields delay(details.at("type.googleapis.com/google.rpc.RetryInfo").Text(1));
  EXPECT_EQ(delay.Integer(1), 2u);
  EXPECT_EQ(delay.Integer(2), 500000000u);
}

TEST(ErrorDetailsTest, BadRequestNamesTheField) {
  const grpc::Status status = ToGrpcStatus(BadParameter("priority", "101", "-100 to 100"));
  const auto details = Details(status.error_details());
  const Fields violation(details.at("type.googleapis.com/google.rpc.BadRequest").Text(1));
  EXPECT_EQ(violation.Text(1), "priority");
  EXPECT_EQ(violation.Text(2), "priority is 101, it must be -100 to 100");
}

TEST(ErrorDetailsTest, PreconditionFailureNamesTheReason) {
  const grpc::Status status = ToGrpcStatus(
      WithReason(absl::FailedPreconditionError("the process is exiting"), Reason::kShuttingDown));
  const auto details = Details(status.error_details());
  const Fields violation(details.at("type.googleapis.com/google.rpc.PreconditionFailure").Text(1));
  EXPECT_EQ(violation.Text(1), "SHUTTING_DOWN");
  EXPECT_EQ(violation.Text(3), "the process is exiting");
}

TEST(ErrorDetailsTest, EveryReasonStaysBelowFourKibibytes) {
  const std::string text(5000, 'x');
  for (const ReasonRow& row : ReasonTable()) {
    const grpc::Status status = ToGrpcStatus(
        WithReason(absl::Status(row.code, text), row.reason, {{"field", text}, {"value", text}}));
    EXPECT_LT(status.error_details().size(), 4096u) << row.name;
    EXPECT_FALSE(Details(status.error_details()).empty()) << row.name;
  }
}

// Returns the code of an error over HTTP: OpenAI's code, or the reason in lower case.
std::string HttpCode(const std::string& reason) {
  static const auto* openai =
      new std::map<std::string, std::string>{{"PROMPT_TOO_LONG", "context_length_exceeded"},
                                             {"EXCEEDS_CAPACITY", "context_length_exceeded"},
                                             {"PROMPT_MISSING", "missing_required_parameter"},
                                             {"BAD_PARAMETER", "invalid_value"},
                                             {"BAD_SAMPLING_PARAM", "invalid_value"},
                                             {"QUEUE_FULL", "rate_limit_exceeded"},
                                             {"QUEUE_TIMEOUT", "rate_limit_exceeded"},
                                             {"TENANT_LIMIT", "rate_limit_exceeded"},
                                             {"TOKEN_MISSING", "invalid_api_key"},
                                             {"TOKEN_INVALID", "invalid_api_key"},
                                             {"FEATURE_UNSUPPORTED", "unsupported"},
                                             {"UNKNOWN_ENDPOINT", "unknown_url"}};
  const auto found = openai->find(reason);
  return found == openai->end() ? absl::AsciiStrToLower(reason) : found->second;
}

// Every interface reports the reason of an error with its field, value and limit.
TEST(ErrorDetailsTest, EveryReasonReachesGrpcHttpAndTheLog) {
  const testing::TempDir dir;
  const std::string file = dir.path() + "/log";
  ASSERT_TRUE(log::Configure({.format = log::Format::kJson, .file = file}).ok());
  const std::map<std::string, std::string> metadata = {
      {"field", "sampling.top_k"}, {"value", "-1"}, {"limit", "0"}};
  for (const ReasonRow& row : ReasonTable()) {
    SCOPED_TRACE(row.name);
    const absl::Status status = WithReason(absl::Status(row.code, "sampling.top_k is -1"),
                                           row.reason, {metadata.begin(), metadata.end()});
    EXPECT_EQ(GetErrorReason(NameVllmFields(status))->reason, row.reason);
    // An internal error is logged with its details under the incident number that the caller gets.
    const bool is_told = row.code != absl::StatusCode::kInternal;
    const std::string name = is_told ? std::string(row.name) : "ENGINE_ERROR";

    const grpc::Status grpc_status = ToGrpcStatus(status);
    EXPECT_EQ(static_cast<int>(grpc_status.error_code()), static_cast<int>(row.code));
    const Fields info =
        Details(grpc_status.error_details()).at("type.googleapis.com/google.rpc.ErrorInfo");
    EXPECT_EQ(info.Text(1), name);
    std::map<std::string, std::string> told;
    for (const std::string& entry : info.Texts(3)) {
      told[Fields(entry).Text(1)] = Fields(entry).Text(2);
    }
    if (is_told) {
      EXPECT_EQ(told, metadata);
    } else {
      EXPECT_TRUE(told.size() == 1 && told.contains("incident_id"));
    }

    const HttpAnswer answer = OpenAiError(status);
    EXPECT_EQ(answer.status, row.http_status == 0 ? 499 : row.http_status);
    const auto error = nlohmann::json::parse(answer.body).at("error");
    EXPECT_EQ(error.at("code"), HttpCode(name));
    EXPECT_EQ(error.at("param") == "top_k", is_told);
    EXPECT_EQ(error.at("message") == "top_k is -1", is_told);

    AccessRecord record;
    record.request_id = std::string(row.name);
    record.reason = ToWireError(status).reason;
    WriteAccessLog(record);
    EXPECT_TRUE(log::Flush(absl::Seconds(20)));
    std::ifstream log(file);
    const std::string text((std::istreambuf_iterator<char>(log)), {});
    const std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
    const auto line = nlohmann::json::parse(lines.back());
    EXPECT_EQ(line.at("request_id"), std::string(row.name));
    EXPECT_EQ(line.at("reason"), name);
    EXPECT_EQ(absl::StrContains(text, absl::StrCat("='r", row.name)), !is_told);
  }
  ASSERT_TRUE(log::Configure({}).ok());
}

TEST(ErrorDetailsTest, OkStaysOk) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
}

}  // namespace
}  // namespace quire::server

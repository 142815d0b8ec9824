#include "server/grpc/error_details.h"

#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error_reason.h"

namespace quire::server {
namespace {

using google::protobuf::UnknownFieldSet;

// The bytes are read without any declaration of google.rpc, as fields by number. Parsed anew at
// each look: UnknownFieldSet cannot be copied.
class Fields {
 public:
  explicit Fields(std::string bytes = "") : bytes_(std::move(bytes)) {}

  // All length-delimited values of a field.
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

// Type name -> value of the details of a serialized google.rpc.Status.
std::map<std::string, Fields> Details(const std::string& status) {
  std::map<std::string, Fields> details;
  for (const std::string& bytes : Fields(status).Texts(3)) {
    const Fields any(bytes);
    details[any.Text(1)] = Fields(any.Text(2));
  }
  return details;
}

TEST(ErrorDetailsTest, StatusHoldsCodeMessageAndErrorInfo) {
  const grpc::Status status = ToGrpcStatus(WithReason(
      absl::InvalidArgumentError("prompt has 9000 tokens, context is 8192"), "PROMPT_TOO_LONG",
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
      ToGrpcStatus(WithReason(absl::ResourceExhaustedError("queue is full"), "QUEUE_FULL", {},
                              absl::Milliseconds(2500)));
  const auto details = Details(status.error_details());
  const Fields delay(
      details.at("type.googleapis.com/google.rpc.RetryInfo").Text(1));
  EXPECT_EQ(delay.Integer(1), 2u);
  EXPECT_EQ(delay.Integer(2), 500000000u);
}

TEST(ErrorDetailsTest, BadRequestNamesTheField) {
  const grpc::Status status = ToGrpcStatus(BadParameter("priority", "101", "-100 to 100"));
  const auto details = Details(status.error_details());
  const Fields violation(
      details.at("type.googleapis.com/google.rpc.BadRequest").Text(1));
  EXPECT_EQ(violation.Text(1), "priority");
  EXPECT_EQ(violation.Text(2), "priority is 101, it must be -100 to 100");
}

TEST(ErrorDetailsTest, PreconditionFailureNamesTheReason) {
  const grpc::Status status = ToGrpcStatus(
      WithReason(absl::FailedPreconditionError("the process is ending"), "SHUTTING_DOWN"));
  const auto details = Details(status.error_details());
  const Fields violation(
      details.at("type.googleapis.com/google.rpc.PreconditionFailure").Text(1));
  EXPECT_EQ(violation.Text(1), "SHUTTING_DOWN");
  EXPECT_EQ(violation.Text(3), "the process is ending");
}

TEST(ErrorDetailsTest, EveryReasonStaysBelowFourKibibytes) {
  const std::string text(5000, 'x');
  for (const ReasonRow& row : ReasonTable()) {
    const grpc::Status status = ToGrpcStatus(
        WithReason(absl::Status(row.code, text), row.reason, {{"field", text}, {"value", text}}));
    EXPECT_LT(status.error_details().size(), 4096u) << row.reason;
    EXPECT_FALSE(Details(status.error_details()).empty()) << row.reason;
  }
}

TEST(ErrorDetailsTest, OkStaysOk) {
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
}

}  // namespace
}  // namespace quire::server

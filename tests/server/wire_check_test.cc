#include "server/api/wire_check.h"

#include <gtest/gtest.h>

#include "base/error_reason.h"
#include "quire/v1/generation.pb.h"

namespace quire::server {
namespace {

absl::Status Explain(const std::string& bytes) {
  v1::GenerateRequest message;
  EXPECT_FALSE(message.ParseFromString(bytes));
  return ExplainParseFailure(v1::GenerateRequest::descriptor(), bytes);
}

TEST(WireCheckTest, NamesTheTextAndTheByte) {
  const absl::Status status = Explain("\x1a\x04xy\xc3\x28");  // text = "xy\xC3("
  const auto reason = GetErrorReason(status);
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(reason->name(), "BAD_UTF8");
  EXPECT_EQ(reason->Find("field"), "text");
  EXPECT_EQ(reason->Find("byte_offset"), "2");
}

TEST(WireCheckTest, ChecksNestedMessagesAndLists) {
  v1::GenerateRequest message;
  message.set_text("good");
  message.mutable_stopping()->add_stop("good");
  message.mutable_stopping()->add_stop("bad?");
  std::string bytes = message.SerializeAsString();
  bytes[bytes.find('?')] = '\xff';
  const auto reason = GetErrorReason(Explain(bytes));
  EXPECT_EQ(reason->name(), "BAD_UTF8");
  EXPECT_EQ(reason->Find("field"), "stopping.stop");
  EXPECT_EQ(reason->Find("byte_offset"), "3");
}

TEST(WireCheckTest, ReportsGarbageAsABadParameter) {
  const absl::Status status = Explain("\xff\xff\xff");
  EXPECT_EQ(GetErrorReason(status)->name(), "BAD_PARAMETER");
  EXPECT_EQ(GetErrorReason(status)->Find("field"), "request");
}

TEST(WireCheckTest, ExplainsEveryTruncation) {
  v1::GenerateRequest message;
  message.set_text("some text");
  message.mutable_sampling()->set_temperature(1);
  (*message.mutable_labels())["key"] = "value";
  const std::string bytes = message.SerializeAsString();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    v1::GenerateRequest cut;
    if (cut.ParseFromString(bytes.substr(0, size))) continue;
    EXPECT_TRUE(GetErrorReason(Explain(bytes.substr(0, size))).has_value()) << size;
  }
}

}  // namespace
}  // namespace quire::server

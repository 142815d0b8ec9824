#include "base/error_reason.h"

#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(ErrorReasonTest, RoundTrips) {
  const std::string odd("a\nb\0\\ \"\xff=", 9);
  const absl::Status status =
      WithReason(absl::ResourceExhaustedError("queue is full"), "QUEUE_FULL",
                 {{"queued_requests", "64"}, {odd, odd}, {"empty", ""}}, absl::Milliseconds(1500));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "queue is full");
  const std::optional<ErrorReason> reason = GetErrorReason(status);
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(reason->reason, "QUEUE_FULL");
  ASSERT_EQ(reason->metadata.size(), 3u);
  EXPECT_EQ(reason->Find("queued_requests"), "64");
  EXPECT_EQ(reason->Find(odd), odd);
  EXPECT_EQ(reason->Find("empty"), "");
  EXPECT_EQ(reason->Find("absent"), std::nullopt);
  EXPECT_EQ(reason->retry_delay, absl::Milliseconds(1500));
}

TEST(ErrorReasonTest, MetadataAndDelayAreOptional) {
  const auto reason = GetErrorReason(WithReason(absl::NotFoundError("x"), "MODEL_NOT_FOUND"));
  ASSERT_TRUE(reason.has_value());
  EXPECT_TRUE(reason->metadata.empty());
  EXPECT_EQ(reason->retry_delay, std::nullopt);
}

TEST(ErrorReasonTest, LaterReasonReplacesEarlier) {
  const absl::Status first = WithReason(absl::InternalError("x"), "ENGINE_ERROR", {{"a", "1"}});
  const auto reason = GetErrorReason(WithReason(first, "DEVICE_ERROR"));
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(reason->reason, "DEVICE_ERROR");
  EXPECT_TRUE(reason->metadata.empty());
}

TEST(ErrorReasonTest, PlainAndForeignStatusesHaveNone) {
  EXPECT_EQ(GetErrorReason(absl::OkStatus()), std::nullopt);
  EXPECT_TRUE(WithReason(absl::OkStatus(), "SCOPE").ok());
  absl::Status status = absl::InternalError("x");
  EXPECT_EQ(GetErrorReason(status), std::nullopt);
  for (const char* payload : {"", "zfoo\n", "vvalue\n", "d12x\n", "kkey\n"}) {
    status.SetPayload("quire/error_reason", absl::Cord(payload));
    EXPECT_EQ(GetErrorReason(status), std::nullopt) << payload;
  }
}

TEST(ErrorReasonDeathTest, EmptyReason) {
  EXPECT_DEATH(WithReason(absl::InternalError("x"), "").IgnoreError(), "check failed");
}

}  // namespace
}  // namespace quire

#include "base/error_reason.h"

#include <set>

#include "gtest/gtest.h"

namespace quire {
namespace {

// tools/quire/client.cc prints codes of gRPC in this way.
TEST(ErrorReasonTest, CodesThatGrpcDoesNotDefineAreUnknown) {
  for (const int code : {-1, 17, 99}) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "");
    EXPECT_EQ(absl::StatusCodeToString(status.code()), "UNKNOWN") << code;
  }
}

TEST(ErrorReasonTest, RoundTrips) {
  const std::string odd("a\nb\0\\ \"\xff=", 9);
  const absl::Status status =
      WithReason(absl::ResourceExhaustedError("queue is full"), Reason::kQueueFull,
                 {{"queued_requests", "64"}, {odd, odd}, {"empty", ""}}, absl::Milliseconds(1500));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "queue is full");
  const std::optional<ErrorReason> reason = GetErrorReason(status);
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(reason->name(), "QUEUE_FULL");
  ASSERT_EQ(reason->metadata.size(), 3u);
  EXPECT_EQ(reason->Find("queued_requests"), "64");
  EXPECT_EQ(reason->Find(odd), odd);
  EXPECT_EQ(reason->Find("empty"), "");
  EXPECT_EQ(reason->Find("absent"), std::nullopt);
  EXPECT_EQ(reason->retry_delay, absl::Milliseconds(1500));
}

TEST(ErrorReasonTest, MetadataAndDelayAreOptional) {
  const auto reason = GetErrorReason(WithReason(absl::NotFoundError("x"), Reason::kModelNotFound));
  ASSERT_TRUE(reason.has_value());
  EXPECT_TRUE(reason->metadata.empty());
  EXPECT_EQ(reason->retry_delay, std::nullopt);
}

TEST(ErrorReasonTest, LaterReasonReplacesEarlier) {
  const absl::Status first =
      WithReason(absl::InternalError("x"), Reason::kEngineError, {{"a", "1"}});
  const auto reason = GetErrorReason(WithReason(first, Reason::kDeviceError));
  ASSERT_TRUE(reason.has_value());
  EXPECT_EQ(reason->name(), "DEVICE_ERROR");
  EXPECT_TRUE(reason->metadata.empty());
}

TEST(ErrorReasonTest, PlainAndForeignStatusesHaveNone) {
  EXPECT_EQ(GetErrorReason(absl::OkStatus()), std::nullopt);
  EXPECT_TRUE(WithReason(absl::OkStatus(), Reason::kScopeMissing).ok());
  absl::Status status = absl::InternalError("x");
  EXPECT_EQ(GetErrorReason(status), std::nullopt);
  for (const char* payload :
       {"", "zfoo\n", "rNO_SUCH_REASON\n", "kkey\nv1\n", "vvalue\n", "d12x\n", "kkey\n"}) {
    status.SetPayload("quire/error_reason", absl::Cord(payload));
    EXPECT_EQ(GetErrorReason(status), std::nullopt) << payload;
  }
}

TEST(ErrorReasonTest, EveryReasonHasItsRowAndRoundTrips) {
  std::set<absl::string_view> names;
  for (const ReasonRow& row : ReasonTable()) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(&RowOf(row.reason), &row);
    EXPECT_EQ(ReasonName(row.reason), row.name);
    EXPECT_TRUE(names.insert(row.name).second);
    EXPECT_FALSE(row.text.empty());
    const absl::Status status = WithReason(absl::Status(row.code, "x"), row.reason);
    EXPECT_TRUE(HasReason(status, row.reason));
    EXPECT_EQ(GetErrorReason(status)->name(), row.name);
    EXPECT_EQ(HasReason(status, Reason::kScopeMissing), row.reason == Reason::kScopeMissing);
  }
  EXPECT_FALSE(HasReason(absl::InternalError("x"), Reason::kEngineError));
}

}  // namespace
}  // namespace quire

#include "base/grpc_code.h"

#include "gtest/gtest.h"

namespace quire {
namespace {

TEST(GrpcCodeTest, NamesAreThoseOfGrpc) {
  EXPECT_EQ(GrpcCodeName(0), "OK");
  EXPECT_EQ(GrpcCodeName(1), "CANCELLED");
  EXPECT_EQ(GrpcCodeName(3), "INVALID_ARGUMENT");
  EXPECT_EQ(GrpcCodeName(8), "RESOURCE_EXHAUSTED");
  EXPECT_EQ(GrpcCodeName(14), "UNAVAILABLE");
  EXPECT_EQ(GrpcCodeName(16), "UNAUTHENTICATED");
}

TEST(GrpcCodeTest, OtherNumbersAreUnknown) {
  EXPECT_EQ(GrpcCodeName(-1), "UNKNOWN");
  EXPECT_EQ(GrpcCodeName(2), "UNKNOWN");
  EXPECT_EQ(GrpcCodeName(17), "UNKNOWN");
}

}  // namespace
}  // namespace quire

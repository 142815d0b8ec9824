// Multi-request calls without generation, over gRPC.

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/server/service_fixture.h"

namespace quire::server {
namespace {

class EvaluationTest : public ServiceTest {
 protected:
  EvaluationTest()
      : ServiceTest({"limits.max_queued_requests=4", "scheduler.max_running_sequences=2"}) {}

  static v1::ScoreRequest Items(int count) {
    v1::ScoreRequest request;
    for (int i = 0; i < count; ++i) {
      v1::ScoreItem* item = request.add_items();
      item->set_context_text(absl::StrCat("Once upon a time number ", i));
      item->set_text(" there was");
    }
    return request;
  }
};

TEST_F(EvaluationTest, ServesMoreItemsThanTheQueueHolds) {
  grpc::ClientContext context;
  v1::ScoreResponse response;
  const v1::ScoreRequest request = Items(100);
  const grpc::Status status = generation_->Score(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.results_size(), 100);
  // Results are in item order and bitwise equal to each item alone.
  for (int i = 0; i < 100; i += 33) {
    grpc::ClientContext alone_context;
    v1::ScoreRequest alone;
    *alone.add_items() = request.items(i);
    v1::ScoreResponse expected;
    ASSERT_TRUE(generation_->Score(&alone_context, alone, &expected).ok());
    EXPECT_EQ(response.results(i).SerializeAsString(), expected.results(0).SerializeAsString());
  }
  EXPECT_EQ(UsedPagesWhenIdle(), 0);
}

TEST_F(EvaluationTest, OneBadItemFailsTheWholeCall) {
  v1::ScoreRequest request = Items(60);
  request.mutable_items(40)->mutable_token_ids()->add_ids(-1);
  grpc::ClientContext context;
  v1::ScoreResponse response;
  const grpc::Status status = generation_->Score(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_NE(status.error_message().find("continuation token 0 is -1"), std::string::npos);
  EXPECT_EQ(response.results_size(), 0);
  EXPECT_EQ(UsedPagesWhenIdle(), 0);
}

// An id of 123 characters leaves room for the item's number.
TEST_F(EvaluationTest, ReplacesIdsThatAreTooLongWithTheItemNumber) {
  for (const std::size_t size : {123, 124, 128}) {
    const std::string id(size, 'i');
    v1::ScoreResponse response;
    grpc::ClientContext context;
    context.AddMetadata("x-request-id", id);
    EXPECT_TRUE(generation_->Score(&context, Items(2), &response).ok());
    const auto& metadata = context.GetServerInitialMetadata();
    const auto used = metadata.find("quire-request-id");
    ASSERT_NE(used, metadata.end());
    EXPECT_EQ(std::string(used->second.data(), used->second.size()) == id, size == 123) << size;
  }
}

TEST_F(EvaluationTest, ReturnsVectorsInInputOrder) {
  v1::EmbedRequest request;
  for (int i = 0; i < 70; ++i) request.add_inputs()->set_text(absl::StrCat("text ", i % 35));
  grpc::ClientContext context;
  v1::EmbedResponse response;
  const grpc::Status status = generation_->Embed(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  ASSERT_EQ(response.embeddings_size(), 70);
  for (int i = 0; i < 35; ++i) {
    const std::string vector = response.embeddings(i).SerializeAsString();
    EXPECT_EQ(vector, response.embeddings(i + 35).SerializeAsString());
    if (i > 0) {
      EXPECT_NE(vector, response.embeddings(i - 1).SerializeAsString());
    }
  }
  EXPECT_EQ(response.usage().completion_tokens(), 0);
  EXPECT_EQ(UsedPagesWhenIdle(), 0);
}

}  // namespace
}  // namespace quire::server

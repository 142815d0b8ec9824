#include "hub/blob_download.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/temp_dir.h"

namespace quire::hub {
namespace {

using ::testing::HasSubstr;

HttpAnswer WithStatus(int status, const std::string& code = "") {
  HttpAnswer answer;
  answer.status = status;
  answer.error_code = code;
  return answer;
}

TEST(RetryDelayTest, DoublesAndFollowsTheServer) {
  EXPECT_EQ(RetryDelay(1, absl::ZeroDuration()), absl::Milliseconds(500));
  EXPECT_EQ(RetryDelay(2, absl::ZeroDuration()), absl::Seconds(1));
  EXPECT_EQ(RetryDelay(6, absl::ZeroDuration()), absl::Seconds(16));
  EXPECT_EQ(RetryDelay(60, absl::ZeroDuration()), absl::Seconds(16));
  EXPECT_EQ(RetryDelay(1, absl::Seconds(7)), absl::Seconds(7));
}

TEST(IsTemporaryTest, SeparatesFailures) {
  for (const int status : {408, 429, 500, 502, 503, 504}) {
    EXPECT_TRUE(IsTemporary(WithStatus(status))) << status;
  }
  for (const int status : {200, 206, 400, 401, 403, 404, 416}) {
    EXPECT_FALSE(IsTemporary(WithStatus(status))) << status;
  }
  EXPECT_TRUE(IsTemporary(absl::UnavailableError("")));
  EXPECT_TRUE(IsTemporary(absl::AbortedError("")));
  EXPECT_FALSE(IsTemporary(absl::CancelledError("")));
  EXPECT_FALSE(IsTemporary(absl::DataLossError("")));
}

TEST(AnswerErrorTest, HasARemedy) {
  HubSettings settings;
  settings.endpoint = "https://hub";
  const ModelName name{"org/name", "v1", ""};
  const std::pair<HttpAnswer, const char*> cases[] = {
      {WithStatus(403, "GatedRepo"), "accept its terms at https://hub/org/name and set HF_TOKEN"},
      {WithStatus(404, "RevisionNotFound"), "org/name has no revision v1"},
      {WithStatus(404, "EntryNotFound"), "lists a file that it does not have"},
      {WithStatus(401, "RepoNotFound"), "or it is private; check the name"},
      {WithStatus(404), "has no model org/name"},
      {WithStatus(401), "HTTP 401 for https://hub/org/name: set HF_TOKEN"},
      {WithStatus(400), "HTTP 400 for https://hub/org/name"}};
  for (const auto& [answer, text] : cases) {
    EXPECT_THAT(std::string(AnswerError(settings, name, answer).message()), HasSubstr(text));
  }
  settings.token = "hf_abc";
  EXPECT_THAT(std::string(AnswerError(settings, name, WithStatus(403)).message()),
              HasSubstr("the token of HF_TOKEN or of the token file has no access"));
}

TEST(CachedBytesTest, CountsCompleteAndIncompleteFiles) {
  const testing::TempDir dir;
  const ModelCache cache(dir.path());
  const RepositoryFile file{.name = "a", .size_bytes = 4, .hash = std::string(64, 'a')};
  EXPECT_EQ(CachedBytes(cache, "org/name", file), 0);
  const std::string blob = "models--org--name/blobs/" + file.hash;
  dir.Write(blob + ".incomplete", "12");
  EXPECT_EQ(CachedBytes(cache, "org/name", file), 2);
  dir.Write(blob + ".incomplete", "123456");
  EXPECT_EQ(CachedBytes(cache, "org/name", file), 0);
  dir.Write(blob, "1234");
  EXPECT_EQ(CachedBytes(cache, "org/name", file), 4);
}

}  // namespace
}  // namespace quire::hub

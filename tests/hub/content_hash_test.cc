#include "hub/content_hash.h"

#include <gtest/gtest.h>

namespace quire::hub {
namespace {

// From `printf hello | sha256sum` and `printf hello | git hash-object --stdin`.
constexpr absl::string_view kSha256 =
    "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
constexpr absl::string_view kGit = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
constexpr absl::string_view kEmptyGit = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";

TEST(ContentHashTest, MatchesTheHashesOfOtherPrograms) {
  for (const absl::string_view expected : {kSha256, kGit}) {
    ContentHash hash(expected, 5);
    hash.Add("hel");
    hash.Add("lo");
    EXPECT_EQ(hash.Finish(), expected);
  }
  EXPECT_EQ(ContentHash(kEmptyGit, 0).Finish(), kEmptyGit);
}

TEST(ContentHashTest, DiffersForOtherBytesAndSizes) {
  ContentHash other(kSha256, 5);
  other.Add("hellO");
  EXPECT_NE(other.Finish(), kSha256);
  ContentHash wrong_size(kGit, 6);
  wrong_size.Add("hello");
  EXPECT_NE(wrong_size.Finish(), kGit);
}

}  // namespace
}  // namespace quire::hub

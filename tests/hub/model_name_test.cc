#include "hub/cache/model_name.h"

#include <gtest/gtest.h>

namespace quire::hub {
namespace {

TEST(ModelNameTest, ParsesAllForms) {
  EXPECT_EQ(ParseModelName("org/name").value(), (ModelName{"org/name", "", ""}));
  EXPECT_EQ(ParseModelName("Org-1/a_b.C-2").value(), (ModelName{"Org-1/a_b.C-2", "", ""}));
  EXPECT_EQ(ParseModelName("org/name@v1.0").value(), (ModelName{"org/name", "v1.0", ""}));
  EXPECT_EQ(ParseModelName("org/name@refs/pr/1").value(), (ModelName{"org/name", "refs/pr/1", ""}));
  EXPECT_EQ(ParseModelName("org/name:m.gguf").value(), (ModelName{"org/name", "", "m.gguf"}));
  EXPECT_EQ(ParseModelName("org/name@main:Q4/m.GGUF").value(),
            (ModelName{"org/name", "main", "Q4/m.GGUF"}));
  for (const char* const text :
       {"org/name", "org/name@v1", "org/name:m.gguf", "a/b@c/d:e/f.gguf"}) {
    EXPECT_EQ(ParseModelName(text)->ToString(), text);
  }
}

TEST(ModelNameTest, RefusesEverythingElse) {
  for (const absl::string_view text : {absl::string_view(""),
                                       absl::string_view("name"),
                                       absl::string_view("/abs/olute"),
                                       absl::string_view("./name"),
                                       absl::string_view("../name"),
                                       absl::string_view("a/b/c"),
                                       absl::string_view("a/"),
                                       absl::string_view("/b"),
                                       absl::string_view("a--b/c"),
                                       absl::string_view("a/b..c"),
                                       absl::string_view("-a/b"),
                                       absl::string_view("a/b."),
                                       absl::string_view("a b/c"),
                                       absl::string_view("a/b@"),
                                       absl::string_view("a/b@../x"),
                                       absl::string_view("a/b@/x"),
                                       absl::string_view("a/b@-x"),
                                       absl::string_view("a/b@x y"),
                                       absl::string_view("a/b:"),
                                       absl::string_view("a/b:x.bin"),
                                       absl::string_view("a/b:../x.gguf"),
                                       absl::string_view("a/b:/x.gguf"),
                                       absl::string_view("a/b\0c", 5),
                                       absl::string_view("a/b?c"),
                                       absl::string_view("a/b#c")}) {
    const absl::Status status = ParseModelName(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_NE(status.message().find("ORG/NAME"), absl::string_view::npos) << status;
  }
  EXPECT_FALSE(ParseModelName(std::string(97, 'a') + "/b").ok());
}

TEST(ModelNameTest, GivesTheCommandThatDownloads) {
  EXPECT_EQ(PullCommand({"a/b", "", ""}), "quire pull a/b");
  EXPECT_EQ(PullCommand({"a/b", "v1", "x.gguf"}), "quire pull a/b@v1 --gguf x.gguf");
}

TEST(ModelNameTest, FileNamesStayInsideTheirDirectory) {
  for (const absl::string_view name :
       {"config.json", "1_Pooling/config.json", "a/b/c.gguf", "..a"}) {
    EXPECT_TRUE(CheckFileName(name).ok()) << name;
  }
  for (const absl::string_view name :
       {absl::string_view(""), absl::string_view("/etc/passwd"), absl::string_view("../x"),
        absl::string_view("a/../../x"), absl::string_view("a/./b"), absl::string_view("a//b"),
        absl::string_view("a/"), absl::string_view(".."), absl::string_view("a\\b"),
        absl::string_view("a\0b", 3), absl::string_view("a\nb")}) {
    EXPECT_TRUE(absl::IsInvalidArgument(CheckFileName(name))) << name;
  }
  EXPECT_FALSE(CheckFileName(std::string(256, 'a')).ok());
  EXPECT_TRUE(CheckFileName(std::string(255, 'a')).ok());
  std::string deep = "a";
  while (deep.size() <= 1024) deep += "/a";
  EXPECT_FALSE(CheckFileName(deep).ok());
}

TEST(ModelNameTest, KnowsTheFormOfHashes) {
  const std::string hash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
  EXPECT_TRUE(IsContentHash(hash) && IsContentHash(hash.substr(24)) && IsCommit(hash.substr(24)));
  EXPECT_FALSE(IsCommit(hash));
  for (const std::string& text : {std::string(), std::string("5f3-60a"), hash.substr(1),
                                  hash.substr(25), std::string(40, 'A'), std::string(64, 'g')}) {
    EXPECT_FALSE(IsContentHash(text) || IsCommit(text)) << text;
  }
}

TEST(ModelNameTest, GroupsShards) {
  EXPECT_EQ(ShardSet("m-00001-of-00003.gguf"), ShardSet("m-00003-of-00003.gguf"));
  EXPECT_NE(ShardSet("m-00001-of-00003.gguf"), ShardSet("m-00001-of-00004.gguf"));
  EXPECT_NE(ShardSet("m-00001-of-00003.gguf"), ShardSet("n-00001-of-00003.gguf"));
  EXPECT_NE(ShardSet("a/m-00001-of-00003.gguf"), ShardSet("b/m-00001-of-00003.gguf"));
  for (const char* const name :
       {"m.gguf", "m-0001-of-00003.gguf", "m-00001-of-00003.safetensors"}) {
    EXPECT_EQ(ShardSet(name), name);
  }
}

TEST(ModelNameTest, FormatsBytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes(std::int64_t{3} << 20), "3.0 MiB");
  EXPECT_EQ(FormatBytes(std::int64_t{5} << 29), "2.50 GiB");
}

}  // namespace
}  // namespace quire::hub

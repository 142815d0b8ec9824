#include "hub/cache/cache_dir.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/hub/environment.h"

namespace quire::hub {
namespace {

TEST(CacheDirTest, FollowsTheVariablesOfHuggingfaceHub) {
  const std::map<std::string, std::string> all = {{"HF_HUB_CACHE", "/hub-cache"},
                                                  {"HUGGINGFACE_HUB_CACHE", "/old-cache"},
                                                  {"HF_HOME", "/hf-home"},
                                                  {"XDG_CACHE_HOME", "/xdg"},
                                                  {"HOME", "/home/user"}};
  const std::pair<const char*, const char*> steps[] = {
      {"HF_HUB_CACHE", "/hub-cache"},
      {"HUGGINGFACE_HUB_CACHE", "/old-cache"},
      {"HF_HOME", "/hf-home/hub"},
      {"XDG_CACHE_HOME", "/xdg/huggingface/hub"},
      {"HOME", "/home/user/.cache/huggingface/hub"}};
  std::map<std::string, std::string> left = all;
  for (const auto& [variable, expected] : steps) {
    EXPECT_EQ(CacheDir(FakeEnvironment(left)).value(), expected);
    left.erase(variable);
  }
  const absl::Status none = CacheDir(FakeEnvironment(left)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(none));
  EXPECT_NE(none.message().find("set HF_HOME"), absl::string_view::npos);
}

TEST(CacheDirTest, ExpandsTildeAndRelativePaths) {
  EXPECT_EQ(CacheDir(FakeEnvironment({{"HF_HOME", "~/models"}, {"HOME", "/home/user"}})).value(),
            "/home/user/models/hub");
  EXPECT_EQ(CacheDir(FakeEnvironment({{"HF_HUB_CACHE", "models/../cache"}})).value(),
            (std::filesystem::current_path() / "cache").string());
}

}  // namespace
}  // namespace quire::hub

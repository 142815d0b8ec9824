#include "hub/hub_settings.h"

#include <gtest/gtest.h>

#include "tests/hub/environment.h"
#include "tests/testing/temp_dir.h"

namespace quire::hub {
namespace {

TEST(HubSettingsTest, HasDefaults) {
  const HubSettings settings = HubSettings::Read(FakeEnvironment({{"HOME", "/nowhere"}})).value();
  EXPECT_EQ(settings.endpoint, "https://huggingface.co");
  EXPECT_EQ(settings.cache_dir, "/nowhere/.cache/huggingface/hub");
  EXPECT_EQ(settings.token, "");
  EXPECT_FALSE(settings.is_offline);
  EXPECT_EQ(settings.stall_timeout, absl::Seconds(10));
  EXPECT_EQ(settings.ca_file, "");
}

TEST(HubSettingsTest, ReadsEveryVariable) {
  const HubSettings settings =
      HubSettings::Read(FakeEnvironment({{"HF_ENDPOINT", "http://127.0.0.1:8080//"},
                                         {"HF_HUB_CACHE", "/cache"},
                                         {"HF_TOKEN", " hf_abc\n"},
                                         {"HF_HUB_OFFLINE", "True"},
                                         {"HF_HUB_DOWNLOAD_TIMEOUT", "3"},
                                         {"SSL_CERT_FILE", "/ca.pem"}}))
          .value();
  EXPECT_EQ(settings.endpoint, "http://127.0.0.1:8080");
  EXPECT_EQ(settings.cache_dir, "/cache");
  EXPECT_EQ(settings.token, "hf_abc");
  EXPECT_TRUE(settings.is_offline);
  EXPECT_EQ(settings.stall_timeout, absl::Seconds(3));
  EXPECT_EQ(settings.ca_file, "/ca.pem");
}

TEST(HubSettingsTest, ReadsTheTokenFile) {
  const testing::TempDir dir;
  dir.Write("token", "hf_file\n");
  const std::string other = dir.Write("other", "hf_other\n");
  EXPECT_EQ(HubSettings::Read(FakeEnvironment({{"HF_HOME", dir.path()}}))->token, "hf_file");
  EXPECT_EQ(HubSettings::Read(FakeEnvironment({{"HF_HOME", dir.path()}, {"HF_TOKEN_PATH", other}}))
                ->token,
            "hf_other");
  EXPECT_EQ(
      HubSettings::Read(FakeEnvironment({{"HF_HOME", dir.path()}, {"HF_TOKEN", "hf_env"}}))->token,
      "hf_env");
}

TEST(HubSettingsTest, NamesTheWrongVariable) {
  const std::pair<const char*, const char*> wrong[] = {
      {"HF_ENDPOINT", "huggingface.co"},   {"HF_ENDPOINT", "https://a b"},
      {"HF_ENDPOINT", "https://user@hub"}, {"HF_ENDPOINT", "ftp://user:secret@hub"},
      {"HF_TOKEN", "two words"},           {"HF_TOKEN", "a\r\nX-Header: b"},
      {"HF_HUB_DOWNLOAD_TIMEOUT", "soon"}, {"HF_HUB_DOWNLOAD_TIMEOUT", "0"}};
  for (const auto& [name, value] : wrong) {
    const absl::Status status =
        HubSettings::Read(FakeEnvironment({{"HF_HOME", "/nowhere"}, {name, value}})).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << name;
    EXPECT_EQ(status.message().find(name), 0U) << status;
    EXPECT_EQ(status.message().find("secret"), absl::string_view::npos) << status;
  }
}

TEST(HubSettingsTest, FindsATokenThatIsSentUnencrypted) {
  const auto sends = [](const char* endpoint, const char* token) {
    return HubSettings::Read(
               FakeEnvironment(
                   {{"HF_HOME", "/nowhere"}, {"HF_ENDPOINT", endpoint}, {"HF_TOKEN", token}}))
        ->sends_unencrypted_token();
  };
  for (const char* endpoint : {"http://hub", "http://10.0.0.1:80", "http://127.example:80/a",
                               "http://hub/127.0.0.1", "http://[::2]:80"}) {
    EXPECT_TRUE(sends(endpoint, "hf_abc")) << endpoint;
    EXPECT_FALSE(sends(endpoint, "")) << endpoint;
  }
  for (const char* endpoint : {"https://hub", "http://localhost:80", "http://127.0.0.2/path",
                               "http://[::1]:80", "https://hub/a@b"}) {
    EXPECT_FALSE(sends(endpoint, "hf_abc")) << endpoint;
  }
}

}  // namespace
}  // namespace quire::hub

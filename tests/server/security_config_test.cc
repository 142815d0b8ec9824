// Tests of the keys of tls, auth and tenants: required combinations, and the resulting options.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/config/layered_config.h"
#include "server/config/options.h"
#include "server/config/warnings.h"
#include "tests/testing/temp_dir.h"

namespace quire::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class SecurityConfigTest : public ::testing::Test {
 protected:
  std::unique_ptr<LayeredConfig> Load(std::vector<std::string> sets) {
    errors_.clear();
    return LayeredConfig::Load({.sets = std::move(sets)}, &errors_);
  }

  // Returns the only error of these settings.
  std::string Error(std::vector<std::string> sets) {
    EXPECT_EQ(Load(std::move(sets)), nullptr);
    EXPECT_EQ(errors_.size(), 1);
    return errors_.empty() ? "" : errors_[0];
  }

  testing::TempDir dir_;
  std::vector<std::string> errors_;
  // The validator checks only that files can be read; the daemon reads their content.
  const std::string cert_ = "tls.cert_file=" + dir_.Write("cert", "c");
  const std::string key_ = "tls.key_file=" + dir_.Write("key", "k");
  const std::string ca_ = "tls.client_ca_file=" + dir_.Write("ca", "a");
  const std::string tokens_ = "auth.tokens_file=" + dir_.Write("tokens", "t");
};

TEST_F(SecurityConfigTest, RejectsIncompleteCombinations) {
  EXPECT_EQ(Error({cert_}), "--set: tls.cert_file: tls.key_file is missing; set both or neither");
  EXPECT_EQ(Error({key_}), "--set: tls.key_file: tls.cert_file is missing; set both or neither");
  EXPECT_EQ(Error({ca_}), "--set: tls.client_ca_file: needs tls.cert_file");
  EXPECT_THAT(Error({cert_, key_, "tls.require_client_cert=true"}),
              HasSubstr("tls.require_client_cert: needs tls.client_ca_file"));
  EXPECT_EQ(Error({"auth.mode=token"}), "--set: auth.mode: token needs auth.tokens_file");
  EXPECT_THAT(Error({"auth.mode=mtls"}), HasSubstr("mtls needs tls.cert_file"));
  EXPECT_THAT(Error({"auth.mode=mtls", cert_, key_, ca_}), HasSubstr("tls.require_client_cert"));
  EXPECT_THAT(Error({"auth.mode=basic"}), HasSubstr("none, token, mtls"));
  EXPECT_THAT(Error({"auth.anonymous_scopes=[generate, root]"}),
              HasSubstr("is not one of generate, admin, metrics"));
  EXPECT_NE(Load({"auth.mode=mtls", cert_, key_, ca_, "tls.require_client_cert=true"}), nullptr);
  EXPECT_NE(Load({"auth.mode=token", tokens_}), nullptr);
}

TEST_F(SecurityConfigTest, RejectsUnreadableFiles) {
  EXPECT_THAT(Error({"tls.cert_file=/no/cert", key_}),
              HasSubstr("tls.cert_file: \"/no/cert\" cannot be read: No such file"));
  // Messages do not contain the paths of secrets.
  const std::string error = Error({cert_, "tls.key_file=/no/key"});
  EXPECT_THAT(error, HasSubstr("tls.key_file: the file cannot be read: No such file"));
  EXPECT_THAT(error, Not(HasSubstr("/no/key")));
}

TEST_F(SecurityConfigTest, RemoteAdminAddressNeedsTlsAndAuthentication) {
  const std::string remote = "server.admin.listen=[0.0.0.0:50052]";
  EXPECT_THAT(Error({remote}), HasSubstr("it needs tls.cert_file, and auth.mode token or mtls"));
  EXPECT_THAT(Error({remote, cert_, key_}), HasSubstr("it needs tls.cert_file"));
  EXPECT_THAT(Error({remote, "auth.mode=token", tokens_}), HasSubstr("it needs tls.cert_file"));
  EXPECT_NE(Load({remote, cert_, key_, "auth.mode=token", tokens_}), nullptr);
  EXPECT_NE(Load({remote, cert_, key_, ca_, "tls.require_client_cert=true", "auth.mode=mtls"}),
            nullptr);
  EXPECT_NE(Load({"server.admin.listen=[127.0.0.1:50052]"}), nullptr);
}

TEST_F(SecurityConfigTest, SecretsArePrintedAsRedacted) {
  const auto config = Load({cert_, key_, tokens_});
  ASSERT_NE(config, nullptr) << errors_[0];
  for (const Spelling spelling : {Spelling::kYaml, Spelling::kJson}) {
    const std::string text = config->Print(spelling);
    EXPECT_THAT(text, HasSubstr("\"<redacted>\""));
    EXPECT_THAT(text, Not(HasSubstr("/key")));
    EXPECT_THAT(text, Not(HasSubstr("/tokens")));
    EXPECT_THAT(text, HasSubstr("/cert"));
  }
}

TEST_F(SecurityConfigTest, ValuesReachTheOptions) {
  const auto config =
      Load({cert_, key_, ca_, "tls.refresh_interval=5s", "auth.mode=token", tokens_,
            "auth.anonymous_scopes=[metrics, generate]", "auth.trust_tenant_metadata=true",
            "tenants.defaults.max_running_requests=7",
            "tenants.entries=[{id: a, max_queued_requests: 3, most_urgent_priority: -5},"
            " {id: b, max_queued_tokens: 4096}]"});
  ASSERT_NE(config, nullptr) << errors_[0];
  const DaemonOptions options = ToOptions(*config);
  EXPECT_TRUE(options.tls.enabled());
  EXPECT_EQ(options.tls.refresh_interval, absl::Seconds(5));
  EXPECT_EQ(options.auth.mode, AuthMode::kToken);
  EXPECT_TRUE(options.auth.anonymous_scopes.Has(Scope::kMetrics));
  EXPECT_TRUE(options.auth.anonymous_scopes.Has(Scope::kGenerate));
  EXPECT_FALSE(options.auth.anonymous_scopes.Has(Scope::kAdmin));
  EXPECT_TRUE(options.auth.trust_tenant_metadata);
  const engine::TenantOptions& tenants = options.engine.tenants;
  EXPECT_EQ(tenants.LimitsOf("unlisted").max_running_requests, 7);
  EXPECT_EQ(tenants.LimitsOf("a").max_queued_requests, 3);
  EXPECT_EQ(tenants.LimitsOf("a").max_running_requests, std::nullopt);
  EXPECT_EQ(tenants.LimitsOf("b").max_queued_tokens, 4096);
  EXPECT_EQ(tenants.LimitsOf("a").most_urgent_priority, -5);
  EXPECT_EQ(tenants.LimitsOf("b").most_urgent_priority, std::nullopt);
}

TEST_F(SecurityConfigTest, AnyPromptCanWaitForTokenization) {
  EXPECT_EQ(Error({"limits.max_queued_bytes=8MiB"}),
            "--set: limits.max_queued_bytes (8388608) is smaller than tokenizer.max_input_bytes "
            "(16777216, the default)");
}

TEST_F(SecurityConfigTest, ListsOfTenantsAreCheckedKeyByKey) {
  EXPECT_EQ(Error({"tenants.entries=[{id: a}, {id: a}]"}),
            "--set: tenants.entries: \"a\" is listed twice");
  EXPECT_EQ(Error({"tenants.entries=[{max_queued_requests: 3}]"}),
            "--set tenants.entries: tenants.entries[0]: has no id");
  EXPECT_EQ(Error({"tenants.entries=[{id: a, max_queued_requests: 0}]"}),
            "--set tenants.entries: tenants.entries[0].max_queued_requests: 0 is out of range; it "
            "must be 1 to 1000000");
  EXPECT_EQ(
      Error({"tenants.entries=[{id: a, max_queued_request: 1}]"}),
      "--set tenants.entries: unknown field \"max_queued_request\" in tenants.entries[0]; did "
      "you mean \"max_queued_requests\"?");
  EXPECT_EQ(
      Error({"tenants.entries=[a]"}),
      "--set tenants.entries: tenants.entries[0]: is not a group of keys; write {key: value}");
  EXPECT_THAT(Error({"tenants.entries={id: a}"}), HasSubstr("is a list"));
  EXPECT_THAT(Error({"tenants.defaults.id=a"}), HasSubstr("unknown field \"id\""));
}

TEST_F(SecurityConfigTest, ReadsTenantsInBlockStyleAndLocatesErrors) {
  const std::string good = dir_.Write("good.yaml",
                                      "tenants:\n"
                                      "  entries:\n"
                                      "    - id: a\n"
                                      "      max_running_requests: 2\n"
                                      "    - id: b\n");
  std::vector<std::string> errors;
  const auto config = LayeredConfig::Load({.files = {good}}, &errors);
  ASSERT_NE(config, nullptr) << errors[0];
  EXPECT_EQ(ToOptions(*config).engine.tenants.LimitsOf("a").max_running_requests, 2);

  // The printed configuration is valid input with the same values.
  const std::string again = dir_.Write("again.yaml", config->Print(Spelling::kYaml));
  const auto second = LayeredConfig::Load({.files = {again}}, &errors);
  ASSERT_NE(second, nullptr) << errors[0];
  EXPECT_EQ(second->Sha256(), config->Sha256());

  const std::string bad = dir_.Write("bad.yaml",
                                     "tenants:\n"
                                     "  entries:\n"
                                     "    - id: a\n"
                                     "      max_running_requests: none\n"
                                     "    - max_running_requests: x\n");
  EXPECT_EQ(LayeredConfig::Load({.files = {bad}}, &errors), nullptr);
  EXPECT_THAT(errors,
              ElementsAre(bad + ":5:29: tenants.entries[1].max_running_requests: \"x\" is not an "
                                "integer",
                          bad + ":5:7: tenants.entries[1]: has no id"));
}

TEST_F(SecurityConfigTest, FindsTenantsThatCanFillTheWholeQueue) {
  const auto names = [&](std::vector<std::string> sets) {
    const auto config = Load(std::move(sets));
    EXPECT_NE(config, nullptr) << (errors_.empty() ? "" : errors_[0]);
    return FindTenantsWithoutQueueLimit(ToOptions(*config).engine.tenants);
  };
  EXPECT_THAT(names({}), IsEmpty());
  EXPECT_THAT(names({"tenants.defaults.max_queued_requests=3",
                     "tenants.entries=[{id: a, max_running_requests: 2, max_queued_requests: 3},"
                     " {id: b, max_running_requests: 2, max_queued_tokens: 3}]"}),
              IsEmpty());
  EXPECT_THAT(names({"tenants.defaults.max_running_requests=1",
                     "tenants.entries=[{id: b, max_running_requests: 2},"
                     " {id: a, max_running_requests: 1},"
                     " {id: c, max_running_requests: 1, max_queued_requests: 9}]"}),
              ElementsAre("tenants.defaults", "a", "b"));
}

}  // namespace
}  // namespace quire::server

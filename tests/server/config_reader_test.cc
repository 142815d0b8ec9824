#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "quire/config/v1/config.pb.h"
#include "server/config/yaml_reader.h"

namespace quire::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

// The defaults with `yaml` applied on top.
struct Loaded {
  explicit Loaded(absl::string_view yaml) {
    ApplyDefaults(&config, &origins, &errors);
    EXPECT_THAT(errors, IsEmpty());
    ReadYaml(yaml, "prod.yaml", &config, &origins, &errors);
  }
  config::v1::Config config;
  Origins origins;
  std::vector<std::string> errors;
};

struct Case {
  const char* yaml;
  const char* error;
};

class ConfigReaderErrorTest : public ::testing::TestWithParam<Case> {};

TEST_P(ConfigReaderErrorTest, NamesPositionValueAndRule) {
  EXPECT_THAT(Loaded(GetParam().yaml).errors, ElementsAre(GetParam().error)) << GetParam().yaml;
}

INSTANTIATE_TEST_SUITE_P(
    Texts, ConfigReaderErrorTest,
    ::testing::Values(
        Case{"scheduler:\n  max_runing_sequences: 4\n",
             "prod.yaml:2:3: unknown field \"max_runing_sequences\" in scheduler; did you mean "
             "\"max_running_sequences\"?"},
        Case{"limits:\n  page_size: 16\n",
             "prod.yaml:2:3: unknown field \"page_size\" in limits; did you mean "
             "\"kv_cache.page_size\"?"},
        Case{"nothing_like_it: 1\n",
             "prod.yaml:1:1: unknown field \"nothing_like_it\"; docs/reference/config.md lists the "
             "fields"},
        Case{"kv_cache:\n  page_size: 48\n",
             "prod.yaml:2:14: kv_cache.page_size: 48 is not one of 16, 32, 64, 128"},
        Case{"shutdown:\n  drain_timeout: 45\n",
             "prod.yaml:2:18: shutdown.drain_timeout: \"45\" has no unit; write 45s, 45m or 45h"},
        Case{"kv_cache:\n  capacity_bytes: 2G\n",
             "prod.yaml:2:19: kv_cache.capacity_bytes: \"2G\" is ambiguous; write 2GiB or a number "
             "of bytes"},
        Case{"kv_cache:\n  capacity_bytes: 2mb\n",
             "prod.yaml:2:19: kv_cache.capacity_bytes: \"2mb\" is ambiguous; write 2MiB or a number"
             " of bytes"},
        Case{"metrics:\n  enabled: yes\n",
             "prod.yaml:2:12: metrics.enabled: \"yes\" is not a boolean; write true or false"},
        Case{
            "metrics:\n  enabled: \"true\"\n",
            "prod.yaml:2:12: metrics.enabled: \"true\" is quoted text, not a boolean; write true or"
            " false"},
        Case{"limits:\n  max_choices: '4'\n",
             "prod.yaml:2:16: limits.max_choices: \"4\" is quoted text, not a number"},
        Case{"limits:\n  max_choices: 4k\n",
             "prod.yaml:2:16: limits.max_choices: \"4k\" is not an integer"},
        Case{"limits:\n  max_choices: 1.5\n",
             "prod.yaml:2:16: limits.max_choices: \"1.5\" is not an integer"},
        Case{"limits:\n  max_choices: 99999999999999999999\n",
             "prod.yaml:2:16: limits.max_choices: \"99999999999999999999\" does not fit into 64 "
             "bits"},
        Case{"limits:\n  max_choices: 0\n",
             "prod.yaml:2:16: limits.max_choices: 0 is out of range; it must be 1 to 128"},
        Case{"sampling_defaults:\n  top_p: 0\n",
             "prod.yaml:2:10: sampling_defaults.top_p: 0 is out of range; it must be above 0, at "
             "most 1"},
        Case{"sampling_defaults:\n  top_p: .nan\n",
             "prod.yaml:2:10: sampling_defaults.top_p: \".nan\" is not a number"},
        Case{"stream:\n  slow_client_timeout: 2h\n",
             "prod.yaml:2:24: stream.slow_client_timeout: 2h is out of range; it must be 1s to 1h"},
        Case{"kv_cache:\n  dtype: fp4\n",
             "prod.yaml:2:10: kv_cache.dtype: \"fp4\" is not one of f32, bf16, f16, fp8_e4m3, "
             "int8"},
        Case{"model:\n  path:\n",
             "prod.yaml:2:3: model.path: has no value; write a value or remove the line"},
        Case{"model:\n  path: [a, b]\n",
             "prod.yaml:2:3: model.path: is one value, not a list or a section; write a text with "
             "brackets in quotes, as in \"[::1]:9464\""},
        Case{"model: story\n", "prod.yaml:1:8: model: is a section; write keys below it"},
        Case{"model:\n  aliases: one\n", "prod.yaml:2:3: model.aliases: is a list; write [a, b]"},
        Case{"limits:\n  max_choices: 2\nlimits:\n  max_choices: 3\n",
             "prod.yaml:3:1: duplicate key \"limits\" (first at line 1); remove one of them"},
        Case{"schema_version: 1\n---\nschema_version: 1\n",
             "prod.yaml:3:1: second YAML document; a configuration file has exactly one"},
        Case{", limits: {max_choices: 2}\n",
             "prod.yaml:1:1: this text is after the end of the YAML document"},
        Case{"{schema_version: 1}, {schema_version: 1}\n",
             "prod.yaml:1:20: this text is after the end of the YAML document"},
        Case{"- a\n- b\n", "prod.yaml:1:1: the file is not a map of sections"},
        Case{"<<: {a: 1}\n",
             "prod.yaml:1:1: unknown field \"<<\"; docs/reference/config.md lists the fields"},
        Case{"model:\n  id: \"a\xff\"\n", "prod.yaml:2:9: invalid UTF-8"},
        Case{"schema_version: 2\n",
             "prod.yaml:1:17: schema_version: 2 is out of range; it must be 1 to 1"}));

TEST(ConfigReaderTest, ReportsEveryErrorOfAFile) {
  const Loaded loaded("limits:\n  max_choices: x\n  max_logprob: 1\nkv_cache:\n  page_size: 7\n");
  EXPECT_EQ(loaded.errors.size(), 3u);
}

TEST(ConfigReaderTest, RejectedValueLeavesItsFieldUnchanged) {
  const Loaded loaded("limits:\n  max_choices: 1000\n");
  EXPECT_EQ(loaded.config.limits().max_choices(), 16);
  EXPECT_EQ(loaded.origins.at("limits.max_choices").ToString(), "default");
}

TEST(ConfigReaderTest, BrokenYamlNamesThePosition) {
  const Loaded loaded("limits: {max_choices: 2\n");
  ASSERT_EQ(loaded.errors.size(), 1u);
  EXPECT_THAT(loaded.errors[0], HasSubstr("prod.yaml:2:1: "));
}

TEST(ConfigReaderTest, RejectsDeepNesting) {
  const Loaded loaded(std::string(100000, '['));
  EXPECT_EQ(loaded.errors.size(), 1u);
}

TEST(ConfigReaderTest, RejectsFilesOverOneMebibyte) {
  const Loaded loaded("# " + std::string(1 << 20, 'x') + "\n");
  ASSERT_EQ(loaded.errors.size(), 1u);
  EXPECT_THAT(loaded.errors[0], HasSubstr("at most 1048576 are read"));
}

TEST(ConfigReaderTest, EmptyFilesSetNothing) {
  for (const char* yaml : {"", "# only a comment\n", "---\n"}) {
    EXPECT_THAT(Loaded(yaml).errors, IsEmpty()) << yaml;
  }
}

TEST(ConfigReaderTest, ReadsEverySpelling) {
  const Loaded loaded(
      "server:\n  grpc:\n    listen:\n      - 0.0.0.0:1\n      - unix:/tmp/a.sock\n"
      "    max_send_message_bytes: 1MiB\n    keepalive: {time: 90s, timeout: 1500ms}\n"
      "    max_connection_age: none\n"
      "limits:\n  max_queued_tokens: 1000000\n  max_request_duration: 2h\n"
      "kv_cache:\n  dtype: f32\n  capacity_bytes: auto\n"
      "sampling_defaults:\n  temperature: 7.5e-1\n"
      "model:\n  id: \"1\"\n  aliases: [a, \"b c\"]\n");
  ASSERT_THAT(loaded.errors, IsEmpty());
  const auto& grpc = loaded.config.server().grpc();
  EXPECT_THAT(grpc.listen(), ElementsAre("0.0.0.0:1", "unix:/tmp/a.sock"));
  EXPECT_EQ(grpc.max_send_message_bytes(), 1 << 20);
  EXPECT_EQ(grpc.keepalive().timeout().seconds(), 1);
  EXPECT_EQ(grpc.keepalive().timeout().nanos(), 500000000);
  EXPECT_FALSE(grpc.has_max_connection_age());
  EXPECT_EQ(loaded.config.limits().max_queued_tokens(), 1000000);
  EXPECT_EQ(loaded.config.limits().max_request_duration().seconds(), 7200);
  EXPECT_EQ(loaded.config.kv_cache().dtype(), config::v1::KV_DATA_TYPE_F32);
  EXPECT_FALSE(loaded.config.kv_cache().has_capacity_bytes());
  EXPECT_FLOAT_EQ(loaded.config.sampling_defaults().temperature(), 0.75f);
  EXPECT_EQ(loaded.config.model().id(), "1");
  EXPECT_THAT(loaded.config.model().aliases(), ElementsAre("a", "b c"));
  EXPECT_EQ(loaded.origins.at("limits.max_queued_tokens").ToString(), "prod.yaml:10:22");
}

TEST(ConfigReaderTest, ErrorsOfOverridesNameTheirLayer) {
  Loaded loaded("");
  const Origin env{.layer = "env QUIRE__SCHEDULER__MAX_STEP_TOKENS"};
  const Origin set{.layer = "--set"};
  ReadOverride("scheduler.max_step_tokens", "64k", env, &loaded.config, &loaded.origins,
               &loaded.errors);
  ReadOverride("limits.max_choices", "0", set, &loaded.config, &loaded.origins, &loaded.errors);
  ReadOverride("limits", "0", set, &loaded.config, &loaded.origins, &loaded.errors);
  ReadOverride("limits.max_choices.deep", "0", set, &loaded.config, &loaded.origins,
               &loaded.errors);
  ReadOverride("server.http.listen", "", set, &loaded.config, &loaded.origins, &loaded.errors);
  ReadOverride("limit.max_choices", "0", set, &loaded.config, &loaded.origins, &loaded.errors);
  EXPECT_THAT(loaded.errors,
              ElementsAre("env QUIRE__SCHEDULER__MAX_STEP_TOKENS: \"64k\" is not an integer",
                          "--set limits.max_choices: 0 is out of range; it must be 1 to 128",
                          "--set limits: limits is a section; name one of its keys",
                          "--set limits.max_choices.deep: limits.max_choices.deep names a "
                          "key inside a single value",
                          "--set server.http.listen: has no value; write \"\" for an empty text",
                          "--set limit.max_choices: unknown field \"limit\"; did you mean "
                          "\"limits\"?"));
}

TEST(ConfigReaderTest, ListOverrideAcceptsAScalarOrAFlowList) {
  Loaded loaded("");
  const Origin set{.layer = "--set"};
  ReadOverride("server.grpc.listen", "127.0.0.1:0", set, &loaded.config, &loaded.origins,
               &loaded.errors);
  EXPECT_THAT(loaded.config.server().grpc().listen(), ElementsAre("127.0.0.1:0"));
  ReadOverride("server.grpc.listen", "[127.0.0.1:1, unix:/tmp/x]", set, &loaded.config,
               &loaded.origins, &loaded.errors);
  EXPECT_THAT(loaded.config.server().grpc().listen(), ElementsAre("127.0.0.1:1", "unix:/tmp/x"));
  EXPECT_EQ(loaded.origins.at("server.grpc.listen").ToString(), "--set");
  EXPECT_THAT(loaded.errors, IsEmpty());
}

// `[` starts a flow sequence and `*` an alias (YAML 1.2.2, sections 7.4.1 and 7.1). An IPv6 address
// is written in brackets (RFC 3986, section 3.2.2).
TEST(ConfigReaderTest, ErrorOfAnUnquotedOverrideShowsTheQuotes) {
  struct Override {
    const char* path;
    const char* value;
    const char* hint;
  };
  const Override cases[] = {
      {"server.grpc.listen", "[::1]:50051", R"(--set 'server.grpc.listen=["[::1]:50051"]')"},
      {"server.grpc.listen", "[::]:50051", R"(--set 'server.grpc.listen=["[::]:50051"]')"},
      {"server.grpc.listen", "[[::1]:50051]", R"(--set 'server.grpc.listen=["[::1]:50051"]')"},
      {"server.grpc.listen", "[127.0.0.1:1, [2001:db8::7]:2]",
       R"(--set 'server.grpc.listen=["127.0.0.1:1", "[2001:db8::7]:2"]')"},
      {"server.grpc.listen", "[::1]:1,[fe80::1%eth0]:2",
       R"(--set 'server.grpc.listen=["[::1]:1", "[fe80::1%eth0]:2"]')"},
      {"server.grpc.listen", "\"[::1]:1\",\"[::1]:2\"",
       R"(--set 'server.grpc.listen=["[::1]:1", "[::1]:2"]')"},
      {"server.grpc.listen", "[\"[::1]:50051]", R"(--set 'server.grpc.listen=["[::1]:50051"]')"},
      {"server.admin.listen", "[::1]:7", R"(--set 'server.admin.listen=["[::1]:7"]')"},
      {"server.http.listen", "[::1]:9464", R"(--set 'server.http.listen="[::1]:9464"')"},
      {"server.http.listen", "[\"[::1]:9464\"]", R"(--set 'server.http.listen="[::1]:9464"')"},
      {"openai.listen", "[::]:8000", R"(--set 'openai.listen="[::]:8000"')"},
      {"openai.listen", "*:8000", R"(--set 'openai.listen="*:8000"')"},
      {"model.path", "[it's]/x", R"(--set 'model.path="[it'\''s]/x"')"},
  };
  for (const Override& one : cases) {
    Loaded loaded("");
    ReadOverride(one.path, one.value, {.layer = "--set"}, &loaded.config, &loaded.origins,
                 &loaded.errors);
    EXPECT_THAT(loaded.errors, ElementsAre(AllOf(StartsWith(absl::StrCat("--set ", one.path, ": ")),
                                                 EndsWith(one.hint))))
        << one.value;
  }
  Loaded loaded("");
  ReadOverride("openai.listen", "[::1]:1", {.layer = "env QUIRE__OPENAI__LISTEN"}, &loaded.config,
               &loaded.origins, &loaded.errors);
  EXPECT_THAT(loaded.errors, ElementsAre(EndsWith(R"(: QUIRE__OPENAI__LISTEN='"[::1]:1"')")));
}

TEST(ConfigReaderTest, SpellingInAHintIsAccepted) {
  Loaded loaded("");
  const Origin set{.layer = "--set"};
  ReadOverride("server.grpc.listen", R"(["[::1]:50051", "[::]:0"])", set, &loaded.config,
               &loaded.origins, &loaded.errors);
  ReadOverride("openai.listen", R"("[2001:db8::7]:8000")", set, &loaded.config, &loaded.origins,
               &loaded.errors);
  ReadOverride("server.http.listen", R"("*:9464" # all)", set, &loaded.config, &loaded.origins,
               &loaded.errors);
  EXPECT_THAT(loaded.errors, IsEmpty());
  EXPECT_THAT(loaded.config.server().grpc().listen(), ElementsAre("[::1]:50051", "[::]:0"));
  EXPECT_EQ(loaded.config.openai().listen(), "[2001:db8::7]:8000");
  EXPECT_EQ(loaded.config.server().http().listen(), "*:9464");
}

TEST(ConfigReaderTest, RejectsTextAfterTheValueOfAnOverride) {
  for (const auto& [path, value] :
       {std::pair("limits.max_choices", "\"4\" 5"), std::pair("limits.max_choices", "[4] 5"),
        std::pair("model.id", "\"a\" b"), std::pair("tls.key_file", "\"a\" secret")}) {
    Loaded loaded("");
    ReadOverride(path, value, {.layer = "--set"}, &loaded.config, &loaded.origins, &loaded.errors);
    EXPECT_THAT(loaded.errors, ElementsAre(HasSubstr("more than one YAML value"))) << value;
    EXPECT_THAT(loaded.errors, ElementsAre(Not(HasSubstr("secret"))));
  }
}

TEST(ConfigReaderTest, ExplainsABracketInAFile) {
  const Loaded list("server: {grpc: {listen: [[::1]:50051]}}\n");
  EXPECT_THAT(list.errors, ElementsAre(HasSubstr(R"(in quotes, as in ["[::1]:50051"])")));
  const Loaded text("openai: {listen: [::1]}\n");
  EXPECT_THAT(text.errors, ElementsAre(HasSubstr(R"(in quotes, as in "[::1]:9464")")));
}

}  // namespace
}  // namespace quire::server

#include "server/config/live_config.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "quire/config/v1/config.pb.h"
#include "quire/config/v1/options.pb.h"
#include "server/config/scalar_value.h"
#include "server/config/yaml_reader.h"

namespace quire::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Keys that have only one valid value in this version.
const std::set<std::string> kOneValue = {"schema_version", "device.tensor_parallel"};

const FieldDescriptor* FieldOf(const std::string& path) {
  const Descriptor* section = config::v1::Config::descriptor();
  const FieldDescriptor* field = nullptr;
  for (const absl::string_view name : absl::StrSplit(path, '.')) {
    if (field != nullptr) section = field->message_type();
    field = section->FindFieldByName(std::string(name));
  }
  return field;
}

// Converts {"a.b", "1"} to "a: {b: 1}".
std::string Yaml(const std::string& path, const std::string& value) {
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  std::string text = value;
  for (std::size_t i = names.size(); i-- > 1;) text = absl::StrCat("{", names[i], ": ", text, "}");
  return absl::StrCat(names[0], ": ", text, "\n");
}

class LiveConfigTest : public ::testing::Test {
 protected:
  LiveConfigTest() : dir_(::testing::TempDir() + "/live_config") {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }

  std::string Path(const std::string& name) const { return dir_ + "/" + name; }
  std::string Write(const std::string& name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::trunc) << text;
    return Path(name);
  }

  std::unique_ptr<LiveConfig> Start(ConfigSources sources) {
    std::vector<std::string> errors;
    std::unique_ptr<LayeredConfig> config = LayeredConfig::Load(sources, &errors);
    EXPECT_THAT(errors, IsEmpty());
    return std::make_unique<LiveConfig>(std::move(sources), std::move(config), &registry_);
  }

  double Reloads(const std::string& result) {
    return registry_
        .AddCounter("quire_config_reloads_total", "Configuration reloads by result.",
                    {{"result", result}})
        .value();
  }

  // Returns a valid value other than the default, or "" if the test needs an entry for the key.
  std::string OtherValue(const std::string& path);

  const std::string dir_;
  probe::Registry registry_;
};

// Values that do not follow from the rule of a single field: existing files, and limits between
// keys.
std::map<std::string, std::string> OtherValues(const std::string& dir) {
  std::map<std::string, std::string> values = {
      {"profile", dir + "/profile.yaml"},
      {"server.grpc.listen", "[127.0.0.1:1234]"},
      {"server.admin.listen", "[]"},
      {"server.admin.socket_mode", "\"0600\""},
      {"server.http.listen", "127.0.0.1:1235"},
      {"limits.max_tokens_per_request", "2048"},
      {"limits.max_queued_bytes", "32MiB"},
      {"model.path", dir},
      {"model.id", "other"},
      {"model.dtype", "f32"},
      {"model.aliases", "[one, two]"},
      {"model.packed_dir", dir},
      {"device.ids", "[1]"},
      {"openai.listen", "127.0.0.1:1236"},
      {"tracing.otlp_endpoint", "127.0.0.1:4317"},
      {"openai.allowed_origins", "[\"https://a.example\"]"},
      {"tls.cert_file", dir + "/other"},
      {"tls.key_file", dir + "/other"},
      {"tls.client_ca_file", dir + "/other"},
      {"auth.tokens_file", dir + "/other"},
      {"chat.template_file", dir + "/other"},
      {"chat.default_template_name", "tool_use"},
      {"chat.default_vars", "'{\"a\": 1}'"},
      {"chat.tool_format", "hermes"},
      {"auth.anonymous_scopes", "[generate]"},
      {"tenants.entries", "[{id: a}]"},
      {"structured.preload", "[{regex: a}]"},
      {"scheduler.max_step_tokens", "4096"},
      {"scheduler.prefill_chunk_tokens", "1024"},
      {"logging.file", dir + "/log"},
  };
  std::ofstream(dir + "/profile.yaml") << "{}\n";
  std::ofstream(dir + "/other") << "\n";
  return values;
}

std::string OtherNumber(const config::v1::FieldRule& rule, const std::string& present) {
  for (const std::int64_t allowed : rule.allowed()) {
    if (absl::StrCat(allowed) != present) return absl::StrCat(allowed);
  }
  const double least = rule.exclusive_min() ? (rule.min() + rule.max()) / 2 : rule.min();
  const std::string low = absl::StrFormat("%.17g", least);
  return low != present ? low : absl::StrFormat("%.17g", rule.max());
}

std::string LiveConfigTest::OtherValue(const std::string& path) {
  const std::map<std::string, std::string> values = OtherValues(dir_);
  if (const auto told = values.find(path); told != values.end()) return told->second;
  const FieldDescriptor* field = FieldOf(path);
  const config::v1::FieldRule& rule = RuleOf(field);
  if (field->is_repeated()) return "";
  const std::string& present = rule.default_value();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return present == "true" ? "false" : "true";
    case FieldDescriptor::CPPTYPE_ENUM: {
      for (const std::string& name : EnumNames(field)) {
        if (name != present) return name;
      }
      return "";
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return "";
    case FieldDescriptor::CPPTYPE_MESSAGE: {  // a time
      const std::string low = absl::StrFormat("%.0fms", rule.min() * 1000);
      const std::string low_seconds = absl::StrFormat("%.0fs", rule.min());
      return low == present || low_seconds == present ? absl::StrFormat("%.0fs", rule.max()) : low;
    }
    default:
      return OtherNumber(rule, present);
  }
}

// Sets every key of the schema, one at a time. Hot keys are applied, others are rejected by name.
TEST_F(LiveConfigTest, HotKeysAreAppliedAndOthersRejected) {
  // Some keys require these settings.
  const std::string secret = Write("secret", "\n");
  const std::string base =
      Write("base.yaml", absl::StrCat("tls: {cert_file: ", secret, ", key_file: ", secret,
                                      ", client_ca_file: ", secret, "}\n",
                                      "auth: {tokens_file: ", secret, "}\n"));
  int hot = 0, cold = 0;
  for (const std::string& path : AllPaths(config::v1::Config())) {
    if (kOneValue.contains(path)) continue;
    SCOPED_TRACE(path);
    const std::string value = OtherValue(path);
    ASSERT_NE(value, "") << "a new key: name another legal value for it in OtherValues";
    const std::string file = Write("a.yaml", "{}\n");
    const auto live = Start({.files = {base, file}});
    const std::string before = live->config()->Sha256();
    Write("a.yaml", Yaml(path, value));
    const ReloadResult dry = live->Reload(/*dry_run=*/true);
    EXPECT_EQ(live->config()->Sha256(), before);
    const ReloadResult result = live->Reload(/*dry_run=*/false);
    EXPECT_EQ(dry.errors, result.errors);
    const bool is_hot = RuleOf(FieldOf(path)).hot();
    ++(is_hot ? hot : cold);
    const std::vector<ConfigChange>& listed = is_hot ? result.changed : result.rejected;
    ASSERT_EQ(listed.size(), 1) << (result.errors.empty() ? "" : result.errors[0]);
    EXPECT_EQ(listed[0].path, path);
    EXPECT_THAT(listed[0].location, HasSubstr(file));
    EXPECT_EQ(listed[0].new_value == "<redacted>", RuleOf(FieldOf(path)).sensitive());
    EXPECT_EQ((is_hot ? result.rejected : result.changed).size(), 0);
    EXPECT_EQ(result.config_sha256, live->config()->Sha256());
    if (is_hot) {
      EXPECT_THAT(result.errors, IsEmpty());
      // The hash excludes secrets.
      EXPECT_EQ(result.config_sha256 == before, RuleOf(FieldOf(path)).sensitive());
    } else {
      EXPECT_THAT(result.errors, ElementsAre(HasSubstr(path + " (")));
      EXPECT_THAT(result.errors, Each(HasSubstr("can only be changed by a restart")));
      EXPECT_EQ(result.config_sha256, before);
    }
  }
  EXPECT_GT(hot, 40);
  EXPECT_GT(cold, 40);
}

TEST_F(LiveConfigTest, OneColdKeyRejectsTheWholeReload) {
  const std::string file = Write("a.yaml", "limits: {max_choices: 4}\n");
  const auto live = Start({.files = {file}});
  Write("a.yaml", "limits: {max_choices: 5}\nserver: {http: {threads: 5}}\n");
  const ReloadResult result = live->Reload(/*dry_run=*/false);
  EXPECT_FALSE(result.ok());
  ASSERT_EQ(result.changed.size(), 1);
  EXPECT_EQ(result.changed[0].old_value, "4");
  EXPECT_EQ(result.changed[0].new_value, "5");
  EXPECT_EQ(result.changed[0].location, file + ":1:23");
  ASSERT_EQ(result.rejected.size(), 1);
  EXPECT_EQ(result.rejected[0].path, "server.http.threads");
  EXPECT_THAT(result.errors,
              ElementsAre(file + ":2:26: server.http.threads (5; 4 in effect) can only be changed "
                                 "by a restart"));
  EXPECT_EQ(live->options()->engine.limits.max_choices, 4);
  EXPECT_EQ(Reloads("rejected"), 1);
  EXPECT_EQ(Reloads("applied"), 0);
}

TEST_F(LiveConfigTest, BrokenFilesChangeNothing) {
  const std::string file = Write("a.yaml", "limits: {max_choices: 4}\n");
  const auto live = Start({.files = {file}});
  for (const std::string text :
       {"limits: {max_choices: 0}\n", "limits: {max_choises: 4}\n", "limits: [\n", "\xff\n",
        "limits: {default_max_tokens: 5, max_tokens_per_request: 4}\n", ""}) {
    SCOPED_TRACE(text);
    Write("a.yaml", text);
    const bool is_legal = text.empty();  // an empty file sets nothing
    EXPECT_EQ(live->Reload(/*dry_run=*/true).ok(), is_legal);
    if (is_legal) continue;
    const ReloadResult result = live->Reload(/*dry_run=*/false);
    EXPECT_FALSE(result.ok());
    EXPECT_THAT(result.errors, Each(HasSubstr("a.yaml")));
    EXPECT_EQ(live->options()->engine.limits.max_choices, 4);
  }
  std::filesystem::remove(file);
  EXPECT_THAT(live->Reload(/*dry_run=*/false).errors,
              ElementsAre(HasSubstr("--config: " + file + " cannot be read: No such file")));
  EXPECT_EQ(Reloads("rejected"), 6);
}

// Kubernetes updates a ConfigMap by renaming a new link over the old one.
TEST_F(LiveConfigTest, ReloadFollowsReplacedLinks) {
  Write("one.yaml", "limits: {max_choices: 1}\n");
  Write("two.yaml", "limits: {max_choices: 2}\n");
  std::filesystem::create_symlink("one.yaml", Path("now.yaml"));
  const auto live = Start({.files = {Path("now.yaml")}});
  EXPECT_EQ(live->options()->engine.limits.max_choices, 1);
  std::filesystem::create_symlink("two.yaml", Path("next"));
  std::filesystem::rename(Path("next"), Path("now.yaml"));
  EXPECT_TRUE(live->Reload(/*dry_run=*/false).ok());
  EXPECT_EQ(live->options()->engine.limits.max_choices, 2);
  EXPECT_EQ(Reloads("applied"), 1);
}

TEST_F(LiveConfigTest, ReloadsProfilesAndUpperLayersKeepTheirValues) {
  Write("fast.yaml", "limits: {max_choices: 2, max_logprobs: 2, max_stop_sequences: 2}\n");
  const auto live = Start({.sets = {"profile=fast", "limits.max_logprobs=3"},
                           .environment = {{"QUIRE__LIMITS__MAX_STOP_SEQUENCES", "4"}},
                           .profile_dirs = {dir_}});
  Write("fast.yaml", "limits: {max_choices: 9, max_logprobs: 9, max_stop_sequences: 9}\n");
  const ReloadResult result = live->Reload(/*dry_run=*/false);
  EXPECT_TRUE(result.ok());
  ASSERT_EQ(result.changed.size(), 1);
  EXPECT_EQ(result.changed[0].path, "limits.max_choices");
  const engine::ParamLimits& limits = live->options()->engine.limits;
  EXPECT_EQ(limits.max_choices, 9);
  EXPECT_EQ(limits.max_logprobs, 3);
  EXPECT_EQ(limits.max_stop_sequences, 4);
}

TEST_F(LiveConfigTest, EqualValuesAreUnchangedAndLocationsAreUpdated) {
  const std::string file = Write("a.yaml", "limits: {max_choices: 4}\n");
  const auto live = Start({.files = {file}});
  Write("a.yaml", "\n\nlimits: {max_choices: 4}\n");
  EXPECT_TRUE(live->Reload(/*dry_run=*/false).ok());
  EXPECT_EQ(live->config()->origins().at("limits.max_choices").line, 3);
  EXPECT_EQ(Reloads("unchanged"), 1);
  Write("a.yaml", "");  // back to the default
  const ReloadResult result = live->Reload(/*dry_run=*/false);
  ASSERT_EQ(result.changed.size(), 1);
  EXPECT_EQ(result.changed[0].location, "default");
  EXPECT_EQ(live->options()->engine.limits.max_choices, 16);
}

// Memory is planned for the values at the start.
TEST_F(LiveConfigTest, PlannedLimitsMayNotExceedTheirInitialValues) {
  const std::string file = Write("a.yaml", "{}\n");
  for (const char* path :
       {"limits.max_logprobs", "scheduler.max_running_sequences", "scheduler.max_step_tokens"}) {
    SCOPED_TRACE(path);
    Write("a.yaml", "{}\n");
    const auto live = Start({.files = {file}});
    std::int64_t start = 0;
    ASSERT_TRUE(absl::SimpleAtoi(live->config()->PrintValue(path, Spelling::kYaml), &start));
    const auto set = [&](std::int64_t value) {
      Write("a.yaml", Yaml(path, absl::StrCat(value)));
      return live->Reload(/*dry_run=*/false);
    };
    EXPECT_TRUE(set(start - 1).ok());
    EXPECT_TRUE(set(start).ok());
    EXPECT_TRUE(set(start - 2).ok());
    const ReloadResult above = set(start + 1);
    EXPECT_THAT(above.errors,
                ElementsAre(HasSubstr(absl::StrCat(
                    path, " (", start + 1, ") is larger than its value at start (", start, ")"))));
    EXPECT_EQ(above.rejected.size(), 1);
    EXPECT_EQ(live->config()->PrintValue(path, Spelling::kYaml), absl::StrCat(start - 2));
  }
}

TEST_F(LiveConfigTest, AllComponentsPrepareBeforeAnyApplies) {
  const std::string file = Write("a.yaml", "{}\n");
  const auto live = Start({.files = {file}});
  std::vector<std::string> calls;
  bool fails = false;
  const auto part = [&](const std::string& name) {
    return [&calls, &fails, name](const DaemonOptions& next) -> absl::StatusOr<LiveConfig::Apply> {
      calls.push_back(absl::StrCat("prepare ", name));
      if (fails && name == "b") return absl::InvalidArgumentError("tokens are gone");
      return [&calls, name, choices = next.engine.limits.max_choices] {
        calls.push_back(absl::StrCat("apply ", name, " ", choices));
      };
    };
  };
  ASSERT_TRUE(live->Subscribe("a", part("a")).ok());
  ASSERT_TRUE(live->Subscribe("b", part("b")).ok());
  EXPECT_THAT(calls, ElementsAre("prepare a", "apply a 16", "prepare b", "apply b 16"));
  calls.clear();
  Write("a.yaml", "limits: {max_choices: 5}\n");
  EXPECT_TRUE(live->Reload(/*dry_run=*/true).ok());
  EXPECT_THAT(calls, ElementsAre("prepare a", "prepare b"));
  calls.clear();
  EXPECT_TRUE(live->Reload(/*dry_run=*/false).ok());
  EXPECT_THAT(calls, ElementsAre("prepare a", "prepare b", "apply a 5", "apply b 5"));
  calls.clear();
  EXPECT_TRUE(live->Reload(/*dry_run=*/false).ok());  // files of the components may have changed
  EXPECT_THAT(calls, ElementsAre("prepare a", "prepare b", "apply a 5", "apply b 5"));
  calls.clear();
  fails = true;
  Write("a.yaml", "limits: {max_choices: 6}\n");
  EXPECT_THAT(live->Reload(/*dry_run=*/false).errors, ElementsAre("b: tokens are gone"));
  EXPECT_THAT(calls, ElementsAre("prepare a", "prepare b"));
  EXPECT_EQ(live->options()->engine.limits.max_choices, 5);
  EXPECT_THAT(live->Subscribe("b", part("b")).message(), HasSubstr("tokens are gone"));
}

TEST_F(LiveConfigTest, FileWrittenDuringItsReadChangesNothing) {
  const auto live = Start({.files = {Write("a.yaml", "{}\n")}});
  const std::string tokens = Write("tokens", "one\n");
  bool is_written_meanwhile = false;
  int applied = 0;
  const auto prepare = [&](const DaemonOptions&) -> absl::StatusOr<LiveConfig::Apply> {
    if (is_written_meanwhile) Write("tokens", "one\ntwo\n");
    return [&applied] { ++applied; };
  };
  const auto files = [&](const DaemonOptions&) {
    return std::vector<NamedFile>{{"auth.tokens_file", tokens}};
  };
  ASSERT_TRUE(live->Subscribe("auth", prepare, files).ok());
  EXPECT_EQ(applied, 1);
  is_written_meanwhile = true;
  EXPECT_THAT(live->Reload(/*dry_run=*/false).errors,
              ElementsAre("auth.tokens_file: " + tokens + " changed while it was read; retry"));
  EXPECT_EQ(applied, 1);
  is_written_meanwhile = false;
  EXPECT_TRUE(live->Reload(/*dry_run=*/false).ok());
  EXPECT_EQ(applied, 2);
}

TEST_F(LiveConfigTest, LateSubscribersGetTheCurrentValues) {
  const std::string file = Write("a.yaml", "{}\n");
  const auto live = Start({.files = {file}});
  Write("a.yaml", "limits: {max_choices: 5}\n");
  EXPECT_TRUE(live->Reload(/*dry_run=*/false).ok());
  int choices = 0;
  EXPECT_TRUE(live->Subscribe("late",
                              [&](const DaemonOptions& next) {
                                return absl::StatusOr<LiveConfig::Apply>(
                                    [&choices, value = next.engine.limits.max_choices] {
                                      choices = value;
                                    });
                              })
                  .ok());
  EXPECT_EQ(choices, 5);
  EXPECT_EQ(live->start_options().engine.limits.max_choices, 16);
}

// Readers see a complete version of the configuration, and keep the one that they have.
TEST_F(LiveConfigTest, ReadersSeeCompleteVersions) {
  const std::string file = Write("a.yaml", "limits: {max_choices: 1, max_stop_sequences: 1}\n");
  const auto live = Start({.files = {file}});
  const std::shared_ptr<const DaemonOptions> first = live->options();
  std::atomic<bool> stop{false};
  std::atomic<int> torn{0};
  std::thread reader([&] {
    while (!stop) {
      const auto options = live->options();
      const engine::ParamLimits& limits = options->engine.limits;
      if (limits.max_choices != limits.max_stop_sequences) ++torn;
    }
  });
  for (int i = 2; i < 40; ++i) {
    Write("a.yaml", absl::StrCat("limits: {max_choices: ", i, ", max_stop_sequences: ", i, "}\n"));
    EXPECT_TRUE(live->Reload(/*dry_run=*/false).ok());
  }
  stop = true;
  reader.join();
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(first->engine.limits.max_choices, 1);
  EXPECT_EQ(live->options()->engine.limits.max_choices, 39);
}

}  // namespace
}  // namespace quire::server

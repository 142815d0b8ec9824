#include "server/config/layered_config.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "quire/config/v1/config.pb.h"
#include "quire/config/v1/options.pb.h"
#include "server/config/options.h"
#include "server/config/scalar_value.h"
#include "server/config/validator.h"
#include "tests/testing/paths.h"

namespace quire::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class LayeredConfigTest : public ::testing::Test {
 protected:
  LayeredConfigTest() : dir_(::testing::TempDir() + "/layered_config") {
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }

  std::string File(const std::string& name, const std::string& text) {
    const std::string path = dir_ + "/" + name;
    std::ofstream(path) << text;
    return path;
  }

  std::unique_ptr<LayeredConfig> Load(const ConfigSources& sources) {
    errors_.clear();
    return LayeredConfig::Load(sources, &errors_);
  }

  const std::string dir_;
  std::vector<std::string> errors_;
};

TEST_F(LayeredConfigTest, LaterLayersWin) {
  const std::string profile = File("fast.yaml", "limits: {max_choices: 2, max_logprobs: 2}\n");
  const std::string first = File("a.yaml", "limits: {max_logprobs: 3, max_stop_bytes: 3}\n");
  const std::string second = File("b.yaml", "limits: {max_stop_bytes: 4, max_stop_sequences: 4}\n");
  ConfigSources sources;
  sources.files = {first, second};
  sources.environment = {{"QUIRE__LIMITS__MAX_STOP_SEQUENCES", "5"},
                         {"QUIRE__LIMITS__MAX_LOGIT_BIAS_ENTRIES", "5"},
                         {"QUIRE__PROFILE", "fast"},
                         {"UNRELATED", "x"}};
  sources.sets = {"limits.max_logit_bias_entries=6"};
  sources.profile_dirs = {dir_};
  const auto config = Load(sources);
  ASSERT_NE(config, nullptr) << errors_[0];
  const auto& limits = config->config().limits();
  EXPECT_EQ(limits.max_choices(), 2);
  EXPECT_EQ(limits.max_logprobs(), 3);
  EXPECT_EQ(limits.max_stop_bytes(), 4);
  EXPECT_EQ(limits.max_stop_sequences(), 5);
  EXPECT_EQ(limits.max_logit_bias_entries(), 6);
  EXPECT_EQ(config->origins().at("limits.max_choices").ToString(), profile + ":1:23");
  EXPECT_EQ(config->origins().at("limits.max_stop_sequences").ToString(),
            "env QUIRE__LIMITS__MAX_STOP_SEQUENCES");
}

// The name of the built-in layer is not reserved.
TEST_F(LayeredConfigTest, FileNamedDefaultIsALayer) {
  const std::string folder = std::filesystem::current_path();
  std::filesystem::current_path(dir_);
  File("default", "openai: {listen: \"127.0.0.1:9000\"}\n");
  const auto config = Load({.files = {"default"}, .port_offset = 12});
  std::filesystem::current_path(folder);
  ASSERT_NE(config, nullptr) << errors_[0];
  EXPECT_EQ(config->origins().at("openai.listen").ToString(), "default:1:18");
}

TEST_F(LayeredConfigTest, RejectsUnknownVariablesFilesAndProfiles) {
  EXPECT_EQ(Load({.environment = {{"QUIRE__LIMITS__MAX_CHOICE", "1"}}}), nullptr);
  EXPECT_THAT(errors_[0], HasSubstr("did you mean \"max_choices\""));
  EXPECT_EQ(Load({.environment = {{"QUIRE_LIMITS__MAX_CHOICES", "1"}}}), nullptr);
  EXPECT_THAT(errors_,
              ElementsAre("env QUIRE_LIMITS__MAX_CHOICES: a variable of the configuration "
                          "begins with QUIRE__; did you mean QUIRE__LIMITS__MAX_CHOICES?"));
  EXPECT_NE(Load({.environment = {{"QUIRE_BUILD", "1"}, {"QUIRE_SERVICE_PORT_HTTP", "1"}}}),
            nullptr);
  EXPECT_EQ(Load({.files = {dir_ + "/none.yaml"}}), nullptr);
  EXPECT_THAT(errors_[0], HasSubstr("/none.yaml cannot be read: No such file"));
  EXPECT_EQ(Load({.sets = {"profile=none"}, .profile_dirs = {dir_}}), nullptr);
  EXPECT_THAT(errors_[0], AllOf(HasSubstr("profile \"none\""), HasSubstr("; searched in ")));
  EXPECT_EQ(Load({.sets = {"profile=./none.yaml"}, .profile_dirs = {dir_}}), nullptr);
  EXPECT_THAT(errors_[0], Not(HasSubstr("searched in")));
  EXPECT_EQ(Load({.sets = {"limits.max_choices"}}), nullptr);
  EXPECT_THAT(errors_[0], HasSubstr("write PATH=VALUE"));
}

TEST_F(LayeredConfigTest, TheArgumentNamesTheModel) {
  const auto config = Load({.sets = {absl::StrCat("model.path=", dir_, "/none")}, .model = dir_});
  ASSERT_NE(config, nullptr) << errors_[0];
  EXPECT_EQ(config->config().model().path(), dir_);
  EXPECT_EQ(config->origins().at("model.path").ToString(), "MODEL");
  EXPECT_EQ(Load({.model = "org/none"}), nullptr);
  EXPECT_THAT(errors_, ElementsAre(HasSubstr("MODEL: model.path: \"org/none\" is not a file")));
  EXPECT_EQ(Load({.model = "[org]/none"}), nullptr);
  EXPECT_THAT(errors_[0], HasSubstr("MODEL: "));
  EXPECT_THAT(errors_[0], ::testing::EndsWith(R"(; quote the text: '"[org]/none"')"));
}

TEST_F(LayeredConfigTest, RejectsInvalidUtf8WithItsPosition) {
  EXPECT_EQ(Load({.environment = {{"QUIRE__MODEL__PATH", "/models/\xff"}}}), nullptr);
  EXPECT_EQ(errors_[0], "env QUIRE__MODEL__PATH: the value is not valid UTF-8 at byte 9");
  EXPECT_EQ(Load({.sets = {"model.path=\xc3"}}), nullptr);
  EXPECT_EQ(errors_[0], "--set model.path: the value is not valid UTF-8 at byte 1");
  EXPECT_EQ(Load({.environment = {{"QUIRE__MODEL__PATH", "/no/such/\xc3\xa9"}}}), nullptr);
  EXPECT_THAT(errors_[0], Not(HasSubstr("UTF-8")));
}

TEST_F(LayeredConfigTest, ProfileCannotNameAnotherProfile) {
  File("one.yaml", "profile: two\n");
  EXPECT_EQ(Load({.sets = {"profile=one"}, .profile_dirs = {dir_}}), nullptr);
  EXPECT_THAT(errors_, ElementsAre(HasSubstr("a profile cannot name another profile")));
}

TEST_F(LayeredConfigTest, CollectsAtMostFiftyErrors) {
  std::string yaml = "limits:\n";
  for (int i = 0; i < 60; ++i) absl::StrAppend(&yaml, "  no_such_key_", i, ": 1\n");
  EXPECT_EQ(Load({.files = {File("many.yaml", yaml)}}), nullptr);
  ASSERT_EQ(errors_.size(), 51u);
  EXPECT_EQ(errors_.back(), "and 10 more errors");
}

TEST_F(LayeredConfigTest, CrossFieldRulesNameBothSides) {
  EXPECT_EQ(
      Load({.sets = {"scheduler.prefill_chunk_tokens=4096", "scheduler.max_step_tokens=2048"}}),
      nullptr);
  EXPECT_THAT(errors_, ElementsAre("--set: scheduler.prefill_chunk_tokens (4096) is larger than "
                                   "scheduler.max_step_tokens (2048, from --set)"));
}

TEST_F(LayeredConfigTest, ChecksTheRulesBetweenKeysDespiteWrongValues) {
  EXPECT_EQ(Load({.sets = {"limits.max_choices=0", "scheduler.prefill_chunk_tokens=9000"}}),
            nullptr);
  EXPECT_THAT(errors_, ElementsAre(HasSubstr("limits.max_choices"),
                                   HasSubstr("scheduler.max_step_tokens (8192, the default)")));
  // The file may have the missing key.
  const std::string damaged = File("damaged.yaml", "scheduler: {max_step_tokens: 16384\n");
  EXPECT_EQ(Load({.files = {damaged}, .sets = {"scheduler.prefill_chunk_tokens=9000"}}), nullptr);
  EXPECT_THAT(errors_, ElementsAre(HasSubstr(damaged)));
}

TEST_F(LayeredConfigTest, ErrorsBesideAProfileAreReportedOnce) {
  File("fast.yaml", "limits: {max_choices: 2}\n");
  EXPECT_EQ(Load({.sets = {"profile=fast", "limits.max_logprobs=-1"}, .profile_dirs = {dir_}}),
            nullptr);
  EXPECT_THAT(errors_, ElementsAre(HasSubstr("limits.max_logprobs")));
}

TEST_F(LayeredConfigTest, PortOffsetShiftsEveryAddress) {
  const auto config = Load(
      {.sets = {"server.grpc.listen=[\"[::1]:50000\", \"127.0.0.1:0\"]", "server.http.listen=\"\""},
       .port_offset = 12});
  ASSERT_NE(config, nullptr) << errors_[0];
  EXPECT_THAT(config->config().server().grpc().listen(), ElementsAre("[::1]:50012", "127.0.0.1:0"));
  EXPECT_THAT(config->config().server().admin().listen(),
              ElementsAre("unix:/run/quire/admin.sock.12"));
  EXPECT_EQ(config->config().server().http().listen(), "");
  EXPECT_EQ(config->config().openai().listen(), "127.0.0.1:8012");
  EXPECT_EQ(config->origins().at("openai.listen").ToString(), "--port-offset");
  EXPECT_EQ(config->origins().at("server.grpc.listen").ToString(), "--set");
  EXPECT_TRUE(ToOptions(*config).admin_listen_is_default);
  EXPECT_FALSE(ToOptions(*Load({.sets = {"server.admin.listen=unix:/x"}, .port_offset = 1}))
                   .admin_listen_is_default);
}

TEST_F(LayeredConfigTest, RejectsPortsAboveTheLimit) {
  const std::vector<std::string> sets = {"server.grpc.listen=127.0.0.1:65530"};
  EXPECT_NE(Load({.sets = sets, .port_offset = 5}), nullptr);
  EXPECT_EQ(Load({.sets = sets, .port_offset = 6}), nullptr);
  EXPECT_THAT(errors_, ElementsAre("--set: server.grpc.listen: 127.0.0.1:65530: port 65530 plus "
                                   "--port-offset 6 is larger than 65535; use a smaller offset or "
                                   "another port"));
}

TEST_F(LayeredConfigTest, RejectsUnsupportedValues) {
  const std::pair<const char*, const char*> cases[] = {
      {"model.dtype=bf16", "bf16 activations need a GPU"},
      {"device.tensor_parallel=2",
       "device.tensor_parallel (2): this version serves a model on one GPU"},
      {"device.ids=[0, 1]",
       "device.ids has 2 numbers but needs as many as device.tensor_parallel (1, the default)"},
      {"device.ids=[]", "device.ids has 0 numbers"},
      {"device.ids=[64]", "64"},
      {"device.type=gpu", "auto, cpu, cuda"},
      {"model.load_mode=real", "mmap, dummy"},
      {"scheduler.step_time_target=30us", "30us"},
      {"scheduler.step_time_target=11s", "10s"},
      {"server.admin.listen=[0.0.0.0:1]", "it needs tls.cert_file, and auth.mode token or mtls"},
      {"server.grpc.listen=[nonsense]", "is not host:port or unix:PATH"},
      {"server.grpc.listen=[]", "the list is empty"},
      {"server.http.listen=127.0.0.1:50051", "is used twice"},
      {"server.admin.socket_mode=0999", "permission bits"},
      {"model.path=/no/such/folder", "does not exist"},
      {"model.aliases=[a, a]", "is empty or used twice"},
      {"limits={}", "is a section"},
      {"scheduler.prefill_chunk_tokens=16", "is smaller than kv_cache.page_size (64, the default)"},
      {"scheduler.max_step_tokens=64", "max_running_sequences (256, the default)"},
  };
  for (const auto& [set, text] : cases) {
    EXPECT_EQ(Load({.sets = {set}}), nullptr) << set;
    EXPECT_THAT(errors_, ::testing::Contains(HasSubstr(text))) << set;
  }
}

TEST_F(LayeredConfigTest, GpuActivationAndPageTypesMustMatch) {
  const struct {
    const char* pages;
    const char* activations;
    const char* error;  // null if accepted
  } cases[] = {{"bf16", "auto", nullptr},
               {"bf16", "bf16", nullptr},
               {"f16", "bf16", "kv_cache.dtype: f16 is not supported on GPUs; write bf16"},
               {"int8", "bf16", nullptr},
               {"fp8_e4m3", "auto", nullptr},
               {"f32", "f32", nullptr},
               {"f32", "auto", nullptr},
               {"bf16", "f32", "f32 activations on GPUs need kv_cache.dtype f32"},
               {"int8", "f32", "f32 activations on GPUs need kv_cache.dtype f32"},
               {"f32", "bf16", "bf16 activations cannot be combined with kv_cache.dtype f32"}};
  for (const auto& c : cases) {
    const auto config = Load({.sets = {"device.type=cuda", absl::StrCat("kv_cache.dtype=", c.pages),
                                       absl::StrCat("model.dtype=", c.activations)}});
    if (c.error == nullptr) {
      EXPECT_NE(config, nullptr) << c.pages << " " << c.activations << ": " << errors_[0];
    } else {
      EXPECT_EQ(config, nullptr) << c.pages << " " << c.activations;
      EXPECT_THAT(errors_, ElementsAre(HasSubstr(c.error)));
    }
  }
}

TEST_F(LayeredConfigTest, DeviceKeysReachTheOptions) {
  const auto defaults = Load({});
  ASSERT_NE(defaults, nullptr);
  DaemonOptions options = ToOptions(*defaults);
  EXPECT_EQ(options.device.type, runtime::DeviceChoice::kAuto);
  EXPECT_EQ(options.device.cuda_ordinal, 0);
  EXPECT_EQ(options.device.reserve_bytes, std::int64_t{1} << 30);
  EXPECT_FALSE(options.model.dtype.has_value());
  EXPECT_FALSE(options.model.dummy_weights);
  EXPECT_EQ(options.engine.max_steps_in_flight, 2);
  EXPECT_TRUE(options.device.cuda_graphs);
  EXPECT_TRUE(options.device.hopper_kernels);
  EXPECT_EQ(options.device.determinism, "batch_invariant");
  const auto config =
      Load({.sets = {"device.type=cuda", "device.ids=[3]", "device.reserve_bytes=2MiB",
                     "model.dtype=f32", "kv_cache.dtype=f32", "model.load_mode=dummy",
                     "engine.overlap_scheduling=false", "engine.cuda_graphs.enabled=false",
                     "engine.determinism=fast", "device.hopper_kernels=false"}});
  ASSERT_NE(config, nullptr) << errors_[0];
  options = ToOptions(*config);
  EXPECT_EQ(options.device.type, runtime::DeviceChoice::kCuda);
  EXPECT_EQ(options.device.cuda_ordinal, 3);
  EXPECT_EQ(options.device.reserve_bytes, 2 << 20);
  EXPECT_EQ(options.model.dtype, DType::kF32);
  EXPECT_TRUE(options.model.dummy_weights);
  EXPECT_EQ(options.engine.max_steps_in_flight, 1);
  EXPECT_FALSE(options.device.cuda_graphs);
  EXPECT_FALSE(options.device.hopper_kernels);
  EXPECT_EQ(options.device.determinism, "fast");
}

TEST_F(LayeredConfigTest, WeightFormatsReachTheOptions) {
  for (const models::Quantization quantization : models::kAllQuantizations) {
    const auto config =
        Load({.sets = {absl::StrCat("model.quantization=", models::QuantizationName(quantization)),
                       absl::StrCat("model.packed_dir=", dir_)}});
    ASSERT_NE(config, nullptr) << errors_[0];
    EXPECT_EQ(ToOptions(*config).model.quantization, quantization);
    EXPECT_FALSE(ToOptions(*config).model.fp8_activations);
    EXPECT_EQ(ToOptions(*config).model.packed_dir, dir_);
  }
  EXPECT_NE(Load({.sets = {"model.quantization=int8", "device.type=cuda"}}), nullptr);
  const auto rounded = Load({.sets = {"model.fp8_activations=true"}});
  ASSERT_NE(rounded, nullptr) << errors_[0];
  EXPECT_TRUE(ToOptions(*rounded).model.fp8_activations);
  EXPECT_EQ(Load({.sets = {absl::StrCat("model.packed_dir=", dir_), "device.type=cuda"}}), nullptr);
  EXPECT_THAT(
      errors_,
      ElementsAre(HasSubstr(absl::StrCat(
          "model.packed_dir: \"", dir_, "\" is for packed CPU weights, but device.type is cuda"))));
  const std::string file = File("packed", "x");
  EXPECT_EQ(Load({.sets = {absl::StrCat("model.packed_dir=", file)}}), nullptr);
  EXPECT_THAT(
      errors_,
      ElementsAre(HasSubstr(absl::StrCat("model.packed_dir: \"", file, "\" is not a directory"))));
}

TEST_F(LayeredConfigTest, PrintedConfigurationReadsBackUnchanged) {
  const auto config = Load({.sets = {"limits.max_request_duration=90m", "model.id=\"a \\\"b\\\"\"",
                                     "sampling_defaults.temperature=0.1",
                                     "kv_cache.capacity_bytes=3000000", "device.ids=[2]"}});
  ASSERT_NE(config, nullptr) << errors_[0];
  for (const Spelling spelling : {Spelling::kYaml, Spelling::kJson}) {
    const auto again = Load({.files = {File("printed", config->Print(spelling))}});
    ASSERT_NE(again, nullptr) << errors_[0];
    EXPECT_EQ(again->Sha256(), config->Sha256());
  }
  EXPECT_THAT(config->Print(Spelling::kYaml), HasSubstr("temperature: 0.1  # --set"));
  EXPECT_THAT(config->Print(Spelling::kYaml, /*include_defaults=*/false),
              ::testing::Not(HasSubstr("max_logprobs")));
}

TEST_F(LayeredConfigTest, ShippedFilesAreValidAndDefaultYamlSetsNothing) {
  const std::string configs = paths::Source("configs");
  const auto defaults = Load({});
  ASSERT_NE(defaults, nullptr);
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(configs)) {
    if (entry.path().extension() != ".yaml") continue;
    const auto config = Load({.files = {entry.path().string()}});
    ASSERT_NE(config, nullptr) << errors_[0];
    ++files;
    if (entry.path().filename() != "default.yaml") continue;
    EXPECT_EQ(config->Sha256(), defaults->Sha256());
    EXPECT_EQ(config->origins().size(), AllPaths(config->config()).size());
    for (const auto& [path, origin] : config->origins()) EXPECT_GT(origin.line, 0) << path;
  }
  EXPECT_EQ(files, 4);
}

// Checks the rules of the schema for every key.
void CheckSchema(const Descriptor* section) {
  for (int i = 0; i < section->field_count(); ++i) {
    const FieldDescriptor* field = section->field(i);
    EXPECT_EQ(field->name().find("__"), std::string::npos) << field->full_name();
    if (IsSection(field)) {
      CheckSchema(field->message_type());
      continue;
    }
    ASSERT_TRUE(field->options().HasExtension(config::v1::rule)) << field->full_name();
    const config::v1::FieldRule& rule = RuleOf(field);
    const auto type = field->cpp_type();
    if (IsEntryList(field)) {
      EXPECT_GT(rule.max_items(), 0) << field->full_name();
      CheckSchema(field->message_type());
      continue;
    }
    const bool number =
        type == FieldDescriptor::CPPTYPE_INT32 || type == FieldDescriptor::CPPTYPE_INT64 ||
        type == FieldDescriptor::CPPTYPE_FLOAT || type == FieldDescriptor::CPPTYPE_DOUBLE ||
        type == FieldDescriptor::CPPTYPE_MESSAGE;
    if (number) {
      EXPECT_TRUE((rule.has_min() && rule.has_max()) || !rule.allowed().empty())
          << field->full_name();
    }
    if (type == FieldDescriptor::CPPTYPE_INT32 && rule.has_max()) {
      EXPECT_LE(rule.max(), 2147483647.0) << field->full_name();
    }
    if (field->has_optional_keyword()) {
      EXPECT_TRUE(rule.absent_word() == "auto" || rule.absent_word() == "none")
          << field->full_name();
    }
    // Lists contain groups, texts, names or 32-bit integers. The reader supports no other type.
    if (field->is_repeated()) {
      EXPECT_TRUE(type == FieldDescriptor::CPPTYPE_STRING ||
                  type == FieldDescriptor::CPPTYPE_ENUM || type == FieldDescriptor::CPPTYPE_INT32)
          << field->full_name();
    }
  }
}

TEST(ConfigSchemaTest, EveryKeyHasItsRule) {
  CheckSchema(config::v1::Config::descriptor());
}

// Sixty seconds in nanoseconds times 1e-9 is slightly more than 60.
void CheckLimitsOfDurations(const Descriptor* section) {
  const std::unique_ptr<google::protobuf::Message> message(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(section)->New());
  for (int i = 0; i < section->field_count(); ++i) {
    const FieldDescriptor* field = section->field(i);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (IsSection(field) || IsEntryList(field)) {
      CheckLimitsOfDurations(field->message_type());
      continue;
    }
    const std::string longest = absl::StrFormat("%.0fms", RuleOf(field).max() * 1000);
    EXPECT_TRUE(SetScalar(message.get(), field, longest, false).ok()) << field->full_name();
  }
}

TEST(ConfigSchemaTest, AcceptsTheLongestDuration) {
  CheckLimitsOfDurations(config::v1::Config::descriptor());
}

TEST(ConfigSchemaTest, EveryDefaultSatisfiesItsRule) {
  config::v1::Config config;
  Origins origins;
  std::vector<std::string> errors;
  ApplyDefaults(&config, &origins, &errors);
  EXPECT_THAT(errors, IsEmpty());
  EXPECT_EQ(origins.size(), AllPaths(config).size());
}

TEST(OptionsTest, InstructionSetsKeepTheirNames) {
  for (const char* isa :
       {"auto", "scalar", "sse4", "avx2", "avx_vnni", "avx512", "avx512_vnni", "amx", "neon"}) {
    std::vector<std::string> errors;
    const auto config =
        LayeredConfig::Load({.sets = {absl::StrCat("device.cpu.isa=", isa)}}, &errors);
    ASSERT_NE(config, nullptr) << errors[0];
    EXPECT_EQ(ToOptions(*config).device.isa, isa);
  }
  EXPECT_EQ(config::v1::CpuIsa_descriptor()->value_count(), 10)
      << "the list above misses a new value";
}

TEST(OptionsTest, CpuActivationsKeepTheirNames) {
  using kernels::CpuActivations;
  for (const CpuActivations activations : {CpuActivations::kAuto, CpuActivations::kF32,
                                           CpuActivations::kBF16, CpuActivations::kInt8}) {
    const absl::string_view name = kernels::CpuActivationsName(activations);
    std::vector<std::string> errors;
    const auto config =
        LayeredConfig::Load({.sets = {absl::StrCat("device.cpu.activations=", name)}}, &errors);
    ASSERT_NE(config, nullptr) << errors[0];
    EXPECT_EQ(ToOptions(*config).device.activations, activations) << name;
  }
  EXPECT_EQ(config::v1::CpuActivations_descriptor()->value_count(), 5)
      << "the list above misses a new value";
}

const std::vector<std::string> kEverySection = {"server.grpc.listen=127.0.0.1:1",
                                                "server.grpc.max_concurrent_streams=7",
                                                "server.grpc.keepalive.time=61s",
                                                "server.admin.socket_mode=\"0600\"",
                                                "server.http.threads=3",
                                                "health.engine_stall_timeout=5s",
                                                "limits.max_queued_requests=9",
                                                "limits.max_tokens_per_request=2000",
                                                "model.id=m",
                                                "model.max_context_tokens=77",
                                                "tokenizer.threads=2",
                                                "device.cpu.threads=3",
                                                "device.cpu.pin_threads=false",
                                                "device.cpu.isa=avx512_vnni",
                                                "device.cpu.activations=f32",
                                                "scheduler.step_time_target=30ms",
                                                "device.cpu.kv_memory_share=0.25",
                                                "kv_cache.page_size=16",
                                                "kv_cache.dtype=f16",
                                                "kv_cache.prefix_caching=false",
                                                "scheduler.admission=overcommit",
                                                "scheduler.queue_timeout=3s",
                                                "engine.determinism=strict",
                                                "sampling_defaults.top_k=5",
                                                "stream.queue_tokens=99",
                                                "structured.compile_threads=3",
                                                "structured.max_schema_bytes=2KiB",
                                                "structured.max_compiled_bytes=1MiB",
                                                "structured.cache_bytes=0",
                                                "structured.mask_threads=5",
                                                "shutdown.force_timeout=1s",
                                                "logging.level=warn",
                                                "metrics.enabled=false"};

TEST(OptionsTest, CarriesValuesOfEverySection) {
  std::vector<std::string> errors;
  const auto config = LayeredConfig::Load({.sets = kEverySection}, &errors);
  ASSERT_NE(config, nullptr) << errors[0];
  const DaemonOptions options = ToOptions(*config);
  EXPECT_THAT(options.grpc_listen, ElementsAre("127.0.0.1:1"));
  EXPECT_EQ(options.transport.max_concurrent_streams, 7);
  EXPECT_EQ(options.transport.keepalive.time, absl::Seconds(61));
  EXPECT_EQ(options.transport.max_connection_age, absl::InfiniteDuration());
  EXPECT_EQ(options.admin_socket_mode, 0600u);
  EXPECT_TRUE(options.admin_listen_is_default);
  EXPECT_EQ(options.http.threads, 3);
  EXPECT_FALSE(options.metrics_enabled);
  EXPECT_EQ(options.engine_stall_timeout, absl::Seconds(5));
  EXPECT_EQ(options.engine.max_queued_requests, 9);
  EXPECT_EQ(options.max_tokens_per_request, 2000);
  EXPECT_EQ(options.model_id, "m");
  EXPECT_EQ(options.model.max_context_tokens, 77);
  EXPECT_EQ(options.engine.text_threads, 2);
  EXPECT_EQ(options.device.threads, 3);
  EXPECT_FALSE(options.device.pin_threads);
  EXPECT_EQ(options.device.isa, "avx512_vnni");
  EXPECT_EQ(options.device.activations, kernels::CpuActivations::kF32);
  EXPECT_EQ(options.engine.step_time_target, absl::Milliseconds(30));
  EXPECT_EQ(options.pool.memory_share, 0.25);
  EXPECT_EQ(options.pool.page_size, 16u);
  EXPECT_EQ(options.pool.dtype, DType::kF16);
  EXPECT_FALSE(options.pool.prefix_caching);
  EXPECT_EQ(options.engine.max_step_prompt_tokens, 512);
  EXPECT_EQ(options.engine.admission, engine::AdmissionMode::kOvercommit);
  EXPECT_EQ(options.engine.queue_timeout, absl::Seconds(3));
  EXPECT_EQ(options.device.determinism, "strict");
  EXPECT_EQ(options.sampling.top_k, 5);
  EXPECT_FALSE(options.sampling.top_p.has_value());
  EXPECT_EQ(options.engine.stream_queue_tokens, 99);
  EXPECT_EQ(options.constraints.compile_threads, 3);
  EXPECT_EQ(options.constraints.max_schema_bytes, 2 << 10);
  EXPECT_EQ(options.constraints.max_compiled_bytes, 1 << 20);
  EXPECT_EQ(options.constraints.cache_bytes, 0);
  EXPECT_EQ(options.engine.mask_threads, 5);
  EXPECT_FALSE(options.mask_threads_is_auto);
  EXPECT_EQ(options.shutdown.force_timeout, absl::Seconds(1));
  EXPECT_EQ(options.logging.level, log::Level::kWarn);
}

TEST_F(LayeredConfigTest, PreloadedConstraintsReachTheOptions) {
  const std::string yaml = R"(structured:
  preload:
    - json_schema: |
        {"const": "it's"}
    - regex: '\d+'
    - {ebnf_grammar: 'root ::= "a"'}
)";
  const auto config = Load({.files = {File("preload.yaml", yaml)}});
  ASSERT_NE(config, nullptr) << errors_[0];
  using Kind = engine::ConstraintKind;
  const std::pair<Kind, std::string> wanted[] = {{Kind::kJsonSchema, "{\"const\": \"it's\"}\n"},
                                                 {Kind::kRegex, "\\d+"},
                                                 {Kind::kGrammar, "root ::= \"a\""}};
  const auto check = [&](const DaemonOptions& options) {
    ASSERT_EQ(options.preload.size(), std::size(wanted));
    for (std::size_t i = 0; i < std::size(wanted); ++i) {
      EXPECT_EQ(std::pair(options.preload[i].kind, options.preload[i].text), wanted[i]);
    }
  };
  check(ToOptions(*config));
  const auto printed = Load({.files = {File("printed.yaml", config->Print(Spelling::kYaml))}});
  ASSERT_NE(printed, nullptr) << errors_[0];
  check(ToOptions(*printed));
}

TEST_F(LayeredConfigTest, NamesUnsupportedPreloadEntries) {
  const std::pair<const char*, const char*> cases[] = {
      {"structured.preload=[{regex: a}, {regex: a, json_schema: 'true'}]",
       "--set: structured.preload[1]: has 2 of json_schema, regex and ebnf_grammar; set exactly "
       "one"},
      {"structured.preload=[{regex: ''}]", "structured.preload[0]: has 0 of json_schema"},
      {"structured.preload=[{schema: '{}'}]", "unknown field \"schema\" in structured.preload[0]"},
      {"structured.preload=true", "is a list"}};
  for (const auto& [set, text] : cases) {
    EXPECT_EQ(Load({.sets = {set}}), nullptr) << set;
    EXPECT_THAT(errors_, Contains(HasSubstr(text))) << set;
  }
  const std::string many = absl::StrCat(
      "structured.preload=[", absl::StrJoin(std::vector<std::string>(65, "{regex: a}"), ", "), "]");
  EXPECT_EQ(Load({.sets = {many}}), nullptr);
  EXPECT_THAT(errors_, ElementsAre(HasSubstr("list has 65 elements, at most 64 are allowed")));
  EXPECT_EQ(Load({.sets = {"structured.preload=[{regex: a}]", "structured.cache_bytes=0"}}),
            nullptr);
  EXPECT_THAT(errors_, ElementsAre("--set: structured.preload: needs a constraint cache; "
                                   "increase structured.cache_bytes (0, from --set)"));
}

// The compiler's defaults equal those of a daemon without configuration.
TEST(OptionsTest, StructuredOutputDefaultsMatchTheCompiler) {
  std::vector<std::string> errors;
  const auto config = LayeredConfig::Load({}, &errors);
  ASSERT_NE(config, nullptr) << errors[0];
  const DaemonOptions options = ToOptions(*config);
  const engine::ConstraintOptions usual;
  EXPECT_EQ(options.constraints.compile_threads, usual.compile_threads);
  EXPECT_EQ(options.constraints.max_schema_bytes, usual.max_schema_bytes);
  EXPECT_EQ(options.constraints.max_compiled_bytes, usual.max_compiled_bytes);
  EXPECT_EQ(options.constraints.cache_bytes, usual.cache_bytes);
  EXPECT_TRUE(options.mask_threads_is_auto);
}

TEST(ListenAddressTest, ParsesAddresses) {
  ListenAddress address;
  EXPECT_TRUE(ParseListenAddress("unix:/tmp/a", &address));
  EXPECT_TRUE(address.is_unix && address.is_loopback());
  EXPECT_TRUE(ParseListenAddress("[::1]:80", &address));
  EXPECT_TRUE(address.host == "::1" && address.port == 80 && address.is_loopback());
  EXPECT_TRUE(ParseListenAddress("0.0.0.0:0", &address));
  EXPECT_TRUE(address.is_wildcard() && !address.is_loopback());
  for (const char* bad : {"", "unix:", "host", ":80", "host:", "host:70000", "::1:80", "host:-1"}) {
    EXPECT_FALSE(ParseListenAddress(bad, &address)) << bad;
  }
}

TEST_F(LayeredConfigTest, HintShowsIpv6AddressWithBracketsAndPort) {
  struct Case {
    const char* set;
    const char* hint;  // nullptr if the address is not IPv6
  };
  const Case cases[] = {
      {"server.grpc.listen=::1:50051", R"(--set 'server.grpc.listen=["[::1]:50051"]')"},
      {"server.grpc.listen=[::1]", R"(--set 'server.grpc.listen=["[::1]:PORT"]')"},
      {"server.grpc.listen=[2001:db8::7]", R"(--set 'server.grpc.listen=["[2001:db8::7]:PORT"]')"},
      {"server.http.listen=:::9464", R"(--set 'server.http.listen="[::]:9464"')"},
      {"server.http.listen=2001:db8::7:80", R"(--set 'server.http.listen="[2001:db8::7]:80"')"},
      {"server.http.listen=host", nullptr},
      {"server.http.listen=host:1:2", nullptr},
      {"server.http.listen=127.0.0.1", nullptr}};
  for (const Case& one : cases) {
    EXPECT_EQ(Load({.sets = {one.set}}), nullptr);
    ASSERT_EQ(errors_.size(), 1u) << one.set;
    EXPECT_THAT(errors_[0], HasSubstr("is not host:port or unix:PATH")) << one.set;
    EXPECT_THAT(errors_[0], ::testing::EndsWith(one.hint == nullptr ? "unix:PATH" : one.hint));
  }
  EXPECT_EQ(Load({.files = {File("v6.yaml", "openai: {enabled: true, listen: \"::1:80\"}\n")}}),
            nullptr);
  EXPECT_THAT(errors_, ElementsAre(::testing::EndsWith(R"(quotes: listen: "[::1]:80")")));
}

}  // namespace
}  // namespace quire::server

// Runs the whole daemon on the emulated GPU: listeners, model, engine and the CUDA runner in the
// test's process.

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/error_reason.h"
#include "base/logging.h"
#include "kernels/elementwise/embedding.h"
#include "quire/v1/admin.grpc.pb.h"
#include "quire/v1/generation.grpc.pb.h"
#include "server/config/layered_config.h"
#include "server/config/options.h"
#include "server/daemon.h"
#include "server/engine_stack.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/testing/paths.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/waiting.h"
#include "tools/quire/synthetic_model.h"

namespace quire::kernels::internal {

// The linker calls the second function in place of the first one.
absl::Status RealEmbedding(const CudaContext& context, const EmbeddingParams& params) __asm__(
    "__real__ZN5quire7kernels8internal13EmbeddingCudaERKNS0_11CudaContextERKNS0_"
    "15EmbeddingParamsE");
absl::Status WrapEmbedding(const CudaContext& context, const EmbeddingParams& params) __asm__(
    "__wrap__ZN5quire7kernels8internal13EmbeddingCudaERKNS0_11CudaContextERKNS0_"
    "15EmbeddingParamsE");

bool scales_embeddings = false;

absl::Status WrapEmbedding(const CudaContext& context, const EmbeddingParams& params) {
  EmbeddingParams changed = params;
  if (scales_embeddings) changed.scale *= 2;
  return RealEmbedding(context, changed);
}

}  // namespace quire::kernels::internal

namespace quire::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A daemon, from reading its configuration to its exit code.
class RunningDaemon {
 public:
  RunningDaemon(const std::string& folder, const std::vector<std::string>& sets)
      : address_(absl::StrCat("unix:", folder, "/grpc.sock")) {
    std::vector<std::string> all = {absl::StrCat("server.grpc.listen=[", address_, "]"),
                                    absl::StrCat("server.admin.listen=[unix:", folder, "/admin]"),
                                    "server.http.listen=\"\"",
                                    "openai.enabled=false",
                                    absl::StrCat("logging.file=", folder, "/log"),
                                    "device.cpu.threads=1",
                                    "scheduler.max_running_sequences=4",
                                    "scheduler.max_step_tokens=64",
                                    "scheduler.prefill_chunk_tokens=32",
                                    "kv_cache.page_size=16",
                                    "kv_cache.capacity_bytes=1MiB",
                                    "shutdown.pre_drain_delay=0s"};
    all.insert(all.end(), sets.begin(), sets.end());
    std::vector<std::string> errors;
    const ConfigSources sources = {.sets = all};
    auto config = LayeredConfig::Load(sources, &errors);
    EXPECT_NE(config, nullptr) << (errors.empty() ? "" : errors[0]);
    if (config == nullptr) return;
    daemon_ = std::make_unique<Daemon>(sources, std::move(config), runtime::CpuCheck());
    thread_ = std::thread([this] { exit_code_ = daemon_->Run(); });
    stub_ = v1::GenerationService::NewStub(
        grpc::CreateChannel(address_, grpc::InsecureChannelCredentials()));
  }
  ~RunningDaemon() { Stop(); }

  v1::GetServerInfoResponse Info() const {
    v1::GetServerInfoResponse info;
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    EXPECT_TRUE(stub_->GetServerInfo(&context, {}, &info).ok());
    return info;
  }

  void WaitUntilReady() const {
    ASSERT_TRUE(testing::WaitUntil([this] { return Info().state() == v1::SERVER_STATE_READY; },
                                   absl::Seconds(120)));
  }

  struct Answer {
    std::vector<std::int32_t> ids;
    int cached_tokens = 0;
    grpc::Status status;
    std::multimap<grpc::string_ref, grpc::string_ref> trailers;
    std::unique_ptr<grpc::ClientContext> context;  // owns the trailers
  };
  Answer Generate(const std::string& text, int max_tokens) const {
    v1::GenerateRequest request;
    request.set_text(text);
    return Generate(request, max_tokens);
  }
  Answer GenerateAfter(const std::vector<std::int32_t>& ids, int max_tokens) const {
    v1::GenerateRequest request;
    request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
    return Generate(request, max_tokens);
  }
  Answer Generate(v1::GenerateRequest request, int max_tokens) const {
    Answer answer;
    answer.context = std::make_unique<grpc::ClientContext>();
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_output()->set_token_ids(true);
    const auto reader = stub_->Generate(answer.context.get(), request);
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
      for (const std::int32_t id : message.completed().token_ids()) answer.ids.push_back(id);
      if (message.has_completed()) {
        answer.cached_tokens = message.completed().usage().cached_tokens();
      }
    }
    answer.status = reader->Finish();
    answer.trailers = answer.context->GetServerTrailingMetadata();
    return answer;
  }

  std::vector<std::vector<float>> Embed(const std::vector<std::string>& texts,
                                        v1::Pooling pooling) const {
    v1::EmbedRequest request;
    for (const std::string& text : texts) request.add_inputs()->set_text(text);
    request.set_pooling(pooling);
    request.set_normalize(false);
    v1::EmbedResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->Embed(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    std::vector<std::vector<float>> vectors;
    for (const v1::Embedding& embedding : response.embeddings()) {
      vectors.emplace_back(embedding.values().begin(), embedding.values().end());
    }
    return vectors;
  }
  v1::ScoreResponse Score(const v1::ScoreRequest& request) const {
    v1::ScoreResponse response;
    grpc::ClientContext context;
    const grpc::Status status = stub_->Score(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  // Waits for the daemon to end by itself.
  int Wait() {
    if (thread_.joinable()) thread_.join();
    return exit_code_;
  }
  int Stop() {
    if (daemon_ != nullptr) daemon_->RequestStop(/*skips_delay=*/false);
    return Wait();
  }

 private:
  const std::string address_;
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<v1::GenerationService::Stub> stub_;
  int exit_code_ = -1;
  std::thread thread_;
};

class CudaDaemonTest : public ::testing::Test {
 protected:
  CudaDaemonTest() {
    cuda_emulator::Reset();
    QUIRE_CHECK(client::WriteSyntheticModel("tiny", dir_.path() + "/tiny").ok());
  }
  ~CudaDaemonTest() override {
    cuda_emulator::Reset();
    QUIRE_CHECK(log::Configure({}).ok());
  }

  // The tiny model with random weights. Pages for 480 tokens keep the check of attention short.
  std::vector<std::string> Tiny(std::vector<std::string> sets) const {
    sets.insert(sets.begin(), "kv_cache.capacity_bytes=256KiB");
    sets.push_back(absl::StrCat("model.path=", dir_.path(), "/tiny"));
    sets.push_back("model.load_mode=dummy");
    return sets;
  }

  std::string Log() const {
    EXPECT_TRUE(log::Flush(absl::Seconds(20)));
    std::ifstream file(dir_.path() + "/log");
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  // Starts a daemon whose start must fail with code 78. Returns the only error that it logs.
  std::string OnlyErrorOf(const std::vector<std::string>& sets) const {
    const std::size_t before = Log().size();
    EXPECT_EQ(Refused(sets), kExitConfig);
    std::vector<std::string> errors;
    for (const absl::string_view line : absl::StrSplit(Log().substr(before), '\n')) {
      if (absl::StrContains(line, "\"level\":\"error\"")) errors.emplace_back(line);
    }
    EXPECT_EQ(errors.size(), 1u) << absl::StrJoin(errors, "\n");
    EXPECT_THAT(Log().substr(before), Not(HasSubstr("\"ready\"")));
    return errors.empty() ? "" : errors[0];
  }
  // Starts a daemon whose start must fail, and returns its exit code.
  int Refused(const std::vector<std::string>& sets) const {
    RunningDaemon daemon(dir_.path(), Tiny(sets));
    return daemon.Wait();
  }

  const testing::TempDir dir_;
};

// A small model in f32. The embedded model takes the emulator several seconds
// (tests/deploy/test_gpu.py).
std::vector<std::string> SmallModel(std::vector<std::string> sets) {
  sets.push_back(absl::StrCat("model.path=", paths::TestData("models/llama-mha-f32")));
  sets.push_back("kv_cache.dtype=f32");
  return sets;
}

TEST_F(CudaDaemonTest, GeneratesTheTokensOfTheCpu) {
  constexpr int kTokens = 6;
  const std::string prompt = "Once upon a time";
  std::vector<std::int32_t> expected;
  {
    RunningDaemon cpu(dir_.path(), SmallModel({"device.type=cpu", "device.cpu.activations=f32"}));
    cpu.WaitUntilReady();
    expected = cpu.Generate(prompt, kTokens).ids;
    ASSERT_EQ(expected.size(), std::size_t{kTokens});
    EXPECT_EQ(cpu.Stop(), kExitOk);
  }
  RunningDaemon gpu(dir_.path(), SmallModel({"device.type=cuda"}));
  gpu.WaitUntilReady();
  const v1::GetServerInfoResponse info = gpu.Info();
  ASSERT_EQ(info.devices_size(), 1);
  EXPECT_EQ(info.devices(0).kind(), "cuda");
  EXPECT_THAT(info.devices(0).name(), HasSubstr("emulated"));
  EXPECT_EQ(info.devices(0).architecture(), "9.0");
  EXPECT_EQ(info.devices(0).activations(), "");
  EXPECT_GT(info.devices(0).self_check().checks(), 10);
  EXPECT_GT(info.devices(0).self_check().seconds(), 0);
  EXPECT_EQ(info.devices(0).memory_total_bytes(), std::int64_t{1} << 30);
  EXPECT_LT(info.devices(0).memory_free_bytes(), std::int64_t{1} << 30);
  const RunningDaemon::Answer answer = gpu.Generate(prompt, kTokens);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.ids, expected);
  EXPECT_GT(cuda_emulator::LaunchCount(), 0u);
  EXPECT_EQ(gpu.Stop(), kExitOk);
  EXPECT_THAT(Log(), AllOf(HasSubstr("computing on a GPU"), HasSubstr("memory plan"),
                           HasSubstr("prefix_index_host_bytes"),
                           HasSubstr("the kernels passed the self-check")));
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// An embedding model of the fixtures and its recorded vectors.
struct Embedder {
  explicit Embedder(const std::string& name)
      : path(paths::TestData("embeddings/models/" + name)),
        reference(nlohmann::json::parse(
            ReadFile(paths::TestData("embeddings/reference/" + name + ".json")))),
        bytes(ReadFile(paths::TestData("embeddings/reference/" + name + ".safetensors"))) {}

  std::vector<std::string> Texts() const {
    std::vector<std::string> texts;
    for (const auto& text : reference["texts"]) texts.push_back(text["text"]);
    return texts;
  }
  // Returns the recorded vector `what` (for example "mean") of the text with this number.
  std::vector<float> Vector(std::size_t text, const std::string& what) const {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    const auto header = nlohmann::json::parse(bytes.substr(8, length));
    const auto& entry = header.at(absl::StrCat("t0", text, ".", what));
    std::vector<float> values(entry["shape"][0].get<std::size_t>());
    std::memcpy(values.data(),
                bytes.data() + 8 + length + entry["data_offsets"][0].get<std::size_t>(),
                values.size() * sizeof(float));
    return values;
  }

  const std::string path;
  const nlohmann::json reference;
  const std::string bytes;
};

// Returns the difference relative to the norm.
double RelativeDifference(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, length = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(double{got.at(i)} - want[i], 2);
    length += double{want[i]} * want[i];
  }
  return std::sqrt(difference / length);
}

// Compares with float64 vectors of sentence-transformers. Prompts are cut into chunks. The first
// model is a bare decoder.
TEST_F(CudaDaemonTest, EmbeddingsEqualTheReference) {
  const std::pair<v1::Pooling, std::string> modes[] = {
      {v1::POOLING_LAST, "last"}, {v1::POOLING_MEAN, "mean"}, {v1::POOLING_CLS, "cls"}};
  for (const char* name : {"llama-embed-mean-f32", "qwen3-embed-last-bf16"}) {
    const Embedder embedder(name);
    const std::vector<std::string> texts = embedder.Texts();
    RunningDaemon gpu(dir_.path(), {"device.type=cuda", "kv_cache.dtype=f32",
                                    absl::StrCat("model.path=", embedder.path)});
    gpu.WaitUntilReady();
    for (const auto& [pooling, mode] : modes) {
      const auto vectors = gpu.Embed(texts, pooling);
      ASSERT_EQ(vectors.size(), texts.size());
      for (std::size_t i = 0; i < texts.size(); ++i) {
        EXPECT_LT(RelativeDifference(vectors[i], embedder.Vector(i, mode)), 2e-5)
            << name << " " << mode << " " << i;
      }
      // A prompt alone is cut into other chunks than in a batch. The vectors are bitwise equal.
      EXPECT_EQ(gpu.Embed({texts.back()}, pooling).front(), vectors.back()) << name << " " << mode;
    }
    EXPECT_EQ(gpu.Stop(), kExitOk);
  }
}

// The tolerance is twice the error of torch in bfloat16 throughout.
TEST_F(CudaDaemonTest, Bfloat16EmbeddingsAreCloseToTheReference) {
  const Embedder embedder("qwen3-embed-last-bf16");
  RunningDaemon gpu(dir_.path(), {"device.type=cuda", "kv_cache.dtype=bf16",
                                  absl::StrCat("model.path=", embedder.path)});
  gpu.WaitUntilReady();
  const auto vectors = gpu.Embed(embedder.Texts(), v1::POOLING_MEAN);
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    EXPECT_LT(RelativeDifference(vectors[i], embedder.Vector(i, "mean")), 3.4e-2) << i;
  }
  EXPECT_EQ(gpu.Stop(), kExitOk);
}

TEST_F(CudaDaemonTest, ScoresEqualThoseOfTheCpu) {
  v1::ScoreRequest request;
  request.set_return_token_logprobs(true);
  for (const char* text : {" there was a little girl", " green", " time"}) {
    v1::ScoreItem* const item = request.add_items();
    item->set_context_text("Once upon a time there was a dog who wanted to play in the park");
    item->set_text(text);
  }
  v1::ScoreResponse expected;
  {
    RunningDaemon cpu(dir_.path(), SmallModel({"device.type=cpu", "device.cpu.activations=f32"}));
    cpu.WaitUntilReady();
    expected = cpu.Score(request);
    EXPECT_EQ(cpu.Stop(), kExitOk);
  }
  RunningDaemon gpu(dir_.path(), SmallModel({"device.type=cuda"}));
  gpu.WaitUntilReady();
  const v1::ScoreResponse got = gpu.Score(request);
  ASSERT_EQ(got.results_size(), 3);
  for (int i = 0; i < 3; ++i) {
    EXPECT_NEAR(got.results(i).total_logprob(), expected.results(i).total_logprob(), 1e-3);
    EXPECT_EQ(got.results(i).is_greedy(), expected.results(i).is_greedy());
  }
  // This run reads cached pages.
  EXPECT_EQ(gpu.Score(request).results(1).SerializeAsString(), got.results(1).SerializeAsString());
  EXPECT_EQ(gpu.Stop(), kExitOk);
}

TEST_F(CudaDaemonTest, GraphsAndOverlapDoNotChangeTokens) {
  std::vector<std::int32_t> first;
  for (const char* pages : {"bf16", "int8"}) {
    for (const char* on : {"true", "false"}) {
      RunningDaemon daemon(dir_.path(),
                           Tiny({"device.type=cuda", absl::StrCat("kv_cache.dtype=", pages),
                                 absl::StrCat("engine.cuda_graphs.enabled=", on),
                                 absl::StrCat("engine.overlap_scheduling=", on)}));
      daemon.WaitUntilReady();
      const RunningDaemon::Answer answer = daemon.Generate("some words", 5);
      ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
      EXPECT_EQ(answer.ids.size(), 5u);
      if (absl::string_view(on) == "true") first = answer.ids;
      EXPECT_EQ(answer.ids, first) << pages;
      EXPECT_EQ(daemon.Stop(), kExitOk);
    }
  }
}

// Weights of every stored type are converted to bf16 for the GPU, in the plan and in memory.
TEST_F(CudaDaemonTest, ServesCheckpointsOfEveryType) {
  const std::string path = dir_.path() + "/tiny/config.json";
  std::ifstream file(path);
  const std::string config{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  ASSERT_THAT(config, HasSubstr("bfloat16"));
  for (const char* type : {"float16", "float32"}) {
    std::ofstream(path) << absl::StrReplaceAll(config, {{"bfloat16", type}});
    RunningDaemon daemon(dir_.path(), Tiny({"device.type=cuda"}));
    daemon.WaitUntilReady();
    const RunningDaemon::Answer answer = daemon.Generate("one two", 2);
    EXPECT_TRUE(answer.status.ok()) << type << ": " << answer.status.error_message();
    EXPECT_EQ(answer.ids.size(), 2u) << type;
    EXPECT_EQ(daemon.Stop(), kExitOk) << type << Log();
  }
}

TEST_F(CudaDaemonTest, StrictModeReusesNoPagesOfGeneratedTokens) {
  std::vector<std::int32_t> turn;
  for (int i = 0; i < 20; ++i) turn.push_back(100 + i);
  std::vector<std::int32_t> warm;
  for (const char* level : {"batch_invariant", "strict"}) {
    RunningDaemon daemon(dir_.path(),
                         Tiny({"device.type=cuda", absl::StrCat("engine.determinism=", level)}));
    daemon.WaitUntilReady();
    const std::vector<std::int32_t> output = daemon.GenerateAfter(turn, 20).ids;
    ASSERT_EQ(output.size(), 20u);
    std::vector<std::int32_t> next = turn;
    next.insert(next.end(), output.begin(), output.end());
    const RunningDaemon::Answer answer = daemon.GenerateAfter(next, 3);
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    if (absl::string_view(level) == "strict") {
      EXPECT_LE(answer.cached_tokens, 20);
      EXPECT_GE(answer.cached_tokens, 16);
      warm = answer.ids;
      turn = next;
    } else {
      EXPECT_GE(answer.cached_tokens, 32);
    }
    EXPECT_EQ(daemon.Stop(), kExitOk);
  }
  RunningDaemon cold(dir_.path(), Tiny({"device.type=cuda", "engine.determinism=strict"}));
  cold.WaitUntilReady();
  EXPECT_EQ(cold.GenerateAfter(turn, 3).ids, warm);
  EXPECT_EQ(cold.Stop(), kExitOk);
}

TEST_F(CudaDaemonTest, UnusableDeviceIsRefusedWithFigures) {
  const auto refused = [this](const cuda_emulator::EmulatorOptions& options, const char* text,
                              const std::vector<std::string>& sets = {"device.type=cuda"}) {
    cuda_emulator::SetOptions(options);
    const std::string error = OnlyErrorOf(sets);
    EXPECT_THAT(error, AllOf(HasSubstr(text), HasSubstr("set device.type: cpu")));
  };
  refused({.driver_version = 0}, "no CUDA driver is installed");
  refused({.driver_version = 12080},
          "the CUDA driver supports CUDA 12.8; this build needs at least 13.0");
  refused({.num_devices = 0}, "CUDA device 0 does not exist; this machine has 0 devices");
  refused({}, "CUDA device 5 does not exist; this machine has 1 devices",
          {"device.type=cuda", "device.ids=[5]"});
  refused({.compute_capability = 75}, "has compute capability 7.5; this build needs at least 8.0");
}

TEST_F(CudaDaemonTest, AutoSelectsTheGpuIfPresent) {
  for (const int devices : {1, 0}) {
    cuda_emulator::SetOptions({.num_devices = devices});
    RunningDaemon daemon(dir_.path(), Tiny({"device.type=auto"}));
    daemon.WaitUntilReady();
    EXPECT_EQ(daemon.Info().devices(0).kind(), devices == 1 ? "cuda" : "cpu");
    EXPECT_EQ(daemon.Stop(), kExitOk);
  }
  EXPECT_THAT(Log(), HasSubstr("no GPU is usable: CUDA device 0 does not exist"));
}

// A supervisor restarts the daemon after status 71 but not after 78.
TEST_F(CudaDaemonTest, GpuThatIsNotReadyExitsWith71) {
  for (const char* type : {"device.type=cuda", "device.type=auto"}) {
    cuda_emulator::InjectFault({.where = "cudaGetDeviceCount", .error = cudaErrorSystemNotReady});
    const std::size_t before = Log().size();
    EXPECT_EQ(Refused({type}), kExitDevice) << type;
    EXPECT_THAT(Log().substr(before),
                AllOf(HasSubstr("system not yet initialized"), Not(HasSubstr("no GPU is"))));
  }
}

// The pages exceed the emulated GPU's memory but not what a host may be configured for.
TEST_F(CudaDaemonTest, ValidationPlansTheDeviceOfAuto) {
  for (const int devices : {1, 0}) {
    cuda_emulator::SetOptions({.num_devices = devices});
    std::vector<std::string> errors;
    const auto config = LayeredConfig::Load(
        {.sets = Tiny({"device.type=auto", "kv_cache.capacity_bytes=2GiB"})}, &errors);
    ASSERT_NE(config, nullptr) << errors[0];
    ValidateModel(ToOptions(*config), &errors);
    if (devices == 0) {
      EXPECT_THAT(errors, ::testing::IsEmpty());
    } else {
      EXPECT_THAT(errors, ::testing::Contains(HasSubstr("device memory: ")));
    }
  }
}

TEST_F(CudaDaemonTest, RejectsAPlanThatDoesNotFitBeforeLoading) {
  // The pages exceed the emulated GPU's memory.
  EXPECT_EQ(Refused({"device.type=cuda", "kv_cache.capacity_bytes=2GiB"}), kExitConfig);
  EXPECT_THAT(Log(), AllOf(HasSubstr("device memory: "), HasSubstr("weights "), HasSubstr("limit "),
                           Not(HasSubstr("memory plan"))));
  EXPECT_EQ(cuda_emulator::LaunchCount(), 0u);
}

TEST_F(CudaDaemonTest, ReportsMemoryLostAfterThePlan) {
  cuda_emulator::InjectFault(
      {.where = "cudaMalloc", .error = cudaErrorMemoryAllocation, .after = 3});
  EXPECT_EQ(Refused({"device.type=cuda"}), kExitConfig);
  EXPECT_THAT(Log(), HasSubstr("out of memory"));
}

TEST_F(CudaDaemonTest, SelfCheckRunsAlone) {
  std::vector<std::string> errors;
  const auto config = LayeredConfig::Load(
      {.sets = Tiny({"device.type=cuda", "kv_cache.capacity_bytes=1MiB",
                     "scheduler.max_running_sequences=2", "scheduler.max_step_tokens=64",
                     "scheduler.prefill_chunk_tokens=32", "kv_cache.page_size=16"})},
      &errors);
  ASSERT_NE(config, nullptr) << errors[0];
  std::vector<kernels::KernelCheck> checks;
  const absl::Status status = CheckGpuKernels(ToOptions(*config), runtime::CpuCheck(), &checks);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_GT(checks.size(), 10u);
  for (const kernels::KernelCheck& check : checks) EXPECT_EQ(check.fault, "");
}

// Errors of the device during single comparisons, and during the first steps.
TEST_F(CudaDaemonTest, FailedSelfCheckExitsWith78) {
  const std::pair<const char*, const char*> kernels[] = {{"rms_norm", "norm, "},
                                                         {"step inputs", "steps, one token: "}};
  for (const auto& [kernel, text] : kernels) {
    for (const bool hopper : {true, false}) {
      cuda_emulator::InjectFault(
          {.where = absl::StrCat("kernel:", kernel), .error = cudaErrorIllegalAddress});
      EXPECT_THAT(
          OnlyErrorOf({"device.type=cuda",
                       absl::StrCat("device.hopper_kernels=", hopper ? "true" : "false")}),
          AllOf(HasSubstr(absl::StrCat("self-check of the kernels: ", text)),
                HasSubstr("illegal memory access"),
                HasSubstr(hopper ? "device.hopper_kernels: false selects the portable kernels"
                                 : "update the driver, use another GPU, or set device.type: cpu")));
      cuda_emulator::Reset();
    }
  }
}

TEST_F(CudaDaemonTest, WrongResultOfAKernelExitsWith78) {
  kernels::internal::scales_embeddings = true;
  const std::string error = OnlyErrorOf({"device.type=cuda"});
  kernels::internal::scales_embeddings = false;
  EXPECT_THAT(error,
              HasSubstr("self-check of the kernels: embedding, bf16, 65 lookups in 512 x 128: the "
                        "result differs from the reference (relative error 1, limit 0); "
                        "device.hopper_kernels: false selects the portable kernels"));
}

// A check that does not end returns DEADLINE_EXCEEDED, one without enough memory
// RESOURCE_EXHAUSTED (runtime_self_check_test). A step of 64 tokens, the least that a configuration
// allows, has enough.
TEST(ExitCodeTest, TellsRefusedStartsFromFailedDevices) {
  for (const absl::StatusCode code :
       {absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kResourceExhausted,
        absl::StatusCode::kFailedPrecondition, absl::StatusCode::kInvalidArgument,
        absl::StatusCode::kUnimplemented}) {
    EXPECT_EQ(ExitCodeOf(absl::Status(code, "x")), kExitConfig) << code;
  }
  EXPECT_EQ(ExitCodeOf(absl::InternalError("x")), kExitEngine);
  for (const Reason reason : {Reason::kDeviceError, Reason::kDeviceLost}) {
    EXPECT_EQ(ExitCodeOf(WithReason(absl::UnavailableError("x"), reason)), kExitDevice);
  }
}

TEST_F(CudaDaemonTest, InternalErrorExitsWith70) {
  cuda_emulator::InjectFault({.where = "cudaMalloc", .error = cudaErrorInvalidValue, .after = 3});
  EXPECT_EQ(Refused({"device.type=cuda"}), kExitEngine);
  EXPECT_THAT(Log(), HasSubstr("invalid argument"));
}

TEST_F(CudaDaemonTest, LostDeviceFailsRequestsAndExitsWith71) {
  RunningDaemon daemon(dir_.path(), Tiny({"device.type=cuda"}));
  daemon.WaitUntilReady();
  ASSERT_TRUE(daemon.Generate("some words", 2).status.ok());
  cuda_emulator::InjectFault(
      {.where = "cudaEventRecord", .error = cudaErrorIllegalAddress, .after = 2, .sticky = true});
  const RunningDaemon::Answer answer = daemon.Generate("some words", 200);
  EXPECT_EQ(answer.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(answer.status.error_details(), HasSubstr("DEVICE_ERROR"));
  EXPECT_EQ(answer.trailers.count("quire-usage-bin"), 1u);
  EXPECT_EQ(daemon.Wait(), kExitDevice);
  EXPECT_THAT(Log(), HasSubstr("the engine has failed"));
}

}  // namespace
}  // namespace quire::server

// quire models, info, health, stats, requests, config: commands that show the state of the server.

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "quire/v1/admin.grpc.pb.h"
#include "quire/v1/generation.grpc.pb.h"
#include "tools/quire/client.h"
#include "tools/quire/message_json.h"
#include "tools/quire/unary_call.h"

namespace quire::client {
namespace {

int RunModels(const CommonOptions& common) {
  const auto stub = v1::GenerationService::NewStub(Connect(common, common.address));
  v1::ListModelsRequest request;
  do {
    grpc::ClientContext context;
    ApplyDeadline(common, &context);
    v1::ListModelsResponse response;
    const grpc::Status status = stub->ListModels(&context, request, &response);
    if (!status.ok()) return Fail(common, status, common.address);
    for (const v1::Model& model : response.models()) {
      if (common.json) {
        PrintJson(model);
        continue;
      }
      std::printf(
          "%s  %s  %s, weights %s  %.1f M parameters  context %d  vocabulary %d  %d pages of %d "
          "tokens (%s)\n",
          model.id().c_str(), model.architecture().c_str(), model.dtype().c_str(),
          model.quantization() == "none" ? "unquantized" : model.quantization().c_str(),
          1e-6 * static_cast<double>(model.parameter_count()), model.max_context_tokens(),
          model.vocab_size(), model.kv_page_count(), model.kv_page_size(),
          model.kv_dtype().c_str());
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return kOk;
}

double InGiB(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 30);
}

void PrintInfo(const v1::GetServerInfoResponse& info) {
  std::printf("version %s (%s, %s)\nstate %s\n", info.version().c_str(), info.git_commit().c_str(),
              info.build_type().c_str(),
              EnumWords(v1::ServerState_descriptor(), info.state()).c_str());
  for (const v1::Device& device : info.devices()) {
    std::printf("device %s %d: %s %s%s%s, %.1f of %.1f GiB free\n", device.kind().c_str(),
                device.ordinal(), device.name().c_str(), device.architecture().c_str(),
                device.activations().empty() ? "" : ", activations ", device.activations().c_str(),
                InGiB(device.memory_free_bytes()), InGiB(device.memory_total_bytes()));
    const v1::SelfCheck& check = device.self_check();
    std::printf("self-check: %d passed in %.3f s%s%s\n", check.checks(), check.seconds(),
                check.skipped_levels().empty() ? "" : "; failed and not used: ",
                absl::StrJoin(check.skipped_levels(), ", ").c_str());
  }
  std::printf("context %d tokens, default output limit %d tokens\n",
              info.limits().max_context_tokens(), info.limits().default_max_tokens());
}

int RunInfo(const CommonOptions& common) {
  return CallAndPrint(common, common.address, &v1::GenerationService::Stub::GetServerInfo, {},
                      PrintInfo);
}

// Calls grpc.health.v1.Health/Check without a generated class, since Debian does not package
// health.proto: HealthCheckRequest{string service = 1}, HealthCheckResponse{ServingStatus status =
// 1}, SERVING = 1.
grpc::Status CheckHealth(const CommonOptions& common, const std::string& address,
                         const std::string& service, bool* serving) {
  const std::string bytes =
      absl::StrCat("\x0a", std::string(1, static_cast<char>(service.size())), service);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  ApplyDeadline(common, &context);
  grpc::CompletionQueue queue;
  grpc::GenericStub stub(Connect(common, address));
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  grpc::Slice answer;
  if (status.ok()) status = response.DumpToSingleSlice(&answer);
  *serving =
      status.ok() && answer.size() == 2 && answer.begin()[0] == 0x08 && answer.begin()[1] == 1;
  return status;
}

// Uses the control listener, which needs no token on a Unix socket. Falls back to the data
// listener, which has the same service, if there is no admin socket.
int RunHealth(const CommonOptions& common, const std::string& service) {
  const bool is_socket = absl::StartsWith(common.admin, "unix:");
  const std::string socket(absl::StripPrefix(common.admin, "unix:"));
  const bool use_admin = !is_socket || std::filesystem::exists(socket);
  const std::string& address = use_admin ? common.admin : common.address;
  bool serving = false;
  const grpc::Status status = CheckHealth(common, address, service, &serving);
  if (!status.ok()) return Fail(common, status, address);
  if (common.json) {
    std::printf("{\"status\":\"%s\"}\n", serving ? "SERVING" : "NOT_SERVING");
  } else {
    std::printf("%s\n", serving ? "serving" : "not serving");
  }
  return serving ? kOk : kRequestFailed;
}

void PrintStats(const v1::GetStatsResponse& response) {
  const v1::Stats& stats = response.stats();
  std::printf("state %s  running %d  waiting %d (%lld uncached tokens)\n",
              EnumWords(v1::ServerState_descriptor(), stats.state()).c_str(), stats.running_count(),
              stats.waiting_count(), static_cast<long long>(stats.waiting_uncached_tokens()));
  std::printf("pages: %d used, %d cached, %d total  prefix hits %.1f %%\n",
              stats.used_kv_page_count(), stats.cached_kv_page_count(), stats.total_kv_page_count(),
              100 * stats.prefix_hit_ratio());
  std::printf("tokens/s over 10 s: prompt %.1f, generated %.1f  steps %lld  preemptions %lld\n",
              stats.prompt_tokens_per_second(), stats.generation_tokens_per_second(),
              static_cast<long long>(stats.step_count()),
              static_cast<long long>(stats.preemption_count()));
}

int RunStats(const CommonOptions& common) {
  return CallAndPrint(common, common.admin, &v1::AdminService::Stub::GetStats, {}, PrintStats);
}

int RunRequests(const CommonOptions& common) {
  const auto stub = v1::AdminService::NewStub(Connect(common, common.admin));
  v1::ListRequestsRequest request;
  bool has_requests = false;
  do {
    grpc::ClientContext context;
    ApplyDeadline(common, &context);
    v1::ListRequestsResponse response;
    const grpc::Status status = stub->ListRequests(&context, request, &response);
    if (!status.ok()) return Fail(common, status, common.admin);
    has_requests = has_requests || !response.requests().empty();
    for (const v1::RequestInfo& info : response.requests()) {
      if (common.json) {
        PrintJson(info);
        continue;
      }
      std::printf("%s  %s  prompt %d  output %d  pages %d  priority %d  tenant %s\n",
                  info.request_id().c_str(),
                  EnumWords(v1::RequestState_descriptor(), info.state()).c_str(),
                  info.prompt_tokens(), info.output_tokens(), info.kv_page_count(), info.priority(),
                  info.tenant().c_str());
    }
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  // JSON has one line per request, so an empty list has none.
  if (!has_requests && !common.json) std::printf("no requests\n");
  return kOk;
}

int RunConfig(const CommonOptions& common, bool all) {
  v1::GetConfigRequest request;
  request.set_include_defaults(all);
  const auto print = [](const v1::GetConfigResponse& response) {
    std::printf("%s", response.yaml().c_str());
  };
  return CallAndPrint(common, common.admin, &v1::AdminService::Stub::GetConfig, request, print);
}

}  // namespace

void AddInspect(CLI::App* app, const CommonOptions* common, int* exit_code) {
  app->add_subcommand("models", "list the served models")->callback([=] {
    *exit_code = RunModels(*common);
  });
  app->add_subcommand("info", "show version, state, devices and limits")->callback([=] {
    *exit_code = RunInfo(*common);
  });
  auto service = std::make_shared<std::string>("readiness");
  CLI::App* health =
      app->add_subcommand("health", "check health; the exit code is 0 if the server is serving");
  health->add_option("--service", *service, "readiness, liveness or startup")
      ->capture_default_str();
  health->callback([=] { *exit_code = RunHealth(*common, *service); });
  app->add_subcommand("stats", "show load, pages and rates")->callback([=] {
    *exit_code = RunStats(*common);
  });
  app->add_subcommand("requests", "list live requests")->callback([=] {
    *exit_code = RunRequests(*common);
  });
  auto all = std::make_shared<bool>(false);
  CLI::App* config = app->add_subcommand("config", "print the effective configuration as YAML");
  config->add_flag("--all", *all, "include default values");
  config->callback([=] { *exit_code = RunConfig(*common, *all); });
}

}  // namespace quire::client

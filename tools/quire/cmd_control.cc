// quire cancel, abort, drain, resume, reload, flush: commands that change the state of the server.

#include <google/protobuf/util/time_util.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "quire/v1/admin.grpc.pb.h"
#include "quire/v1/generation.grpc.pb.h"
#include "tools/quire/client.h"
#include "tools/quire/message_json.h"
#include "tools/quire/unary_call.h"

namespace quire::client {
namespace {

using AdminStub = v1::AdminService::Stub;

google::protobuf::Duration ToDuration(double seconds) {
  return google::protobuf::util::TimeUtil::NanosecondsToDuration(
      static_cast<std::int64_t>(std::llround(seconds * 1e9)));
}

// Reports an id that no live request has.
int FailUnknown(const std::string& id) {
  std::fprintf(stderr,
               "quire: no live request has the id \"%s\"; \"quire requests\" lists the ids\n",
               id.c_str());
  return kRequestFailed;
}

int RunCancel(const CommonOptions& common, const std::string& id) {
  v1::CancelRequest request;
  request.set_request_id(id);
  v1::CancelResponse response;
  const grpc::Status status =
      Call(common, common.address, &v1::GenerationService::Stub::Cancel, request, &response);
  if (!status.ok()) return Fail(common, status, common.address);
  if (common.json) {
    PrintJson(response);
  } else if (response.found()) {
    std::printf("cancelled\n");
  }
  return response.found() ? kOk : FailUnknown(id);
}

struct AbortOptions {
  std::vector<std::string> ids;
  bool all = false;
  std::optional<double> older_than_seconds;
  std::string tenant;
  std::string reason;
};

int RunAbort(const CommonOptions& common, const AbortOptions& options) {
  v1::AbortRequestsRequest request;
  for (const std::string& id : options.ids) request.add_request_ids(id);
  request.set_all(options.all);
  if (options.older_than_seconds) {
    *request.mutable_older_than() = ToDuration(*options.older_than_seconds);
  }
  request.set_tenant(options.tenant);
  request.set_reason(options.reason);
  v1::AbortRequestsResponse response;
  const grpc::Status status =
      Call(common, common.admin, &AdminStub::AbortRequests, request, &response);
  if (!status.ok()) return Fail(common, status, common.admin);
  if (common.json) {
    PrintJson(response);
  } else {
    std::printf("%d aborted\n", response.aborted_count());
  }
  for (const std::string& id : response.unknown_ids()) FailUnknown(id);
  return response.unknown_ids().empty() ? kOk : kRequestFailed;
}

struct DrainOptions {
  double drain_timeout_seconds = 0;
  bool now = false;
  bool exit_after = false;
  bool wait = false;
};

int RunDrain(const CommonOptions& common, const DrainOptions& options) {
  v1::DrainRequest request;
  if (options.drain_timeout_seconds > 0) {
    *request.mutable_timeout() = ToDuration(options.drain_timeout_seconds);
  }
  if (options.now) request.mutable_pre_drain_delay();
  request.set_exit_after(options.exit_after);
  request.set_wait(options.wait);
  const auto print = [](const v1::DrainResponse& response) {
    std::printf("%s: %d running, %d waiting\n", response.drained() ? "drained" : "draining",
                response.running_count(), response.waiting_count());
  };
  return CallAndPrint(common, common.admin, &AdminStub::Drain, request, print);
}

int RunResume(const CommonOptions& common) {
  const auto print = [](const v1::ResumeResponse& response) {
    std::printf("%s\n", EnumWords(v1::ServerState_descriptor(), response.state()).c_str());
  };
  return CallAndPrint(common, common.admin, &AdminStub::Resume, {}, print);
}

int RunFlush(const CommonOptions& common, double idle_timeout_seconds) {
  v1::FlushCacheRequest request;
  if (idle_timeout_seconds > 0) *request.mutable_idle_timeout() = ToDuration(idle_timeout_seconds);
  const auto print = [](const v1::FlushCacheResponse& response) {
    std::printf("%d pages freed, %d in use\n", response.freed_page_count(),
                response.retained_page_count());
  };
  return CallAndPrint(common, common.admin, &AdminStub::FlushCache, request, print);
}

void PrintChanges(const char* what,
                  const google::protobuf::RepeatedPtrField<v1::FieldChange>& changes) {
  for (const v1::FieldChange& change : changes) {
    std::printf("%s %s: %s -> %s  # %s\n", what, change.path().c_str(), change.old_value().c_str(),
                change.new_value().c_str(), change.location().c_str());
  }
}

int RunReload(const CommonOptions& common, bool dry_run) {
  v1::ReloadConfigRequest request;
  request.set_dry_run(dry_run);
  v1::ReloadConfigResponse response;
  const grpc::Status status =
      Call(common, common.admin, &AdminStub::ReloadConfig, request, &response);
  if (!status.ok()) return Fail(common, status, common.admin);
  const bool refused = response.errors_size() > 0;
  if (common.json) {
    PrintJson(response);
    return refused ? kRequestFailed : kOk;
  }
  PrintChanges(refused || dry_run ? "would change" : "changed", response.changed());
  PrintChanges("needs a restart:", response.rejected());
  for (const std::string& error : response.errors()) std::fprintf(stderr, "%s\n", error.c_str());
  if (refused) {
    std::fprintf(stderr, "no change was applied\n");
    return kRequestFailed;
  }
  if (response.changed().empty()) std::printf("no key changed\n");
  return kOk;
}

}  // namespace

void AddControl(CLI::App* app, const CommonOptions* common, int* exit_code) {
  auto id = std::make_shared<std::string>();
  CLI::App* cancel = app->add_subcommand("cancel", "cancel one of your own requests");
  cancel->add_option("id", *id, "request id")->required();
  cancel->callback([=] { *exit_code = RunCancel(*common, *id); });

  auto abort = std::make_shared<AbortOptions>();
  CLI::App* abort_cmd = app->add_subcommand("abort", "abort requests of any caller");
  abort_cmd->add_option("ids", abort->ids, "request ids");
  abort_cmd->add_flag("--all", abort->all,
                      "abort all live requests that match the filters; needed if no id is given");
  abort_cmd->add_option("--older-than", abort->older_than_seconds,
                        "only requests accepted more than this many seconds ago");
  // An empty value would mean every tenant, which a script with an unset variable does not intend.
  abort_cmd->add_option("--tenant", abort->tenant, "only requests of this tenant")
      ->check(CLI::Validator(
          [](const std::string& tenant) {
            return tenant.empty() ? std::string("must not be empty") : std::string();
          },
          ""));
  abort_cmd->add_option("--reason", abort->reason, "reason to send to the callers");
  abort_cmd->callback([=] { *exit_code = RunAbort(*common, *abort); });

  auto drain = std::make_shared<DrainOptions>();
  CLI::App* drain_cmd = app->add_subcommand(
      "drain", "report not ready, refuse new requests and finish the live ones");
  drain_cmd->add_option("--drain-timeout", drain->drain_timeout_seconds,
                        "time limit for live requests in seconds");
  drain_cmd->add_flag("--now", drain->now,
                      "refuse new requests at once; without it they are still admitted for "
                      "shutdown.pre_drain_delay, while health checks report not ready");
  drain_cmd->add_flag("--exit", drain->exit_after, "exit the daemon once drained");
  drain_cmd->add_flag("--wait", drain->wait, "wait until drained");
  drain_cmd->callback([=] { *exit_code = RunDrain(*common, *drain); });

  app->add_subcommand("resume", "accept new requests again after a drain")->callback([=] {
    *exit_code = RunResume(*common);
  });

  auto dry_run = std::make_shared<bool>(false);
  CLI::App* reload = app->add_subcommand("reload", "reload the configuration");
  reload->add_flag("--dry-run", *dry_run, "only print what would change");
  reload->callback([=] { *exit_code = RunReload(*common, *dry_run); });

  auto idle_timeout = std::make_shared<double>(0);
  CLI::App* flush = app->add_subcommand("flush", "remove all cached prefixes");
  flush->add_option("--idle-timeout", *idle_timeout, "seconds to wait until the engine is idle");
  flush->callback([=] { *exit_code = RunFlush(*common, *idle_timeout); });
}

}  // namespace quire::client

#pragma once

// Code that all subcommands of `quire` share: server addresses, printing of errors, and exit codes.
// The codes are 0 (ok), 1 (request failed), 2 (wrong usage), 3 (cannot connect) and 130
// (interrupted).
//
// Threads: the main thread calls these functions. Threads of `bench` also call ApplyDeadline and
//          ReasonOf.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI
namespace google::protobuf {
class Message;
}
namespace grpc {
class Channel;
class ClientContext;
class Status;
}  // namespace grpc

namespace quire::client {

inline constexpr int kOk = 0;
inline constexpr int kRequestFailed = 1;
inline constexpr int kWrongUsage = 2;
inline constexpr int kCannotConnect = 3;
// The code that shells use for SIGINT.
inline constexpr int kInterrupted = 130;

// Returns the default address of quired's admin socket (docs/config.md, server.admin.listen). Looks
// for the socket in /run/quire, $XDG_RUNTIME_DIR/quire, and quire-UID in the temporary directory,
// in this order. If no directory has the socket, returns its address in /run/quire. The last two
// directories are skipped, with a message on standard error, if they are not private
// (CheckPrivateDir). `port_offset` is the --port-offset of the daemon.
std::string DefaultAdminAddress(int port_offset = 0);

// Options that are accepted before and after any subcommand.
struct CommonOptions {
  std::string address = "127.0.0.1:50051";
  std::string admin = DefaultAdminAddress();
  double timeout_seconds = 0;  // 0: no deadline
  bool json = false;
  // --address or --admin is an https:// or grpcs:// URL.
  bool use_tls = false;
  // Contents of PEM files. TLS is used if use_tls or tls_ca is set, but never on Unix sockets.
  // Without tls_ca the CAs of the system verify the server.
  std::string tls_ca, tls_cert, tls_key;
  std::string token;  // sent with every call if not empty
};

// Adds the common options to `app`.
void AddCommonOptions(CLI::App* app, CommonOptions* options);

// Reads a file or a pipe to its end; "-" is standard input. Returns NOT_FOUND with the path and the
// reason.
absl::StatusOr<std::string> ReadInput(const std::string& path);

// Adds an option for a file or a pipe that must not be empty, reads it once and passes its contents
// to `take`. An error of `take` is an error of the option.
CLI::Option* AddFileOption(CLI::App* app, const std::string& name, const std::string& description,
                           std::function<absl::Status(std::string)> take);

// Returns a channel and waits up to half a second for the connection. If the connection fails,
// calls report why.
std::shared_ptr<grpc::Channel> Connect(const CommonOptions& options, const std::string& address);

// Sets the gRPC deadline to --timeout from now.
void ApplyDeadline(const CommonOptions& options, grpc::ClientContext* context);

// Prints `CODE/REASON: message` to standard error and returns the exit code. If there is no
// gRPC connection, prints what kind of server was found at the address and which option to give.
int Fail(const CommonOptions& common, const grpc::Status& status, absl::string_view address);

// Prints the message of the status to standard error and returns `exit_code`.
int FailWith(const absl::Status& status, int exit_code);

// Returns the reason in the status's ErrorInfo, or "" if there is none.
std::string ReasonOf(const grpc::Status& status);

// Prints one message as a line of JSON (message_json.h) to standard output.
void PrintJson(const google::protobuf::Message& message);

// Blocks SIGINT and SIGTERM in this thread and in those that it starts, so that only InterruptGuard
// receives them.
void BlockInterrupts();

// Calls `cancel` on the first SIGINT or SIGTERM and exits on the second. At most one object exists
// at a time. REQUIRES: BlockInterrupts() was called before any thread was started.
class InterruptGuard {
 public:
  explicit InterruptGuard(std::function<void()> cancel);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  std::atomic<bool> is_done_{false};
  std::thread thread_;
};

// Each function registers subcommands. The subcommand that runs stores its exit code in
// `*exit_code`.
void AddGenerate(CLI::App* app, const CommonOptions* common, int* exit_code);
// chat, render
void AddChat(CLI::App* app, const CommonOptions* common, int* exit_code);
// tokenize, detokenize
void AddText(CLI::App* app, const CommonOptions* common, int* exit_code);
// embed, score
void AddEvaluate(CLI::App* app, const CommonOptions* common, int* exit_code);
// models, info, health, stats, requests, config
void AddInspect(CLI::App* app, const CommonOptions* common, int* exit_code);
// cancel, abort, drain, resume, reload, flush
void AddControl(CLI::App* app, const CommonOptions* common, int* exit_code);
// inspect, plan, make-model
void AddLocal(CLI::App* app, const CommonOptions* common, int* exit_code);
// pull, list, rm
void AddHub(CLI::App* app, const CommonOptions* common, int* exit_code);
void AddBench(CLI::App* app, const CommonOptions* common, int* exit_code);
// completion, manual
void AddCompletion(CLI::App* app, int* exit_code);

}  // namespace quire::client

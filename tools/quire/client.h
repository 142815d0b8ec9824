#pragma once

// What every sub-command of `quire` shares: where the server is, how a failure is printed, and the
// exit codes of docs/operations.md (0 ok, 1 request failed, 2 wrong usage, 3 cannot connect).
//
// Threads: a Client is used by one thread; `bench` gives each of its threads a channel of its own.

#include <functional>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

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

// Where quired puts its admin socket when nothing is configured (docs/config.md,
// server.admin.listen): /run/quire, $XDG_RUNTIME_DIR/quire or quire-UID in the temporary directory,
// whichever has it.
std::string DefaultAdminAddress();

// Options that stand before or after any sub-command.
struct CommonOptions {
  std::string address = "127.0.0.1:50051";
  std::string admin = DefaultAdminAddress();
  double timeout_seconds = 0;  // 0: no deadline
  bool json = false;
  // Contents of files. TLS is used when there are authorities, but never on Unix sockets.
  std::string tls_ca, tls_cert, tls_key;
  std::string token;  // sent with every call, when there is one
};

// The options' flags, on `app`.
void AddCommonOptions(CLI::App* app, CommonOptions* options);

// An option that names a file, which must have something in it, and hands on its contents.
CLI::Option* AddFileOption(CLI::App* app, const std::string& name, const std::string& description,
                           std::function<void(std::string)> take);

// A channel that is connected, unless that does not succeed within half a second: then its calls
// say why.
std::shared_ptr<grpc::Channel> Connect(const CommonOptions& options, const std::string& address);

// Sets the gRPC deadline from --timeout.
void ApplyDeadline(const CommonOptions& options, grpc::ClientContext* context);

// Prints `CODE/REASON: message` to standard error and says which exit code it is.
int Fail(const grpc::Status& status, absl::string_view address);

// The reason in a status's ErrorInfo; empty when it has none.
std::string ReasonOf(const grpc::Status& status);

// One message as JSON with a line end, to standard output.
void PrintJson(const google::protobuf::Message& message);

// Calls `cancel` at the first SIGINT or SIGTERM and exits at the second. One at a time per process;
// REQUIRES BlockInterrupts() before any thread was started.
void BlockInterrupts();
class InterruptGuard {
 public:
  explicit InterruptGuard(std::function<void()> cancel);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Each registers its sub-commands; a chosen one stores its exit code in `*exit_code`.
void AddGenerate(CLI::App* app, const CommonOptions* common, int* exit_code);
void AddChat(CLI::App* app, const CommonOptions* common, int* exit_code);  // chat, render
void AddText(CLI::App* app, const CommonOptions* common, int* exit_code);  // tokenize, detokenize
void AddEvaluate(CLI::App* app, const CommonOptions* common, int* exit_code);  // embed, score
void AddInspect(CLI::App* app, const CommonOptions* common,
                int* exit_code);  // models, info, health,
                                  // stats, requests, config
void AddControl(CLI::App* app, const CommonOptions* common,
                int* exit_code);  // cancel, abort, drain,
                                  // resume, flush
void AddLocal(CLI::App* app, const CommonOptions* common,
              int* exit_code);  // inspect, plan, make-model
void AddBench(CLI::App* app, const CommonOptions* common, int* exit_code);
void AddCompletion(CLI::App* app, int* exit_code);  // completion, manual

}  // namespace quire::client

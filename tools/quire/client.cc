#include "tools/quire/client.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/util/json_util.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_interceptor.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/grpc_code.h"
#include "base/private_dir.h"
#include "server/config/validator.h"

namespace quire::client {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Calls `on_field` with each length-delimited field of a serialized message and skips other fields.
// Debian does not package google/rpc/*.proto, and three fields do not need a generated class.
template <typename OnField>
bool ForEachBytesField(const std::string& bytes, OnField on_field) {
  CodedInputStream input(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                         static_cast<int>(bytes.size()));
  while (const std::uint32_t tag = input.ReadTag()) {
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&input, tag)) return false;
      continue;
    }
    std::uint32_t length = 0;
    std::string value;
    if (!input.ReadVarint32(&length) || !input.ReadString(&value, static_cast<int>(length))) {
      return false;
    }
    on_field(WireFormatLite::GetTagFieldNumber(tag), value);
  }
  return true;
}

constexpr int kReconnectBackoffMs = 100;
constexpr std::chrono::milliseconds kConnectTimeout{500};

// Puts the token into the metadata of each call. gRPC's own call credentials refuse insecure
// channels.
class TokenSender final : public grpc::experimental::Interceptor {
 public:
  explicit TokenSender(const std::string& token) : header_(absl::StrCat("Bearer ", token)) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            grpc::experimental::InterceptionHookPoints::PRE_SEND_INITIAL_METADATA)) {
      methods->GetSendInitialMetadata()->emplace("authorization", header_);
    }
    methods->Proceed();
  }

 private:
  const std::string header_;
};

class TokenSenderFactory final : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit TokenSenderFactory(std::string token) : token_(std::move(token)) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo*) override {
    return new TokenSender(token_);
  }

 private:
  const std::string token_;
};

std::string ReadContents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string ReadToken(absl::string_view contents) {
  return std::string(absl::StripAsciiWhitespace(contents.substr(0, contents.find('\n'))));
}

sigset_t InterruptSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

// The port of server.grpc.listen by default.
constexpr int kDataPort = 50051;

}  // namespace

CLI::Option* AddFileOption(CLI::App* app, const std::string& name, const std::string& description,
                           std::function<void(std::string)> take) {
  const auto has_contents = [](const std::string& path) {
    return ReadContents(path).empty() ? path + " cannot be read or is empty" : std::string();
  };
  return app
      ->add_option_function<std::string>(
          name, [take = std::move(take)](const std::string& path) { take(ReadContents(path)); },
          description)
      ->check(has_contents)
      ->take_last();
}

// Searches the same paths as AdminAddresses in server/listeners.cc, in the same order.
std::string DefaultAdminAddress(int port_offset) {
  const std::string file =
      port_offset == 0 ? "/admin.sock" : absl::StrCat("/admin.sock.", port_offset);
  std::vector<std::string> folders = {"/run/quire"};
  if (const char* runtime_dir = std::getenv("XDG_RUNTIME_DIR")) {
    folders.push_back(absl::StrCat(runtime_dir, "/quire"));
  }
  std::error_code error;
  const std::filesystem::path temporary = std::filesystem::temp_directory_path(error);
  folders.push_back(absl::StrCat(error ? "/tmp" : temporary.string(), "/quire-", geteuid()));
  for (const std::string& folder : folders) {
    if (!std::filesystem::exists(folder + file, error)) continue;
    // Another user with write access could have created the socket.
    const absl::Status is_ours =
        folder == folders.front() ? absl::OkStatus() : CheckPrivateDir(folder);
    if (is_ours.ok()) return absl::StrCat("unix:", folder, file);
    std::cerr << "ignoring the admin socket: " << is_ours.message() << "\n";
  }
  return absl::StrCat("unix:", folders.front(), file);
}

void AddCommonOptions(CLI::App* app, CommonOptions* options) {
  const CLI::Option* const address =
      app->add_option("--address", options->address,
                      "address of the data listener, host:port or unix:PATH")
          ->capture_default_str()
          ->take_last();
  const CLI::Option* const admin =
      app->add_option("--admin", options->admin,
                      "address of the control listener, unix:PATH or host:port")
          ->capture_default_str()
          ->take_last();
  // CLI11 runs this callback after it has parsed all arguments and stored the options above.
  app->add_option_function<int>(
         "--port-offset",
         [=](int offset) {
           if (address->empty()) options->address = absl::StrCat("127.0.0.1:", kDataPort + offset);
           if (admin->empty()) options->admin = DefaultAdminAddress(offset);
         },
         "find the daemon that was started with the same --port-offset; has no effect on --address "
         "and --admin")
      ->check(CLI::Range(0, server::kMaxPort - kDataPort))
      ->type_name("N")
      ->take_last();
  app->add_option("--timeout", options->timeout_seconds, "time limit of a call in seconds")
      ->check(CLI::NonNegativeNumber)
      ->take_last();
  app->add_flag("--json", options->json, "print answers as JSON, one object per line");
  AddFileOption(app, "--tls-ca",
                "PEM file with the CAs that verify the server's certificate; turns TLS on",
                [options](std::string pem) { options->tls_ca = std::move(pem); });
  AddFileOption(app, "--tls-cert", "PEM file with the client certificate",
                [options](std::string pem) { options->tls_cert = std::move(pem); });
  AddFileOption(app, "--tls-key", "PEM file with the private key of --tls-cert",
                [options](std::string pem) { options->tls_key = std::move(pem); });
  AddFileOption(app, "--token-file", "file whose first line is the bearer token",
                [options](const std::string& text) { options->token = ReadToken(text); })
      ->check([](const std::string& path) {
        const std::string token = ReadToken(ReadContents(path));
        // gRPC aborts on other bytes and prints the token.
        const bool is_valid = !token.empty() && absl::c_all_of(token, absl::ascii_isgraph);
        return is_valid ? ""
                        : path + ": the first line is not a token of printable ASCII characters";
      });
}

std::shared_ptr<grpc::Channel> Connect(const CommonOptions& options, const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  // One connection per channel, so that threads of `bench` do not share one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectBackoffMs);
  const bool is_plain = options.tls_ca.empty() || absl::StartsWith(address, "unix:");
  const std::shared_ptr<grpc::ChannelCredentials> credentials =
      is_plain ? grpc::InsecureChannelCredentials()
               : grpc::SslCredentials({.pem_root_certs = options.tls_ca,
                                       .pem_private_key = options.tls_key,
                                       .pem_cert_chain = options.tls_cert});
  std::vector<std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>> interceptors;
  if (!options.token.empty()) {
    interceptors.push_back(std::make_unique<TokenSenderFactory>(options.token));
  }
  std::shared_ptr<grpc::Channel> channel = grpc::experimental::CreateCustomChannelWithInterceptors(
      address, credentials, arguments, std::move(interceptors));
  // A failed first attempt fails the first call, and gRPC 1.51 sometimes reports an attempt in
  // progress as failed (https://github.com/grpc/grpc/pull/35064). So wait for further attempts.
  channel->WaitForConnected(std::chrono::system_clock::now() + kConnectTimeout);
  return channel;
}

void ApplyDeadline(const CommonOptions& options, grpc::ClientContext* context) {
  if (options.timeout_seconds <= 0) return;
  context->set_deadline(
      std::chrono::system_clock::now() +
      std::chrono::microseconds(static_cast<std::int64_t>(options.timeout_seconds * 1e6)));
}

std::string ReasonOf(const grpc::Status& status) {
  // google.rpc.Status{details = 3: Any{type_url = 1, value = 2}}; ErrorInfo{reason = 1}
  std::string reason;
  ForEachBytesField(status.error_details(), [&](int status_field, const std::string& any) {
    if (status_field != 3) return;
    std::string type;
    std::string value;
    ForEachBytesField(any, [&](int any_field, const std::string& bytes) {
      (any_field == 1 ? type : value) = bytes;
    });
    if (type != "type.googleapis.com/google.rpc.ErrorInfo") return;
    ForEachBytesField(value, [&](int info_field, const std::string& bytes) {
      if (info_field == 1) reason = bytes;
    });
  });
  return reason;
}

int Fail(const grpc::Status& status, absl::string_view address) {
  const std::string reason = ReasonOf(status);
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && reason.empty()) {
    std::fprintf(stderr, "quire: cannot connect to %s: %s\n", std::string(address).c_str(),
                 status.error_message().c_str());
    return kCannotConnect;
  }
  std::fprintf(stderr, "quire: %s%s%s: %s\n",
               std::string(GrpcCodeName(status.error_code())).c_str(), reason.empty() ? "" : "/",
               reason.c_str(), status.error_message().c_str());
  return kRequestFailed;
}

void PrintJson(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = false;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(message, &json, options);
  if (!status.ok()) {
    std::fprintf(stderr, "quire: cannot print the answer as JSON: %s\n", status.ToString().c_str());
    return;
  }
  std::printf("%s\n", json.c_str());
  std::fflush(stdout);
}

void BlockInterrupts() {
  const sigset_t set = InterruptSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

struct InterruptGuard::State {
  std::function<void()> cancel;
  std::atomic<bool> done{false};
  std::thread thread;
};

InterruptGuard::InterruptGuard(std::function<void()> cancel) : state_(std::make_unique<State>()) {
  state_->cancel = std::move(cancel);
  state_->thread = std::thread([state = state_.get()] {
    const sigset_t set = InterruptSet();
    int interrupts = 0;
    const timespec tick{0, 50'000'000};
    while (!state->done.load()) {
      if (sigtimedwait(&set, nullptr, &tick) <= 0) continue;
      if (++interrupts > 1) std::_Exit(kRequestFailed);
      state->cancel();
    }
  });
}

InterruptGuard::~InterruptGuard() {
  state_->done.store(true);
  state_->thread.join();
}

}  // namespace quire::client

#include "tools/quire/client.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_interceptor.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/private_dir.h"
#include "server/config/validator.h"
#include "tools/quire/address.h"
#include "tools/quire/message_json.h"
#include "tools/quire/port_probe.h"

namespace quire::client {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Calls `on_field` with each length-delimited field of a serialized message and skips other fields.
// Replaces the generated classes of google/rpc/*.proto, which Debian does not package.
template <typename OnField>
void ForEachBytesField(const std::string& bytes, OnField on_field) {
  CodedInputStream input(reinterpret_cast<const std::uint8_t*>(bytes.data()),
                         static_cast<int>(bytes.size()));
  while (const std::uint32_t tag = input.ReadTag()) {
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&input, tag)) return;
      continue;
    }
    std::uint32_t length = 0;
    std::string value;
    if (!input.ReadVarint32(&length) || !input.ReadString(&value, static_cast<int>(length))) {
      return;
    }
    on_field(WireFormatLite::GetTagFieldNumber(tag), value);
  }
}

constexpr int kDefaultPort = 50051;  // default port of server.grpc.listen
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

bool UsesTls(const CommonOptions& options) {
  return options.use_tls || !options.tls_ca.empty();
}

// Reads the token, the first line of `contents`.
absl::Status TakeToken(absl::string_view contents, std::string* token) {
  const absl::string_view line =
      absl::StripAsciiWhitespace(contents.substr(0, contents.find('\n')));
  // Other bytes would make gRPC abort the process with a message that contains the token.
  if (line.empty() || !absl::c_all_of(line, absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        "the first line is not a token of printable ASCII characters");
  }
  *token = std::string(line);
  return absl::OkStatus();
}

// Adds an option for an address of the server. `*address` becomes a target of gRPC, and `*use_tls`
// becomes true for the URL of a server with TLS.
CLI::Option* AddAddressOption(CLI::App* app, const std::string& name,
                              const std::string& description, int default_port, bool* use_tls,
                              std::string* address) {
  return app->add_option(name, *address, description)
      ->capture_default_str()
      ->take_last()
      ->transform(CLI::Validator(
          [=](std::string& text) {
            const absl::StatusOr<ServerAddress> parsed = ParseAddress(text, default_port);
            if (!parsed.ok()) return std::string(parsed.status().message());
            text = parsed->target;
            *use_tls = *use_tls || parsed->needs_tls;
            return std::string();
          },
          ""));
}

// Returns the cause in gRPC's message about a failed connection, such as "Connection refused".
absl::string_view FindCause(absl::string_view message) {
  if (absl::StrContains(message, "DNS resolution failed")) return "the host name is not known";
  for (const absl::string_view mark :
       {"Failed to connect to remote host: ", "last error: UNKNOWN: "}) {
    const std::size_t found = message.rfind(mark);
    if (found != absl::string_view::npos) return message.substr(found + mark.size());
  }
  return message;
}

void PrintConnectionFailure(const CommonOptions& common, const std::string& message,
                            absl::string_view address) {
  const bool is_socket = absl::StartsWith(address, "unix:");
  const std::string explained = is_socket ? "" : ExplainGrpcFailure(address, UsesTls(common));
  if (!explained.empty()) {
    std::fprintf(stderr, "quire: %s\n", explained.c_str());
    return;
  }
  absl::string_view remedy =
      is_socket ? "start the server with \"quired MODEL\", or give its address with --admin "
                  "(server.admin.listen)"
                : "start the server with \"quired MODEL\", or give its address with --address "
                  "(server.grpc.listen)";
  if (absl::StrContains(message, "CERTIFICATE_VERIFY_FAILED")) {
    remedy = "give --tls-ca FILE with the CA of the server's certificate";
  }
  const std::string text =
      absl::StrCat("cannot connect to ", address, ": ", FindCause(message), "; ", remedy);
  std::fprintf(stderr, "quire: %s\n", text.c_str());
}

sigset_t InterruptSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  return set;
}

}  // namespace

absl::StatusOr<std::string> ReadInput(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": it is a directory"));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno)));
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

CLI::Option* AddFileOption(CLI::App* app, const std::string& name, const std::string& description,
                           std::function<absl::Status(std::string)> take) {
  // A validator reads the file, because a callback cannot report an error.
  const auto read = [take = std::move(take)](const std::string& path) {
    absl::StatusOr<std::string> contents = ReadInput(path);
    if (!contents.ok()) return std::string(contents.status().message());
    if (contents->empty()) return path + " is empty";
    const absl::Status status = take(*std::move(contents));
    return status.ok() ? std::string() : absl::StrCat(path, ": ", status.message());
  };
  return app
      ->add_option_function<std::string>(
          name, [](const std::string&) {}, description)
      ->check(read)
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
    // Another user could have created the socket in a folder that is not private.
    const absl::Status is_ours =
        folder == folders.front() ? absl::OkStatus() : CheckPrivateDir(folder);
    if (is_ours.ok()) return absl::StrCat("unix:", folder, file);
    std::cerr << "ignoring the admin socket: " << is_ours.message() << "\n";
  }
  return absl::StrCat("unix:", folders.front(), file);
}

void AddCommonOptions(CLI::App* app, CommonOptions* options) {
  const CLI::Option* const address = AddAddressOption(
      app, "--address", "address of the data listener: host, host:port, a URL or unix:PATH",
      kDefaultPort, &options->use_tls, &options->address);
  const CLI::Option* const admin =
      AddAddressOption(app, "--admin", "address of the control listener: unix:PATH or host:port",
                       /*default_port=*/0, &options->use_tls, &options->admin);
  // CLI11 runs this callback after it has parsed all arguments and stored the options above.
  app->add_option_function<int>(
         "--port-offset",
         [=](int offset) {
           if (address->empty()) {
             options->address = absl::StrCat("127.0.0.1:", kDefaultPort + offset);
           }
           if (admin->empty()) options->admin = DefaultAdminAddress(offset);
         },
         "find the daemon that was started with the same --port-offset; does not change an address "
         "given with --address or --admin")
      ->check(CLI::Range(0, server::kMaxPort - kDefaultPort))
      ->type_name("N")
      ->take_last();
  app->add_option("--timeout", options->timeout_seconds, "time limit of a call in seconds")
      ->check(CLI::NonNegativeNumber)
      ->take_last();
  app->add_flag("--json", options->json, "print answers as JSON, one object per line");
  const auto keep = [](std::string* text) {
    return [text](std::string pem) {
      *text = std::move(pem);
      return absl::OkStatus();
    };
  };
  AddFileOption(app, "--tls-ca",
                "PEM file with the CAs that verify the server's certificate; turns TLS on; an "
                "https:// address without --tls-ca uses the CAs of the system",
                keep(&options->tls_ca));
  CLI::Option* const cert = AddFileOption(app, "--tls-cert", "PEM file with the client certificate",
                                          keep(&options->tls_cert));
  CLI::Option* const key = AddFileOption(
      app, "--tls-key", "PEM file with the private key of --tls-cert", keep(&options->tls_key));
  cert->needs(key);
  key->needs(cert);
  AddFileOption(app, "--token-file", "file whose first line is the bearer token",
                [options](const std::string& text) { return TakeToken(text, &options->token); });
}

std::shared_ptr<grpc::Channel> Connect(const CommonOptions& options, const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(64 << 20);
  // Gives each channel a separate connection, so that threads of `bench` do not share one.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectBackoffMs);
  const bool is_plain = !UsesTls(options) || absl::StartsWith(address, "unix:");
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
  // progress as failed (https://github.com/grpc/grpc/pull/35064). This function therefore waits for
  // further attempts.
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

int Fail(const CommonOptions& common, const grpc::Status& status, absl::string_view address) {
  const std::string reason = ReasonOf(status);
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && reason.empty()) {
    PrintConnectionFailure(common, status.error_message(), address);
    return kCannotConnect;
  }
  // absl::Status reads a code that gRPC does not define as UNKNOWN.
  const absl::Status known(static_cast<absl::StatusCode>(status.error_code()), "");
  std::fprintf(stderr, "quire: %s%s%s: %s\n", absl::StatusCodeToString(known.code()).c_str(),
               reason.empty() ? "" : "/", reason.c_str(), status.error_message().c_str());
  return kRequestFailed;
}

int FailWith(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "quire: %s\n", std::string(status.message()).c_str());
  return exit_code;
}

void PrintJson(const google::protobuf::Message& message) {
  const absl::StatusOr<std::string> json = MessageJson(message);
  if (!json.ok()) {
    std::fprintf(stderr, "quire: cannot print the answer as JSON: %s\n",
                 json.status().ToString().c_str());
    return;
  }
  std::printf("%s\n", json->c_str());
  std::fflush(stdout);
}

void BlockInterrupts() {
  const sigset_t set = InterruptSet();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

InterruptGuard::InterruptGuard(std::function<void()> cancel)
    : thread_([this, cancel = std::move(cancel)] {
        const sigset_t set = InterruptSet();
        int interrupts = 0;
        const timespec tick{0, 50'000'000};
        while (!is_done_.load()) {
          if (sigtimedwait(&set, nullptr, &tick) <= 0) continue;
          if (++interrupts > 1) std::_Exit(kRequestFailed);
          cancel();
        }
      }) {}

InterruptGuard::~InterruptGuard() {
  is_done_.store(true);
  thread_.join();
}

}  // namespace quire::client

#include "server/config/validator.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "hub/cache/model_cache.h"
#include "quire/config/v1/config.pb.h"
#include "server/config/quoting.h"
#include "server/tracing/trace_exporter.h"

namespace quire::server {
namespace {

using config::v1::Config;

class ConfigChecker {
 public:
  ConfigChecker(const Config& config, const Origins& origins, std::vector<std::string>* errors)
      : config_(config), origins_(origins), errors_(errors) {}

  void CheckScheduler() {
    const auto& scheduler = config_.scheduler();
    const int chunk = scheduler.prefill_chunk_tokens();
    const int step = scheduler.max_step_tokens();
    const int page = config_.kv_cache().page_size();
    const int running = scheduler.max_running_sequences();
    if (chunk > step) {
      Error("scheduler.prefill_chunk_tokens", " (", chunk, ") is larger than ",
            FormatOtherKey("scheduler.max_step_tokens", step));
    }
    if (chunk < page) {
      Error("scheduler.prefill_chunk_tokens", " (", chunk, ") is smaller than ",
            FormatOtherKey("kv_cache.page_size", page));
    }
    if (step < running + page) {
      Error("scheduler.max_step_tokens", " (", step, ") is smaller than the sum of ",
            FormatOtherKey("scheduler.max_running_sequences", running), " and ",
            FormatOtherKey("kv_cache.page_size", page));
    }
  }

  void CheckLimits() {
    const auto& limits = config_.limits();
    if (limits.has_max_tokens_per_request() &&
        limits.default_max_tokens() > limits.max_tokens_per_request()) {
      Error("limits.default_max_tokens", " (", limits.default_max_tokens(), ") is larger than ",
            FormatOtherKey("limits.max_tokens_per_request", limits.max_tokens_per_request()));
    }
    // With a smaller value, a prompt of a legal size could never be queued.
    const std::int64_t max_input_bytes = config_.tokenizer().max_input_bytes();
    if (limits.max_queued_bytes() < max_input_bytes) {
      Error("limits.max_queued_bytes", " (", limits.max_queued_bytes(), ") is smaller than ",
            FormatOtherKey("tokenizer.max_input_bytes", max_input_bytes));
    }
  }

  void CheckDevice() {
    const auto& device = config_.device();
    if (device.tensor_parallel() > 1) {
      return Error("device.tensor_parallel", " (", device.tensor_parallel(),
                   "): this version serves a model on one GPU; write 1");
    }
    if (device.ids_size() != device.tensor_parallel()) {
      Error("device.ids", " has ", device.ids_size(), " numbers but needs as many as ",
            FormatOtherKey("device.tensor_parallel", device.tensor_parallel()));
    }
  }

  void CheckActivations(config::v1::KvDataType kv) {
    const bool f32_pages = kv == config::v1::KV_DATA_TYPE_F32;
    const auto dtype = config_.model().dtype();
    if (dtype == config::v1::MODEL_DATA_TYPE_F32 && !f32_pages) {
      Error("model.dtype", ": f32 activations on GPUs need kv_cache.dtype f32");
    }
    if (dtype == config::v1::MODEL_DATA_TYPE_BF16 && f32_pages) {
      Error("model.dtype",
            ": bf16 activations cannot be combined with kv_cache.dtype f32; write auto "
            "or f32");
    }
  }

  // Checks keys that only one kind of device supports. `auto` may select the CPU, so values that
  // only GPUs support need `cuda`.
  void CheckDeviceTypes() {
    const auto type = config_.device().type();
    const char* const word = type == config::v1::DEVICE_TYPE_CPU ? "cpu" : "auto";
    if (type == config::v1::DEVICE_TYPE_CUDA) {
      if (!config_.model().packed_dir().empty()) {
        Error("model.packed_dir", ": \"", config_.model().packed_dir(),
              "\" is for packed CPU weights, but device.type is cuda");
      }
      if (config_.kv_cache().dtype() == config::v1::KV_DATA_TYPE_F16) {
        Error("kv_cache.dtype", ": f16 is not supported on GPUs; write bf16, or device.type: cpu");
      }
      return CheckActivations(config_.kv_cache().dtype());
    }
    if (config_.model().dtype() == config::v1::MODEL_DATA_TYPE_BF16) {
      Error("model.dtype", ": bf16 activations need a GPU, but device.type is ", word,
            "; write auto or f32, or set device.type to cuda");
    }
  }

  void CheckListeners() {
    std::set<std::string> seen;
    const auto add = [&](const std::string& path, const std::string& text, bool is_admin) {
      ListenAddress address;
      if (!ParseListenAddress(text, &address)) {
        return Error(path, ": \"", text, "\" is not host:port or unix:PATH", Ipv6Hint(path, text));
      }
      if (is_admin && !address.is_loopback() && !HasTlsAndAuth()) {
        Error(path, ": \"", text,
              "\" is not a loopback address; it needs tls.cert_file, and auth.mode token or mtls");
      }
      const bool any_port = !address.is_unix && address.port == 0;
      if (!any_port && !seen.insert(text).second) {
        Error(path, ": \"", text, "\" is used twice");
      }
    };
    const auto& server = config_.server();
    for (const std::string& text : server.grpc().listen()) add("server.grpc.listen", text, false);
    if (server.grpc().listen().empty()) {
      Error("server.grpc.listen", ": the list is empty; add an address");
    }
    for (const std::string& text : server.admin().listen()) add("server.admin.listen", text, true);
    const std::string& collector = config_.tracing().otlp_endpoint();
    const absl::Status endpoint =
        collector.empty() ? absl::OkStatus() : CheckOtlpEndpoint(collector);
    if (!endpoint.ok()) {
      Error("tracing.otlp_endpoint", ": \"", collector, "\" ", endpoint.message());
    }
    const auto add_http = [&](const std::string& path, const std::string& text) {
      if (absl::StartsWith(text, "unix:")) return Error(path, ": HTTP needs host:port");
      add(path, text, false);
    };
    if (!server.http().listen().empty()) add_http("server.http.listen", server.http().listen());
    if (server.http().tls() && config_.tls().cert_file().empty()) {
      Error("server.http.tls", ": needs tls.cert_file");
    }
    if (config_.openai().enabled()) add_http("openai.listen", config_.openai().listen());
  }

  void CheckConnections() {
    CheckPerAddress("server.http", config_.server().http());
    CheckPerAddress("openai", config_.openai());
  }

  void CheckOrigins() {
    for (const std::string& origin : config_.openai().allowed_origins()) {
      absl::string_view rest = origin;
      const bool has_scheme =
          absl::ConsumePrefix(&rest, "https://") || absl::ConsumePrefix(&rest, "http://");
      if (has_scheme && !rest.empty() && rest.find_first_of("/?# *") == rest.npos) continue;
      Error("openai.allowed_origins", ": \"", origin, "\" is not of the form scheme://host[:port]");
    }
  }

  void CheckTls() {
    const auto& tls = config_.tls();
    CheckReadable("tls.cert_file", tls.cert_file());
    // The path is redacted, so the message has only its origin.
    CheckReadable("tls.key_file", tls.key_file());
    CheckReadable("tls.client_ca_file", tls.client_ca_file());
    if (tls.cert_file().empty() != tls.key_file().empty()) {
      const bool has_cert = !tls.cert_file().empty();
      const char* const given = has_cert ? "tls.cert_file" : "tls.key_file";
      const char* const missing = has_cert ? "tls.key_file" : "tls.cert_file";
      Error(given, ": ", missing, " is missing; set both or neither");
    }
    if (!tls.client_ca_file().empty() && tls.cert_file().empty()) {
      Error("tls.client_ca_file", ": needs tls.cert_file");
    }
    if (tls.require_client_cert() && tls.client_ca_file().empty()) {
      Error("tls.require_client_cert",
            ": needs tls.client_ca_file, the CAs that verify client certificates");
    }
  }

  void CheckAuth() {
    const auto& auth = config_.auth();
    if (auth.mode() == config::v1::AUTH_MODE_TOKEN && auth.tokens_file().empty()) {
      Error("auth.mode", ": token needs auth.tokens_file");
    }
    CheckReadable("auth.tokens_file", auth.tokens_file());
    const bool has_certificates =
        !config_.tls().cert_file().empty() && config_.tls().require_client_cert();
    if (auth.mode() == config::v1::AUTH_MODE_MTLS && !has_certificates) {
      Error("auth.mode",
            ": mtls needs tls.cert_file, tls.client_ca_file and tls.require_client_cert");
    }
  }

  void CheckTenants() {
    std::set<std::string> ids;
    for (const auto& entry : config_.tenants().entries()) {
      if (ids.insert(entry.id()).second) continue;
      Error("tenants.entries", ": \"", entry.id(), "\" is listed twice");
    }
  }

  void CheckPreload() {
    const auto& structured = config_.structured();
    const std::string path = "structured.preload";
    for (int i = 0; i < structured.preload_size(); ++i) {
      const auto& entry = structured.preload(i);
      const int num_given =
          !entry.json_schema().empty() + !entry.regex().empty() + !entry.ebnf_grammar().empty();
      if (num_given == 1) continue;
      Error(path, "[", i, "]: has ", num_given,
            " of json_schema, regex and ebnf_grammar; set exactly one");
    }
    if (structured.preload_size() > 0 && structured.cache_bytes() == 0) {
      Error(path, ": needs a constraint cache; increase ",
            FormatOtherKey("structured.cache_bytes", 0));
    }
  }

  void CheckSocketMode() {
    const std::string& mode = config_.server().admin().socket_mode();
    const bool octal = !mode.empty() && mode.find_first_not_of("01234567") == mode.npos;
    if (!octal || mode.size() < 3 || (mode.size() == 4 && mode[0] != '0')) {
      Error("server.admin.socket_mode", ": \"", mode,
            "\" is not permission bits in octal, such as 0660");
    }
  }

  void CheckModel() {
    const auto& model = config_.model();
    std::set<std::string> names;
    if (model.has_id()) names.insert(model.id());
    for (const std::string& alias : model.aliases()) {
      if (alias.empty() || !names.insert(alias).second) {
        Error("model.aliases", ": \"", alias, "\" is empty or used twice");
      }
    }
    if (model.has_id() && model.id().empty()) {
      Error("model.id", ": the name is empty; write auto or a name");
    }
    std::error_code error;
    if (!model.packed_dir().empty() && !std::filesystem::is_directory(model.packed_dir(), error)) {
      Error("model.packed_dir", ": \"", model.packed_dir(), "\" is not a directory");
    }
    if (model.path() == "embedded") return;
    const absl::StatusOr<std::string> path = hub::LocateModel(model.path());
    if (!path.ok()) {
      Error("model.path", ": ", path.status().message());
    } else if (access(path->c_str(), R_OK) != 0) {
      Error("model.path", ": \"", model.path(), "\" is not readable");
    }
  }

 private:
  template <typename Listener>
  void CheckPerAddress(const std::string& section, const Listener& listener) {
    const std::string path = section + ".max_connections_per_address";
    const int per_address = listener.max_connections_per_address();
    const int all = listener.max_connections();
    if (!listener.has_max_connections_per_address() || per_address <= all) return;
    Error(path, " (", per_address, ") is larger than ",
          FormatOtherKey(section + ".max_connections", all));
  }

  // Returns true if callers authenticate and connections are encrypted.
  bool HasTlsAndAuth() const {
    const auto mode = config_.auth().mode();
    return !config_.tls().cert_file().empty() &&
           (mode == config::v1::AUTH_MODE_TOKEN || mode == config::v1::AUTH_MODE_MTLS);
  }

  void CheckReadable(const std::string& path, const std::string& file) {
    if (file.empty() || access(file.c_str(), R_OK) == 0) return;
    const bool is_secret = path != "tls.cert_file" && path != "tls.client_ca_file";
    const std::string name = is_secret ? "the file" : absl::StrCat("\"", file, "\"");
    Error(path, ": ", name, " cannot be read: ", std::strerror(errno));
  }

  // Suggests how to write an IPv6 address that `text` may mean, or returns "".
  std::string Ipv6Hint(const std::string& path, const std::string& text) const {
    const std::string address = GuessIpv6Address(text);
    if (address.empty()) return "";
    const bool is_list = path == "server.grpc.listen" || path == "server.admin.listen";
    const auto origin = origins_.find(path);
    const std::string layer = origin == origins_.end() ? "" : origin->second.layer;
    return absl::StrCat("; write an IPv6 address in brackets and quotes: ",
                        WriteTexts(layer, path, {address}, is_list));
  }

  std::string FormatOtherKey(const std::string& path, std::int64_t value) const {
    const std::string origin = OriginOf(origins_, path);
    return absl::StrCat(path, " (", value, ", ",
                        origin == "default" ? "the default" : absl::StrCat("from ", origin), ")");
  }

  // Reports an error of the key `path`. The message is the origin of its value, the key, and
  // `parts`.
  template <typename... Parts>
  void Error(const std::string& path, const Parts&... parts) {
    errors_->push_back(absl::StrCat(OriginOf(origins_, path), ": ", path, parts...));
  }

  const Config& config_;
  const Origins& origins_;
  std::vector<std::string>* const errors_;
};

}  // namespace

bool ListenAddress::is_loopback() const {
  return is_unix || host == "localhost" || host == "::1" || absl::StartsWith(host, "127.");
}

bool ListenAddress::is_wildcard() const {
  return !is_unix && (host == "0.0.0.0" || host == "::" || host == "*");
}

bool ParseListenAddress(absl::string_view text, ListenAddress* address) {
  *address = ListenAddress{};
  if (absl::ConsumePrefix(&text, "unix:")) {
    address->is_unix = true;
    address->path = std::string(text);
    // sun_path has 108 bytes, including the terminator.
    return !text.empty() && text.size() <= 107;
  }
  const std::size_t colon = text.rfind(':');
  if (colon == text.npos || colon == 0) return false;
  absl::string_view host = text.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) {
    if (!absl::ConsumeSuffix(&host, "]")) return false;
  } else if (absl::StrContains(host, ":")) {
    return false;
  }
  address->host = std::string(host);
  const absl::string_view port = text.substr(colon + 1);
  return !host.empty() && !port.empty() && port.find_first_not_of("0123456789") == port.npos &&
         absl::SimpleAtoi(port, &address->port) && address->port <= kMaxPort;
}

absl::StatusOr<std::string> ShiftListenAddress(const std::string& text, int offset) {
  ListenAddress address;
  if (offset == 0 || !ParseListenAddress(text, &address)) return text;
  if (address.is_unix) return absl::StrCat(text, ".", offset);
  if (address.port == 0) return text;
  const int port = address.port + offset;
  if (port > kMaxPort) {
    return absl::OutOfRangeError(absl::StrCat("port ", address.port, " plus --port-offset ", offset,
                                              " is larger than ", kMaxPort,
                                              "; use a smaller offset or another port"));
  }
  return absl::StrCat(text.substr(0, text.rfind(':') + 1), port);
}

void ValidateConfig(const Config& config, const Origins& origins,
                    std::vector<std::string>* errors) {
  ConfigChecker checker(config, origins, errors);
  checker.CheckScheduler();
  checker.CheckLimits();
  checker.CheckDevice();
  checker.CheckDeviceTypes();
  checker.CheckListeners();
  checker.CheckConnections();
  checker.CheckOrigins();
  checker.CheckTls();
  checker.CheckAuth();
  checker.CheckTenants();
  checker.CheckPreload();
  checker.CheckSocketMode();
  checker.CheckModel();
}

}  // namespace quire::server

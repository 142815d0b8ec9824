#include "tools/quire/port_probe.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "tools/quire/curl_handle.h"

namespace quire::client {
namespace {

constexpr long kProbeTimeoutMs = 2000;  // NOLINT(google-runtime-int): libcurl reads a long
constexpr std::size_t kMaxBodyBytes = 64 << 10;

struct ProbeAnswer {
  std::int64_t status = 0;  // 0: no answer, or it does not begin with an HTTP/1 status line
  std::string body;         // the first 64 KiB
};

// Ends the transfer when the body has kMaxBodyBytes.
std::size_t OnProbeBytes(char* bytes, std::size_t size, std::size_t count, void* body) {
  std::string& text = *static_cast<std::string*>(body);
  text.append(bytes, std::min(size * count, kMaxBodyBytes - text.size()));
  return text.size() < kMaxBodyBytes ? size * count : 0;
}

ProbeAnswer Get(const std::string& url) {
  const CurlPtr curl = NewCurl();
  ProbeAnswer answer;
  curl_easy_setopt(curl.get(), CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, kProbeTimeoutMs);
  // Bytes that are not HTTP/1 become the body.
  curl_easy_setopt(curl.get(), CURLOPT_HTTP09_ALLOWED, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, OnProbeBytes);
  curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &answer.body);
  curl_easy_perform(curl.get());
  answer.status = ResponseCode(curl.get());
  return answer;
}

// An HTTP/2 server begins with a SETTINGS frame of stream 0: length (3 bytes), type 4, flags 0,
// stream (4 bytes). RFC 9113, sections 3.4 and 4.1.
bool BeginsWithSettingsFrame(absl::string_view bytes) {
  return bytes.size() >= 9 && bytes[3] == 4 && bytes[4] == 0 &&
         bytes.substr(5, 4) == absl::string_view("\0\0\0\0", 4);
}

bool AcceptsTls(const std::string& host_port) {
  const CurlPtr curl = NewCurl();
  curl_easy_setopt(curl.get(), CURLOPT_URL, absl::StrCat("https://", host_port).c_str());
  curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, kProbeTimeoutMs);
  curl_easy_setopt(curl.get(), CURLOPT_CONNECT_ONLY, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_SSL_VERIFYPEER, 0L);
  curl_easy_setopt(curl.get(), CURLOPT_SSL_VERIFYHOST, 0L);
  return curl_easy_perform(curl.get()) == CURLE_OK;
}

// Returns true for a list of models, and for an error in OpenAI's format, such as the error for a
// missing token.
bool IsOpenAiAnswer(const std::string& body) {
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return false;
  const auto object = json.find("object");
  const auto error = json.find("error");
  return (object != json.end() && *object == "list") || (error != json.end() && error->is_object());
}

}  // namespace

PortKind ProbePort(const std::string& host_port) {
  const std::string url = absl::StrCat("http://", host_port);
  const ProbeAnswer models = Get(url + "/v1/models");
  if (BeginsWithSettingsFrame(models.body)) return PortKind::kGrpc;
  if (models.status == 0) return AcceptsTls(host_port) ? PortKind::kTls : PortKind::kUnknown;
  if (IsOpenAiAnswer(models.body)) return PortKind::kOpenAi;
  const ProbeAnswer liveness = Get(url + "/livez");
  const bool is_monitoring = liveness.status == 200 || liveness.status == 503;
  return is_monitoring ? PortKind::kMonitoring : PortKind::kHttp;
}

std::string ExplainGrpcFailure(absl::string_view host_port, bool uses_tls) {
  const auto describe = [host_port](absl::string_view what) {
    return absl::StrCat(
        host_port, " is ", what,
        "; this command needs the gRPC port (server.grpc.listen, by default 50051), "
        "such as --address localhost:50051");
  };
  switch (ProbePort(std::string(host_port))) {
    case PortKind::kOpenAi:
      return describe("the HTTP port (openai.listen)");
    case PortKind::kMonitoring:
      return describe("the HTTP port of metrics and health (server.http.listen)");
    case PortKind::kHttp:
      return describe("the HTTP port of another server");
    case PortKind::kTls:
      return uses_tls ? ""
                      : absl::StrCat(host_port,
                                     " uses TLS; give --tls-ca FILE with the CA of the server's "
                                     "certificate");
    case PortKind::kGrpc:
      return uses_tls ? absl::StrCat(host_port, " has no TLS; write http:// or leave out --tls-ca")
                      : "";
    case PortKind::kUnknown:
      break;
  }
  return "";
}

std::string ExplainHttpFailure(absl::string_view url) {
  if (!absl::ConsumePrefix(&url, "http://")) return "";
  const absl::string_view host_port = url.substr(0, url.find('/'));
  switch (ProbePort(std::string(host_port))) {
    case PortKind::kGrpc:
      return absl::StrCat(
          host_port,
          " is a gRPC port (server.grpc.listen); give an HTTP port, by default 8000 "
          "for openai.listen and 9464 for the metrics of server.http.listen");
    case PortKind::kTls:
      return absl::StrCat(host_port, " uses TLS; write https://", host_port);
    default:
      return "";
  }
}

}  // namespace quire::client

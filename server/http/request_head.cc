#include "server/http/request_head.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "server/http/http_host.h"

namespace quire::server {
namespace {

constexpr std::size_t kMaxQuotedBytes = 200;

absl::string_view View(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kMaxQuotedBytes)), "'");
}

absl::Status BadRequest(absl::string_view message) {
  return WithReason(absl::InvalidArgumentError(message), Reason::kBadRequest);
}

absl::Status Unsupported(absl::string_view message) {
  return WithReason(absl::UnimplementedError(message), Reason::kFeatureUnsupported);
}

// A percent sign that is not followed by two hex digits is kept.
std::string DecodePercent(absl::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const absl::string_view digits = text.substr(i + 1, 2);
    if (text[i] == '%' && digits.size() == 2 &&
        std::ranges::all_of(digits, [](unsigned char c) { return absl::ascii_isxdigit(c); })) {
      decoded += absl::HexStringToBytes(digits);
      i += 2;
    } else {
      decoded.push_back(text[i]);
    }
  }
  return decoded;
}

std::vector<std::string> HeaderValues(const HttpHeaders& headers, absl::string_view name) {
  std::vector<std::string> values;
  for (const auto& [key, value] : headers) {
    if (key == name) values.push_back(value);
  }
  return values;
}

// Returns the elements of a header that is a list, in lower case. Several lines with this header
// are one list, and empty elements are ignored (RFC 9110, sections 5.3 and 5.6.1).
std::vector<std::string> HeaderList(const HttpHeaders& headers, absl::string_view name) {
  std::vector<std::string> elements;
  for (const std::string& value : HeaderValues(headers, name)) {
    for (absl::string_view element : absl::StrSplit(value, ',')) {
      element = absl::StripAsciiWhitespace(element);
      if (!element.empty()) elements.push_back(absl::AsciiStrToLower(element));
    }
  }
  return elements;
}

void SplitTarget(absl::string_view target, HttpRequest* request) {
  const std::size_t mark = target.find('?');
  request->path = DecodePercent(target.substr(0, mark));
  request->query = mark == target.npos ? "" : std::string(target.substr(mark + 1));
}

// Checks the header Host (RFC 9112, section 3.2). HTTP/1.0 may omit it. An empty value is valid for
// a target without authority.
absl::Status CheckHost(bool is_http_1_0, const HttpHeaders& headers) {
  const std::vector<std::string> values = HeaderValues(headers, "host");
  if (values.empty()) {
    if (is_http_1_0) return absl::OkStatus();
    return BadRequest("header Host is missing: send the host and port of the URL in it");
  }
  if (values.size() > 1) {
    return BadRequest(absl::StrCat("header Host occurs ", values.size(), " times: send it once"));
  }
  if (values[0].empty() || ParseAuthority(values[0]).has_value()) return absl::OkStatus();
  return BadRequest(absl::StrCat("header Host is ", Quoted(values[0]),
                                 ": send a host name or address, with or without a port"));
}

// Reads a target in absolute form (RFC 9112, sections 3.2.2 and 3.3). The target determines host
// and port, whatever the header Host is.
absl::Status ReadAbsoluteForm(absl::string_view target, bool has_tls, HttpRequest* request) {
  const std::size_t scheme_end = target.find("://");
  const absl::string_view scheme = target.substr(0, scheme_end);
  const bool is_https = absl::EqualsIgnoreCase(scheme, "https");
  if (scheme_end == target.npos || (!is_https && !absl::EqualsIgnoreCase(scheme, "http"))) {
    return BadRequest(absl::StrCat("request target is ", Quoted(target),
                                   ": send a path that begins with '/', or an http or https URL"));
  }
  // RFC 9110, section 7.4.
  if (is_https && !has_tls) {
    return BadRequest(
        "request target is an https URL, but this connection is plain text: connect "
        "with TLS, or send an http URL");
  }
  absl::string_view rest = target.substr(scheme_end + 3);
  const std::size_t authority_end = std::min(rest.find_first_of("/?#"), rest.size());
  const absl::string_view authority = rest.substr(0, authority_end);
  rest = rest.substr(authority_end);
  if (!ParseAuthority(authority).has_value()) {
    return BadRequest(absl::StrCat("request target has the authority ", Quoted(authority),
                                   ": send a host name or address, with or without a port"));
  }
  auto& headers = request->headers;
  std::erase_if(headers, [](const auto& header) { return header.first == "host"; });
  headers.emplace_back("host", std::string(authority));
  SplitTarget(rest, request);
  // RFC 9112, section 3.2.4, for OPTIONS.
  const bool is_server_wide = request->method == "OPTIONS" && rest.empty();
  if (request->path.empty()) request->path.assign(1, is_server_wide ? '*' : '/');
  return absl::OkStatus();
}

absl::Status ReadTarget(absl::string_view target, bool has_tls, HttpRequest* request) {
  if (request->method == "CONNECT") {
    return Unsupported("method CONNECT is not supported: this server is not a proxy");
  }
  if (absl::StartsWith(target, "/")) {
    SplitTarget(target, request);
    return absl::OkStatus();
  }
  if (target == "*") {
    request->path.assign(1, '*');  // g++ 12 warns of a copy of a literal here
    if (request->method == "OPTIONS") return absl::OkStatus();
    return BadRequest("request target is '*', which is for the method OPTIONS only: send a path");
  }
  return ReadAbsoluteForm(target, has_tls, request);
}

// Checks the header Transfer-Encoding (RFC 9112, sections 6.1 and 6.3). The parser refuses
// Content-Length together with chunked.
absl::Status CheckTransferEncoding(bool is_http_1_0, bool is_chunked, const HttpHeaders& headers) {
  if (HeaderValues(headers, "transfer-encoding").empty()) return absl::OkStatus();
  if (is_http_1_0) {
    return BadRequest(
        "header Transfer-Encoding is sent with HTTP/1.0: send HTTP/1.1, or "
        "Content-Length");
  }
  const std::vector<std::string> codings = HeaderList(headers, "transfer-encoding");
  const auto num_chunked = std::count(codings.begin(), codings.end(), "chunked");
  if (num_chunked != 1 || codings.back() != "chunked") {
    return BadRequest(absl::StrCat("header Transfer-Encoding is ",
                                   Quoted(absl::StrJoin(codings, ", ")),
                                   ": send chunked once, as the last coding"));
  }
  if (codings.size() > 1) {
    return Unsupported(absl::StrCat("header Transfer-Encoding is ",
                                    Quoted(absl::StrJoin(codings, ", ")),
                                    ": only chunked is supported"));
  }
  if (is_chunked) return absl::OkStatus();
  return BadRequest("header Transfer-Encoding is malformed: send chunked");
}

}  // namespace

absl::Status ReadRequestHead(const boost::beast::http::request_header<>& head,
                             const ConnectionTraits& traits, HttpRequest* request) {
  request->method = std::string(View(head.method_string()));
  request->path.clear();
  request->query.clear();
  request->headers.clear();
  for (const auto& field : head) {
    request->headers.emplace_back(absl::AsciiStrToLower(View(field.name_string())),
                                  std::string(View(field.value())));
  }
  const bool is_http_1_0 = head.version() < 11;
  QUIRE_RETURN_IF_ERROR(CheckHost(is_http_1_0, request->headers));
  QUIRE_RETURN_IF_ERROR(CheckTransferEncoding(is_http_1_0, traits.is_chunked, request->headers));
  return ReadTarget(View(head.target()), traits.has_tls, request);
}

absl::Status CheckContentEncoding(const HttpRequest& request) {
  const std::vector<std::string> codings = HeaderList(request.headers, "content-encoding");
  const auto coding = std::find_if(codings.begin(), codings.end(),
                                   [](const std::string& text) { return text != "identity"; });
  if (coding == codings.end()) return absl::OkStatus();
  return WithReason(absl::InvalidArgumentError(absl::StrCat(
                        "header Content-Encoding is ", Quoted(absl::StrJoin(codings, ", ")),
                        ": only identity is supported, send the body without compression")),
                    Reason::kUnsupportedEncoding);
}

}  // namespace quire::server

#include "hub/http_client.h"

#include <curl/curl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace quire::hub {
namespace {

constexpr std::size_t kMaxErrorBody = 4096;
constexpr std::size_t kMaxHeaderValue = 1024;
constexpr long kBufferBytes = 256 << 10;     // NOLINT(google-runtime-int): libcurl takes a long
constexpr long kMaxRedirects = 5;            // NOLINT(google-runtime-int): libcurl takes a long
constexpr long kConnectTimeoutSeconds = 15;  // NOLINT(google-runtime-int)

std::optional<std::int64_t> ToSize(absl::string_view text) {
  std::int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 0) return std::nullopt;
  return value;
}

std::string CleanEtag(absl::string_view etag) {
  absl::ConsumePrefix(&etag, "W/");
  absl::ConsumePrefix(&etag, "\"");
  absl::ConsumeSuffix(&etag, "\"");
  return std::string(etag);
}

// Returns the first byte of "bytes 100-199/200".
std::optional<std::int64_t> RangeStart(absl::string_view value) {
  if (!absl::ConsumePrefix(&value, "bytes ")) return std::nullopt;
  return ToSize(value.substr(0, value.find('-')));
}

// Returns the text of a server for display: at most 1 KiB, without control characters.
std::string Printable(absl::string_view text) {
  std::string result(text.substr(0, kMaxHeaderValue));
  std::ranges::replace_if(result, absl::ascii_iscntrl, ' ');
  return result;
}

absl::Status ToStatus(CURLcode code, absl::string_view detail, absl::string_view url) {
  const std::string message = absl::StrCat(url, ": ", detail);
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
      return absl::UnavailableError(message);
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return absl::FailedPreconditionError(absl::StrCat(
          message,
          "; install ca-certificates, or name the certificates to trust in SSL_CERT_FILE"));
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_TOO_MANY_REDIRECTS:
      return absl::FailedPreconditionError(message);
    default:
      return absl::AbortedError(message);
  }
}

}  // namespace

struct HttpClient::Transfer {
  HttpAnswer answer;
  bool is_etag_final = false;  // the etag is that of X-Linked-Etag
  bool is_size_final = false;
  std::int64_t first = 0;
  bool is_head = false;
  bool is_ended = false;  // the transfer was ended early, because the answer is complete enough
  std::size_t max_body = kMaxErrorBody;
  bool is_body_too_large = false;
  const Sink* sink = nullptr;  // null: the body is kept
  absl::Status sink_status;
  const StopSignal* stop = nullptr;

  // Returns false to end the transfer.
  bool OnHeader(absl::string_view line) {
    if (absl::StripAsciiWhitespace(line).empty()) {  // the end of the headers of one answer
      is_ended = is_head && is_etag_final && is_size_final;
      return !is_ended;
    }
    ReadHeader(line);
    return true;
  }

  void ReadHeader(absl::string_view line) {
    if (absl::StartsWith(line, "HTTP/")) {
      // After a redirect, reset the fields that describe only one answer.
      const absl::string_view code = line.substr(std::min(line.find(' ') + 1, line.size()));
      if (!absl::SimpleAtoi(code.substr(0, 3), &answer.status)) answer.status = 0;
      answer.range_start.reset();
      if (!is_etag_final) answer.etag.clear();
      if (!is_size_final) answer.size_bytes.reset();
      return;
    }
    const std::size_t colon = line.find(':');
    if (colon == absl::string_view::npos) return;
    const std::string name = absl::AsciiStrToLower(line.substr(0, colon));
    const absl::string_view value = absl::StripAsciiWhitespace(line.substr(colon + 1));
    if (value.size() > kMaxHeaderValue) return;
    if (name == "x-error-code" && answer.error_code.empty()) answer.error_code = Printable(value);
    if (name == "x-error-message" && answer.error_message.empty()) {
      answer.error_message = Printable(value);
    }
    if (name == "content-range") answer.range_start = RangeStart(value);
    const bool is_linked = absl::StartsWith(name, "x-linked-");
    if ((name == "x-linked-etag" || name == "etag") && !is_etag_final) {
      answer.etag = CleanEtag(value);
      is_etag_final = is_linked;
    }
    if ((name == "x-linked-size" || name == "content-length") && !is_size_final) {
      answer.size_bytes = ToSize(value);
      is_size_final = is_linked;
    }
  }

  // Returns false to end the transfer.
  bool OnBody(absl::string_view bytes) {
    if (sink != nullptr && (answer.status == 200 || answer.status == 206)) {
      sink_status = (*sink)(answer, bytes);
      return sink_status.ok();
    }
    const std::size_t room = max_body - std::min(max_body, answer.body.size());
    absl::StrAppend(&answer.body, bytes.substr(0, room));
    if (bytes.size() <= room) return true;
    // In Download, this body is an error text, of which the first bytes are enough.
    is_body_too_large = sink == nullptr;
    is_ended = sink != nullptr;
    return false;
  }
};

namespace {

template <typename T>
std::size_t OnHeaderBytes(char* bytes, std::size_t size, std::size_t count, void* transfer) {
  return static_cast<T*>(transfer)->OnHeader({bytes, size * count}) ? size * count : 0;
}

template <typename T>
std::size_t OnBodyBytes(char* bytes, std::size_t size, std::size_t count, void* transfer) {
  return static_cast<T*>(transfer)->OnBody({bytes, size * count}) ? size * count : 0;
}

template <typename T>
int OnProgress(void* transfer, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return static_cast<T*>(transfer)->stop->is_requested() ? 1 : 0;
}

}  // namespace

void HttpClient::Deleter::operator()(void* curl) const {
  curl_easy_cleanup(curl);
}

HttpClient::HttpClient(const HubSettings* settings, const StopSignal* stop)
    : settings_(settings), stop_(stop) {
  [[maybe_unused]] static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  curl_.reset(curl_easy_init());
}

HttpClient::~HttpClient() = default;

absl::StatusOr<HttpAnswer> HttpClient::Get(absl::string_view path, std::size_t max_bytes) {
  Transfer transfer;
  transfer.max_body = max_bytes;
  return Run(path, &transfer);
}

absl::StatusOr<HttpAnswer> HttpClient::Head(absl::string_view path) {
  Transfer transfer;
  transfer.is_head = true;
  return Run(path, &transfer);
}

absl::StatusOr<HttpAnswer> HttpClient::Download(absl::string_view path, std::int64_t first,
                                                const Sink& sink) {
  Transfer transfer;
  transfer.first = first;
  transfer.sink = &sink;
  return Run(path, &transfer);
}

absl::StatusOr<HttpAnswer> HttpClient::Run(absl::string_view path, Transfer* transfer) {
  CURL* const curl = curl_.get();
  if (curl == nullptr) return absl::ResourceExhaustedError("libcurl cannot be initialized");
  const std::string url = absl::StrCat(settings_->endpoint, path);
  const std::string range = absl::StrCat(transfer->first, "-");
  char detail[CURL_ERROR_SIZE] = "";
  curl_easy_reset(curl);  // keeps connections
  SetOptions();
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
  if (transfer->is_head) curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  if (transfer->first > 0) curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  transfer->stop = stop_;
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &OnHeaderBytes<Transfer>);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, transfer);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &OnBodyBytes<Transfer>);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, transfer);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &OnProgress<Transfer>);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, transfer);
  const CURLcode code = curl_easy_perform(curl);
  if (!transfer->sink_status.ok()) return transfer->sink_status;
  if (stop_->is_requested()) return absl::CancelledError("the download was stopped");
  if (transfer->is_body_too_large) {
    return absl::FailedPreconditionError(
        absl::StrCat(url, ": the answer has more than ", transfer->max_body, " bytes"));
  }
  if (code != CURLE_OK && !transfer->is_ended) {
    curl_off_t connect_time = 0;  // 0: no connection was made
    curl_easy_getinfo(curl, CURLINFO_CONNECT_TIME_T, &connect_time);
    const bool is_unreachable = code == CURLE_OPERATION_TIMEDOUT && connect_time == 0;
    return ToStatus(is_unreachable ? CURLE_COULDNT_CONNECT : code,
                    *detail ? detail : curl_easy_strerror(code), url);
  }
  curl_off_t retry_after = 0;
  curl_easy_getinfo(curl, CURLINFO_RETRY_AFTER, &retry_after);
  transfer->answer.retry_after = absl::Seconds(std::int64_t{retry_after});
  return std::move(transfer->answer);
}

void HttpClient::SetOptions() {
  CURL* const curl = curl_.get();
  const char* const protocols =
      absl::StartsWith(settings_->endpoint, "https:") ? "https" : "http,https";
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, protocols);
  curl_easy_setopt(curl, CURLOPT_REDIR_PROTOCOLS_STR, protocols);
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);  // signals are not safe with several threads
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L);
  curl_easy_setopt(curl, CURLOPT_MAXREDIRS, kMaxRedirects);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, kConnectTimeoutSeconds);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME,
                   static_cast<long>(absl::ToInt64Seconds(settings_->stall_timeout)));
  curl_easy_setopt(curl, CURLOPT_BUFFERSIZE, kBufferBytes);
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "quire");
  if (!settings_->ca_file.empty()) {
    curl_easy_setopt(curl, CURLOPT_CAINFO, settings_->ca_file.c_str());
  }
  if (settings_->token.empty()) return;
  curl_easy_setopt(curl, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
  curl_easy_setopt(curl, CURLOPT_XOAUTH2_BEARER, settings_->token.c_str());
}

std::string EscapeUrl(absl::string_view text, bool keep_slashes) {
  std::string escaped;
  for (const char c : text) {
    const bool is_plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' ||
                          c == '.' || c == '_' || c == '~' || (c == '/' && keep_slashes);
    if (is_plain) {
      escaped.push_back(c);
    } else {
      absl::StrAppendFormat(&escaped, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return escaped;
}

}  // namespace quire::hub

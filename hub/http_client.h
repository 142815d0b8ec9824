#pragma once

// HTTP requests to a hub, over libcurl.
//
// Place:      below blob_download.h and pull.h; the only user of libcurl in hub/.
// Invariants: the token is sent to the endpoint only. libcurl drops it when a redirect leads to
//             another host, port or protocol. If the endpoint is https, a redirect to http is not
//             followed (FAILED_PRECONDITION).
// Threads:    one per client.
// Lifetime:   `settings` and `stop` outlive the client.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "hub/hub_settings.h"
#include "hub/stop_signal.h"

namespace quire::hub {

// The answer to a request, after redirects. The X- headers come from the first answer that has
// them, because the target of a redirect does not send them.
struct HttpAnswer {
  int status = 0;
  std::string body;           // set by Get, and by Download if the status is not 200 or 206
  std::string etag;           // X-Linked-Etag, else ETag; without quotes and W/
  std::string error_code;     // X-Error-Code
  std::string error_message;  // X-Error-Message
  std::optional<std::int64_t> size_bytes;   // X-Linked-Size, else Content-Length of the last answer
  std::optional<std::int64_t> range_start;  // from Content-Range
  absl::Duration retry_after = absl::ZeroDuration();
};

// A failed transfer returns UNAVAILABLE if no connection was made, ABORTED if the transfer broke
// off or stalled, and CANCELLED after a stop. It returns FAILED_PRECONDITION if the server's
// certificate is not trusted, the URL cannot be used, or there are too many redirects. It returns
// RESOURCE_EXHAUSTED if libcurl cannot be initialized. An answer with an HTTP error status is not a
// failed transfer.
class HttpClient {
 public:
  // Receives the next bytes of a file. An error ends the transfer and is returned by Download.
  using Sink = std::function<absl::Status(const HttpAnswer& head, absl::string_view bytes)>;

  HttpClient(const HubSettings* settings, const StopSignal* stop);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // `path` starts with a slash and is escaped. Get returns FAILED_PRECONDITION for a body of more
  // than `max_bytes`.
  absl::StatusOr<HttpAnswer> Get(absl::string_view path, std::size_t max_bytes);
  // Ends at the first answer that has X-Linked-Etag and X-Linked-Size, even a redirect. The target
  // of the redirect may refuse HEAD, for example an S3 URL signed for GET.
  absl::StatusOr<HttpAnswer> Head(absl::string_view path);
  // Requests the bytes from `first` on. Passes the body of an answer with status 200 (the whole
  // file) or 206 to `sink`. With any other status, keeps the first 4 KiB of the body in the answer.
  absl::StatusOr<HttpAnswer> Download(absl::string_view path, std::int64_t first, const Sink& sink);

 private:
  struct Transfer;

  // Sets the options that all requests share.
  void SetOptions();
  absl::StatusOr<HttpAnswer> Run(absl::string_view path, Transfer* transfer);

  const HubSettings* const settings_;
  const StopSignal* const stop_;
  struct Deleter {
    void operator()(void* curl) const;
  };
  std::unique_ptr<void, Deleter> curl_;
};

// Escapes a path, or a part of a path, for a URL. Slashes are kept if `keep_slashes`.
std::string EscapeUrl(absl::string_view text, bool keep_slashes);

}  // namespace quire::hub

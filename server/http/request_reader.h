#pragma once

// Reads the requests of one connection, one after the other: buffers bytes, parses them with
// Boost.Beast and checks the head.
//
// Place:      inside HttpSession.
// Invariants: bytes after the end of a request are kept for the next one. After an error the
//             connection cannot be read any further.
// Threads:    one thread at a time.

#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/http/http_message.h"

namespace quire::server {

struct RequestLimits {
  std::uint32_t max_head_bytes = 0;
  std::int64_t max_body_bytes = 0;
};

class RequestReader {
 public:
  enum class Event : std::uint8_t {
    kNeedsMore,  // no event until more bytes are appended
    kHead,       // the head is parsed and valid; reported once per request
    kRequest,    // the whole request has arrived
  };

  explicit RequestReader(bool has_tls) : has_tls_(has_tls) {}

  // Begins to read the next request into `request`, which stays valid until the next Begin.
  void Begin(const RequestLimits& limits, HttpRequest* request);
  void Append(absl::string_view bytes);
  // Drops the bytes that are not parsed yet.
  void Clear() { input_.clear(); }

  // Parses the appended bytes. If the request cannot be read, the error has a reason
  // (base/error_reason.h). REQUIRES: kRequest was not returned since Begin.
  absl::StatusOr<Event> Next();

  // Returns true once a byte of the request has arrived. Empty lines before it do not count.
  bool has_begun() const { return has_begun_; }
  bool is_head_parsed() const { return is_head_parsed_; }
  std::size_t num_buffered_bytes() const { return input_.size(); }

  // REQUIRES for the functions below: Next has returned kHead, but not yet kRequest, since Begin.
  bool is_complete() const { return parser_->is_done(); }
  bool keep_alive() const { return parser_->get().keep_alive(); }
  bool is_http_1_1() const { return parser_->get().version() >= 11; }
  // Returns true if the client waits for "100 Continue" before it sends the body.
  bool awaits_continue() const;

 private:
  absl::Status ReadHead();
  absl::Status ToStatus(const boost::system::error_code& error);
  bool SkipEmptyLines();

  const bool has_tls_;
  RequestLimits limits_;
  HttpRequest* request_ = nullptr;
  std::string input_;  // bytes that are not parsed yet
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  bool has_begun_ = false;
  bool is_head_parsed_ = false;
};

}  // namespace quire::server

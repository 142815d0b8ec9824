#include "server/http/request_reader.h"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "server/http/request_head.h"

namespace quire::server {

namespace http = boost::beast::http;
using Error = boost::system::error_code;

void RequestReader::Begin(const RequestLimits& limits, HttpRequest* request) {
  limits_ = limits;
  request_ = request;
  parser_.emplace();
  // The parser stops after the head, so that trailers are not taken for headers.
  parser_->eager(false);
  parser_->header_limit(limits_.max_head_bytes);
  parser_->body_limit(static_cast<std::uint64_t>(limits_.max_body_bytes));
  has_begun_ = SkipEmptyLines();
  is_head_parsed_ = false;
}

void RequestReader::Append(absl::string_view bytes) {
  input_.append(bytes.data(), bytes.size());
  if (!has_begun_) has_begun_ = SkipEmptyLines();
}

// Drops empty lines before a request line (RFC 9112, section 2.2), since some clients send one
// after a body. Returns true if a byte of the request has arrived.
bool RequestReader::SkipEmptyLines() {
  std::size_t size = 0;
  while (input_.compare(size, 2, "\r\n") == 0) size += 2;
  input_.erase(0, size);
  return !input_.empty() && input_ != "\r";
}

absl::StatusOr<RequestReader::Event> RequestReader::Next() {
  for (;;) {
    if (is_head_parsed_ && parser_->is_done()) {
      request_->body = std::move(parser_->get().body());
      parser_.reset();
      return Event::kRequest;
    }
    if (input_.empty()) return Event::kNeedsMore;
    Error error;
    const std::size_t used = parser_->put(boost::asio::buffer(input_), error);
    input_.erase(0, used);
    if (error && error != http::error::need_more) return ToStatus(error);
    if (!is_head_parsed_ && parser_->is_header_done()) {
      QUIRE_RETURN_IF_ERROR(ReadHead());
      parser_->eager(true);
      return Event::kHead;
    }
    if (used == 0) break;
  }
  // The parser consumes neither the header of a chunk nor the trailers before they are complete.
  if (input_.size() > limits_.max_head_bytes) return ToStatus(http::error::header_limit);
  return Event::kNeedsMore;
}

absl::Status RequestReader::ReadHead() {
  is_head_parsed_ = true;
  return ReadRequestHead(parser_->get(), {.has_tls = has_tls_, .is_chunked = parser_->chunked()},
                         request_);
}

absl::Status RequestReader::ToStatus(const Error& error) {
  const auto refused = [](Reason reason, absl::string_view message) {
    return WithReason(absl::InvalidArgumentError(message), reason);
  };
  if (error == http::error::body_limit) {
    // If Content-Length exceeds the limit, the head is complete and is checked first.
    if (!is_head_parsed_) QUIRE_RETURN_IF_ERROR(ReadHead());
    return refused(Reason::kInputTooLarge,
                   limits_.max_body_bytes == 0
                       ? "this port takes no bodies; the OpenAI API is at openai.listen"
                       : absl::StrCat("the body has more than ", limits_.max_body_bytes, " bytes"));
  }
  if (error == http::error::header_limit) {
    const absl::string_view what =
        is_head_parsed_ ? "the head of a chunk or the trailers" : "request line and headers";
    return refused(Reason::kHeadersTooLarge,
                   absl::StrCat(what, " have more than ", limits_.max_head_bytes, " bytes"));
  }
  return refused(Reason::kBadRequest, absl::StrCat("not a valid HTTP request: ", error.message()));
}

// RFC 9110, section 10.1.1: status 100 is sent neither to an HTTP/1.0 client nor after part of the
// body has arrived.
bool RequestReader::awaits_continue() const {
  return is_http_1_1() && input_.empty() &&
         absl::EqualsIgnoreCase(request_->Header("expect"), "100-continue");
}

}  // namespace quire::server

#pragma once

// A client over a plain socket. The test controls every byte and its timing.

#include <string>

#include "absl/strings/string_view.h"

namespace quire::server {

struct HttpReply {
  int status = 0;
  std::string head;       // including its last line feed
  std::string body;       // chunks joined
  bool is_whole = false;  // the framing shows that nothing is missing
};

class HttpClient {
 public:
  // `address` is 127.0.0.1:port. Reads time out after 20 s. `source`, if set, is the client's own
  // address.
  explicit HttpClient(const std::string& address, const std::string& source = "");
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Returns false if the peer no longer accepts data.
  bool Send(absl::string_view bytes);
  bool SendRequest(absl::string_view method, absl::string_view path, absl::string_view body,
                   absl::string_view more_headers = "");
  // Reads the next answer of this connection. Its status is 0 if the connection is closed first.
  // `has_body` is false for an answer to HEAD, which has no body even with Content-Length.
  HttpReply Read(bool has_body = true);
  // Calls SendRequest, then Read.
  HttpReply Ask(absl::string_view method, absl::string_view path, absl::string_view body = "",
                absl::string_view more_headers = "");
  // Reads until the peer closes the connection.
  std::string ReadAll();
  // Reads until `text` was received. Returns false if the peer closes the connection first.
  bool ReadUntil(absl::string_view text);
  // Closes the connection with a reset.
  void Reset();
  void Close();

 private:
  bool Fill();
  bool ReadChunks(std::string* body);

  int fd_ = -1;
  std::string input_;
};

}  // namespace quire::server

#pragma once

// A client over a plain socket, so that a test decides about every byte and about when they come.

#include <string>

#include "absl/strings/string_view.h"

namespace quire::server {

struct HttpReply {
  int status = 0;
  std::string head;       // with its last line feed
  std::string body;       // chunks joined
  bool is_whole = false;  // the framing says that nothing is missing
};

class HttpClient {
 public:
  // `address` is 127.0.0.1:port. Reads give up after 20 s. `source`, if any, is the client's
  // own address.
  explicit HttpClient(const std::string& address, const std::string& source = "");
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // False when the peer does not take it any more.
  bool Send(absl::string_view bytes);
  bool SendRequest(absl::string_view method, absl::string_view path, absl::string_view body,
                   absl::string_view more_headers = "");
  // The next answer of this connection; status 0 when it is closed first.
  HttpReply Read();
  // SendRequest and Read.
  HttpReply Ask(absl::string_view method, absl::string_view path, absl::string_view body = "",
                absl::string_view more_headers = "");
  // Everything until the peer closes.
  std::string ReadAll();
  // Until `text` was received; false when the peer closes before.
  bool ReadUntil(absl::string_view text);
  // With a reset instead of a farewell.
  void Reset();
  void Close();

 private:
  bool Fill();
  bool ReadChunks(std::string* body);

  int fd_ = -1;
  std::string input_;
};

}  // namespace quire::server

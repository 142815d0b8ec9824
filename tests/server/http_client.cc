#include "tests/server/http_client.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace quire::server {

HttpClient::HttpClient(const std::string& address, const std::string& source) {
  int port = 0;
  EXPECT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
  sockaddr_in peer = {};
  peer.sin_family = AF_INET;
  peer.sin_port = htons(static_cast<std::uint16_t>(port));
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  fd_ = socket(AF_INET, SOCK_STREAM, 0);
  const timeval patience = {.tv_sec = 20, .tv_usec = 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  if (!source.empty()) {
    sockaddr_in own = {};
    own.sin_family = AF_INET;
    EXPECT_EQ(inet_pton(AF_INET, source.c_str(), &own.sin_addr), 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
  }
  EXPECT_EQ(connect(fd_, reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)), 0);
}

bool HttpClient::Send(absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool HttpClient::SendRequest(absl::string_view method, absl::string_view path,
                             absl::string_view body, absl::string_view more_headers) {
  return Send(absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: localhost\r\nContent-Length: ",
                           body.size(), "\r\n", more_headers, "\r\n", body));
}

bool HttpClient::Fill() {
  char buffer[16384];
  const ssize_t size = recv(fd_, buffer, sizeof(buffer), 0);
  if (size <= 0) return false;
  input_.append(buffer, static_cast<std::size_t>(size));
  return true;
}

bool HttpClient::ReadChunks(std::string* body) {
  for (;;) {
    std::size_t end;
    while ((end = input_.find("\r\n")) == input_.npos) {
      if (!Fill()) return false;
    }
    const std::size_t size = std::stoul(input_.substr(0, end), nullptr, 16);
    while (input_.size() < end + 2 + size + 2) {
      if (!Fill()) return false;
    }
    body->append(input_, end + 2, size);
    input_.erase(0, end + 2 + size + 2);
    if (size == 0) return true;
  }
}

HttpReply HttpClient::Read(bool has_body) {
  HttpReply reply;
  std::size_t end;
  while ((end = input_.find("\r\n\r\n")) == input_.npos) {
    if (!Fill()) return reply;
  }
  reply.head = input_.substr(0, end + 2);
  input_.erase(0, end + 4);
  EXPECT_TRUE(absl::SimpleAtoi(absl::string_view(reply.head).substr(9, 3), &reply.status));
  if (has_body && absl::StrContains(reply.head, "Transfer-Encoding: chunked")) {
    reply.is_whole = ReadChunks(&reply.body);
    return reply;
  }
  std::size_t length = 0;
  const std::size_t at = reply.head.find("Content-Length: ");
  if (has_body && at != reply.head.npos) length = std::stoul(reply.head.substr(at + 16));
  while (input_.size() < length) {
    if (!Fill()) return reply;
  }
  reply.body = input_.substr(0, length);
  input_.erase(0, length);
  reply.is_whole = true;
  return reply;
}

HttpReply HttpClient::Ask(absl::string_view method, absl::string_view path, absl::string_view body,
                          absl::string_view more_headers) {
  EXPECT_TRUE(SendRequest(method, path, body, more_headers));
  return Read(/*has_body=*/method != "HEAD");
}

std::string HttpClient::ReadAll() {
  while (Fill()) {
  }
  return std::exchange(input_, "");
}

bool HttpClient::ReadUntil(absl::string_view text) {
  while (!absl::StrContains(input_, text)) {
    if (!Fill()) return false;
  }
  return true;
}

void HttpClient::Reset() {
  const linger none = {.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
  Close();
}

void HttpClient::Close() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

}  // namespace quire::server

// Requirements of RFC 9110 and RFC 9112 for the head of a request, tested over a socket. Each case
// names the section that defines the expected status.

#include "server/http/request_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/http/http_server.h"
#include "tests/server/http_client.h"
#include "tests/testing/waiting.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Case {
  const char* section;
  std::string request;
  int status;
  std::string body;  // the answer's body if the status is 200, else a part of the message
};

// Answers with the parsed method, path, query, host and body.
class RequestHeadTest : public ::testing::Test {
 protected:
  explicit RequestHeadTest(absl::Duration idle_time = absl::Seconds(60)) {
    HttpServerOptions options;
    options.address = "127.0.0.1:0";
    options.max_body_bytes = [] { return std::int64_t{1000}; };
    options.idle_time = idle_time;
    auto server = HttpServer::Start(std::move(options), [](const auto& exchange) {
      const HttpRequest& request = exchange->request();
      exchange->Answer({.body = absl::StrCat(request.method, " ", request.path, " ", request.query,
                                             " ", request.Header("host"), " ", request.body)});
    });
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  void Check(const Case& one) {
    SCOPED_TRACE(absl::StrCat(one.section, "\n", one.request));
    HttpClient client(server_->address());
    ASSERT_TRUE(client.Send(one.request));
    const HttpReply reply = client.Read();
    EXPECT_EQ(reply.status, one.status) << reply.body;
    if (one.status == 200) {
      EXPECT_EQ(reply.body, one.body);
    } else {
      EXPECT_THAT(reply.body, HasSubstr(one.body));
      // Bytes after a request that could not be parsed are not read as another request.
      EXPECT_THAT(reply.head, HasSubstr("Connection: close"));
    }
  }

  std::unique_ptr<HttpServer> server_;
};

TEST_F(RequestHeadTest, TargetsHaveFourForms) {
  const std::string rest = " HTTP/1.1\r\nHost: here\r\n\r\n";
  const Case cases[] = {
      {"9112 3.2.1", "GET /a?b=c" + rest, 200, "GET /a b=c here "},
      {"9112 3.2.1", "GET //a/b?" + rest, 200, "GET //a/b  here "},
      {"9112 3.2.1", "GET a" + rest, 400, "'a'"},
      {"9112 3.2.2", "GET http://there/a?b=c" + rest, 200, "GET /a b=c there "},
      {"9112 3.2.2", "GET HTTP://there:8080/a%20b" + rest, 200, "GET /a b  there:8080 "},
      {"9112 3.2.2", "GET http://[2001:db8::7]:1/a" + rest, 200, "GET /a  [2001:db8::7]:1 "},
      {"9112 3.2.2", "POST http://there/a HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n\r\nxy",
       200, "POST /a  there xy"},
      {"9112 3.2.2", "GET http://there/a HTTP/1.0\r\n\r\n", 200, "GET /a  there "},
      {"9112 3.2.2 needs no path", "GET http://there" + rest, 200, "GET /  there "},
      {"9112 3.2.2 needs no path", "GET http://there:80?q=/x" + rest, 200, "GET / q=/x there:80 "},
      {"9112 3.2: Host is required all the same", "GET http://there/a HTTP/1.1\r\n\r\n", 400,
       "Host is missing"},
      {"9110 4.2.1: the host is not empty", "GET http:///a" + rest, 400, "authority ''"},
      {"9110 4.2.1: the host is not empty", "GET http://:80/a" + rest, 400, "authority ':80'"},
      {"9110 4.2.4: user information is an error", "GET http://me@there/a" + rest, 400, "me@there"},
      {"3986 3.2.3", "GET http://there:port/a" + rest, 400, "there:port"},
      {"9110 7.4: https needs TLS", "GET https://there/a" + rest, 400, "TLS"},
      {"9110 7.4", "GET ftp://there/a" + rest, 400, "ftp://there/a"},
      {"9110 7.4", "GET there:80" + rest, 400, "there:80"},
      {"9112 3.2.3", "CONNECT there:80" + rest, 400, "CONNECT"},
      {"9112 3.2.4", "OPTIONS *" + rest, 200, "OPTIONS *  here "},
      {"9112 3.2.4", "OPTIONS http://there:8001" + rest, 200, "OPTIONS *  there:8001 "},
      {"9112 3.2.4", "OPTIONS http://there/" + rest, 200, "OPTIONS /  there "},
      {"9112 3.2.4: OPTIONS only", "GET *" + rest, 400, "'*'"},
      {"9112 3: white space is no part of a target", "GET /a b" + rest, 400, ""},
  };
  for (const Case& one : cases) Check(one);
}

TEST_F(RequestHeadTest, RequiresOneValidHostHeader) {
  const std::string get = "GET /a HTTP/1.1\r\n";
  for (const char* const host :
       {"here", "here:80", "a-b_c.example", "127.0.0.1:65535", "[::1]", "[::ffff:1.2.3.4]:80", "",
        "here:", "%41.example", "a,b;c=d!$&'()*+~"}) {
    Check({"9112 3.2, 9110 7.2, 3986 3.2.2", absl::StrCat(get, "hOST:  ", host, " \r\n\r\n"), 200,
           absl::StrCat("GET /a  ", host, " ")});
  }
  for (const char* const host :
       {"a b",  "a/b",  "http://a", "me@a", "a:b",    "a:80:80", "a:-1", "a:70000",
        ":80",  "[::1", "::1",      "[]",   "[here]", "[::1]x",  "a%4",  "a%zz",
        "a\\b", "a\"b", "<a>",      "a#b",  "a?b",    "\xc3\xa4"}) {
    for (const char* const version : {"1.1", "1.0"}) {
      Check({"9112 3.2: an invalid value",
             absl::StrCat("GET /a HTTP/", version, "\r\nHost: ", host, "\r\n\r\n"), 400,
             "header Host is '"});
    }
  }
  const Case cases[] = {
      {"9112 3.2: missing", get + "\r\n", 400, "Host is missing"},
      {"9112 3.2: missing", "POST /a HTTP/1.1\r\nContent-Length: 1\r\n\r\nx", 400,
       "Host is missing"},
      {"9112 3.2: missing", get + "Hosts: a\r\nX-Host: a\r\n\r\n", 400, "Host is missing"},
      {"9112 3.2: HTTP/1.0 may leave it out", "GET /a HTTP/1.0\r\n\r\n", 200, "GET /a   "},
      {"9112 3.2: twice", get + "Host: a\r\nHost: b\r\n\r\n", 400, "2 times"},
      {"9112 3.2: twice, equal", get + "Host: a\r\nX: y\r\nhost: a\r\n\r\n", 400, "2 times"},
      {"9112 3.2: twice, empty", get + "Host: a\r\nHost:\r\n\r\n", 400, "2 times"},
      {"9112 3.2: twice", get + "Host: a\r\nHost: a\r\nHost: a\r\n\r\n", 400, "3 times"},
      {"9112 3.2: twice", "GET /a HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n", 400, "2 times"},
      {"9112 5.2: a folded value has a space", get + "Host: a\r\n b\r\n\r\n", 400, "'a b'"},
  };
  for (const Case& one : cases) Check(one);
}

TEST_F(RequestHeadTest, SkipsEmptyLinesBeforeARequest) {
  const std::string get = "GET /a HTTP/1.1\r\nHost: here\r\n\r\n";
  Check({"9112 2.2", "\r\n" + get, 200, "GET /a  here "});
  Check({"9112 2.2", "\r\n\r\n\r\n" + get, 200, "GET /a  here "});
  Check({"9112 2.2: a lone CR is no line", "\r" + get, 400, ""});
  Check({"9112 2.2: white space is no empty line", " \r\n" + get, 400, ""});
  HttpClient slow(server_->address());
  for (const char c : "\r\n\r\n" + get) ASSERT_TRUE(slow.Send(absl::string_view(&c, 1)));
  EXPECT_EQ(slow.Read().body, "GET /a  here ");
  // An old client appends an empty line to its body that Content-Length does not count.
  const std::string post = "POST /b HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\n\r\nx\r\n";
  ASSERT_TRUE(slow.Send(post + post + get));
  EXPECT_EQ(slow.Read().body, "POST /b  here x");
  EXPECT_EQ(slow.Read().body, "POST /b  here x");
  EXPECT_EQ(slow.Read().body, "GET /a  here ");
}

class IdleRequestHeadTest : public RequestHeadTest {
 protected:
  IdleRequestHeadTest() : RequestHeadTest(absl::Milliseconds(300)) {}
};

// An empty line starts no request, so the connection is closed as idle, without a 408 answer.
TEST_F(IdleRequestHeadTest, EmptyLineLeavesTheConnectionIdle) {
  HttpClient client(server_->address());
  ASSERT_TRUE(client.Send("GET /a HTTP/1.1\r\nHost: here\r\n\r\n"));
  EXPECT_EQ(client.Read().body, "GET /a  here ");
  ASSERT_TRUE(client.Send("\r"));
  ASSERT_TRUE(client.Send("\n"));
  EXPECT_EQ(client.ReadAll(), "");
}

TEST_F(RequestHeadTest, RejectsContentCodings) {
  const auto post = [](const char* headers) {
    return absl::StrCat("POST /a HTTP/1.1\r\nHost: here\r\nContent-Length: 2\r\n", headers,
                        "\r\nxy");
  };
  for (const char* const coding : {"gzip", "GZIP", "x-gzip", "deflate", "br", "zstd", "compress",
                                   "identity, gzip", "gzip, identity", "unknown"}) {
    Check({"9110 15.5.16", post(absl::StrCat("Content-Encoding: ", coding, "\r\n").c_str()), 415,
           "only identity is supported"});
  }
  Check({"9110 5.3: lines are one list",
         post("Content-Encoding: identity\r\nContent-Encoding: br\r\n"), 415, "'identity, br'"});
  Check({"9110 15.5.16",
         "POST /a HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n"
         "content-encoding: gzip\r\n\r\n1\r\nx\r\n0\r\n\r\n",
         415, "'gzip'"});
  for (const char* const coding : {"identity", "Identity", "", ", identity ,"}) {
    Check({"9110 8.4.1", post(absl::StrCat("Content-Encoding: ", coding, "\r\n").c_str()), 200,
           "POST /a  here xy"});
  }
  Check({"9110 8.4: there is nothing to decode",
         "GET /a HTTP/1.1\r\nHost: here\r\nContent-Encoding: gzip\r\n\r\n", 200, "GET /a  here "});
  HttpClient client(server_->address());
  const HttpReply refused = client.Ask("POST", "/a", "xy", "Content-Encoding: gzip\r\n");
  EXPECT_THAT(refused.head, HasSubstr("Accept-Encoding: identity\r\n")) << "9110 12.5.3";
}

TEST_F(RequestHeadTest, AcceptsOnlyChunkedTransferCoding) {
  const std::string post = "POST /a HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: ";
  const std::string body = "\r\n\r\n2\r\nxy\r\n0\r\n\r\n";
  const Case cases[] = {
      {"9112 7.1", post + "chunked" + body, 200, "POST /a  here xy"},
      {"9112 7: names ignore case", post + "Chunked" + body, 200, "POST /a  here xy"},
      {"9112 6.1: a coding that is not understood", post + "gzip, chunked" + body, 400, "gzip"},
      {"9112 6.1", post + "gzip\r\nTransfer-Encoding: chunked" + body, 400, "gzip"},
      {"9112 6.3: chunked is not the last", post + "chunked, gzip" + body, 400, "chunked, gzip"},
      {"9112 6.3: chunked is not the last", post + "gzip" + body, 400, "gzip"},
      {"9112 6.3: chunked is not the last", post + "identity" + body, 400, "identity"},
      {"9112 6.3: chunked is not the last", post + body, 400, "Transfer-Encoding is ''"},
      {"9112 6.1: chunked once", post + "chunked, chunked" + body, 400, ""},
      {"9112 6.1: chunked once", post + "chunked\r\nTransfer-Encoding: chunked" + body, 400, ""},
      {"9112 6.3: two lengths", post + "chunked\r\nContent-Length: 12" + body, 400, ""},
      {"9112 6.3: two lengths",
       "POST /a HTTP/1.1\r\nHost: here\r\nContent-Length: 12\r\nTransfer-Encoding: chunked" + body,
       400, ""},
      {"9112 6.3: two lengths",
       "POST /a HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxy", 400,
       ""},
      {"9112 6.3: no length", "POST /a HTTP/1.1\r\nHost: here\r\nContent-Length: +2\r\n\r\nxy", 400,
       ""},
      {"9112 6.1: not in HTTP/1.0",
       "POST /a HTTP/1.0\r\nHost: here\r\nTransfer-Encoding: chunked" + body, 400, "HTTP/1.0"},
      {"9112 7.1: no size", post + "chunked\r\n\r\nxy\r\n0\r\n\r\n", 400, ""},
  };
  for (const Case& one : cases) Check(one);
}

TEST_F(RequestHeadTest, ParsesHeaderLinesStrictly) {
  const std::string get = "GET /a HTTP/1.1\r\n";
  const Case cases[] = {
      {"9112 5.1: white space before the colon", get + "Host : here\r\n\r\n", 400, ""},
      {"9112 5.1: white space before the colon", get + "Host: here\r\nX\t: y\r\n\r\n", 400, ""},
      {"9112 5.1: white space before the colon",
       "POST /a HTTP/1.1\r\nHost: here\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400, ""},
      {"9112 2.2: white space before the first header", get + " Host: here\r\n\r\n", 400, ""},
      {"9112 5.2: a fold is a space or refused", get + "Host: here\r\nX: a\r\n\tb\r\n\r\n", 200,
       "GET /a  here "},
      {"9110 5.5: NUL", get + absl::StrCat("Host: here\r\nX: a", std::string(1, '\0'), "\r\n\r\n"),
       400, ""},
      {"9112 2.2: a lone CR", get + "Host: here\r\nX: a\rb\r\n\r\n", 400, ""},
      {"9110 5.1: a name is a token", get + "Host: here\r\nX(y): a\r\n\r\n", 400, ""},
      {"9112 5: no colon", get + "Host: here\r\nX\r\n\r\n", 400, ""},
  };
  for (const Case& one : cases) Check(one);
}

// A trailer is not merged into the headers, whether it arrives with them or later (RFC 9110,
// section 6.5.1).
TEST_F(RequestHeadTest, TrailersAreNotMergedIntoHeaders) {
  const std::string head = "POST /a HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* const trailer :
       {"Host: there", "Content-Encoding: gzip", "X: y\r\nHost: here\r\nHost: there"}) {
    const std::string rest = absl::StrCat("2\r\nxy\r\n0\r\n", trailer, "\r\n\r\n");
    Check({"9110 6.5.1", head + rest, 200, "POST /a  here xy"});
    HttpClient slow(server_->address());
    for (const char c : head + rest) ASSERT_TRUE(slow.Send(absl::string_view(&c, 1)));
    EXPECT_EQ(slow.Read().body, "POST /a  here xy");
  }
}

// RFC 9110, section 10.1.1.
TEST_F(RequestHeadTest, SendsContinueToWaitingHttp11ClientsOnly) {
  const std::string rest = "Host: here\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\n";
  HttpClient old(server_->address());
  ASSERT_TRUE(old.Send("POST /a HTTP/1.0\r\n" + rest));
  HttpClient waits(server_->address());
  ASSERT_TRUE(waits.Send("POST /a HTTP/1.1\r\n" + rest));
  EXPECT_EQ(waits.Read().status, 100);
  ASSERT_TRUE(waits.Send("xy"));
  EXPECT_EQ(waits.Read().body, "POST /a  here xy");
  ASSERT_TRUE(old.Send("xy"));
  EXPECT_EQ(old.Read().body, "POST /a  here xy");
  Check({"9110 10.1.1: the body has come", "POST /a HTTP/1.1\r\n" + rest + "xy", 200,
         "POST /a  here xy"});
}

}  // namespace
}  // namespace quire::server

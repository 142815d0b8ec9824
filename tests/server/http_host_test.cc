#include "server/http/http_host.h"

#include <gtest/gtest.h>

#include <string>

namespace quire::server {
namespace {

TEST(HttpHostTest, ParsesAuthorities) {
  struct Case {
    const char* text;
    const char* host;  // empty if rejected
    int port;          // -1 if there is none
  };
  for (const Case& wanted : {Case{"a.example", "a.example", -1},
                             Case{"a.example:80", "a.example", 80},
                             Case{"127.0.0.1:65535", "127.0.0.1", 65535},
                             Case{"[::1]", "::1", -1},
                             Case{"[::1]:8000", "::1", 8000},
                             Case{"", "", -1},
                             Case{":80", "", -1},
                             Case{"[]", "", -1},
                             Case{"[::1", "", -1},
                             Case{"[::1]8000", "", -1},
                             Case{"::1", "", -1},
                             Case{"a:", "a", -1},
                             Case{"a:b", "", -1},
                             Case{"a:80:80", "", -1},
                             Case{"a:-1", "", -1},
                             Case{"a:999999", "", -1},
                             Case{"a:65536", "", -1},
                             Case{"a b", "", -1},
                             Case{"[a]", "", -1},
                             Case{"a@b", "", -1},
                             Case{"a%41", "a%41", -1},
                             Case{"a%4", "", -1}}) {
    const std::optional<Authority> found = ParseAuthority(wanted.text);
    ASSERT_EQ(found.has_value(), *wanted.host != 0) << wanted.text;
    if (!found) continue;
    EXPECT_EQ(found->host, wanted.host);
    EXPECT_EQ(found->port.value_or(-1), wanted.port) << wanted.text;
  }
}

TEST(HttpHostTest, PageIsOwnOnlyOnTheSameLocalHostAndPort) {
  const auto is_own = [](const char* origin, const char* host, int port) {
    HttpRequest request;
    request.headers = {{"host", host}};
    return IsOwnPage(origin, request, port);
  };
  EXPECT_TRUE(is_own("http://127.0.0.1:9464", "127.0.0.1:8000", 9464));
  EXPECT_TRUE(is_own("http://[::1]:9464", "[::1]:8000", 9464));
  EXPECT_TRUE(is_own("https://LOCALHOST:9464", "localhost", 9464));
  EXPECT_TRUE(is_own("http://localhost", "localhost:8000", 80));
  EXPECT_TRUE(is_own("https://localhost", "localhost:8000", 443));
  EXPECT_FALSE(is_own("https://localhost", "localhost:8000", 80));
  EXPECT_FALSE(is_own("http://127.0.0.1:9465", "127.0.0.1:8000", 9464));
  EXPECT_FALSE(is_own("http://localhost:9464", "127.0.0.1:8000", 9464));
  // The owner of the name can let it resolve to this host.
  EXPECT_FALSE(is_own("http://evil.example:9464", "evil.example:8000", 9464));
  EXPECT_FALSE(is_own("null", "127.0.0.1:8000", 9464));
  EXPECT_FALSE(is_own("file://127.0.0.1:9464", "127.0.0.1:8000", 9464));
  EXPECT_FALSE(is_own("http://127.0.0.1:9464", "", 9464));
}

}  // namespace
}  // namespace quire::server

#include "server/auth/authenticator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "tests/testing/reason_of.h"
#include "tests/testing/temp_dir.h"

namespace quire::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// SHA-256 of "one", "two" and "three", from sha256sum.
constexpr char kOne[] = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
constexpr char kTwo[] = "3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3";
constexpr char kThree[] = "8b5b9db0c13db24256c829aa364aa90c6d2eba318b9232a4ab9313b954d3555f";

class AuthenticatorTest : public ::testing::Test {
 protected:
  AuthOptions Options(const std::string& lines) {
    return {.mode = AuthMode::kToken, .tokens_file = dir_.Write("tokens", lines)};
  }

  void Start(const AuthOptions& options) {
    auto made = Authenticator::Create(options);
    ASSERT_TRUE(made.ok()) << made.status();
    authenticator_ = *std::move(made);
  }

  absl::Status Reload(const AuthOptions& options) {
    auto rules = Authenticator::Read(options);
    if (rules.ok()) authenticator_->Apply(*rules);
    return rules.status();
  }

  absl::StatusOr<Identity> Ask(const Credentials& credentials, Scope scope) {
    return authenticator_->Authenticate(credentials, scope);
  }

  testing::TempDir dir_;
  std::unique_ptr<Authenticator> authenticator_;
};

TEST_F(AuthenticatorTest, AllCallersShareOnePrincipalWithoutAuthentication) {
  Start({});
  for (const Scope scope : {Scope::kGenerate, Scope::kAdmin, Scope::kMetrics}) {
    const auto who = Ask({.bearer_token = "whatever", .tenant_metadata = "t"}, scope);
    ASSERT_TRUE(who.ok()) << who.status();
    EXPECT_EQ(who->principal, "");
    EXPECT_EQ(who->tenant, "default");
  }
}

TEST_F(AuthenticatorTest, TokenDeterminesTenantAndScopes) {
  Start(Options(absl::StrCat("# tokens of the day\n\n", kOne, " acme generate,metrics\n", kTwo,
                             "\tops\tadmin\r\n")));
  const auto one = Ask({.bearer_token = "one"}, Scope::kGenerate);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(one->tenant, "acme");
  EXPECT_EQ(one->principal, absl::StrCat("token:", std::string(kOne).substr(0, 16)));
  EXPECT_TRUE(Ask({.bearer_token = "one"}, Scope::kMetrics).ok());
  EXPECT_TRUE(Ask({.bearer_token = "two"}, Scope::kAdmin).ok());

  const absl::Status scope = Ask({.bearer_token = "two"}, Scope::kGenerate).status();
  EXPECT_EQ(scope.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ReasonOf(scope), "SCOPE_MISSING");
  EXPECT_EQ(GetErrorReason(scope)->Find("scope"), "generate");
}

TEST_F(AuthenticatorTest, DistinguishesAbsentFromWrongTokens) {
  Start(Options(absl::StrCat(kOne, " acme generate\n")));
  const absl::Status missing = Ask({}, Scope::kGenerate).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_EQ(ReasonOf(missing), "TOKEN_MISSING");
  for (const std::string& wrong : {std::string("ONE"), std::string("one "), std::string("on"),
                                   std::string(kOne), std::string(100000, 'x')}) {
    const absl::Status status = Ask({.bearer_token = wrong}, Scope::kGenerate).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
    EXPECT_EQ(ReasonOf(status), "TOKEN_INVALID");
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr(wrong)));
  }
}

TEST_F(AuthenticatorTest, AnonymousCallersGetTheConfiguredScopes) {
  AuthOptions options = Options(absl::StrCat(kOne, " acme generate\n"));
  options.anonymous_scopes.Add(Scope::kMetrics);
  Start(options);
  EXPECT_TRUE(Ask({}, Scope::kMetrics).ok());
  EXPECT_EQ(ReasonOf(Ask({}, Scope::kGenerate).status()), "TOKEN_MISSING");
  // An anonymous caller cannot use a wrong token instead.
  EXPECT_EQ(ReasonOf(Ask({.bearer_token = "x"}, Scope::kMetrics).status()), "TOKEN_INVALID");
}

TEST_F(AuthenticatorTest, AdminSocketIsProtectedByItsModeOnly) {
  Start(Options(absl::StrCat(kOne, " acme generate\n")));
  const auto local = Ask({.is_local_socket = true}, Scope::kAdmin);
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_EQ(local->principal, "local");
  EXPECT_EQ(ReasonOf(Ask({.is_local_socket = true}, Scope::kGenerate).status()), "TOKEN_MISSING");
  EXPECT_EQ(ReasonOf(Ask({}, Scope::kAdmin).status()), "TOKEN_MISSING");
}

TEST_F(AuthenticatorTest, CertificateDeterminesTheTenant) {
  Start({.mode = AuthMode::kMtls});
  const auto who = Ask({.certificate_name = "acme corp"}, Scope::kGenerate);
  ASSERT_TRUE(who.ok()) << who.status();
  EXPECT_EQ(who->tenant, "acme corp");
  EXPECT_EQ(who->principal, "cert:acme corp");
  EXPECT_EQ(ReasonOf(Ask({.bearer_token = "one"}, Scope::kGenerate).status()), "TOKEN_MISSING");
  EXPECT_EQ(ReasonOf(Ask({.certificate_name = "a\nb"}, Scope::kGenerate).status()),
            "TOKEN_INVALID");
  EXPECT_EQ(ReasonOf(Ask({.certificate_name = std::string(65, 'a')}, Scope::kGenerate).status()),
            "TOKEN_INVALID");
  EXPECT_TRUE(Ask({}, Scope::kMetrics).ok());
}

TEST_F(AuthenticatorTest, MetadataDeterminesTheTenantOnlyIfTrusted) {
  AuthOptions options = Options(absl::StrCat(kOne, " acme generate\n"));
  Start(options);
  EXPECT_EQ(Ask({.bearer_token = "one", .tenant_metadata = "evil"}, Scope::kGenerate)->tenant,
            "acme");
  options.trust_tenant_metadata = true;
  Start(options);
  EXPECT_EQ(Ask({.bearer_token = "one", .tenant_metadata = "a"}, Scope::kGenerate)->tenant, "a");
  EXPECT_EQ(Ask({.bearer_token = "one"}, Scope::kGenerate)->tenant, "acme");
  const Credentials bad{.bearer_token = "one", .tenant_metadata = std::string(65, 'a')};
  EXPECT_EQ(ReasonOf(Ask(bad, Scope::kGenerate).status()), "BAD_PARAMETER");
}

TEST_F(AuthenticatorTest, ReloadRevokesAndGrantsTokens) {
  const AuthOptions options = Options(absl::StrCat(kOne, " a generate\n", kTwo, " b generate\n"));
  Start(options);
  const std::string one = Ask({.bearer_token = "one"}, Scope::kGenerate)->principal;
  const std::string two = Ask({.bearer_token = "two"}, Scope::kGenerate)->principal;
  EXPECT_TRUE(authenticator_->IsStillAllowed(one, Scope::kGenerate));

  dir_.Write("tokens", absl::StrCat(kTwo, " b metrics\n", kThree, " c generate\n"));
  ASSERT_TRUE(Reload(options).ok());
  EXPECT_EQ(ReasonOf(Ask({.bearer_token = "one"}, Scope::kGenerate).status()), "TOKEN_INVALID");
  EXPECT_EQ(ReasonOf(Ask({.bearer_token = "two"}, Scope::kGenerate).status()), "SCOPE_MISSING");
  EXPECT_TRUE(Ask({.bearer_token = "three"}, Scope::kGenerate).ok());
  EXPECT_FALSE(authenticator_->IsStillAllowed(one, Scope::kGenerate));
  EXPECT_FALSE(authenticator_->IsStillAllowed(two, Scope::kGenerate));
  EXPECT_TRUE(authenticator_->IsStillAllowed(two, Scope::kMetrics));
  EXPECT_FALSE(authenticator_->IsStillAllowed("", Scope::kGenerate));
  EXPECT_TRUE(authenticator_->IsStillAllowed("local", Scope::kAdmin));

  // A bad file changes nothing.
  dir_.Write("tokens", "three c generate\n");
  EXPECT_FALSE(Reload(options).ok());
  EXPECT_TRUE(Ask({.bearer_token = "three"}, Scope::kGenerate).ok());
}

TEST_F(AuthenticatorTest, NamesBadLinesWithoutTheirTokens) {
  const std::string good = absl::StrCat(kOne, " acme generate\n");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"secret acme generate", ":2: the first word is not a SHA-256 in 64 hex digits"},
      {std::string(kTwo) + "0 acme generate", "SHA-256 in 64 hex digits"},
      {std::string(kTwo) + " acme", ":2: the line has 2 words"},
      {std::string(kTwo) + " acme generate metrics", "the line has 4 words"},
      {std::string(kTwo) + " acme generate,root", "\"root\" is not generate, admin or metrics"},
      {std::string(kTwo) + " acme generate,", "\"\" is not generate, admin or metrics"},
      {std::string(kTwo) + " " + std::string(65, 't') + " generate", "the tenant has 65 bytes"},
      {std::string(kOne) + " other admin", ":2: the token is listed twice"},
  };
  for (const auto& [line, error] : cases) {
    const absl::Status status = Authenticator::Create(Options(good + line + "\n")).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(status.message()), HasSubstr(error));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("secret")));
  }
  const absl::Status absent =
      Authenticator::Create({.mode = AuthMode::kToken, .tokens_file = "/nowhere"}).status();
  EXPECT_THAT(std::string(absent.message()),
              HasSubstr("auth.tokens_file: /nowhere cannot be read"));
}

// Each line of a truncated file is valid, so the tokens of the missing lines would be revoked
// silently.
TEST_F(AuthenticatorTest, RejectsTruncatedFiles) {
  const std::string good = absl::StrCat(kOne, " acme generate\n", kTwo, " b generate,metrics\n");
  const auto error = [&](const std::string& content) {
    const absl::Status status = Authenticator::Create(Options(content)).status();
    return std::string(status.message());
  };
  EXPECT_EQ(error(good), "");
  EXPECT_EQ(error("# tokens: 2\n" + good), "");
  EXPECT_EQ(error(good + "# tokens: 2\n"), "");
  for (const std::string& empty : {std::string(), std::string("\n"), std::string("# names\n\n")}) {
    EXPECT_THAT(
        error(empty),
        HasSubstr("/tokens has no token; if that is intended, add the line \"# tokens: 0\""));
  }
  EXPECT_EQ(error("# tokens: 0\n"), "");
  // "generate,metrics" without its last characters is also a scope.
  EXPECT_THAT(error(good.substr(0, good.size() - 9)),
              HasSubstr("/tokens does not end with a newline"));
  EXPECT_THAT(error(absl::StrCat("# tokens: 2\n", kOne, " acme generate\n")),
              HasSubstr("/tokens has 1 tokens, but its comment declares \"# tokens: 2\""));
  EXPECT_THAT(error("# tokens: 1\n" + good), HasSubstr("has 2 tokens"));
  EXPECT_THAT(error("# tokens: two\n" + good),
              HasSubstr("/tokens:1: \"# tokens:\" is not followed by a number up to 10000"));
}

TEST_F(AuthenticatorTest, UnreadableFileKeepsTheOldTable) {
  const AuthOptions options = Options(absl::StrCat(kOne, " acme generate\n"));
  Start(options);
  dir_.Write("tokens", "");
  EXPECT_FALSE(Reload(options).ok());
  std::filesystem::remove(options.tokens_file);
  EXPECT_FALSE(Reload(options).ok());
  ASSERT_EQ(mkfifo(options.tokens_file.c_str(), 0600), 0);
  EXPECT_EQ(std::string(Reload(options).message()),
            absl::StrCat("auth.tokens_file: ", options.tokens_file,
                         " cannot be read: it is not a regular file"));
  EXPECT_TRUE(Ask({.bearer_token = "one"}, Scope::kGenerate).ok());
}

TEST(BearerTokenTest, ParsesTheAuthorizationHeader) {
  EXPECT_EQ(BearerToken("Bearer abc"), "abc");
  EXPECT_EQ(BearerToken("bearer  abc "), "abc");
  EXPECT_EQ(BearerToken("BEARER abc"), "abc");
  for (const char* none : {"", "abc", "Bearer", "Bearer ", "Bearerabc", "Basic abc"}) {
    EXPECT_EQ(BearerToken(none), "") << none;
  }
}

}  // namespace
}  // namespace quire::server

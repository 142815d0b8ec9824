// Fuzzes the file of auth.tokens_file.

#include "server/auth/authenticator.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using quire::server::Authenticator, quire::server::Scope;
  const absl::string_view content = quire::fuzz::AsText(data, size);
  const quire::fuzz::MemoryFile file(content);
  const auto authenticator =
      Authenticator::Create({.mode = quire::server::AuthMode::kToken, .tokens_file = file.path()});
  if (!authenticator.ok()) {
    QUIRE_CHECK(authenticator.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  // A token that is not in the file grants nothing.
  const std::string token(quire::server::BearerToken(content));
  QUIRE_CHECK(!(*authenticator)->Authenticate({.bearer_token = token}, Scope::kAdmin).ok());
  return 0;
}

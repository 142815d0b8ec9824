// Fuzzes certificates, their key and the client authorities. All three files contain the input's
// bytes.

#include "server/auth/certificate_store.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const quire::fuzz::MemoryFile file(quire::fuzz::AsText(data, size));
  const auto read = quire::server::ReadCertificates(
      {.cert_file = file.path(), .key_file = file.path(), .client_ca_file = file.path()},
      absl::FromUnixSeconds(1'800'000'000));
  QUIRE_CHECK(read.ok() || read.status().code() == absl::StatusCode::kInvalidArgument);
  return 0;
}

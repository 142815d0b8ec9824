// Fuzzes a configuration file through every rule to the options of the daemon.

#include "server/config/layered_config.h"
#include "server/config/options.h"
#include "tests/fuzz/fuzz_target.h"

namespace quire::server {
namespace {

void Load(absl::string_view yaml) {
  const fuzz::MemoryFile file(yaml);
  std::vector<std::string> errors;
  const auto config = LayeredConfig::Load({.files = {file.path()}}, &errors);
  QUIRE_CHECK((config == nullptr) == !errors.empty());
  if (config == nullptr) return;
  (void)ToOptions(*config);
  const std::string printed = config->Print(Spelling::kYaml, /*include_defaults=*/false);
  if (absl::string_view(printed).find("<redacted>") != absl::string_view::npos) return;
  // The printed configuration loads again with the same values.
  const fuzz::MemoryFile again(printed);
  const auto reloaded = LayeredConfig::Load({.files = {again.path()}}, &errors);
  QUIRE_CHECK(reloaded != nullptr && reloaded->Sha256() == config->Sha256());
}

}  // namespace
}  // namespace quire::server

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  quire::server::Load(quire::fuzz::AsText(data, size));
  return 0;
}

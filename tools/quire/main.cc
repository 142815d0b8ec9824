// quire: the command-line client of quired.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "server/config/usage_error.h"
#include "tools/quire/client.h"

namespace {

int Run(int argc, char** argv) {
  quire::client::BlockInterrupts();
  quire::client::CommonOptions common;
  int exit_code = quire::client::kOk;
  CLI::App app{"Client of quired, the LLM inference server", "quire"};
  app.set_version_flag("--version", QUIRE_VERSION);
  app.require_subcommand(1);
  app.fallthrough();
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return quire::server::DescribeUsageError(*failed, error);
  });
  quire::client::AddCommonOptions(&app, &common);
  quire::client::AddGenerate(&app, &common, &exit_code);
  quire::client::AddChat(&app, &common, &exit_code);
  quire::client::AddText(&app, &common, &exit_code);
  quire::client::AddEvaluate(&app, &common, &exit_code);
  quire::client::AddInspect(&app, &common, &exit_code);
  quire::client::AddControl(&app, &common, &exit_code);
  quire::client::AddLocal(&app, &common, &exit_code);
  quire::client::AddHub(&app, &common, &exit_code);
  quire::client::AddBench(&app, &common, &exit_code);
  quire::client::AddCompletion(&app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? quire::client::kOk : quire::client::kWrongUsage;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "quire: %s\n", error.what());
    return quire::client::kRequestFailed;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  // Errors are printed from statuses. gRPC's own log would repeat them, unless a user asks for it.
  setenv("GRPC_VERBOSITY", "NONE", /*replace=*/0);
  const int exit_code = Run(argc, argv);
  // gRPC's threads outlive its channels. Returning from main would run OpenSSL's cleanup while
  // these threads may be in a handshake, which can crash.
  std::fflush(nullptr);
  std::_Exit(exit_code);
}

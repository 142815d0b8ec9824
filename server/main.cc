// quired: reads flags and configuration and runs the daemon.

#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/device.h"
#include "base/logging.h"
#include "kernels/backend/backend.h"
#include "kernels/backend/kernel_check.h"
#include "runtime/compute_device.h"
#include "runtime/cpu_check.h"
#include "server/auth/authenticator.h"
#include "server/auth/certificate_store.h"
#include "server/build_info.h"
#include "server/config/flags.h"
#include "server/config/layered_config.h"
#include "server/config/options.h"
#include "server/config/usage_error.h"
#include "server/daemon.h"
#include "server/descriptor_limit.h"
#include "server/engine_stack.h"
#include "server/resident_memory.h"
#include "server/signals.h"

namespace {

// Time limit for writing the last log lines before the process exits.
constexpr absl::Duration kLastLogTime = absl::Seconds(1);

using quire::server::Flags;
using quire::server::LayeredConfig;

// Called by operator new if memory is exhausted. Must not allocate. A supervisor restarts the
// process.
[[noreturn]] void ExitOutOfMemory() {
  constexpr char kLine[] = "quired: out of memory, exiting with status 70\n";
  (void)!write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  _exit(quire::server::kExitEngine);
}

int PrintErrors(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) std::cerr << error << "\n";
  return quire::server::kExitConfig;
}

// Implements --validate: runs the startup checks without listening or loading weights.
std::vector<std::string> Validate(const quire::server::DaemonOptions& options) {
  std::vector<std::string> errors;
  const absl::Status log_file = quire::log::CheckFile(options.logging.file);
  if (!log_file.ok()) errors.push_back("logging.file: " + std::string(log_file.message()));
  const auto check = [&errors](const absl::Status& status) {
    if (!status.ok()) errors.emplace_back(status.message());
  };
  check(quire::server::Authenticator::Read(options.auth).status());
  if (options.tls.enabled()) {
    check(quire::server::ReadCertificates(options.tls, absl::Now()).status());
  }
  quire::server::ValidateModel(options, &errors);
  return errors;
}

// Checks every instruction set of the CPU and prints the results. Returns the exit code.
int CheckInstructionSets() {
  int exit_code = quire::server::kExitOk;
  for (const std::string& level : quire::kernels::AvailableCpuIsas()) {
    const auto check = quire::runtime::CheckCpuLevel(level);
    if (!check.ok()) return PrintErrors({std::string(check.status().message())});
    const bool passed = check->FindFault() == nullptr;
    if (!passed) exit_code = quire::server::kExitConfig;
    std::cout << level << ": " << (passed ? "passed" : "FAILED") << ", " << check->kernels.size()
              << " checks in " << absl::ToDoubleSeconds(check->time) << " s\n"
              << quire::kernels::KernelCheckTable(check->kernels) << "\n";
  }
  return exit_code;
}

// Loads the model on the GPU, checks the kernels that the model uses and prints the results.
// Returns the exit code.
int CheckGpu(const quire::server::DaemonOptions& options) {
  const quire::runtime::CpuCheck cpu_check = quire::runtime::CheckCpu(options.device);
  std::vector<quire::kernels::KernelCheck> checks;
  const absl::Status status = quire::server::CheckGpuKernels(options, cpu_check, &checks);
  if (!checks.empty()) std::cout << quire::kernels::KernelCheckTable(checks);
  if (!status.ok()) return PrintErrors({std::string(status.message())});
  return quire::server::kExitOk;
}

int RunSelfCheck(const quire::server::DaemonOptions& options) {
  const auto device = quire::runtime::ChooseDevice(options.device);
  if (!device.ok()) return PrintErrors({std::string(device.status().message())});
  return *device == quire::DeviceKind::kCuda ? CheckGpu(options) : CheckInstructionSets();
}

int Run(Flags flags) {
  quire::server::LimitFreeHeapTops();
  flags.sources.environment = quire::server::ConfigEnvironment();
  flags.sources.profile_dirs = quire::server::InstalledProfileDirs();
  quire::server::ExitOnStopSignals();
  std::vector<std::string> errors;
  std::unique_ptr<LayeredConfig> config = LayeredConfig::Load(flags.sources, &errors);
  if (config == nullptr) return PrintErrors(errors);
  if (!flags.print_format.empty()) {
    using quire::server::Spelling;
    std::cout << config->Print(flags.print_format == "json" ? Spelling::kJson : Spelling::kYaml);
  }
  if (flags.validate) {
    errors = Validate(ToOptions(*config));
    if (!errors.empty()) return PrintErrors(errors);
  }
  if (flags.self_check) return RunSelfCheck(ToOptions(*config));
  if (flags.validate || !flags.print_format.empty()) return quire::server::kExitOk;
  // The check forks, so it runs before the daemon starts threads.
  quire::runtime::CpuCheck cpu_check = quire::runtime::CheckCpu(ToOptions(*config).device);
  quire::server::BlockSignals();
  const quire::server::RaisedDescriptorLimit descriptors = quire::server::RaiseDescriptorLimit();
  const quire::log::Options log_options = ToOptions(*config).logging;
  quire::server::Daemon daemon(std::move(flags.sources), std::move(config), std::move(cpu_check));
  quire::server::SignalThread signals(
      {.stop = [&](bool is_interrupt) { daemon.RequestStop(is_interrupt); },
       .reload = [&] { daemon.RequestReload(); },
       .dump = [&] { daemon.Dump(); }});
  const absl::Status logging = quire::log::Configure(log_options);
  if (!logging.ok()) return PrintErrors({"logging.file: " + std::string(logging.message())});
  quire::log::FlushOnCrash();
  quire::server::LogDescriptorLimit(descriptors);
  return daemon.Run();
}

}  // namespace

int main(int argc, char** argv) {
  std::set_new_handler(ExitOutOfMemory);
  // Makes CUDA load all kernels when the device is opened, before the memory plan measures free
  // memory. A kernel that is loaded lazily would allocate memory at the first request that needs
  // it.
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  quire::server::BlockSignals();
  Flags flags;
  CLI::App app("quired: LLM inference server", "quired");
  app.set_version_flag("--version", std::string("quired ") + quire::server::kVersion);
  quire::server::AddFlags(&app, &flags);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return quire::server::DescribeUsageError(*failed, error) +
           "set a configuration key with --set KEY=VALUE, such as --set "
           "openai.listen=127.0.0.1:8000\n";
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? quire::server::kExitOk : quire::server::kExitUsage;
  }
  const int exit_code = Run(std::move(flags));
  if (quire::log::Flush(kLastLogTime)) std::fflush(stdout);
  // exit() would wait for a log that hangs. It would also run OpenSSL's cleanup while gRPC's
  // threads, which outlive all servers and channels, still use OpenSSL.
  _exit(exit_code);
}

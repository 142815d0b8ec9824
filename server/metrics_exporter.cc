#include "server/metrics_exporter.h"

#include <dirent.h>
#include <sys/resource.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "server/build_info.h"
#include "server/resident_memory.h"

namespace quire::server {
namespace {

double CpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double OpenFds() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  int entries = 0;
  while (readdir(directory) != nullptr) ++entries;
  closedir(directory);
  return entries - 3;  // ".", ".." and the directory itself
}

double MaxFds() {
  rlimit limit = {};
  getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<double>(limit.rlim_cur);
}

}  // namespace

void ExportProcess(const ServingState* state, absl::Time start_time, probe::Registry* registry) {
  registry
      ->AddGauge("quire_build_info", "Versions of the daemon and its libraries; always 1.",
                 {{"version", kVersion},
                  {"commit", kGitCommit},
                  {"backends", kBackends},
                  {"grpc", GrpcVersion()},
                  {"protobuf", ProtobufVersion()},
                  {"cuda", kCudaVersion}})
      .Set(1);
  for (int i = 0; i < kNumLifeStates; ++i) {
    const auto life = static_cast<LifeState>(i);
    registry->AddCallbackGauge("quire_health_state",
                               "1 for the current state of the server, 0 for others.",
                               {{"state", std::string(LifeStateName(life))}},
                               [state, life] { return state->state() == life ? 1.0 : 0.0; });
  }
  registry->AddCallbackCounter("quire_log_lines_suppressed_total",
                               "Log lines suppressed by the rate limit.", {},
                               [] { return static_cast<double>(log::SuppressedLines()); });
  registry->AddCallbackCounter("quire_log_lines_dropped_total",
                               "Log lines lost because the log could not be written fast enough.",
                               {}, [] { return static_cast<double>(log::DroppedLines()); });
  registry->AddCallbackCounter("process_cpu_seconds_total", "User and system CPU time in seconds.",
                               {}, &CpuSeconds);
  registry->AddCallbackGauge("process_resident_memory_bytes", "Resident memory in bytes.", {},
                             [] { return static_cast<double>(ResidentBytes()); });
  registry->AddCallbackGauge("process_open_fds", "Open file descriptors.", {}, &OpenFds);
  registry->AddCallbackGauge("process_max_fds", "Maximum number of open file descriptors.", {},
                             &MaxFds);
  registry->AddGauge("process_start_time_seconds", "Start time of the process, as Unix time.")
      .Set(absl::ToDoubleSeconds(start_time - absl::UnixEpoch()));
}

void ExportModel(const EngineStack& stack, probe::Registry* registry) {
  const ServedModel& served = stack.served();
  const Device& device = served.device.device;
  const std::string device_name = device.is_cpu() ? "cpu" : absl::StrCat("cuda:", device.ordinal);
  for (const auto& [kind, bytes, on_host] : stack.loaded().memory()) {
    registry
        ->AddGauge("quire_device_memory_bytes", "Planned device memory by kind of use.",
                   {{"device", on_host ? "cpu" : device_name}, {"kind", kind}})
        .Set(static_cast<double>(bytes));
  }
  const auto add_time = [&](const char* phase, absl::Duration time) {
    registry
        ->AddGauge("quire_model_load_seconds", "Duration of loading the model, by phase.",
                   {{"model_name", served.id()}, {"phase", phase}})
        .Set(absl::ToDoubleSeconds(time));
  };
  add_time("read", stack.loaded().load_times().read);
  add_time("tokenizer", stack.loaded().load_times().tokenizer);
}

}  // namespace quire::server

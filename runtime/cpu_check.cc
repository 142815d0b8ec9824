#include "runtime/cpu_check.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/logging.h"

namespace quire::runtime {
namespace {

using kernels::KernelCheck;

// The result of a check in memory that parent and child share. Texts are truncated to their arrays
// and null-terminated.
struct SharedCheck {
  char kernel[32];
  char shape[96];
  char fault[256];
  double error;
  double limit;
};

constexpr std::size_t kMaxChecks = 64;

// The child writes checks[num_finished] before it runs a kernel, and again before it increments
// num_finished.
struct SharedChecks {
  std::atomic<std::uint32_t> num_finished{0};
  std::atomic<bool> is_complete{false};
  SharedCheck checks[kMaxChecks] = {};
};
static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              std::atomic<bool>::is_always_lock_free);

template <std::size_t kSize>
void CopyText(absl::string_view text, char (&to)[kSize]) {
  const std::size_t size = std::min(text.size(), kSize - 1);
  memcpy(to, text.data(), size);
  to[size] = '\0';
}

void Store(const KernelCheck& check, bool is_finished, SharedChecks* shared) {
  const std::uint32_t i = shared->num_finished.load();
  QUIRE_CHECK(i < kMaxChecks);
  SharedCheck& to = shared->checks[i];
  CopyText(check.kernel, to.kernel);
  CopyText(check.shape, to.shape);
  CopyText(check.fault, to.fault);
  to.error = check.error;
  to.limit = check.limit;
  if (is_finished) shared->num_finished.store(i + 1);
}

KernelCheck Load(const SharedCheck& from) {
  return {.kernel = from.kernel,
          .shape = from.shape,
          .error = from.error,
          .limit = from.limit,
          .fault = from.fault};
}

absl::Status ChildError(absl::string_view call, int error) {
  return absl::ResourceExhaustedError(
      absl::StrCat("the check of the CPU's instruction sets cannot start a child process: ", call,
                   ": ", strerror(error), "; raise the limits of processes, memory and files"));
}

struct Unmap {
  void operator()(SharedChecks* shared) const { munmap(shared, sizeof(SharedChecks)); }
};

[[noreturn]] void RunChild(pid_t parent, const std::string& level, const CpuCheckOptions& options,
                           SharedChecks* shared) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent ended before prctl
  const rlimit no_core = {};
  setrlimit(RLIMIT_CORE, &no_core);
  const absl::Status selected = options.select(level);
  if (!selected.ok()) {
    KernelCheck selection = Load(shared->checks[0]);
    selection.fault = std::string(selected.message());
    Store(selection, /*is_finished=*/true, shared);
    _exit(0);
  }
  CheckCpuKernels(options.ops, [&](const KernelCheck& check, bool is_finished) {
    Store(check, is_finished, shared);
  });
  shared->is_complete.store(true);
  _exit(0);
}

// Waits until the child has ended, and kills it after `time_limit`. The child has the write end of
// the pipe `ending`. Returns a description of how the child ended.
std::string AwaitEnd(pid_t child, int ending, absl::Duration time_limit) {
  const absl::Time deadline = MonotonicNow() + time_limit;
  bool has_ended = false;
  while (!has_ended) {
    const std::int64_t left = absl::ToInt64Milliseconds(deadline - MonotonicNow());
    if (left <= 0) break;
    pollfd closed = {.fd = ending, .events = 0, .revents = 0};
    has_ended = poll(&closed, 1, static_cast<int>(left)) > 0;
  }
  if (!has_ended) kill(child, SIGKILL);
  int status = 0;
  pid_t waited = 0;
  do {
    waited = waitpid(child, &status, 0);
  } while (waited < 0 && errno == EINTR);
  if (!has_ended) {
    return absl::StrCat("it did not end within ", absl::FormatDuration(time_limit));
  }
  // waitpid fails if the daemon was started with SIGCHLD ignored.
  if (waited == child && WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return absl::StrCat("signal ", signal, " (", strsignal(signal), ") ended it");
  }
  return "its process ended early";
}

std::string Describe(const KernelCheck& check) {
  return absl::StrCat(check.kernel, ", ", check.shape, ": ", check.fault, " (relative error ",
                      check.error, ", limit ", check.limit, ")");
}

}  // namespace

const KernelCheck* CpuLevelCheck::FindFault() const {
  for (const KernelCheck& check : kernels) {
    if (!check.fault.empty()) return &check;
  }
  return nullptr;
}

absl::StatusOr<CpuLevelCheck> CheckCpuLevel(absl::string_view level,
                                            const CpuCheckOptions& options) {
  CpuLevelCheck result;
  result.level = std::string(level);
  const absl::Time start = MonotonicNow();
  void* const memory = mmap(nullptr, sizeof(SharedChecks), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return ChildError("mmap", errno);
  const std::unique_ptr<SharedChecks, Unmap> shared(new (memory) SharedChecks);
  // If the child fails before its first kernel, this entry is reported instead of a kernel.
  Store({.kernel = "selection", .shape = result.level}, /*is_finished=*/false, shared.get());
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ChildError("pipe2", errno);
  const FileDescriptor ending(ends[0]);
  FileDescriptor running(ends[1]);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return ChildError("fork", errno);
  if (child == 0) RunChild(parent, result.level, options, shared.get());
  running = FileDescriptor();
  const std::string end = AwaitEnd(child, ending.fd, options.time_limit);
  result.time = MonotonicNow() - start;
  const std::uint32_t finished = shared->num_finished.load();
  for (std::uint32_t i = 0; i < finished; ++i) {
    result.kernels.push_back(Load(shared->checks[i]));
  }
  if (!shared->is_complete.load() && result.FindFault() == nullptr) {
    result.kernels.push_back(Load(shared->checks[finished]));
    result.kernels.back().fault = end;
  }
  return result;
}

CpuCheck CheckCpu(const DeviceOptions& device, const CpuCheckOptions& options) {
  CpuCheck check;
  check.isa = device.isa;
  std::vector<std::string> candidates = options.levels;
  const bool is_auto = device.isa == "auto";
  if (!is_auto) std::erase_if(candidates, [&](const auto& level) { return level != device.isa; });
  for (const std::string& level : candidates) {
    absl::StatusOr<CpuLevelCheck> result = CheckCpuLevel(level, options);
    if (!result.ok()) {
      check.status = result.status();
      return check;
    }
    check.result.time += result->time;
    if (result->FindFault() == nullptr) {
      check.isa = level;
      check.result.checks = static_cast<int>(result->kernels.size());
      return check;
    }
    check.result.skipped_levels.push_back(level);
    check.skipped.push_back(*std::move(result));
  }
  if (check.skipped.empty()) return check;
  const CpuLevelCheck& last = check.skipped.back();
  check.status = absl::FailedPreconditionError(
      absl::StrCat("device.cpu.isa is ", device.isa, ", instruction set ", last.level,
                   " fails its check on this machine: ", Describe(*last.FindFault()),
                   is_auto ? "; all other instruction sets failed too, as quired --self-check shows"
                           : "; set device.cpu.isa to auto"));
  return check;
}

void LogSkippedLevels(const CpuCheck& check) {
  for (const CpuLevelCheck& level : check.skipped) {
    const KernelCheck& failed = *level.FindFault();
    log::Warn("device", "an instruction set failed its check and is skipped",
              {{"isa", level.level},
               {"kernel", failed.kernel},
               {"shape", failed.shape},
               {"fault", failed.fault},
               {"relative_error", failed.error},
               {"limit", failed.limit},
               {"used", check.isa},
               {"remedy", absl::StrCat("update firmware, kernel or hypervisor, or set "
                                       "device.cpu.isa to ",
                                       check.isa)}});
  }
}

}  // namespace quire::runtime

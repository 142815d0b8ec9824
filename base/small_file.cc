#include "base/small_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file_descriptor.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread_name.h"

namespace quire {
namespace {

// Number of abandoned threads in this process.
std::atomic<int> g_num_abandoned{0};

// State of one call. The caller and the thread share ownership, because either may finish first.
struct Task {
  Mutex mutex;
  CondVar changed;
  bool is_done ABSL_GUARDED_BY(mutex) = false;
  bool is_abandoned ABSL_GUARDED_BY(mutex) = false;
};

void BlockAllSignals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

absl::Status ErrnoStatus(int error, const std::string& path) {
  return absl::ErrnoToStatus(error, absl::StrCat(path, " cannot be read"));
}

// Runs `work` and destroys it before notifying the caller, so that the caller is then the only
// owner of the results.
void RunTask(Task& task, std::function<void()> work) {
  BlockAllSignals();
  SetThreadName("file");
  work();
  work = nullptr;
  MutexLock lock(&task.mutex);
  task.is_done = true;
  if (task.is_abandoned) g_num_abandoned.fetch_sub(1);
  task.changed.NotifyAll();
}

absl::Status CannotRead(const std::string& path, const absl::Status& why) {
  return absl::Status(why.code(), absl::StrCat(path, " cannot be read: ", why.message()));
}

FileStamp ToStamp(const struct stat& info) {
  const auto nanoseconds = [](const timespec& time) {
    return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
  };
  return {.device = info.st_dev,
          .inode = info.st_ino,
          .size_bytes = info.st_size,
          .write_time = nanoseconds(info.st_mtim),
          .change_time = nanoseconds(info.st_ctim)};
}

absl::Status NotRegular(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " cannot be read: it is not a regular file"));
}

absl::Status CheckRegular(const FileDescriptor& file, const std::string& path) {
  struct stat info;
  if (fstat(file.fd, &info) != 0) return ErrnoStatus(errno, path);
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " cannot be read: it is a directory"));
  }
  return S_ISREG(info.st_mode) ? absl::OkStatus() : NotRegular(path);
}

absl::StatusOr<std::string> ReadToEnd(const FileDescriptor& file, const std::string& path,
                                      std::size_t max_bytes) {
  std::string content(max_bytes + 1, '\0');
  std::size_t size = 0;
  while (size < content.size()) {
    const ssize_t got =
        pread(file.fd, content.data() + size, content.size() - size, static_cast<off_t>(size));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, path);
    if (got == 0) break;
    size += static_cast<std::size_t>(got);
  }
  if (size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has more than ", max_bytes, " bytes"));
  }
  content.resize(size);
  content.shrink_to_fit();
  return content;
}

absl::StatusOr<std::string> Read(const std::string& path, std::size_t max_bytes) {
  if (path.empty()) return absl::InvalidArgumentError("the name of the file is empty");
  const FileDescriptor file{open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)};
  // open() fails with ENXIO for a socket.
  if (file.fd < 0) return errno == ENXIO ? NotRegular(path) : ErrnoStatus(errno, path);
  QUIRE_RETURN_IF_ERROR(CheckRegular(file, path));
  return ReadToEnd(file, path, max_bytes);
}

}  // namespace

absl::Status RunWithTimeout(absl::Duration timeout, std::function<void()> work) {
  if (g_num_abandoned.load() >= kMaxAbandonedThreads) {
    return absl::ResourceExhaustedError(
        absl::StrCat("files are not read while ", kMaxAbandonedThreads,
                     " threads wait for file systems that do not respond"));
  }
  auto task = std::make_shared<Task>();
  try {
    std::thread([task, work = std::move(work)]() mutable {
      RunTask(*task, std::move(work));
    }).detach();
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start a thread to read it: ", error.what()));
  }
  const absl::Time deadline = MonotonicNow() + timeout;
  MutexLock lock(&task->mutex);
  while (!task->is_done && MonotonicNow() < deadline) {
    task->changed.WaitUntil(&task->mutex, deadline);
  }
  if (task->is_done) return absl::OkStatus();
  task->is_abandoned = true;
  g_num_abandoned.fetch_add(1);
  return absl::DeadlineExceededError(
      absl::StrCat("its file system did not respond within ", absl::FormatDuration(timeout)));
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path, std::size_t max_bytes) {
  auto content = std::make_shared<absl::StatusOr<std::string>>();
  const absl::Status status =
      RunWithTimeout(kFileTimeout, [=] { *content = Read(path, max_bytes); });
  if (!status.ok()) return CannotRead(path, status);
  return *std::move(content);
}

absl::StatusOr<FileStamp> ReadFileStamp(const std::string& path) {
  auto stamp = std::make_shared<FileStamp>();
  const absl::Status status = RunWithTimeout(kFileTimeout, [=] {
    struct stat info;
    if (stat(path.c_str(), &info) == 0) *stamp = ToStamp(info);
  });
  if (!status.ok()) return CannotRead(path, status);
  return *stamp;
}

}  // namespace quire

#include "hub/blob_download.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"
#include "base/status.h"
#include "hub/cache/file_lock.h"
#include "hub/content_hash.h"

namespace quire::hub {
namespace {

constexpr absl::Duration kLockPoll = absl::Milliseconds(100);

std::int64_t FileSize(const std::string& path) {
  struct stat content;
  return stat(path.c_str(), &content) == 0 ? std::int64_t{content.st_size} : -1;
}

// One file that is being downloaded: its descriptor, its size so far, and the hash of these bytes.
class IncompleteBlob {
 public:
  explicit IncompleteBlob(const BlobRequest* request)
      : request_(request),
        blob_path_(request->cache->BlobPath(request->name.repository, request->file.hash)),
        path_(blob_path_ + ".incomplete"),
        hash_(request->file.hash, request->file.size_bytes) {}

  std::int64_t size() const { return size_; }
  bool is_whole() const { return size_ == request_->file.size_bytes; }
  // True if an earlier process wrote some of the bytes.
  bool is_resumed() const { return is_resumed_; }

  // Opens the file, and hashes the bytes of an earlier download.
  absl::Status Open() {
    file_ = FileDescriptor(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (file_.fd < 0) return Error();
    const std::int64_t found = FileSize(path_);
    if (found > request_->file.size_bytes) return Restart();
    is_resumed_ = found > 0;
    std::array<char, 1 << 16> buffer;
    while (size_ < found) {
      if (request_->stop->is_requested()) return absl::CancelledError("the download was stopped");
      // Another program may append to the file meanwhile.
      const auto wanted = std::min(buffer.size(), static_cast<std::size_t>(found - size_));
      const ssize_t count = pread(file_.fd, buffer.data(), wanted, size_);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Error();
      if (count == 0) break;
      Count({buffer.data(), static_cast<std::size_t>(count)}, FileState::kChecking);
    }
    return absl::OkStatus();
  }

  // Discards all bytes.
  absl::Status Restart() {
    if (ftruncate(file_.fd, 0) != 0) return Error();
    size_ = 0;
    is_resumed_ = false;
    hash_ = ContentHash(request_->file.hash, request_->file.size_bytes);
    return absl::OkStatus();
  }

  absl::Status Append(absl::string_view bytes) {
    if (size_ + static_cast<std::int64_t>(bytes.size()) > request_->file.size_bytes) {
      return absl::DataLossError(absl::StrCat(request_->file.name, ": the server sends more than ",
                                              request_->file.size_bytes, " bytes"));
    }
    while (!bytes.empty()) {
      const ssize_t count = pwrite(file_.fd, bytes.data(), bytes.size(), size_);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return Error();
      request_->progress->AddReceived(count);
      Count(bytes.substr(0, static_cast<std::size_t>(count)), FileState::kLoading);
      bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return absl::OkStatus();
  }

  // Returns the hash of the content. Called once after the last byte.
  std::string Hash() { return hash_.Finish(); }

  absl::Status Delete() { return unlink(path_.c_str()) == 0 ? absl::OkStatus() : Error(); }

  // Returns INTERNAL if the size of the file is not the number of bytes written, for example
  // because another program ignored the lock.
  absl::Status CheckIntegrity() const {
    if (FileSize(path_) == size_) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat(path_, " has ", FileSize(path_), " bytes instead of ", size_));
  }

  // Writes the content to the disk and then gives it its final name.
  absl::Status Commit() {
    if (fsync(file_.fd) != 0 || rename(path_.c_str(), blob_path_.c_str()) != 0) return Error();
    return absl::OkStatus();
  }

 private:
  void Count(absl::string_view bytes, FileState state) {
    hash_.Add(bytes);
    size_ += static_cast<std::int64_t>(bytes.size());
    request_->progress->Update(request_->index, state, size_);
  }

  absl::Status Error() const {
    const int cause = errno;
    if (cause == ENOSPC || cause == EDQUOT) {
      return absl::ResourceExhaustedError(absl::StrCat(
          request_->file.name, ": the disk of ", request_->cache->root(), " is full; ",
          FormatBytes(request_->file.size_bytes - size_),
          " of this file are missing; free space and run the same command again, or set HF_HOME"));
    }
    return absl::ErrnoToStatus(cause, path_);
  }

  const BlobRequest* const request_;
  const std::string blob_path_, path_;
  FileDescriptor file_;
  std::int64_t size_ = 0;
  bool is_resumed_ = false;
  ContentHash hash_;
};

// Waits for the lock of the blob.
absl::StatusOr<FileLock> LockBlob(const BlobRequest& request) {
  const std::string path =
      request.cache->LockPath(request.name.repository, absl::StrCat(request.file.hash, ".lock"));
  while (true) {
    absl::StatusOr<FileLock> lock = FileLock::Try(path, LockMode::kExclusive);
    if (!absl::IsUnavailable(lock.status())) return lock;
    const std::int64_t done = CachedBytes(*request.cache, request.name.repository, request.file);
    request.progress->Update(request.index, FileState::kLocked, done);
    if (request.stop->WaitFor(kLockPoll)) return absl::CancelledError("the download was stopped");
  }
}

// Requests the missing bytes once. Returns the answer, whose body was appended to `blob`.
absl::StatusOr<HttpAnswer> RequestRest(const BlobRequest& request, HttpClient* client,
                                       IncompleteBlob* blob) {
  const std::string path = FilePath(request.name.repository, request.commit, request.file.name);
  const std::int64_t first = blob->size();
  bool is_checked = false;
  return client->Download(path, first, [&](const HttpAnswer& head, absl::string_view bytes) {
    if (!is_checked) {
      is_checked = true;
      // A server that ignores ranges sends the whole file.
      if (head.status == 200 && first > 0) QUIRE_RETURN_IF_ERROR(blob->Restart());
      if (head.status == 206 && head.range_start != first) {
        return absl::DataLossError(absl::StrCat(request.file.name,
                                                ": the server answered with another range than "
                                                "the one from byte ",
                                                first));
      }
    }
    return blob->Append(bytes);
  });
}

// Returns why an attempt failed, or "" if it did not.
std::string DescribeFailure(const absl::StatusOr<HttpAnswer>& answer, const IncompleteBlob& blob) {
  if (!answer.ok()) return std::string(answer.status().message());
  if (answer->status >= 400) return absl::StrCat("HTTP ", answer->status);
  return blob.is_whole() ? "" : "the transfer ended early";
}

// Requests bytes until the file is whole.
absl::Status FetchBytes(const BlobRequest& request, const HubSettings& settings, HttpClient* client,
                        IncompleteBlob* blob) {
  int failures = 0;
  while (!blob->is_whole()) {
    const std::int64_t before = blob->size();
    const absl::StatusOr<HttpAnswer> answer = RequestRest(request, client, blob);
    if (blob->is_whole()) break;
    if (blob->size() > before) failures = 0;
    const bool is_early_end = answer.ok() && (answer->status == 200 || answer->status == 206);
    const bool is_bad_range = answer.ok() && answer->status == 416 && blob->size() > 0;
    if (is_bad_range) QUIRE_RETURN_IF_ERROR(blob->Restart());
    if (!is_early_end && !is_bad_range && !IsTemporary(answer)) {
      return answer.ok() ? AnswerError(settings, request.name, *answer) : answer.status();
    }
    const std::string failure = DescribeFailure(answer, *blob);
    const absl::Duration retry_after = answer.ok() ? answer->retry_after : absl::ZeroDuration();
    if (++failures >= kMaxAttempts || retry_after > kMaxRetryAfter) {
      const std::string message = absl::StrCat(
          request.file.name, ": gave up after ", failures, " failed attempts: ", failure,
          retry_after > kMaxRetryAfter
              ? absl::StrCat("; the server asks to retry after ", absl::FormatDuration(retry_after))
              : "",
          "; run the same command again to continue");
      return answer.ok() ? absl::AbortedError(message)
                         : absl::Status(answer.status().code(), message);
    }
    const absl::Duration delay = RetryDelay(failures, retry_after);
    request.progress->Update(
        request.index, FileState::kRetrying, blob->size(),
        absl::StrCat(failure, "; next attempt in ", absl::FormatDuration(delay)));
    if (request.stop->WaitFor(delay)) return absl::CancelledError("the download was stopped");
  }
  return absl::OkStatus();
}

std::string TokenRemedy(const HubSettings& settings) {
  return settings.token.empty() ? "set HF_TOKEN to a token of your account"
                                : "the token of HF_TOKEN or of the token file has no access";
}

}  // namespace

std::string FilePath(absl::string_view repository, absl::string_view commit,
                     absl::string_view file) {
  return absl::StrCat("/", repository, "/resolve/", commit, "/",
                      EscapeUrl(file, /*keep_slashes=*/true));
}

absl::Duration RetryDelay(int failures, absl::Duration retry_after) {
  return std::max(retry_after, kFirstRetryDelay * (1 << std::min(failures - 1, 5)));
}

bool IsTemporary(const absl::StatusOr<HttpAnswer>& answer) {
  if (!answer.ok()) return absl::IsUnavailable(answer.status()) || absl::IsAborted(answer.status());
  return answer->status == 408 || answer->status == 429 || answer->status >= 500;
}

std::int64_t CachedBytes(const ModelCache& cache, absl::string_view repository,
                         const RepositoryFile& file) {
  const std::string blob = cache.BlobPath(repository, file.hash);
  if (FileSize(blob) == file.size_bytes) return file.size_bytes;
  const std::int64_t part = FileSize(blob + ".incomplete");
  // IncompleteBlob::Open discards a file that is too large.
  return part > file.size_bytes ? 0 : std::max(part, std::int64_t{0});
}

absl::Status AnswerError(const HubSettings& settings, const ModelName& name,
                         const HttpAnswer& answer) {
  const std::string page = absl::StrCat(settings.endpoint, "/", name.repository);
  const int status = answer.status;
  if (answer.error_code == "GatedRepo") {
    return absl::PermissionDeniedError(absl::StrCat(
        name.repository, " is gated: accept its terms at ", page, " and ",
        settings.token.empty() ? "set HF_TOKEN to a token of that account"
                               : "use a token of that account; the current token has no access"));
  }
  if (answer.error_code == "RevisionNotFound") {
    return absl::NotFoundError(absl::StrCat(name.repository, " has no revision ",
                                            name.revision_or_default(), "; see ", page));
  }
  if (answer.error_code == "EntryNotFound") {
    return absl::NotFoundError(absl::StrCat(page, " lists a file that it does not have"));
  }
  // The hub answers 401 also for names that do not exist, to hide private ones.
  if (answer.error_code == "RepoNotFound" || status == 404) {
    return absl::NotFoundError(absl::StrCat(settings.endpoint, " has no model ", name.repository,
                                            ", or it is private; check the name, or ",
                                            TokenRemedy(settings)));
  }
  if (status == 401 || status == 403) {
    return absl::PermissionDeniedError(
        absl::StrCat("HTTP ", status, " for ", page, ": ", TokenRemedy(settings), "; see ", page));
  }
  return absl::FailedPreconditionError(absl::StrCat("HTTP ", status, " for ", page,
                                                    answer.error_message.empty() ? "" : ": ",
                                                    answer.error_message));
}

absl::Status DownloadBlob(const BlobRequest& request, const HubSettings& settings,
                          HttpClient* client) {
  QUIRE_ASSIGN_OR_RETURN(const FileLock lock, LockBlob(request));
  const std::int64_t size = request.file.size_bytes;
  const std::string blob_path = request.cache->BlobPath(request.name.repository, request.file.hash);
  if (FileSize(blob_path) != size) {
    IncompleteBlob blob(&request);
    QUIRE_RETURN_IF_ERROR(blob.Open());
    while (true) {
      QUIRE_RETURN_IF_ERROR(FetchBytes(request, settings, client, &blob));
      const std::string hash = blob.Hash();
      if (hash == request.file.hash) break;
      if (!blob.is_resumed()) {
        QUIRE_RETURN_IF_ERROR(blob.Delete());
        return absl::DataLossError(absl::StrCat(
            request.file.name, ": the content has the hash ", hash, ", the hub announced ",
            request.file.hash, "; the file was deleted, run the same command again"));
      }
      // Bytes of an earlier process may be damaged, for example after a loss of power.
      QUIRE_RETURN_IF_ERROR(blob.Restart());
    }
    QUIRE_RETURN_IF_ERROR(blob.CheckIntegrity());
    QUIRE_RETURN_IF_ERROR(blob.Commit());
  }
  request.progress->Update(request.index, FileState::kDone, size);
  return absl::OkStatus();
}

}  // namespace quire::hub

#include "hub/pull.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status.h"
#include "hub/blob_download.h"
#include "hub/cache/file_lock.h"
#include "hub/cache/model_cache.h"
#include "hub/http_client.h"
#include "hub/repository_files.h"

namespace quire::hub {
namespace {

// The state that the steps of one download share.
struct PullState {
  const HubSettings& settings;
  const ModelName& name;
  StopSignal* stop;
  PullProgress* progress;
  ModelCache cache;
};

// Repeats a request while its failures are temporary.
template <typename Request>
absl::StatusOr<HttpAnswer> Repeat(const PullState& pull, Request request) {
  for (int failures = 1;; ++failures) {
    absl::StatusOr<HttpAnswer> answer = request();
    if (absl::IsUnavailable(answer.status())) {
      return absl::UnavailableError(absl::StrCat("cannot reach ", pull.settings.endpoint, ": ",
                                                 answer.status().message(),
                                                 "; check the network, the proxy and HF_ENDPOINT"));
    }
    if (!IsTemporary(answer) || failures >= kMaxAttempts) return answer;
    const absl::Duration retry_after = answer.ok() ? answer->retry_after : absl::ZeroDuration();
    if (retry_after > kMaxRetryAfter) return answer;
    const absl::Duration delay = RetryDelay(failures, retry_after);
    pull.progress->SetNote(absl::StrCat(answer.ok() ? absl::StrCat("HTTP ", answer->status)
                                                    : std::string(answer.status().message()),
                                        "; next attempt in ", absl::FormatDuration(delay)));
    if (pull.stop->WaitFor(delay)) return absl::CancelledError("the download was stopped");
  }
}

absl::StatusOr<Listing> FetchListing(const PullState& pull, HttpClient* client) {
  const std::string path = absl::StrCat(
      "/api/models/", pull.name.repository, "/revision/",
      EscapeUrl(pull.name.revision_or_default(), /*keep_slashes=*/false), "?blobs=true");
  QUIRE_ASSIGN_OR_RETURN(const HttpAnswer answer,
                         Repeat(pull, [&] { return client->Get(path, kMaxListingBytes); }));
  if (answer.status != 200) return AnswerError(pull.settings, pull.name, answer);
  absl::StatusOr<Listing> listing = ParseListing(answer.body);
  if (listing.ok()) return listing;
  return absl::Status(listing.status().code(),
                      absl::StrCat(pull.settings.endpoint, path, ": ", listing.status().message()));
}

// Requests the size and the hash of a file whose entry in the hub's list of files lacks them.
absl::Status FillDetails(const PullState& pull, absl::string_view commit, HttpClient* client,
                         RepositoryFile* file) {
  const std::string path = FilePath(pull.name.repository, commit, file->name);
  QUIRE_ASSIGN_OR_RETURN(const HttpAnswer answer, Repeat(pull, [&] { return client->Head(path); }));
  if (answer.status >= 400) return AnswerError(pull.settings, pull.name, answer);
  if (!IsContentHash(answer.etag) || !answer.size_bytes || *answer.size_bytes > kMaxFileBytes) {
    return absl::FailedPreconditionError(absl::StrCat(
        pull.settings.endpoint, " reports no SHA-256 or git hash, or no size of at most ",
        kMaxFileBytes, " bytes, for ", file->name, ", so it cannot be verified"));
  }
  file->hash = answer.etag;
  file->size_bytes = *answer.size_bytes;
  return absl::OkStatus();
}

absl::Status CheckFreeSpace(const PullState& pull, const std::vector<RepositoryFile>& files) {
  std::set<std::string> counted;
  std::int64_t missing = 0;
  for (const RepositoryFile& file : files) {
    if (!counted.insert(file.hash).second) continue;
    missing += file.size_bytes - CachedBytes(pull.cache, pull.name.repository, file);
  }
  struct statvfs disk;
  if (statvfs(pull.cache.root().c_str(), &disk) != 0) {
    return absl::ErrnoToStatus(errno, pull.cache.root());
  }
  const double free = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  if (static_cast<double>(missing) <= free) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      pull.name.ToString(), " needs ", FormatBytes(missing), " more, and the disk of ",
      pull.cache.root(), " has ", FormatBytes(static_cast<std::int64_t>(free)),
      " free; free space (quire list, quire rm), or set HF_HOME to a directory of another disk"));
}

// Creates the directories of the repository, and locks it against removal.
absl::StatusOr<FileLock> OpenRepository(const PullState& pull) {
  absl::StatusOr<FileLock> lock =
      FileLock::Try(pull.cache.LockPath(pull.name.repository, "quire.lock"), LockMode::kShared);
  if (absl::IsUnavailable(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(pull.name.repository, " is being removed by another process; try again"));
  }
  QUIRE_RETURN_IF_ERROR(lock.status());
  for (const char* const part : {"blobs", "snapshots"}) {
    const std::string path =
        absl::StrCat(pull.cache.RepositoryDir(pull.name.repository), "/", part);
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) return absl::ErrnoToStatus(error.value(), path);
  }
  return lock;
}

// Downloads all files. The first error stops the other threads and is returned.
absl::Status DownloadAll(const PullState& pull, const std::string& commit,
                         const std::vector<RepositoryFile>& files) {
  // Large files come first, so that the threads finish at about the same time.
  std::vector<std::size_t> order(files.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](std::size_t i) { return files[i].size_bytes; });
  std::atomic<std::size_t> next = 0;
  Mutex mutex;
  absl::Status first_error;
  const auto work = [&] {
    HttpClient client(&pull.settings, pull.stop);
    for (std::size_t place = next++; place < order.size(); place = next++) {
      const std::size_t i = order[place];
      const absl::Status status = DownloadBlob({.cache = &pull.cache,
                                                .stop = pull.stop,
                                                .progress = pull.progress,
                                                .name = pull.name,
                                                .commit = commit,
                                                .file = files[i],
                                                .index = i},
                                               pull.settings, &client);
      if (status.ok()) continue;
      const MutexLock lock(&mutex);
      first_error.Update(status);
      pull.stop->Request();
      return;
    }
  };
  std::vector<std::thread> threads;
  const std::size_t count = std::min(files.size(), std::size_t{kPullThreads});
  for (std::size_t i = 0; i < count; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return first_error;
}

}  // namespace

absl::StatusOr<PullResult> Pull(const HubSettings& settings, const ModelName& name,
                                StopSignal* stop, PullProgress* progress) {
  if (settings.is_offline) {
    return absl::FailedPreconditionError(
        "HF_HUB_OFFLINE is set, so nothing is downloaded; unset it to download");
  }
  const PullState pull{settings, name, stop, progress, ModelCache(settings.cache_dir)};
  HttpClient client(&settings, stop);
  QUIRE_ASSIGN_OR_RETURN(const Listing listing, FetchListing(pull, &client));
  QUIRE_ASSIGN_OR_RETURN(std::vector<RepositoryFile> files, SelectFiles(listing.files, name));
  for (RepositoryFile& file : files) {
    if (!file.hash.empty()) continue;
    QUIRE_RETURN_IF_ERROR(FillDetails(pull, listing.commit, &client, &file));
  }
  progress->Start(files);
  QUIRE_ASSIGN_OR_RETURN(const FileLock lock, OpenRepository(pull));
  QUIRE_RETURN_IF_ERROR(CheckFreeSpace(pull, files));
  QUIRE_RETURN_IF_ERROR(DownloadAll(pull, listing.commit, files));
  PullResult result{.commit = listing.commit, .path = ""};
  std::vector<CachedFile> cached;
  for (const RepositoryFile& file : files) {
    cached.push_back({file.name, file.hash});
    result.size_bytes += file.size_bytes;
  }
  QUIRE_RETURN_IF_ERROR(
      pull.cache.Publish(name.repository, name.revision_or_default(), listing.commit, cached));
  QUIRE_ASSIGN_OR_RETURN(result.path,
                         pull.cache.Find({name.repository, listing.commit, name.file}));
  result.file_count = static_cast<std::int64_t>(files.size());
  result.received_bytes = progress->received_bytes();
  result.is_split_gguf = !name.file.empty() && ShardSet(name.file) != name.file;
  return result;
}

}  // namespace quire::hub

#pragma once

// Downloads one file of a repository into the blobs of the cache.
//
// The bytes go to blobs/HASH.incomplete. A later call continues this file by a range request. The
// file is renamed to blobs/HASH when its hash is verified. A file lock excludes other processes
// until then.
//
// Threads:  any; one call per file at a time.

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "hub/cache/model_cache.h"
#include "hub/http_client.h"
#include "hub/pull_progress.h"
#include "hub/repository_files.h"
#include "hub/stop_signal.h"

namespace quire::hub {

// The delay between attempts is 0.5 s at first and doubles after each failure. A longer Retry-After
// of the server replaces the delay. A download fails after kMaxAttempts consecutive failed
// attempts, or if Retry-After exceeds kMaxRetryAfter. If an attempt received bytes before it
// failed, the count of failed attempts restarts at 1.
inline constexpr int kMaxAttempts = 6;
inline constexpr absl::Duration kFirstRetryDelay = absl::Milliseconds(500);
inline constexpr absl::Duration kMaxRetryAfter = absl::Minutes(5);

// Returns the path of a file on the hub, escaped.
std::string FilePath(absl::string_view repository, absl::string_view commit,
                     absl::string_view file);

// Returns the delay before the next attempt, after `failures` consecutive failed attempts.
absl::Duration RetryDelay(int failures, absl::Duration retry_after);

// Returns whether an answer or a failed transfer may succeed later.
bool IsTemporary(const absl::StatusOr<HttpAnswer>& answer);

struct BlobRequest {
  const ModelCache* cache;
  const StopSignal* stop;
  PullProgress* progress;
  ModelName name;         // for messages and paths
  std::string commit;     // to download from
  RepositoryFile file;    // with size and hash
  std::size_t index = 0;  // in `progress`
};

// Returns OK when the blob is in the cache. Content with another hash is deleted. After other
// errors, the bytes received so far are kept. Errors, besides those of the file system, HttpClient
// and AnswerError:
// - DATA_LOSS if the server sends too many bytes, the wrong range, or content with another hash
// - RESOURCE_EXHAUSTED if the disk is full
// - ABORTED after kMaxAttempts consecutive failed attempts, or if Retry-After exceeds
//   kMaxRetryAfter. If the last attempt got no answer, the code is that of HttpClient.
// - INTERNAL if another program changed the file
// - CANCELLED after a stop
absl::Status DownloadBlob(const BlobRequest& request, const HubSettings& settings,
                          HttpClient* client);

// Returns the number of bytes of the file that are in the cache, complete or not.
std::int64_t CachedBytes(const ModelCache& cache, absl::string_view repository,
                         const RepositoryFile& file);

// Returns the error for an unsuccessful answer of the hub. For a gated, private or unknown
// repository, an unknown revision or file, or a refused token, the message names the cause and any
// remedy. For other answers the message has the HTTP status and the hub's text.
absl::Status AnswerError(const HubSettings& settings, const ModelName& name,
                         const HttpAnswer& answer);

}  // namespace quire::hub

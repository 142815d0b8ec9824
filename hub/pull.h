#pragma once

// Downloads a model from a hub into the cache.
//
//   list the files -> choose -> lock the repository -> check the free space
//     -> download blobs with kPullThreads threads -> link the snapshot -> write the ref
//
// Place:    above blob_download.h; called by `quire pull`.
// Threads:  one call per `progress` and `stop`, from any thread. The threads of a call end before
//           the call returns.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "hub/hub_settings.h"
#include "hub/pull_progress.h"
#include "hub/stop_signal.h"

namespace quire::hub {

inline constexpr int kPullThreads = 4;

struct PullResult {
  std::string commit;
  std::string path;  // of the snapshot or of the GGUF file
  std::int64_t file_count = 0;
  std::int64_t size_bytes = 0;
  std::int64_t received_bytes = 0;
  bool is_split_gguf = false;
};

// Downloads what is missing and returns where the model is. The first error stops all threads.
// After an error, a repeated call continues the download. Errors, besides those of HttpClient,
// SelectFiles and DownloadBlob:
// - FAILED_PRECONDITION if HF_HUB_OFFLINE is set or the model is being removed
// - RESOURCE_EXHAUSTED if the disk has too little space
// - UNAVAILABLE if the hub cannot be reached
absl::StatusOr<PullResult> Pull(const HubSettings& settings, const ModelName& name,
                                StopSignal* stop, PullProgress* progress);

}  // namespace quire::hub

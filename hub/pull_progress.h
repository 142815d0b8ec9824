#pragma once

// The state of each file of a running download, for the display.
//
// Place:      written by the threads of a download, read by the display of `quire pull`.
// Invariants: a file never has more bytes than its size, and all of them when it is done.
// Threads:    any.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "hub/repository_files.h"

namespace quire::hub {

enum class FileState {
  kQueued,
  kLocked,    // another process downloads the file
  kChecking,  // the bytes of an earlier download are hashed
  kLoading,
  kRetrying,  // waits after an error; the note describes it
  kDone,
};

struct FileProgress {
  std::string name;
  std::int64_t size_bytes = 0;
  std::int64_t done_bytes = 0;  // in the cache, including those of earlier downloads
  FileState state = FileState::kQueued;
  std::string note;
};

class PullProgress {
 public:
  // Sets the files. Called once, before the other functions.
  void Start(const std::vector<RepositoryFile>& files);
  // REQUIRES: file < number of files, and done_bytes is at most its size.
  void Update(std::size_t file, FileState state, std::int64_t done_bytes, std::string note = "");

  // Sets a text that describes a wait before Start.
  void SetNote(std::string note);

  std::vector<FileProgress> files() const;
  std::string note() const;
  // Returns the number of bytes that this download received, also those that were discarded.
  std::int64_t received_bytes() const;
  void AddReceived(std::int64_t bytes);

  // Returns INTERNAL if an invariant is violated.
  absl::Status CheckIntegrity() const;

 private:
  mutable Mutex mutex_;
  std::vector<FileProgress> files_ ABSL_GUARDED_BY(mutex_);
  std::string note_ ABSL_GUARDED_BY(mutex_);
  std::int64_t received_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace quire::hub

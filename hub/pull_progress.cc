#include "hub/pull_progress.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace quire::hub {

void PullProgress::Start(const std::vector<RepositoryFile>& files) {
  const MutexLock lock(&mutex_);
  QUIRE_CHECK(files_.empty());
  for (const RepositoryFile& file : files) {
    files_.push_back({.name = file.name, .size_bytes = file.size_bytes, .note = ""});
  }
}

void PullProgress::Update(std::size_t file, FileState state, std::int64_t done_bytes,
                          std::string note) {
  const MutexLock lock(&mutex_);
  QUIRE_CHECK(file < files_.size() && done_bytes <= files_[file].size_bytes);
  files_[file].state = state;
  files_[file].done_bytes = done_bytes;
  files_[file].note = std::move(note);
}

void PullProgress::SetNote(std::string note) {
  const MutexLock lock(&mutex_);
  note_ = std::move(note);
}

std::string PullProgress::note() const {
  const MutexLock lock(&mutex_);
  return note_;
}

std::vector<FileProgress> PullProgress::files() const {
  const MutexLock lock(&mutex_);
  return files_;
}

std::int64_t PullProgress::received_bytes() const {
  const MutexLock lock(&mutex_);
  return received_bytes_;
}

void PullProgress::AddReceived(std::int64_t bytes) {
  const MutexLock lock(&mutex_);
  received_bytes_ += bytes;
}

absl::Status PullProgress::CheckIntegrity() const {
  const MutexLock lock(&mutex_);
  for (const FileProgress& file : files_) {
    const bool is_sound = file.done_bytes >= 0 && file.done_bytes <= file.size_bytes &&
                          (file.state != FileState::kDone || file.done_bytes == file.size_bytes) &&
                          (file.state == FileState::kRetrying) == !file.note.empty();
    if (!is_sound) {
      return absl::InternalError(absl::StrCat(file.name, ": ", file.done_bytes, " of ",
                                              file.size_bytes, " bytes in state ",
                                              static_cast<int>(file.state)));
    }
  }
  return absl::OkStatus();
}

}  // namespace quire::hub

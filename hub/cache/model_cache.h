#pragma once

// The models in the cache directory, in the layout that huggingface_hub uses:
//
//   models--ORG--NAME/blobs/HASH            contents, named by SHA-256 (LFS) or by git SHA-1
//   models--ORG--NAME/snapshots/COMMIT/...  relative symbolic links to blobs
//   models--ORG--NAME/refs/REVISION         the commit of a branch or tag
//   .locks/models--ORG--NAME/HASH.lock      flock during a download
//
// Place:      below hub/pull.h, which downloads blobs; used by quired to find a model.
// Invariants: a ref is written after the snapshot that it names, and a snapshot after its blobs.
//             A reader therefore never finds a partly downloaded model. A folder or file that
//             exists but cannot be read is an error with its path and the cause.
// Threads:    any. Other processes may change the directory at any time.
// Source:     https://huggingface.co/docs/huggingface_hub/guides/manage-cache

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "hub/cache/model_name.h"

namespace quire::hub {

// A downloaded file of a repository.
struct CachedFile {
  std::string name;  // relative to the repository
  std::string hash;  // name of its blob
};

// A model that can be served, or an entry that explains the use of disk space.
struct CachedModel {
  std::string repository;       // "ORG/NAME"
  std::string revision = {};    // refs of the commit, separated by ", "; the commit if it has none
  std::string commit = {};      // empty if nothing is complete
  std::string file = {};        // GGUF file; empty for a directory
  std::string format = {};      // "safetensors", "gguf", "other", or "incomplete"
  std::int64_t size_bytes = 0;  // total size of the distinct blobs
  std::string path;
  absl::Time last_used = absl::InfinitePast();  // latest access to a blob

  // Returns the name that quired accepts, without a revision.
  std::string name() const { return ModelName{repository, "", file}.ToString(); }
};

class ModelCache {
 public:
  explicit ModelCache(std::string root) : root_(std::move(root)) {}

  const std::string& root() const { return root_; }
  std::string RepositoryDir(absl::string_view repository) const;
  std::string BlobPath(absl::string_view repository, absl::string_view hash) const;
  std::string SnapshotDir(absl::string_view repository, absl::string_view commit) const;
  // Returns the path of a lock file of the repository, such as "HASH.lock".
  std::string LockPath(absl::string_view repository, absl::string_view name) const;

  // Returns the directory or GGUF file of a model. A name without a file means the safetensors
  // model, or the only GGUF file. Returns NOT_FOUND with the command that downloads the
  // model, and with the cached revisions if the revision is not among them. Returns
  // INVALID_ARGUMENT with the file names if there are several GGUF files.
  absl::StatusOr<std::string> Find(const ModelName& name) const;

  // Returns all models, sorted by repository, commit and file.
  absl::StatusOr<std::vector<CachedModel>> List() const;

  // Links the files into the snapshot of `commit`, config.json last. Then writes the commit to the
  // ref `revision`, unless the revision is the commit itself.
  // REQUIRES: all blobs exist, and names and hashes were checked.
  absl::Status Publish(absl::string_view repository, absl::string_view revision,
                       absl::string_view commit, const std::vector<CachedFile>& files) const;

  // Removes the whole repository, one revision, or one GGUF file. If the name has a file but no
  // revision, the file is removed from all revisions. Then removes the blobs that no remaining
  // snapshot links to. Returns the number of bytes freed. Returns NOT_FOUND with the names that
  // exist, and FAILED_PRECONDITION while a download of the repository runs.
  absl::StatusOr<std::int64_t> Remove(const ModelName& name) const;

  // Returns INTERNAL if a ref names no snapshot, a blob is not named by a content hash, or a link
  // does not lead to a complete blob of the repository.
  absl::Status CheckIntegrity(absl::string_view repository) const;

 private:
  // Returns the commit of a revision, or "" if it is not in the cache.
  absl::StatusOr<std::string> FindCommit(absl::string_view repository,
                                         absl::string_view revision) const;
  absl::Status NotPulledError(const ModelName& name) const;
  absl::StatusOr<std::int64_t> RemoveRepository(const ModelName& name) const;
  absl::StatusOr<std::int64_t> RemoveFile(const ModelName& name) const;
  absl::StatusOr<std::int64_t> RemoveCommit(const ModelName& name, absl::string_view commit) const;
  absl::StatusOr<std::int64_t> RemoveUnlinkedBlobs(absl::string_view repository) const;

  std::string root_;
};

// Returns the path of a model. This is `path_or_name` itself if it is "embedded" or an existing
// file or directory, otherwise the path of the cached model of that name. Errors are those of
// ModelCache::Find, and NOT_FOUND if `path_or_name` is not a model name.
absl::StatusOr<std::string> LocateModel(absl::string_view path_or_name);

// Returns ORG/NAME for a path inside a snapshot of a cache, and "" for other paths.
std::string RepositoryOfPath(absl::string_view path);

}  // namespace quire::hub

#include "hub/cache/model_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/file_descriptor.h"
#include "base/small_file.h"
#include "base/status.h"
#include "hub/cache/cache_dir.h"
#include "hub/cache/file_lock.h"

namespace quire::hub {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kPrefix = "models--";
constexpr std::size_t kMaxRefBytes = 256;

// A file of a snapshot.
struct Entry {
  std::string name;  // relative to the snapshot
  std::string blob;  // name of the blob that it links to; empty for a file that is not a link
  std::int64_t size_bytes = 0;
  absl::Time last_used = absl::InfinitePast();
};

absl::Status FileError(const std::error_code& error, const fs::path& path) {
  return absl::ErrnoToStatus(error.value(), path.string());
}

// Returns true for an error, unless it means that the file does not exist.
bool IsFailure(const std::error_code& error) {
  return error && error != std::errc::no_such_file_or_directory &&
         error != std::errc::not_a_directory;
}

// Returns the sorted names in a directory, or none if it does not exist.
absl::StatusOr<std::vector<std::string>> NamesIn(const fs::path& directory) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(directory, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (IsFailure(error)) return FileError(error, directory);
  std::ranges::sort(names);
  return names;
}

// Calls `visit`, which returns absl::Status, for each path below `directory` that is not a
// directory. Links are not followed. Stops at the first error and returns it.
template <typename Visit>
absl::Status ForEachFile(const fs::path& directory, Visit visit) {
  std::error_code error;
  fs::recursive_directory_iterator it(directory, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored) && !it->is_symlink(ignored)) continue;
    QUIRE_RETURN_IF_ERROR(visit(it->path()));
  }
  return IsFailure(error) ? FileError(error, directory) : absl::OkStatus();
}

// Returns the sorted files of a snapshot and the sizes of their contents. Skips broken links.
absl::StatusOr<std::vector<Entry>> EntriesOf(const fs::path& snapshot) {
  std::vector<Entry> entries;
  QUIRE_RETURN_IF_ERROR(ForEachFile(snapshot, [&](const fs::path& path) -> absl::Status {
    struct stat content;
    if (stat(path.c_str(), &content) != 0) {
      const std::error_code cause(errno, std::generic_category());
      return IsFailure(cause) ? FileError(cause, path) : absl::OkStatus();
    }
    if (!S_ISREG(content.st_mode)) return absl::OkStatus();
    Entry entry;
    entry.name = path.lexically_relative(snapshot).string();
    std::error_code error;
    const fs::path target = fs::read_symlink(path, error);
    if (!error) entry.blob = target.filename().string();
    entry.size_bytes = content.st_size;
    entry.last_used = absl::TimeFromTimespec(content.st_atim);
    entries.push_back(std::move(entry));
    return absl::OkStatus();
  }));
  std::ranges::sort(entries, {}, &Entry::name);
  return entries;
}

std::int64_t SizeOf(const std::vector<Entry>& entries) {
  std::set<absl::string_view> seen;
  std::int64_t size = 0;
  for (const Entry& entry : entries) {
    if (entry.blob.empty() || seen.insert(entry.blob).second) size += entry.size_bytes;
  }
  return size;
}

// Returns the stored bytes of a file or a tree. Links count as 0 bytes, because their targets lie
// elsewhere.
absl::StatusOr<std::int64_t> StoredBytes(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path, error).type();
  if (IsFailure(error)) return FileError(error, path);
  std::int64_t bytes = 0;
  if (type == fs::file_type::regular) {
    bytes = static_cast<std::int64_t>(fs::file_size(path, error));
    if (error) return FileError(error, path);
  } else if (type == fs::file_type::directory) {
    QUIRE_RETURN_IF_ERROR(ForEachFile(path, [&](const fs::path& file) -> absl::Status {
      QUIRE_ASSIGN_OR_RETURN(const std::int64_t size, StoredBytes(file));
      bytes += size;
      return absl::OkStatus();
    }));
  }
  return bytes;
}

// Returns the commit of each ref, by ref name. Ignores files that cannot be refs.
absl::StatusOr<std::map<std::string, std::string>> RefsOf(const fs::path& repository) {
  std::map<std::string, std::string> refs;
  QUIRE_RETURN_IF_ERROR(ForEachFile(repository / "refs", [&](const fs::path& path) -> absl::Status {
    const absl::StatusOr<std::string> commit = ReadSmallFile(path.string(), kMaxRefBytes);
    if (absl::IsNotFound(commit.status()) || absl::IsInvalidArgument(commit.status())) {
      return absl::OkStatus();
    }
    QUIRE_RETURN_IF_ERROR(commit.status());
    refs[path.lexically_relative(repository / "refs").string()] =
        std::string(absl::StripAsciiWhitespace(*commit));
    return absl::OkStatus();
  }));
  return refs;
}

std::string RefNames(const std::map<std::string, std::string>& refs, absl::string_view commit) {
  std::vector<std::string> names;
  for (const auto& [name, target] : refs) {
    if (target == commit) names.push_back(name);
  }
  return names.empty() ? std::string(commit) : absl::StrJoin(names, ", ");
}

// Returns the repository of a directory such as "models--ORG--NAME", or "" for other directories.
std::string RepositoryOfDir(absl::string_view directory) {
  if (!absl::ConsumePrefix(&directory, kPrefix)) return "";
  const std::string repository = absl::StrReplaceAll(directory, {{"--", "/"}});
  return ParseModelName(repository).ok() ? repository : "";
}

// Returns one file per GGUF model: the first shard of split files.
std::vector<Entry> GgufModels(const std::vector<Entry>& entries) {
  std::vector<Entry> models;
  std::map<std::string, std::size_t> sets;
  for (const Entry& entry : entries) {
    if (!IsGguf(entry.name)) continue;
    const auto [set, is_new] = sets.emplace(ShardSet(entry.name), models.size());
    if (is_new) {
      models.push_back(entry);
      continue;
    }
    models[set->second].size_bytes += entry.size_bytes;
    models[set->second].last_used = std::max(models[set->second].last_used, entry.last_used);
  }
  return models;
}

bool HasSafetensors(const std::vector<Entry>& entries) {
  return std::ranges::any_of(entries, [](const Entry& entry) {
    return absl::EndsWith(entry.name, ".safetensors") && !absl::StrContains(entry.name, "/");
  });
}

// Appends the models of one snapshot. `common` has the repository, revision, commit and directory.
void AppendModels(const std::vector<Entry>& entries, const CachedModel& common,
                  std::vector<CachedModel>* models) {
  std::vector<Entry> rest;
  for (const Entry& entry : entries) {
    if (!IsGguf(entry.name)) rest.push_back(entry);
  }
  const std::vector<Entry> ggufs = GgufModels(entries);
  if (HasSafetensors(entries) || ggufs.empty()) {
    CachedModel model = common;
    model.format = HasSafetensors(entries) ? "safetensors" : "other";
    model.size_bytes = SizeOf(rest);
    for (const Entry& entry : rest) model.last_used = std::max(model.last_used, entry.last_used);
    models->push_back(std::move(model));
  }
  for (const Entry& gguf : ggufs) {
    CachedModel model = common;
    model.format = "gguf";
    model.file = gguf.name;
    model.size_bytes = gguf.size_bytes;
    model.path = absl::StrCat(common.path, "/", gguf.name);
    model.last_used = gguf.last_used;
    models->push_back(std::move(model));
  }
}

absl::Status LinkFile(const fs::path& snapshot, const CachedFile& file) {
  const fs::path link = snapshot / file.name;
  std::error_code error;
  fs::create_directories(link.parent_path(), error);
  if (error) return FileError(error, link.parent_path());
  std::string target = "../../";
  for (const char c : file.name) {
    if (c == '/') target += "../";
  }
  absl::StrAppend(&target, "blobs/", file.hash);
  if (fs::read_symlink(link, error) == target && !error) return absl::OkStatus();
  fs::remove(link, error);
  fs::create_symlink(target, link, error);
  return error ? FileError(error, link) : absl::OkStatus();
}

// Replaces a small file atomically. The content is synced before the rename, so that a power loss
// does not leave an empty file.
absl::Status ReplaceFile(const fs::path& path, const fs::path& temporary,
                         absl::string_view content) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) return FileError(error, path.parent_path());
  const FileDescriptor file(
      open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  bool is_written = file.fd >= 0;
  if (is_written) {
    errno = ENOSPC;  // the cause reported for a partial write
    is_written =
        write(file.fd, content.data(), content.size()) == static_cast<ssize_t>(content.size()) &&
        fsync(file.fd) == 0;
  }
  if (!is_written) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", temporary.string()));
  }
  fs::rename(temporary, path, error);
  return error ? FileError(error, path) : absl::OkStatus();
}

absl::Status CheckLink(const fs::path& blobs, const fs::path& link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);
  if (error) return absl::OkStatus();  // other programs store a copy where links do not work
  const fs::path blob = (link.parent_path() / target).lexically_normal();
  if (blob.parent_path() != blobs || !IsContentHash(blob.filename().string())) {
    return absl::InternalError(
        absl::StrCat(link.string(), " links to ", target.string(), ", which is not a blob"));
  }
  if (fs::is_regular_file(blob, error)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(link.string(), " links to a missing blob"));
}

}  // namespace

std::string ModelCache::RepositoryDir(absl::string_view repository) const {
  return absl::StrCat(root_, "/", kPrefix, absl::StrReplaceAll(repository, {{"/", "--"}}));
}

std::string ModelCache::BlobPath(absl::string_view repository, absl::string_view hash) const {
  return absl::StrCat(RepositoryDir(repository), "/blobs/", hash);
}

std::string ModelCache::SnapshotDir(absl::string_view repository, absl::string_view commit) const {
  return absl::StrCat(RepositoryDir(repository), "/snapshots/", commit);
}

std::string ModelCache::LockPath(absl::string_view repository, absl::string_view name) const {
  return absl::StrCat(root_, "/.locks/", kPrefix, absl::StrReplaceAll(repository, {{"/", "--"}}),
                      "/", name);
}

absl::StatusOr<std::string> ModelCache::FindCommit(absl::string_view repository,
                                                   absl::string_view revision) const {
  QUIRE_ASSIGN_OR_RETURN(const auto refs, RefsOf(RepositoryDir(repository)));
  const auto ref = refs.find(std::string(revision));
  const std::string commit = ref != refs.end() ? ref->second : std::string(revision);
  if (!IsCommit(commit)) return std::string();
  const std::string snapshot = SnapshotDir(repository, commit);
  std::error_code error;
  const bool exists = fs::is_directory(snapshot, error);
  if (IsFailure(error)) return FileError(error, snapshot);
  return exists ? commit : std::string();
}

absl::Status ModelCache::NotPulledError(const ModelName& name) const {
  const std::string command =
      absl::StrCat(name.ToString(), " was not pulled; run: ", PullCommand(name));
  QUIRE_ASSIGN_OR_RETURN(const std::string found,
                         FindCommit(name.repository, name.revision_or_default()));
  if (!found.empty()) return absl::NotFoundError(command);  // only the file is missing
  std::string others;
  const fs::path repository = RepositoryDir(name.repository);
  QUIRE_ASSIGN_OR_RETURN(const auto refs, RefsOf(repository));
  QUIRE_ASSIGN_OR_RETURN(const auto commits, NamesIn(repository / "snapshots"));
  for (const std::string& commit : commits) {
    absl::StrAppend(&others, others.empty() ? "; the cache has the revisions " : ", ",
                    RefNames(refs, commit));
  }
  return absl::NotFoundError(command + others);
}

absl::StatusOr<std::string> ModelCache::Find(const ModelName& name) const {
  QUIRE_ASSIGN_OR_RETURN(const std::string commit,
                         FindCommit(name.repository, name.revision_or_default()));
  if (commit.empty()) return NotPulledError(name);
  const std::string snapshot = SnapshotDir(name.repository, commit);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Entry> entries, EntriesOf(snapshot));
  if (!name.file.empty()) {
    const bool exists = std::ranges::find(entries, name.file, &Entry::name) != entries.end();
    if (!exists) return NotPulledError(name);
    return absl::StrCat(snapshot, "/", name.file);
  }
  if (HasSafetensors(entries)) return snapshot;
  const std::vector<Entry> ggufs = GgufModels(entries);
  if (ggufs.empty()) return NotPulledError(name);
  if (ggufs.size() == 1) return absl::StrCat(snapshot, "/", ggufs.front().name);
  std::vector<std::string> choices;
  choices.reserve(ggufs.size());
  for (const Entry& gguf : ggufs) {
    choices.push_back(ModelName{name.repository, name.revision, gguf.name}.ToString());
  }
  return absl::InvalidArgumentError(absl::StrCat(name.ToString(),
                                                 " has several GGUF files; name "
                                                 "one of them: ",
                                                 absl::StrJoin(choices, ", ")));
}

absl::StatusOr<std::vector<CachedModel>> ModelCache::List() const {
  std::vector<CachedModel> models;
  QUIRE_ASSIGN_OR_RETURN(const auto directories, NamesIn(root_));
  for (const std::string& directory : directories) {
    const std::string repository = RepositoryOfDir(directory);
    if (repository.empty()) continue;
    const fs::path path = fs::path(root_) / directory;
    QUIRE_ASSIGN_OR_RETURN(const auto refs, RefsOf(path));
    QUIRE_ASSIGN_OR_RETURN(const auto commits, NamesIn(path / "snapshots"));
    const std::size_t before = models.size();
    for (const std::string& commit : commits) {
      const std::string snapshot = SnapshotDir(repository, commit);
      QUIRE_ASSIGN_OR_RETURN(const std::vector<Entry> entries, EntriesOf(snapshot));
      if (entries.empty()) continue;
      AppendModels(entries,
                   {.repository = repository,
                    .revision = RefNames(refs, commit),
                    .commit = commit,
                    .path = snapshot},
                   &models);
    }
    if (models.size() > before) continue;
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t size, StoredBytes(path / "blobs"));
    models.push_back({.repository = repository,
                      .format = "incomplete",
                      .size_bytes = size,
                      .path = path.string()});
  }
  return models;
}

absl::Status ModelCache::Publish(absl::string_view repository, absl::string_view revision,
                                 absl::string_view commit,
                                 const std::vector<CachedFile>& files) const {
  const fs::path snapshot = SnapshotDir(repository, commit);
  std::vector<CachedFile> ordered = files;
  std::stable_partition(ordered.begin(), ordered.end(),
                        [](const CachedFile& file) { return file.name != "config.json"; });
  for (const CachedFile& file : ordered) QUIRE_RETURN_IF_ERROR(LinkFile(snapshot, file));
  if (revision == commit) return absl::OkStatus();
  const fs::path directory = RepositoryDir(repository);
  // The temporary file is outside refs/, because other programs treat every file there as a ref.
  const fs::path temporary = directory / absl::StrCat("ref.", getpid(), ".incomplete");
  return ReplaceFile(directory / "refs" / std::string(revision), temporary, commit);
}

absl::StatusOr<std::int64_t> ModelCache::Remove(const ModelName& name) const {
  const fs::path directory = RepositoryDir(name.repository);
  std::error_code error;
  const bool exists = fs::is_directory(directory, error);
  if (IsFailure(error)) return FileError(error, directory);
  if (!exists) {
    std::set<std::string> pulled;
    QUIRE_ASSIGN_OR_RETURN(const std::vector<CachedModel> models, List());
    for (const CachedModel& model : models) pulled.insert(model.repository);
    return absl::NotFoundError(
        absl::StrCat(name.repository, " is not in ", root_, "; ",
                     pulled.empty() ? "it has no models"
                                    : absl::StrCat("it has ", absl::StrJoin(pulled, ", "))));
  }
  absl::StatusOr<FileLock> lock =
      FileLock::Try(LockPath(name.repository, "quire.lock"), LockMode::kExclusive);
  if (absl::IsUnavailable(lock.status())) {
    return absl::FailedPreconditionError(absl::StrCat(
        name.repository, " is being downloaded by another process; stop it or wait for it"));
  }
  QUIRE_RETURN_IF_ERROR(lock.status());
  if (!name.file.empty()) return RemoveFile(name);
  if (name.revision.empty()) return RemoveRepository(name);
  QUIRE_ASSIGN_OR_RETURN(const std::string commit, FindCommit(name.repository, name.revision));
  if (commit.empty()) return NotPulledError(name);
  return RemoveCommit(name, commit);
}

absl::StatusOr<std::int64_t> ModelCache::RemoveRepository(const ModelName& name) const {
  const fs::path directory = RepositoryDir(name.repository);
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t bytes, StoredBytes(directory));
  std::error_code error;
  // Removes refs first, so that an interrupted removal does not leave a name without its files.
  fs::remove_all(directory / "refs", error);
  if (error) return FileError(error, directory / "refs");
  fs::remove_all(directory, error);
  if (error) return FileError(error, directory);
  return bytes;
}

absl::StatusOr<std::int64_t> ModelCache::RemoveCommit(const ModelName& name,
                                                      absl::string_view commit) const {
  const fs::path directory = RepositoryDir(name.repository);
  QUIRE_ASSIGN_OR_RETURN(const auto commits, NamesIn(directory / "snapshots"));
  if (commits.size() == 1 && commits.front() == commit) return RemoveRepository(name);
  std::error_code error;
  QUIRE_ASSIGN_OR_RETURN(const auto refs, RefsOf(directory));
  for (const auto& [ref, target] : refs) {
    if (target == commit) fs::remove(directory / "refs" / ref, error);
    if (error) return FileError(error, directory / "refs" / ref);
  }
  // huggingface_hub also stores the lists of a commit's missing files and of all its files.
  fs::remove_all(directory / ".no_exist" / std::string(commit), error);
  fs::remove(directory / "trees" / absl::StrCat(commit, ".json"), error);
  const std::string snapshot = SnapshotDir(name.repository, commit);
  fs::remove_all(snapshot, error);
  if (error) return FileError(error, snapshot);
  return RemoveUnlinkedBlobs(name.repository);
}

absl::StatusOr<std::int64_t> ModelCache::RemoveFile(const ModelName& name) const {
  const fs::path directory = RepositoryDir(name.repository);
  QUIRE_ASSIGN_OR_RETURN(auto commits, NamesIn(directory / "snapshots"));
  if (!name.revision.empty()) {
    QUIRE_ASSIGN_OR_RETURN(std::string commit, FindCommit(name.repository, name.revision));
    commits = {std::move(commit)};
  }
  bool is_found = false;
  std::int64_t bytes = 0;
  for (const std::string& commit : commits) {
    if (commit.empty()) continue;
    const fs::path snapshot = SnapshotDir(name.repository, commit);
    std::size_t num_remaining = 0;
    QUIRE_ASSIGN_OR_RETURN(const std::vector<Entry> entries, EntriesOf(snapshot));
    for (const Entry& entry : entries) {
      const bool is_removed = IsGguf(entry.name) && ShardSet(entry.name) == ShardSet(name.file);
      std::error_code error;
      if (is_removed) fs::remove(snapshot / entry.name, error);
      if (error) return FileError(error, snapshot / entry.name);
      is_found |= is_removed;
      num_remaining += is_removed ? 0 : 1;
    }
    if (num_remaining > 0) continue;
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t freed, RemoveCommit(name, commit));
    bytes += freed;
  }
  if (!is_found) return NotPulledError(name);
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t freed, RemoveUnlinkedBlobs(name.repository));
  return bytes + freed;
}

absl::StatusOr<std::int64_t> ModelCache::RemoveUnlinkedBlobs(absl::string_view repository) const {
  const fs::path directory = RepositoryDir(repository);
  std::set<std::string> linked;
  // If a folder cannot be read, no blob is removed, because the folder may have links to any blob.
  QUIRE_RETURN_IF_ERROR(
      ForEachFile(directory / "snapshots", [&](const fs::path& path) -> absl::Status {
        std::error_code no_link;
        const fs::path target = fs::read_symlink(path, no_link);
        if (!no_link) linked.insert(target.filename().string());
        return absl::OkStatus();
      }));
  std::int64_t bytes = 0;
  QUIRE_ASSIGN_OR_RETURN(const auto blobs, NamesIn(directory / "blobs"));
  for (const std::string& blob : blobs) {
    if (!IsContentHash(blob) || linked.contains(blob)) continue;
    // huggingface_hub holds the lock of a blob until it has linked the blob. quire.lock, which the
    // caller holds, excludes downloads of quire.
    const absl::StatusOr<FileLock> lock =
        FileLock::Try(LockPath(repository, absl::StrCat(blob, ".lock")), LockMode::kExclusive);
    if (absl::IsUnavailable(lock.status())) continue;
    QUIRE_RETURN_IF_ERROR(lock.status());
    const fs::path path = directory / "blobs" / blob;
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t size, StoredBytes(path));
    std::error_code error;
    fs::remove(path, error);
    if (error) return FileError(error, path);
    bytes += size;
  }
  return bytes;
}

absl::Status ModelCache::CheckIntegrity(absl::string_view repository) const {
  const fs::path directory = fs::path(RepositoryDir(repository)).lexically_normal();
  std::error_code error;
  if (!fs::exists(directory, error)) {
    return IsFailure(error) ? FileError(error, directory) : absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(const auto refs, RefsOf(directory));
  for (const auto& [ref, commit] : refs) {
    const fs::path snapshot = directory / "snapshots" / commit;
    if (IsCommit(commit) && fs::is_directory(snapshot, error)) continue;
    if (IsFailure(error)) return FileError(error, snapshot);
    return absl::InternalError(absl::StrCat("ref ", ref, " names commit ", commit,
                                            ", which has no snapshot; pull the model again"));
  }
  QUIRE_RETURN_IF_ERROR(ForEachFile(directory / "snapshots", [&](const fs::path& link) {
    return CheckLink(directory / "blobs", link);
  }));
  QUIRE_ASSIGN_OR_RETURN(const auto blobs, NamesIn(directory / "blobs"));
  for (const std::string& blob : blobs) {
    if (IsContentHash(blob) || absl::EndsWith(blob, ".incomplete")) continue;
    return absl::InternalError(
        absl::StrCat("blob ", blob, " is not named by a content hash; remove it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> LocateModel(absl::string_view path_or_name) {
  std::error_code error;
  const std::string text(path_or_name);
  if (text == "embedded" || (!text.empty() && fs::exists(text, error))) return text;
  const absl::StatusOr<ModelName> name = ParseModelName(text);
  if (!name.ok()) return absl::NotFoundError(absl::StrCat("\"", text, "\" does not exist"));
  const std::string problem = absl::StrCat("\"", text, "\" is not a file or directory");
  const absl::StatusOr<std::string> root = CacheDir();
  if (!root.ok()) {
    return absl::NotFoundError(absl::StrCat(problem, "; ", root.status().message()));
  }
  absl::StatusOr<std::string> path = ModelCache(*root).Find(*name);
  if (path.ok()) return path;
  const bool is_about_model =
      absl::IsNotFound(path.status()) || absl::IsInvalidArgument(path.status());
  return absl::Status(
      path.status().code(),
      absl::StrCat(problem, ", and the model ",
                   is_about_model ? "" : "cache cannot be read: ", path.status().message()));
}

std::string RepositoryOfPath(absl::string_view path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/', absl::SkipEmpty());
  for (std::size_t i = 0; i + 2 < parts.size(); ++i) {
    const std::string repository = RepositoryOfDir(parts[i]);
    if (!repository.empty() && parts[i + 1] == "snapshots" && IsCommit(parts[i + 2])) {
      return repository;
    }
  }
  return "";
}

}  // namespace quire::hub

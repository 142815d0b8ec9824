#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file_descriptor.h"

namespace quire {
namespace {

absl::Status ErrnoStatus(int error, const std::string& path, absl::string_view action) {
  return absl::ErrnoToStatus(error, absl::StrCat(path, ": cannot ", action));
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(absl::string_view path) {
  std::string name(path);
  if (name.empty()) return absl::InvalidArgumentError("file name is empty");
  const FileDescriptor file{open(name.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY)};
  if (file.fd < 0) return ErrnoStatus(errno, name, "open");
  struct stat info;
  if (fstat(file.fd, &info) != 0) return ErrnoStatus(errno, name, "read file status");
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": is a directory, not a file"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": is not a regular file"));
  }
  if (info.st_size == 0) return absl::InvalidArgumentError(absl::StrCat(name, ": file is empty"));
  const auto size = static_cast<std::size_t>(info.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, name, absl::StrCat("map ", size, " bytes"));
  return MappedFile(std::move(name), {static_cast<const std::byte*>(data), size});
}

MappedFile::MappedFile(std::string path, std::span<const std::byte> bytes)
    : path_(std::move(path)), bytes_(bytes) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void MappedFile::Forget(std::span<const std::byte> part) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<std::uintptr_t>(part.data());
  const std::uintptr_t begin = (at + page - 1) / page * page;
  const std::uintptr_t end = (at + part.size()) / page * page;
  // If the system rejects the advice, the pages stay in memory.
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace quire

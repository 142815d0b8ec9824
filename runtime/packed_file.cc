#include "runtime/packed_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file_descriptor.h"
#include "base/logging.h"
#include "base/status.h"

namespace quire::runtime {
namespace {

constexpr absl::string_view kMagic = "quirepk1";
constexpr std::int64_t kPieceBytes = std::int64_t{16} << 20;
constexpr std::int64_t kAlignment = 4096;
// Maximum length of the text in a file's head. It has a few lines per matrix.
constexpr std::uint64_t kMaxText = std::uint64_t{64} << 20;

// Returns a checksum that detects accidental damage, not manipulation. Every bit of an input
// word affects all later states of its lane.
std::uint64_t Checksum(std::span<const std::byte> bytes) {
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;
  std::array<std::uint64_t, 4> lanes = {1, 2, 3, 4};
  std::array<std::uint64_t, 4> words;
  const auto mix = [&] {
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      lanes[i] = std::rotl(lanes[i] ^ words[i], 29) * kFactor;
    }
  };
  std::size_t at = 0;
  for (; at + sizeof(words) <= bytes.size(); at += sizeof(words)) {
    std::memcpy(words.data(), bytes.data() + at, sizeof(words));
    mix();
  }
  words = {};
  std::memcpy(words.data(), bytes.data() + at, bytes.size() - at);
  mix();
  std::uint64_t sum = bytes.size();
  for (const std::uint64_t lane : lanes) sum = std::rotl(sum ^ lane, 29) * kFactor;
  return sum;
}

absl::Status SystemError(absl::string_view what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot ", what));
}

absl::Status ReadAt(int fd, std::int64_t offset, std::span<std::byte> to, const std::string& path) {
  while (!to.empty()) {
    const ssize_t got = pread(fd, to.data(), to.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return SystemError("read", path);
    if (got == 0) return absl::DataLossError(absl::StrCat(path, ": ends at byte ", offset));
    to = to.subspan(static_cast<std::size_t>(got));
    offset += got;
  }
  return absl::OkStatus();
}

absl::Status WriteAt(int fd, std::int64_t offset, std::span<const std::byte> from,
                     const std::string& path) {
  while (!from.empty()) {
    const ssize_t put = pwrite(fd, from.data(), from.size(), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return SystemError("write", path);
    from = from.subspan(static_cast<std::size_t>(put));
    offset += put;
  }
  return absl::OkStatus();
}

struct Piece {
  std::int64_t offset;  // in the file
  std::span<std::byte> bytes;
  std::size_t section;
};

// The offsets of all parts of a file.
struct Layout {
  std::string text;
  std::vector<Piece> pieces;
  std::int64_t head_bytes = 0;  // without the padding before the first section
  std::int64_t file_bytes = 0;
};

std::int64_t Aligned(std::int64_t offset) {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

Layout LayOut(const PackedFileKey& key, std::span<const models::Weights::Section> sections) {
  Layout layout;
  layout.text = absl::StrCat("version ", kPackedFileVersion, "\nfingerprint ", key.fingerprint,
                             "\nquantization ", key.quantization, "\n");
  std::size_t pieces = 0;
  for (const models::Weights::Section& section : sections) {
    absl::StrAppend(&layout.text, section.label, ", ", section.bytes.size(), " bytes\n");
    pieces += (section.bytes.size() + kPieceBytes - 1) / kPieceBytes;
  }
  layout.head_bytes =
      static_cast<std::int64_t>(kMagic.size() + 8 + layout.text.size() + 8 * pieces + 8);
  std::int64_t offset = layout.head_bytes;
  for (std::size_t i = 0; i < sections.size(); ++i) {
    offset = Aligned(offset);
    const auto size = static_cast<std::int64_t>(sections[i].bytes.size());
    for (std::int64_t at = 0; at < size; at += kPieceBytes) {
      const std::int64_t bytes = std::min(kPieceBytes, size - at);
      layout.pieces.push_back(
          {offset + at,
           sections[i].bytes.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(bytes)),
           i});
    }
    offset += size;
  }
  layout.file_bytes = offset;
  return layout;
}

template <typename T>
void Append(std::string* bytes, T value) {
  char raw[sizeof(value)];
  std::memcpy(raw, &value, sizeof(value));
  bytes->append(raw, sizeof(value));
}

std::string HeadOf(const Layout& layout, std::span<const std::uint64_t> checksums) {
  std::string head(kMagic);
  Append(&head, std::uint64_t{layout.text.size()});
  head += layout.text;
  for (const std::uint64_t checksum : checksums) Append(&head, checksum);
  Append(&head, Checksum(std::as_bytes(std::span<const char>(head))));
  return head;
}

// Returns an error that quotes the first line of `found` that differs from `expected`.
absl::Status WrongTextError(const std::string& path, absl::string_view found,
                            absl::string_view expected) {
  const std::vector<absl::string_view> have = absl::StrSplit(found, '\n');
  const std::vector<absl::string_view> want = absl::StrSplit(expected, '\n');
  std::size_t line = 0;
  while (line < have.size() && line < want.size() && have[line] == want[line]) ++line;
  return absl::DataLossError(
      absl::StrCat(path, ": contains \"", line < have.size() ? have[line].substr(0, 200) : "",
                   "\", expected \"", line < want.size() ? want[line] : "", "\""));
}

// Checks the head and returns the checksums of the pieces.
absl::StatusOr<std::vector<std::uint64_t>> ReadHead(int fd, const std::string& path,
                                                    const Layout& layout) {
  const auto damaged = [&](const auto&... what) {
    return absl::DataLossError(absl::StrCat(path, ": ", what...));
  };
  struct stat info {};
  if (fstat(fd, &info) != 0) return SystemError("stat", path);
  std::string start(kMagic.size() + 8, '\0');
  QUIRE_RETURN_IF_ERROR(ReadAt(fd, 0, std::as_writable_bytes(std::span(start)), path));
  std::uint64_t text_bytes = 0;
  std::memcpy(&text_bytes, start.data() + kMagic.size(), sizeof(text_bytes));
  if (absl::string_view(start).substr(0, kMagic.size()) != kMagic || text_bytes > kMaxText) {
    return damaged("is not a file of packed weights");
  }
  std::string text(text_bytes, '\0');
  const auto text_at = static_cast<std::int64_t>(start.size());
  QUIRE_RETURN_IF_ERROR(ReadAt(fd, text_at, std::as_writable_bytes(std::span(text)), path));
  if (text != layout.text) return WrongTextError(path, text, layout.text);
  if (info.st_size != layout.file_bytes) {
    return damaged("has ", info.st_size, " bytes, expected ", layout.file_bytes);
  }
  std::vector<std::uint64_t> sums(layout.pieces.size() + 1);
  QUIRE_RETURN_IF_ERROR(ReadAt(fd, text_at + static_cast<std::int64_t>(text.size()),
                               std::as_writable_bytes(std::span(sums)), path));
  const std::uint64_t of_head = sums.back();
  sums.pop_back();
  const std::string head = HeadOf(layout, sums);
  if (std::memcmp(head.data() + head.size() - 8, &of_head, 8) != 0) {
    return damaged("the checksum of the head does not match");
  }
  return sums;
}

// Opens and locks the temporary file, which all writers of one packed file share.
absl::StatusOr<FileDescriptor> OpenTemporary(const std::string& temporary) {
  FileDescriptor file(open(temporary.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (file.fd < 0) return SystemError("create", temporary);
  struct stat ours {
  }, named{};
  const bool locked = flock(file.fd, LOCK_EX | LOCK_NB) == 0;
  if (!locked && errno != EWOULDBLOCK) return SystemError("lock", temporary);
  // Another writer may have renamed the file between open and flock.
  const bool still_there = locked && fstat(file.fd, &ours) == 0 &&
                           stat(temporary.c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
                           ours.st_dev == named.st_dev;
  if (!still_there) {
    return absl::AbortedError(absl::StrCat(temporary, ": another process is writing it"));
  }
  if (ftruncate(file.fd, 0) != 0) return SystemError("truncate", temporary);
  return file;
}

absl::Status WriteWhole(int fd, const Layout& layout, absl::string_view head,
                        const std::string& path) {
  QUIRE_RETURN_IF_ERROR(
      WriteAt(fd, 0, std::as_bytes(std::span<const char>(head.data(), head.size())), path));
  for (const Piece& piece : layout.pieces) {
    QUIRE_RETURN_IF_ERROR(WriteAt(fd, piece.offset, piece.bytes, path));
  }
  if (fsync(fd) != 0) return SystemError("synchronize", path);
  return absl::OkStatus();
}

// Synchronizes the directory, which makes a rename in it durable.
void SyncDirectoryOf(const std::string& path) {
  const std::string directory = path.substr(0, path.rfind('/') + 1);
  const FileDescriptor file(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.fd >= 0 && fsync(file.fd) == 0) return;
  log::Warn("model", "packed weights were written, but a crash may lose them",
            {{"path", path}, {"reason", SystemError("synchronize", directory).message()}});
}

}  // namespace

std::string PackedFilePath(absl::string_view directory, const PackedFileKey& key) {
  return absl::StrCat(directory, "/", key.fingerprint, "-", key.quantization, ".quirepack");
}

absl::Status ReadPackedFile(const std::string& path, const PackedFileKey& key,
                            std::span<const models::Weights::Section> sections,
                            const kernels::Backend& backend) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.fd < 0) return SystemError("open", path);
  const Layout layout = LayOut(key, sections);
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::uint64_t> sums, ReadHead(file.fd, path, layout));
  std::vector<absl::Status> errors(layout.pieces.size());
  std::atomic<bool> failed{false};
  backend.ParallelItems(
      static_cast<std::int64_t>(layout.pieces.size()), static_cast<double>(kPieceBytes),
      [&](std::int64_t item, int) {
        if (failed.load()) return;
        const auto i = static_cast<std::size_t>(item);
        const Piece& piece = layout.pieces[i];
        errors[i] = ReadAt(file.fd, piece.offset, piece.bytes, path);
        if (errors[i].ok() && Checksum(piece.bytes) != sums[i]) {
          errors[i] = absl::DataLossError(absl::StrCat(
              path, ": the checksum of ", sections[piece.section].label, " does not match"));
        }
        if (!errors[i].ok()) failed.store(true);
      });
  for (const absl::Status& error : errors) QUIRE_RETURN_IF_ERROR(error);
  return absl::OkStatus();
}

absl::Status WritePackedFile(const std::string& path, const PackedFileKey& key,
                             std::span<const models::Weights::Section> sections,
                             const kernels::Backend& backend) {
  const Layout layout = LayOut(key, sections);
  const std::string temporary = path + ".tmp";
  QUIRE_ASSIGN_OR_RETURN(const FileDescriptor file, OpenTemporary(temporary));
  std::vector<std::uint64_t> sums(layout.pieces.size());
  backend.ParallelItems(static_cast<std::int64_t>(sums.size()), static_cast<double>(kPieceBytes),
                        [&](std::int64_t item, int) {
                          const auto i = static_cast<std::size_t>(item);
                          sums[i] = Checksum(layout.pieces[i].bytes);
                        });
  absl::Status status = WriteWhole(file.fd, layout, HeadOf(layout, sums), temporary);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0) {
    status = SystemError("rename", temporary);
  }
  if (!status.ok()) {
    (void)unlink(temporary.c_str());
    return status;
  }
  SyncDirectoryOf(path);
  return absl::OkStatus();
}

}  // namespace quire::runtime

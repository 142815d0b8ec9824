#include "hub/cache/model_name.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace quire::hub {
namespace {

constexpr std::size_t kMaxNamePart = 96;
constexpr std::size_t kMaxRevision = 250;
constexpr std::size_t kMaxFileName = 1024;
constexpr std::size_t kMaxFileNamePart = 255;

bool IsWord(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
}

bool IsNamePart(absl::string_view part) {
  return !part.empty() && part.size() <= kMaxNamePart && std::ranges::all_of(part, IsWord) &&
         !absl::StrContains(part, "--") && !absl::StrContains(part, "..") && part.front() != '-' &&
         part.front() != '.' && part.back() != '-' && part.back() != '.';
}

bool IsRevision(absl::string_view revision) {
  const auto is_allowed = [](char c) { return IsWord(c) || c == '/' || c == '+'; };
  if (revision.empty() || revision.size() > kMaxRevision || revision.front() == '-' ||
      !std::ranges::all_of(revision, is_allowed)) {
    return false;
  }
  return CheckFileName(revision).ok();
}

bool IsDigits(absl::string_view text) {
  return text.size() == 5 && std::ranges::all_of(text, absl::ascii_isdigit);
}

bool IsLowerHex(absl::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace

std::string ModelName::revision_or_default() const {
  return revision.empty() ? std::string(kDefaultRevision) : revision;
}

std::string ModelName::ToString() const {
  return absl::StrCat(repository, revision.empty() ? "" : "@", revision, file.empty() ? "" : ":",
                      file);
}

absl::StatusOr<ModelName> ParseModelName(absl::string_view text) {
  const auto refuse = [&](absl::string_view problem) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", absl::CHexEscape(text.substr(0, kMaxFileName)), "\" is not the name of a model: ",
        problem, "; write ORG/NAME, ORG/NAME@REVISION or ORG/NAME:FILE.gguf"));
  };
  ModelName name;
  absl::string_view rest = text;
  if (const std::size_t colon = rest.find(':'); colon != absl::string_view::npos) {
    name.file = std::string(rest.substr(colon + 1));
    rest = rest.substr(0, colon);
    if (const absl::Status status = CheckFileName(name.file); !status.ok()) {
      return refuse(status.message());
    }
    if (!IsGguf(name.file)) {
      return refuse(absl::StrCat("\"", name.file, "\" does not end in .gguf"));
    }
  }
  if (const std::size_t at = rest.find('@'); at != absl::string_view::npos) {
    name.revision = std::string(rest.substr(at + 1));
    rest = rest.substr(0, at);
    if (!IsRevision(name.revision)) {
      return refuse(absl::StrCat("\"", absl::CHexEscape(name.revision), "\" is not a revision"));
    }
  }
  const std::size_t slash = rest.find('/');
  if (slash == absl::string_view::npos || !IsNamePart(rest.substr(0, slash)) ||
      !IsNamePart(rest.substr(slash + 1))) {
    return refuse("ORG and NAME are separated by a slash and consist of letters, digits, -, _, .");
  }
  name.repository = std::string(rest);
  return name;
}

std::string PullCommand(const ModelName& name) {
  return absl::StrCat("quire pull ", name.repository, name.revision.empty() ? "" : "@",
                      name.revision, name.file.empty() ? "" : " --gguf ", name.file);
}

absl::Status CheckFileName(absl::string_view name) {
  const auto is_bad_byte = [](char c) {
    return c == '\\' || absl::ascii_iscntrl(static_cast<unsigned char>(c));
  };
  const auto is_bad_part = [](absl::string_view part) {
    return part.empty() || part == "." || part == ".." || part.size() > kMaxFileNamePart;
  };
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  if (name.size() <= kMaxFileName && std::ranges::none_of(name, is_bad_byte) &&
      std::ranges::none_of(parts, is_bad_part)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the file name \"", absl::CHexEscape(name.substr(0, kMaxFileName)),
                   "\" is not a relative path inside the repository"));
}

bool IsCommit(absl::string_view text) {
  return text.size() == 40 && IsLowerHex(text);
}

bool IsContentHash(absl::string_view text) {
  return (text.size() == 40 || text.size() == 64) && IsLowerHex(text);
}

bool IsGguf(absl::string_view file) {
  return absl::EndsWithIgnoreCase(file, ".gguf");
}

std::string ShardSet(absl::string_view file) {
  // NAME-00001-of-00003.gguf
  constexpr std::size_t kTail = absl::string_view("-00001-of-00003.gguf").size();
  if (!IsGguf(file) || file.size() <= kTail) return std::string(file);
  const absl::string_view tail = file.substr(file.size() - kTail);
  if (tail[0] != '-' || !IsDigits(tail.substr(1, 5)) || tail.substr(6, 4) != "-of-" ||
      !IsDigits(tail.substr(10, 5))) {
    return std::string(file);
  }
  return absl::StrCat(file.substr(0, file.size() - kTail), "-@", tail.substr(6));
}

std::string FormatBytes(std::int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  const auto value = static_cast<double>(bytes);
  if (bytes < std::int64_t{1} << 20) return absl::StrFormat("%.1f KiB", value / (1 << 10));
  if (bytes < std::int64_t{1} << 30) return absl::StrFormat("%.1f MiB", value / (1 << 20));
  return absl::StrFormat("%.2f GiB", value / (1 << 30));
}

}  // namespace quire::hub

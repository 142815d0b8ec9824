#include "hub/cache/cache_dir.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::hub {
namespace {

// Expands a leading "~/". Shells expand it, but the readers of environment files do not.
std::string Expand(const std::string& path, const Environment& environment) {
  const std::optional<std::string> home = environment("HOME");
  if (!home || !absl::StartsWith(path, "~/")) return path;
  return absl::StrCat(*home, path.substr(1));
}

}  // namespace

std::optional<std::string> ProcessEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

absl::StatusOr<std::string> HomeDir(const Environment& environment) {
  if (const auto home = environment("HF_HOME")) return Expand(*home, environment);
  if (const auto cache = environment("XDG_CACHE_HOME")) {
    return absl::StrCat(Expand(*cache, environment), "/huggingface");
  }
  if (const auto home = environment("HOME")) return absl::StrCat(*home, "/.cache/huggingface");
  return absl::FailedPreconditionError(
      "the directory of the model cache is unknown because HOME is not set; set HF_HOME");
}

absl::StatusOr<std::string> CacheDir(const Environment& environment) {
  std::string path;
  if (const auto cache = environment("HF_HUB_CACHE")) {
    path = Expand(*cache, environment);
  } else if (const auto old = environment("HUGGINGFACE_HUB_CACHE")) {
    path = Expand(*old, environment);
  } else {
    QUIRE_ASSIGN_OR_RETURN(const std::string home, HomeDir(environment));
    path = absl::StrCat(home, "/hub");
  }
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return error ? path : absolute.lexically_normal().string();
}

}  // namespace quire::hub

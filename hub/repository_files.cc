#include "hub/repository_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "formats/json_value.h"

namespace quire::hub {
namespace {

using formats::JsonValue;

constexpr std::int64_t kMaxNodes = 4'000'000;
constexpr absl::string_view kSingleFile = "model.safetensors";
constexpr absl::string_view kIndexFile = "model.safetensors.index.json";

// Files in the top directory that quired or the tokenizers of transformers read.
constexpr absl::string_view kTopFiles[] = {
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "config.json",
    "config_sentence_transformers.json",
    "generation_config.json",
    "merges.txt",
    kIndexFile,
    "modules.json",
    "sentence_bert_config.json",
    "special_tokens_map.json",
    "tekken.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
};

// Suffixes of weight files. If a repository has no weights that quired reads, the message names a
// file with one of these suffixes. A .safetensors file can have a name that quired does not read.
constexpr absl::string_view kOtherWeights[] = {".safetensors", ".bin",  ".pth",   ".pt",
                                               ".ckpt",        ".onnx", ".h5",    ".npz",
                                               ".msgpack",     ".nemo", ".tflite"};

absl::StatusOr<std::optional<std::int64_t>> ReadSize(const JsonValue& object) {
  const std::optional<JsonValue> size = object.FindNonNull("size");
  if (!size) return std::nullopt;
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t bytes, size->AsInteger(0, kMaxFileBytes));
  return bytes;
}

absl::StatusOr<RepositoryFile> ReadFile(const JsonValue& sibling) {
  RepositoryFile file;
  QUIRE_ASSIGN_OR_RETURN(file.name, sibling.GetString("rfilename"));
  QUIRE_RETURN_IF_ERROR(CheckFileName(file.name));
  std::optional<std::string> hash;
  QUIRE_ASSIGN_OR_RETURN(std::optional<std::int64_t> size, ReadSize(sibling));
  if (const std::optional<JsonValue> lfs = sibling.FindNonNull("lfs")) {
    QUIRE_RETURN_IF_ERROR(lfs->CheckObject());
    QUIRE_ASSIGN_OR_RETURN(hash, lfs->GetOptionalString("sha256"));
    QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> content_size, ReadSize(*lfs));
    if (content_size) size = content_size;
  } else {
    QUIRE_ASSIGN_OR_RETURN(hash, sibling.GetOptionalString("blobId"));
  }
  if (!hash) return file;
  if (!IsContentHash(*hash)) {
    return sibling.Error(
        absl::StrCat("(", file.name, ") has a hash that is neither a git SHA-1 nor a SHA-256"));
  }
  if (!size) return file;
  file.hash = *hash;
  file.size_bytes = *size;
  return file;
}

bool IsTopFile(absl::string_view name) {
  return std::ranges::find(kTopFiles, name) != std::end(kTopFiles) ||
         (absl::EndsWith(name, ".tiktoken") && !absl::StrContains(name, "/"));
}

// Returns whether the file is a configuration of a sentence-transformers module, such as
// "1_Pooling/config.json", or a named chat template.
bool IsNestedFile(absl::string_view name) {
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '/');
  if (parts.size() != 2) return false;
  if (parts[0] == "additional_chat_templates") return absl::EndsWith(parts[1], ".jinja");
  return parts[1] == "config.json" && absl::StrContains(parts[0], '_') &&
         absl::ascii_isdigit(static_cast<unsigned char>(parts[0][0]));
}

// Returns whether the file may be a shard that model.safetensors.index.json names. Repositories may
// also have adapters, and a second copy of the weights as consolidated*.safetensors.
bool IsShard(absl::string_view name) {
  return absl::EndsWith(name, ".safetensors") && !absl::StrContains(name, "/") &&
         !absl::StartsWith(name, "consolidated") && !absl::StartsWith(name, "adapter");
}

bool Has(const std::vector<RepositoryFile>& files, absl::string_view name) {
  return std::ranges::any_of(files, [&](const RepositoryFile& file) { return file.name == name; });
}

std::string ListGgufs(const std::vector<RepositoryFile>& files) {
  std::map<std::string, RepositoryFile> sets;
  for (const RepositoryFile& file : files) {
    if (!IsGguf(file.name)) continue;
    const auto [set, is_new] = sets.emplace(ShardSet(file.name), file);
    if (!is_new && file.size_bytes > 0) set->second.size_bytes += file.size_bytes;
  }
  std::string lines;
  for (const auto& [ignored, file] : sets) {
    const std::string size =
        file.size_bytes < 0 ? "" : absl::StrCat(" (", FormatBytes(file.size_bytes), ")");
    absl::StrAppend(&lines, "\n  ", file.name, size);
  }
  return lines;
}

absl::StatusOr<std::vector<RepositoryFile>> SelectGguf(const std::vector<RepositoryFile>& files,
                                                       const ModelName& name) {
  std::vector<RepositoryFile> selected;
  bool is_found = false;
  for (const RepositoryFile& file : files) {
    if (!IsGguf(file.name) || ShardSet(file.name) != ShardSet(name.file)) continue;
    is_found |= file.name == name.file;
    selected.push_back(file);
  }
  if (is_found) return selected;
  const std::string ggufs = ListGgufs(files);
  return absl::NotFoundError(absl::StrCat(
      name.repository, " has no file ", name.file,
      ggufs.empty() ? " and no GGUF files" : absl::StrCat("; its GGUF files are:", ggufs)));
}

absl::Status NoWeights(const std::vector<RepositoryFile>& files, const ModelName& name) {
  const std::string ggufs = ListGgufs(files);
  if (!ggufs.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(name.repository, " has only GGUF files; choose one with --gguf FILE:", ggufs));
  }
  for (const RepositoryFile& file : files) {
    for (const absl::string_view suffix : kOtherWeights) {
      if (!absl::EndsWith(file.name, suffix)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          name.repository, " has no ", kSingleFile, ", ", kIndexFile,
          " or GGUF file, only weights that quired does not read, such as ", file.name));
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat(name.repository, " has no ", kSingleFile, ", ", kIndexFile, " or GGUF file"));
}

}  // namespace

absl::StatusOr<Listing> ParseListing(absl::string_view json) {
  if (json.size() > kMaxListingBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the list of files has more than ", kMaxListingBytes, " bytes"));
  }
  QUIRE_ASSIGN_OR_RETURN(const formats::JsonDocument document,
                         formats::JsonDocument::Parse(json, {.max_nodes = kMaxNodes}));
  Listing listing;
  QUIRE_ASSIGN_OR_RETURN(listing.commit, document.root().GetString("sha"));
  if (!IsCommit(listing.commit)) return absl::InvalidArgumentError("sha is not a commit");
  QUIRE_ASSIGN_OR_RETURN(const JsonValue siblings, document.root().Get("siblings"));
  QUIRE_RETURN_IF_ERROR(siblings.CheckArray());
  if (siblings.size() > kMaxListedFiles) {
    return siblings.Error(
        absl::StrCat("has ", siblings.size(), " files, the limit is ", kMaxListedFiles));
  }
  std::set<std::string> names;
  for (std::size_t i = 0; i < siblings.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(siblings.At(i).CheckObject());
    QUIRE_ASSIGN_OR_RETURN(RepositoryFile file, ReadFile(siblings.At(i)));
    if (!names.insert(file.name).second) {
      return siblings.Error(absl::StrCat("lists ", file.name, " twice"));
    }
    listing.files.push_back(std::move(file));
  }
  return listing;
}

absl::StatusOr<std::vector<RepositoryFile>> SelectFiles(const std::vector<RepositoryFile>& files,
                                                        const ModelName& name) {
  if (!name.file.empty()) return SelectGguf(files, name);
  // quired reads model.safetensors alone if it exists, otherwise the index and the shards.
  const bool is_single = Has(files, kSingleFile);
  if (!is_single && !Has(files, kIndexFile)) return NoWeights(files, name);
  std::vector<RepositoryFile> selected;
  for (const RepositoryFile& file : files) {
    const bool is_weights = is_single ? file.name == kSingleFile : IsShard(file.name);
    if (is_weights || IsTopFile(file.name) || IsNestedFile(file.name)) selected.push_back(file);
  }
  return selected;
}

}  // namespace quire::hub

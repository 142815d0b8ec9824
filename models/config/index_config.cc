#include "models/config/index_config.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/config/config_reader.h"
#include "models/config/family.h"
#include "models/config/model_config.h"

namespace quire::models {
namespace {

// Returns indexer_types, or index_topk_pattern translated to the values of indexer_types. Sets *key
// to the key that was read. The result is empty if neither key is given.
absl::StatusOr<std::vector<std::string>> ReadTypes(const ConfigReader& reader,
                                                   absl::string_view* key) {
  *key = "indexer_types";
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::string>> types,
                         reader.OptionalStrings(*key));
  if (types) return *types;
  *key = "index_topk_pattern";
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::string> pattern, reader.OptionalString(*key));
  std::vector<std::string> words;
  for (const char letter : pattern.value_or("")) {
    words.push_back(letter == 'F' ? "full" : letter == 'S' ? "shared" : std::string(1, letter));
  }
  return words;
}

absl::StatusOr<std::vector<bool>> HasIndexerFromTypes(const ConfigReader& reader,
                                                      absl::string_view key,
                                                      const std::vector<std::string>& types,
                                                      std::uint32_t num_layers) {
  QUIRE_RETURN_IF_ERROR(reader.CheckLength(key, types.size(), num_layers));
  std::vector<bool> has_indexer;
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "full" && types[i] != "shared") {
      return reader.Error(key, absl::StrCat("has \"", types[i], "\" for layer ", i,
                                            ", it must be \"full\" or \"shared\" (F or S)"));
    }
    has_indexer.push_back(types[i] == "full");
  }
  if (has_indexer.front()) return has_indexer;
  return reader.Error(key, "begins with a layer that shares a selection, but no layer precedes it");
}

absl::StatusOr<std::vector<bool>> ReadHasIndexer(const ConfigReader& reader, const Family& family,
                                                 std::uint32_t num_layers) {
  if (!ReadsKey(family, "indexer_types")) return std::vector<bool>(num_layers, true);
  absl::string_view key;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::string> types, ReadTypes(reader, &key));
  if (!types.empty()) return HasIndexerFromTypes(reader, key, types, num_layers);
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t period,
                         reader.CountOr("index_topk_freq", 1, kMaxLayers, 1));
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t offset,
                         reader.CountOr("index_skip_topk_offset", 0, kMaxLayers, 2));
  std::vector<bool> has_indexer;
  for (std::int64_t i = 0; i < num_layers; ++i) {
    has_indexer.push_back(std::max<std::int64_t>(i - offset + 1, 0) % period == 0);
  }
  if (has_indexer.front()) return has_indexer;
  return reader.Error("index_skip_topk_offset",
                      "is 0, it must be at least 1: the first layer needs its own indexer");
}

}  // namespace

absl::StatusOr<IndexConfig> ReadIndex(const ConfigReader& reader, const Family& family,
                                      std::uint32_t num_layers) {
  IndexConfig index;
  if (!ReadsKey(family, "index_topk")) return index;
  const ConfigDefaults& defaults = family.defaults;
  QUIRE_ASSIGN_OR_RETURN(index.topk, reader.CountOr("index_topk", 1, kMaxPositions, 2048));
  QUIRE_ASSIGN_OR_RETURN(index.n_heads,
                         reader.CountOr("index_n_heads", 1, kMaxHeads, defaults.index_n_heads));
  QUIRE_ASSIGN_OR_RETURN(index.head_dim, reader.CountOr("index_head_dim", 1, kMaxHeadDim, 128));
  QUIRE_ASSIGN_OR_RETURN(index.rope_interleave, reader.BoolOr("indexer_rope_interleave",
                                                              defaults.indexer_rope_interleave));
  QUIRE_ASSIGN_OR_RETURN(index.has_indexer, ReadHasIndexer(reader, family, num_layers));
  return index;
}

}  // namespace quire::models

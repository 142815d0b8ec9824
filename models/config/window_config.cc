#include "models/config/window_config.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "models/config/family.h"

namespace quire::models {
namespace {

// Default of max_window_layers.
constexpr std::uint32_t kDefaultMaxWindowLayers = 28;

// Returns the window in tokens, or 0 if the configuration disables windows.
absl::StatusOr<std::uint32_t> ReadWidth(const ConfigReader& reader, const Family& family) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> width,
                         reader.OptionalInteger("sliding_window", 1, kMaxPositions));
  if (ReadsKey(family, "use_sliding_window")) {
    QUIRE_ASSIGN_OR_RETURN(const bool use, reader.BoolOr("use_sliding_window", false));
    if (!use) return 0;
  }
  if (width) return static_cast<std::uint32_t>(*width);
  return reader.Has("sliding_window") ? 0 : family.defaults.sliding_window;
}

// Reads sliding_window_pattern, which has two names.
absl::StatusOr<std::int64_t> ReadPattern(const ConfigReader& reader, const Family& family) {
  constexpr std::int64_t kMax = kMaxLayers + 1;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> pattern,
                         reader.OptionalInteger("sliding_window_pattern", 1, kMax));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> other,
                         reader.OptionalInteger("_sliding_window_pattern", 1, kMax));
  if (pattern && other && *pattern != *other) {
    return reader.Error("sliding_window_pattern",
                        absl::StrCat("is ", *pattern, ", but _sliding_window_pattern is ", *other));
  }
  return pattern ? *pattern : other.value_or(family.defaults.sliding_window_pattern);
}

// Returns the layers that have a window by the family's rule.
absl::StatusOr<std::vector<bool>> ApplyWindowRule(const ConfigReader& reader, const Family& family,
                                                  std::uint32_t num_layers,
                                                  const std::vector<bool>& rope_layers) {
  std::int64_t pattern = family.defaults.sliding_window_pattern;
  if (family.windows == WindowRule::kPattern) {
    QUIRE_ASSIGN_OR_RETURN(pattern, ReadPattern(reader, family));
  }
  std::vector<bool> windowed = WindowedByRule(family.windows, num_layers, pattern);
  if (family.windows == WindowRule::kFromLayer) {
    QUIRE_ASSIGN_OR_RETURN(
        const std::uint32_t first,
        reader.CountOr("max_window_layers", 0, kMaxPositions, kDefaultMaxWindowLayers));
    for (std::uint32_t i = 0; i < num_layers; ++i) windowed[i] = i >= first;
  } else if (family.windows == WindowRule::kNoRope) {
    for (std::size_t i = 0; i < rope_layers.size(); ++i) windowed[i] = !rope_layers[i];
  }
  return windowed;
}

// Reads layer_types: true for the layers of type `special`, false for full attention. An empty
// `special` stands for no such type. Returns nullopt if the key is absent or null.
absl::StatusOr<std::optional<std::vector<bool>>> ReadLayerTypes(const ConfigReader& reader,
                                                                const Family& family,
                                                                std::uint32_t num_layers,
                                                                absl::string_view special) {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::string>> types,
                         reader.OptionalStrings("layer_types"));
  if (!types) return std::optional<std::vector<bool>>();
  QUIRE_RETURN_IF_ERROR(reader.CheckLength("layer_types", types->size(), num_layers));
  std::vector<bool> is_special;
  for (std::size_t i = 0; i < types->size(); ++i) {
    const std::string& type = (*types)[i];
    is_special.push_back(!special.empty() && type == special);
    if (!is_special.back() && type != "full_attention" && type != "attention") {
      return absl::UnimplementedError(absl::StrCat(
          reader.label(), ": layer_types[", i, "] \"", type, "\" is not supported by ", family.name,
          " (supported: full_attention", special.empty() ? "" : ", ", special, ")"));
    }
  }
  return std::optional(std::move(is_special));
}

// True if layer_types has chunks instead of windows.
bool HasChunks(const Family& family) {
  return ReadsKey(family, "attention_chunk_size");
}

}  // namespace

std::vector<bool> WindowedByRule(WindowRule rule, std::uint32_t num_layers, std::int64_t pattern) {
  const bool all = rule == WindowRule::kAll || rule == WindowRule::kEvery;
  std::vector<bool> windowed(num_layers, all);
  for (std::uint32_t i = 0; i < num_layers; ++i) {
    if (rule == WindowRule::kEven) windowed[i] = i % 2 == 0;
    if (rule == WindowRule::kPattern) windowed[i] = (i + 1) % pattern != 0;
  }
  return windowed;
}

absl::StatusOr<std::vector<std::uint32_t>> ReadWindows(const ConfigReader& reader,
                                                       const Family& family,
                                                       std::uint32_t num_layers,
                                                       const std::vector<bool>& rope_layers) {
  std::optional<std::vector<bool>> windowed;
  if (family.windows != WindowRule::kAll && !HasChunks(family) && family.layer_types.empty()) {
    const absl::string_view sliding =
        family.windows == WindowRule::kNone ? "" : "sliding_attention";
    QUIRE_ASSIGN_OR_RETURN(windowed, ReadLayerTypes(reader, family, num_layers, sliding));
  }
  if (family.windows == WindowRule::kNone) return std::vector<std::uint32_t>();
  QUIRE_ASSIGN_OR_RETURN(const std::uint32_t width, ReadWidth(reader, family));
  const bool from_types = windowed.has_value();
  if (!from_types) {
    QUIRE_ASSIGN_OR_RETURN(windowed, ApplyWindowRule(reader, family, num_layers, rope_layers));
  }
  const bool any = std::find(windowed->begin(), windowed->end(), true) != windowed->end();
  // The window is 0 here if a flag disables windows or the key is null.
  const bool must_have_width =
      from_types || family.windows == WindowRule::kEven || family.windows == WindowRule::kPattern;
  if (any && width == 0 && must_have_width) {
    return reader.Error("sliding_window", absl::StrCat("is null or turned off, but ",
                                                       from_types ? "layer_types" : family.name,
                                                       " has windowed layers"));
  }
  std::vector<std::uint32_t> windows;
  if (!any || width == 0) return windows;
  for (const bool has_window : *windowed) windows.push_back(has_window ? width : 0);
  return windows;
}

absl::StatusOr<std::vector<std::uint32_t>> ReadChunks(const ConfigReader& reader,
                                                      const Family& family,
                                                      std::uint32_t num_layers,
                                                      const std::vector<bool>& rope_layers) {
  std::vector<std::uint32_t> chunks;
  if (!HasChunks(family)) return chunks;
  constexpr absl::string_view kKey = "attention_chunk_size";
  QUIRE_ASSIGN_OR_RETURN(std::optional<std::vector<bool>> chunked,
                         ReadLayerTypes(reader, family, num_layers, "chunked_attention"));
  if (!chunked) chunked = rope_layers;
  QUIRE_ASSIGN_OR_RETURN(
      const std::uint32_t chunk,
      reader.CountOr(kKey, 1, kMaxPositions, family.defaults.attention_chunk_size));
  const bool any = std::find(chunked->begin(), chunked->end(), true) != chunked->end();
  if (any && reader.IsNull(kKey)) {
    return reader.Error(kKey,
                        absl::StrCat("is null, but ", family.name, " has layers with chunks"));
  }
  for (const bool has_chunk : *chunked) chunks.push_back(has_chunk ? chunk : 0);
  return chunks;
}

}  // namespace quire::models

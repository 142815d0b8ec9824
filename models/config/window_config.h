#pragma once

// The sliding windows of a model's layers, read from config.json.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "models/config/config_reader.h"

namespace quire::models {

struct Family;

// Selects the windowed layers of files without layer_types. i counts layers from 0. A null
// sliding_window means no windows.
enum class WindowRule : std::uint8_t {
  kNone,       // no windows: sliding_window is not read
  kAll,        // every layer; layer_types is not read
  kEvery,      // every layer
  kFromLayer,  // only with use_sliding_window: layers i >= max_window_layers
  kNoRope,     // only with use_sliding_window: layers without rope
  kEven,       // i even
  kPattern,    // all but every sliding_window_pattern-th: (i + 1) % pattern != 0
};

// Returns which of `num_layers` layers have a window by kAll, kEvery, kEven or kPattern. The other
// rules need more inputs, so they give false for all layers.
std::vector<bool> WindowedByRule(WindowRule rule, std::uint32_t num_layers, std::int64_t pattern);

// Default of sliding_window_pattern in most families.
inline constexpr std::int64_t kDefaultWindowPattern = 6;

// Returns the window of each of `num_layers` layers, 0 for full attention; empty if no layer has a
// window. `rope_layers` is ModelConfig::rope_layers. Returns INVALID_ARGUMENT that names the key if
// layer_types does not have num_layers entries. Returns INVALID_ARGUMENT if layer_types, kEven or
// kPattern demand windows, but sliding_window is null or disabled. Returns UNIMPLEMENTED for other
// kinds of layers.
absl::StatusOr<std::vector<std::uint32_t>> ReadWindows(const ConfigReader& reader,
                                                       const Family& family,
                                                       std::uint32_t num_layers,
                                                       const std::vector<bool>& rope_layers);

// Returns the chunk of each of `num_layers` layers, 0 for full attention; empty if the family does
// not read attention_chunk_size. Without layer_types the layers with rope have chunks. Errors are
// those of ReadWindows.
absl::StatusOr<std::vector<std::uint32_t>> ReadChunks(const ConfigReader& reader,
                                                      const Family& family,
                                                      std::uint32_t num_layers,
                                                      const std::vector<bool>& rope_layers);

}  // namespace quire::models

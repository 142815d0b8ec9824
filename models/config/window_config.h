#pragma once

// Which layers of a model see a window of the last tokens only, from the keys of a config.json.

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "models/config/config_reader.h"

namespace quire::models {

struct Family;

// Where windows lie when layer_types does not say. i counts layers from 0; a sliding_window that is
// null means none.
enum class WindowRule : std::uint8_t {
  kNone,       // no windows: sliding_window is not read
  kAll,        // every layer; layer_types is not read
  kEvery,      // every layer
  kFromLayer,  // only with use_sliding_window: layers i >= max_window_layers
  kNoRope,     // only with use_sliding_window: layers that do not rotate
  kEven,       // i even
  kPattern,    // all but every sliding_window_pattern-th: (i + 1) % pattern != 0
};

// Which of `num_layers` layers have a window by a rule that needs no more than `pattern`: kAll,
// kEvery, kEven and kPattern; by the others none has.
std::vector<bool> WindowedByRule(WindowRule rule, std::uint32_t num_layers, std::int64_t pattern);

// What `pattern` is when no key says.
inline constexpr std::int64_t kDefaultWindowPattern = 6;

// The window of each of `num_layers` layers, 0 for full attention; empty when no layer has one.
// `rope_layers` as ModelConfig::rope_layers. Returns INVALID_ARGUMENT that names the key when
// layer_types is of another length or asks for windows that no key gives; UNIMPLEMENTED for another
// kind of layer.
absl::StatusOr<std::vector<std::uint32_t>> ReadWindows(const ConfigReader& reader,
                                                       const Family& family,
                                                       std::uint32_t num_layers,
                                                       const std::vector<bool>& rope_layers);

}  // namespace quire::models

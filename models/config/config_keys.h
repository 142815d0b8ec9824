#pragma once

// What is done with the keys of a config.json that no reader asks for.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/config/config_reader.h"

namespace quire::models {

struct Family;

// Keys beside text_config that are about other kinds of input than text.
inline constexpr absl::string_view kOtherInputKeys[] = {"vision_config", "boi_token_index",
                                                        "eoi_token_index", "image_token_index",
                                                        "mm_tokens_per_image"};

// What becomes of a key of a config.json.
enum class KeyUse : std::uint8_t {
  kRead,
  kIgnored,  // does not matter for inference, or has a value under which it does not
  kUnknown,  // not known at all; named in a warning
  kRefused,  // would change what is computed
};
struct ConfigKey {
  std::string key;
  std::string value;  // as JSON text
  KeyUse use;
};
// All keys at the top of a config.json, sorted; of a family whose keys lie in text_config those,
// too, with their path.
std::vector<ConfigKey> ListKeys(const ConfigReader& reader, const Family& family);

// Refuses keys that would change the mathematics in another family, unless their value is neutral
// (null, false, and per key 0, 1 or the like), and unless `family` lists them in Family::keys;
// skips keys that do not matter for inference; names the others in one warning.
absl::Status CheckForeignKeys(const ConfigReader& reader, const Family& family,
                              std::vector<std::string>* warnings);

}  // namespace quire::models

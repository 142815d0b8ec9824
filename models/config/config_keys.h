#pragma once

// Classifies the keys of config.json: read, ignored, unknown (named in a warning) or refused.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "models/config/config_reader.h"

namespace quire::models {

struct Family;

// Keys next to text_config that describe inputs other than text.
inline constexpr absl::string_view kOtherInputKeys[] = {
    "audio_config",         "audio_token_id", "boa_token_id",        "boi_token_id",
    "boi_token_index",      "eoa_token_id",   "eoa_token_index",     "eoi_token_id",
    "eoi_token_index",      "image_token_id", "image_token_index",   "mm_tokens_per_image",
    "video_token_id",       "vision_config",  "vision_end_token_id", "vision_soft_tokens_per_image",
    "vision_start_token_id"};

// How a key of config.json is treated.
enum class KeyUse : std::uint8_t {
  kRead,
  kIgnored,  // has no effect on inference, or has a value without effect
  kUnknown,  // named in a warning
  kRefused,  // would change the computation
};
struct ConfigKey {
  std::string key;
  std::string value;  // as JSON text
  KeyUse use;
};
// Returns all top-level keys, sorted. Includes the keys of text_config, with their path, if the
// family reads text_config.
std::vector<ConfigKey> ListKeys(const ConfigReader& reader, const Family& family);

// Refuses a key that changes the computation of some family, unless `family` lists it in
// Family::keys or its value is neutral. The neutral values are null, false and those that
// config_keys.cc lists for the key, such as 0 or 1. Ignores keys without effect on inference. Names
// all unknown keys in one warning.
absl::Status CheckConfigKeys(const ConfigReader& reader, const Family& family,
                             std::vector<std::string>* warnings);

}  // namespace quire::models

#pragma once

// Rotation frequencies of rotary position embeddings. All scaling is done here, at load: kernels
// see a table and know nothing of scaling kinds.
//
//   angle = float(p) * inv_freq[i];  cos and sin of it times attention_factor
//
// Source: the functions of Hugging Face transformers, modeling_rope_utils.py, whose order of
// float32 operations is kept (exponent, power, reciprocal), so that tables agree to a rounding.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::models {

// f_i = theta^(-2i/r) for r rotated columns, and what becomes of it:
enum class RopeKind : std::uint8_t {
  kDefault,  // f_i
  kLinear,   // f_i / factor
  kDynamic,  // f_i up to the trained length; longer contexts are refused, since a base that moves
             // with the length would contradict cached keys
  kLlama3,   // f_i / factor for long wavelengths, f_i for short ones, a linear blend between
  kYarn,     // a ramp from f_i / factor to f_i over the dimensions
  // f_i divided by the i-th of one of two lists of factors. One list is chosen when a model is
  // loaded: long_factors iff the configured context exceeds the original length. transformers
  // chooses anew for each pass, which would contradict cached keys.
  kLongrope,
};

absl::string_view RopeKindName(RopeKind kind);  // as config.json spells it

// Checked values of config.json's rope_scaling or rope_parameters, or of a GGUF file's keys.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000;
  double factor = 1;                        // of kLongrope enters the attention factor only
  double low_freq_factor = 0;               // kLlama3
  double high_freq_factor = 0;              // kLlama3
  std::uint32_t original_max_position = 0;  // kLlama3, kYarn, kLongrope
  double beta_fast = 32;                    // kYarn from here on
  double beta_slow = 1;
  bool truncate = true;
  std::optional<double> attention_factor;  // of kLongrope, too
  std::optional<double> mscale;
  std::optional<double> mscale_all_dim;
  // [rotary_size / 2], with kDefault only: f_i is divided by the i-th; empty: none. GGUF files
  // state kLlama3 so.
  std::vector<float> factors;
  std::vector<double> short_factors;  // kLongrope: [rotary_size / 2] each
  std::vector<double> long_factors;
  bool uses_long_factors = false;  // ReadModelSpec's choice
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct RopeTable {
  std::vector<float> inv_freq;  // [rotary_size / 2]
  float attention_factor = 1;
  friend bool operator==(const RopeTable&, const RopeTable&) = default;
};

// REQUIRES: `config` passed ReadModelConfig's checks. Returns INVALID_ARGUMENT when rotary_size is
// odd or 0, a list of factors is of another size, or an entry is not finite.
absl::StatusOr<RopeTable> BuildRopeTable(const RopeConfig& config, std::uint32_t rotary_size);

}  // namespace quire::models

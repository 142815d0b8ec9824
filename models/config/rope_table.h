#pragma once

// Rotation frequencies of rotary position embeddings. All scaling is applied here, at load time, so
// kernels read a table and do not depend on the kind of scaling.
//
//   angle = float(p) * inv_freq[i];  attention_factor multiplies its cos and sin
//
// Source: modeling_rope_utils.py of Hugging Face transformers. The order of float32 operations is
// the same (exponent, power, reciprocal), so tables agree up to rounding.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::models {

// The frequency of pair i, where f_i = theta^(-2i/r) for r rotated columns.
enum class RopeKind : std::uint8_t {
  kDefault,  // f_i
  kLinear,   // f_i / factor
  // f_i up to the trained length. Longer contexts are refused, because their theta depends on the
  // length, so cached keys would become wrong.
  kDynamic,
  // f_i / factor for long wavelengths, f_i for short ones, a linear blend for medium ones. If
  // low_freq_factor equals high_freq_factor, no wavelength is medium.
  kLlama3,
  kYarn,  // a ramp from f_i / factor to f_i over the dimensions
  // f_i divided by the i-th factor of one of two lists. The list is chosen when the model is
  // loaded: long_factors iff the configured context exceeds the original length. transformers
  // chooses for each forward pass, which would make cached keys wrong.
  kLongrope,
  kProportional,  // f_i / factor for the first pairs, a share `partial` of all pairs; 0 for others
};

absl::string_view RopeKindName(RopeKind kind);  // as config.json spells it

// Checked values of config.json's rope_scaling or rope_parameters, or of a GGUF file's keys.
struct RopeConfig {
  RopeKind kind = RopeKind::kDefault;
  double theta = 10000;
  double factor = 1;                        // kLongrope uses it in the attention factor only
  double partial = 1;                       // kProportional: share of the pairs that rotate
  double low_freq_factor = 0;               // kLlama3
  double high_freq_factor = 0;              // kLlama3
  std::uint32_t original_max_position = 0;  // kLlama3, kYarn, kLongrope
  double beta_fast = 32;                    // kYarn
  double beta_slow = 1;                     // kYarn
  bool truncate = true;                     // kYarn
  std::optional<double> attention_factor;   // kYarn and kLongrope
  std::optional<double> mscale;             // kYarn
  std::optional<double> mscale_all_dim;     // kYarn
  // [rotary_size / 2], kDefault only: f_i is divided by factors[i]; empty: no factors. This is how
  // GGUF files store kLlama3.
  std::vector<float> factors;
  std::vector<double> short_factors;  // kLongrope: [rotary_size / 2] each
  std::vector<double> long_factors;
  bool uses_long_factors = false;  // set by ReadModelSpec
  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

struct RopeTable {
  std::vector<float> inv_freq;  // [rotary_size / 2]
  float attention_factor = 1;
  friend bool operator==(const RopeTable&, const RopeTable&) = default;
};

// Returns INVALID_ARGUMENT if rotary_size is odd or 0, a list of factors has another size, or an
// entry is not finite. REQUIRES: ReadModelConfig accepted `config`.
absl::StatusOr<RopeTable> BuildRopeTable(const RopeConfig& config, std::uint32_t rotary_size);

}  // namespace quire::models

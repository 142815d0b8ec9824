#include "models/config/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quire::models {
namespace {

// Computes theta^(2i/r) in float32: the exponent first, then the power.
std::vector<float> PositionPowers(double theta, std::uint32_t rotary_size) {
  std::vector<float> powers(rotary_size / 2);
  for (std::size_t i = 0; i < powers.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rotary_size);
    powers[i] = std::pow(static_cast<float>(theta), exponent);
  }
  return powers;
}

// Scales long wavelengths, keeps short ones and interpolates between them.
float Llama3Frequency(const RopeConfig& config, float frequency) {
  const float length = static_cast<float>(config.original_max_position);
  const float low = static_cast<float>(config.low_freq_factor);
  const float high = static_cast<float>(config.high_freq_factor);
  const float factor = static_cast<float>(config.factor);
  const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
  if (wavelength > length / low) return frequency / factor;
  if (wavelength < length / high || low == high) return frequency;
  const float smooth = (length / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / factor + smooth * frequency;
}

// Returns the dimension that makes `rotations` full turns over the trained length.
double YarnDimension(const RopeConfig& config, double rotations, std::uint32_t rotary_size) {
  return rotary_size * std::log(config.original_max_position / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(config.theta));
}

std::vector<float> YarnFrequencies(const RopeConfig& config, std::uint32_t rotary_size) {
  double low = YarnDimension(config, config.beta_fast, rotary_size);
  double high = YarnDimension(config, config.beta_slow, rotary_size);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(rotary_size) - 1);
  if (low == high) high += 0.001;
  const std::vector<float> powers = PositionPowers(config.theta, rotary_size);
  std::vector<float> frequencies(powers.size());
  for (std::size_t i = 0; i < powers.size(); ++i) {
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f,
        1.0f);
    const float kept = 1 - ramp;
    const float interpolated = 1.0f / (static_cast<float>(config.factor) * powers[i]);
    frequencies[i] = interpolated * (1 - kept) + 1.0f / powers[i] * kept;
  }
  return frequencies;
}

std::vector<float> ProportionalFrequencies(const RopeConfig& config, std::uint32_t rotary_size) {
  std::vector<float> frequencies = PositionPowers(config.theta, rotary_size);
  const double rotating = std::floor(config.partial * rotary_size / 2);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = static_cast<double>(i) < rotating
                         ? 1.0f / frequencies[i] / static_cast<float>(config.factor)
                         : 0.0f;
  }
  return frequencies;
}

// Computes 1 / (factor_i * theta^(2i/r)) in float32.
std::vector<float> LongropeFrequencies(const RopeConfig& config, std::uint32_t rotary_size) {
  const std::vector<double>& factors =
      config.uses_long_factors ? config.long_factors : config.short_factors;
  std::vector<float> frequencies = PositionPowers(config.theta, rotary_size);
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = 1.0f / (static_cast<float>(factors[i]) * frequencies[i]);
  }
  return frequencies;
}

double LongropeAttentionFactor(const RopeConfig& config) {
  if (config.attention_factor) return *config.attention_factor;
  if (config.factor <= 1) return 1;
  const double original = config.original_max_position;
  return std::sqrt(1 + std::log(config.factor) / std::log(original));
}

double YarnMscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

double YarnAttentionFactor(const RopeConfig& config) {
  if (config.attention_factor) return *config.attention_factor;
  const double mscale = config.mscale.value_or(0);
  const double mscale_all_dim = config.mscale_all_dim.value_or(0);
  if (mscale != 0 && mscale_all_dim != 0) {
    return YarnMscale(config.factor, mscale) / YarnMscale(config.factor, mscale_all_dim);
  }
  return YarnMscale(config.factor, 1);
}

}  // namespace

absl::string_view RopeKindName(RopeKind kind) {
  constexpr absl::string_view kNames[] = {"default", "linear",   "dynamic",     "llama3",
                                          "yarn",    "longrope", "proportional"};
  return kNames[static_cast<std::size_t>(kind)];
}

absl::StatusOr<RopeTable> BuildRopeTable(const RopeConfig& config, std::uint32_t rotary_size) {
  if (rotary_size == 0 || rotary_size % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rotary size is ", rotary_size, ", it must be even and at least 2"));
  }
  const bool is_longrope = config.kind == RopeKind::kLongrope;
  for (const auto& [has, count] : {std::pair{!config.factors.empty(), config.factors.size()},
                                   {is_longrope, config.short_factors.size()},
                                   {is_longrope, config.long_factors.size()}}) {
    if (!has || count == rotary_size / 2) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", count, " rope factors, there must be ", rotary_size / 2));
  }
  RopeTable table;
  if (config.kind == RopeKind::kYarn) {
    table.inv_freq = YarnFrequencies(config, rotary_size);
    table.attention_factor = static_cast<float>(YarnAttentionFactor(config));
  } else if (config.kind == RopeKind::kProportional) {
    table.inv_freq = ProportionalFrequencies(config, rotary_size);
  } else if (is_longrope) {
    table.inv_freq = LongropeFrequencies(config, rotary_size);
    table.attention_factor = static_cast<float>(LongropeAttentionFactor(config));
  } else {
    table.inv_freq = PositionPowers(config.theta, rotary_size);
    for (float& value : table.inv_freq) {
      value = 1.0f / value;
      if (config.kind == RopeKind::kLinear) value /= static_cast<float>(config.factor);
      if (config.kind == RopeKind::kLlama3) value = Llama3Frequency(config, value);
    }
  }
  for (std::size_t i = 0; i < config.factors.size(); ++i) table.inv_freq[i] /= config.factors[i];
  for (std::size_t i = 0; i < table.inv_freq.size(); ++i) {
    if (!std::isfinite(table.inv_freq[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("rope frequency ", i, " of ", table.inv_freq.size(), " is ",
                       table.inv_freq[i], " with theta ", config.theta, ", it must be finite"));
    }
  }
  if (!std::isfinite(table.attention_factor)) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope attention factor is ", table.attention_factor, ", it must be finite"));
  }
  return table;
}

}  // namespace quire::models

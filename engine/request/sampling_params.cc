#include "engine/request/sampling_params.h"

#include <cmath>
#include <limits>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/error_reason.h"
#include "base/status.h"
#include "base/utf8.h"

namespace quire::engine {
namespace {

constexpr std::int32_t kMaxStopTokenIds = 64;

absl::Status OutOfRangeError(Reason reason, absl::string_view field, absl::string_view value,
                             absl::string_view range) {
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", must be in ", range)),
      reason,
      {{"field", std::string(field)},
       {"value", std::string(value)},
       {"range", std::string(range)}});
}

// If `low_open` is set, the lower end is not in the range. NaN and infinities are in no range.
absl::Status CheckFloat(absl::string_view field, float value, float low, float high,
                        bool low_open = false) {
  const bool inside =
      std::isfinite(value) && value <= high && (low_open ? value > low : value >= low);
  if (inside) return absl::OkStatus();
  return OutOfRangeError(Reason::kBadSamplingParam, field, absl::StrCat(value),
                         absl::StrCat(low_open ? "(" : "[", low, ", ", high, "]"));
}

absl::Status CheckInt(Reason reason, absl::string_view field, std::int64_t value, std::int64_t low,
                      std::int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return OutOfRangeError(reason, field, absl::StrCat(value),
                         absl::StrCat("[", low, ", ", high, "]"));
}

// `beginning` is the part of the message between the field and the token.
absl::Status CheckTokenId(absl::string_view field, absl::string_view beginning,
                          std::size_t position, std::int32_t token, std::int32_t vocab_size) {
  if (token >= 0 && token < vocab_size) return absl::OkStatus();
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat(field, beginning, " token id ", token,
                                              ", the vocabulary has ", vocab_size, " tokens")),
      Reason::kBadTokenId,
      {{"field", std::string(field)},
       {"token_id", absl::StrCat(token)},
       {"position", absl::StrCat(position)},
       {"vocab_size", absl::StrCat(vocab_size)}});
}

absl::Status CheckLogitBias(const SamplingParams& params, const ParamLimits& limits) {
  constexpr absl::string_view kField = "sampling.logit_bias";
  if (params.logit_bias.size() > static_cast<std::size_t>(limits.max_logit_bias_entries)) {
    return OutOfRangeError(Reason::kBadSamplingParam, kField,
                           absl::StrCat(params.logit_bias.size(), " entries"),
                           absl::StrCat("[0, ", limits.max_logit_bias_entries, "] entries"));
  }
  absl::flat_hash_set<std::int32_t> seen;
  for (std::size_t i = 0; i < params.logit_bias.size(); ++i) {
    const auto& [token, bias] = params.logit_bias[i];
    QUIRE_RETURN_IF_ERROR(CheckTokenId(kField, " has", i, token, limits.vocab_size));
    QUIRE_RETURN_IF_ERROR(CheckFloat(absl::StrCat(kField, "[", token, "]"), bias, -100, 100));
    if (!seen.insert(token).second) {
      return WithReason(absl::InvalidArgumentError(absl::StrCat(kField, " has token id ", token,
                                                                " twice, ids must be distinct")),
                        Reason::kBadSamplingParam,
                        {{"field", std::string(kField)},
                         {"value", absl::StrCat("token ", token, " twice")},
                         {"range", "distinct token ids"}});
    }
  }
  return absl::OkStatus();
}

absl::Status CheckAllowedTokens(const SamplingParams& params, const ParamLimits& limits) {
  constexpr absl::string_view kField = "sampling.allowed_token_ids";
  const std::vector<std::int32_t>& ids = params.allowed_token_ids;
  if (ids.size() > static_cast<std::size_t>(limits.vocab_size)) {
    return OutOfRangeError(Reason::kBadSamplingParam, kField, absl::StrCat(ids.size(), " ids"),
                           absl::StrCat("[0, ", limits.vocab_size, "] ids"));
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(CheckTokenId(kField, " has", i, ids[i], limits.vocab_size));
  }
  return absl::OkStatus();
}

absl::Status CheckEncoding(const std::string& field, absl::string_view text) {
  const auto offset = FirstInvalidUtf8(text);
  if (!offset.has_value()) return absl::OkStatus();
  return WithReason(
      absl::InvalidArgumentError(absl::StrCat(field, " is not UTF-8 at byte ", *offset)),
      Reason::kBadUtf8, {{"field", field}, {"byte_offset", absl::StrCat(*offset)}});
}

absl::Status CheckStrings(absl::string_view list, const std::vector<std::string>& strings) {
  constexpr std::size_t kMaxStrings = 64;
  constexpr std::size_t kMaxBytes = 256;
  if (strings.size() > kMaxStrings) {
    return OutOfRangeError(Reason::kBadSamplingParam, list,
                           absl::StrCat(strings.size(), " strings"),
                           absl::StrCat("[0, ", kMaxStrings, "] strings"));
  }
  for (std::size_t i = 0; i < strings.size(); ++i) {
    const std::string field = absl::StrCat(list, "[", i, "]");
    if (strings[i].empty() || strings[i].size() > kMaxBytes) {
      return OutOfRangeError(Reason::kBadSamplingParam, field,
                             absl::StrCat(strings[i].size(), " bytes"),
                             absl::StrCat("[1, ", kMaxBytes, "] bytes"));
    }
    QUIRE_RETURN_IF_ERROR(CheckEncoding(field, strings[i]));
  }
  return absl::OkStatus();
}

absl::Status CheckDry(const DryParams& params) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int32_t>::max();
  constexpr Reason kReason = Reason::kBadSamplingParam;
  QUIRE_RETURN_IF_ERROR(CheckFloat("sampling.dry_multiplier", params.multiplier, 0, 100));
  QUIRE_RETURN_IF_ERROR(CheckFloat("sampling.dry_base", params.base, 1, 100));
  QUIRE_RETURN_IF_ERROR(
      CheckInt(kReason, "sampling.dry_allowed_length", params.allowed_length, 1, kMax));
  QUIRE_RETURN_IF_ERROR(
      CheckInt(kReason, "sampling.dry_window_tokens", params.window_tokens, 0, kMax));
  return CheckStrings("sampling.dry_sequence_breakers", params.breakers);
}

absl::Status CheckStops(const StoppingParams& params, const ParamLimits& limits) {
  const auto max_bytes = static_cast<std::size_t>(limits.max_stop_bytes);
  const auto stop_error = [&](absl::string_view field, absl::string_view problem, std::size_t count,
                              std::int64_t max_count) {
    return WithReason(absl::InvalidArgumentError(absl::StrCat(field, problem)),
                      Reason::kTooManyStops,
                      {{"field", std::string(field)},
                       {"count", absl::StrCat(count)},
                       {"max_count", absl::StrCat(max_count)},
                       {"max_bytes", absl::StrCat(limits.max_stop_bytes)}});
  };
  if (params.stop.size() > static_cast<std::size_t>(limits.max_stop_sequences)) {
    return stop_error("stopping.stop",
                      absl::StrCat(" has ", params.stop.size(), " strings, the limit is ",
                                   limits.max_stop_sequences),
                      params.stop.size(), limits.max_stop_sequences);
  }
  for (std::size_t i = 0; i < params.stop.size(); ++i) {
    const std::string& stop = params.stop[i];
    if (stop.empty() || stop.size() > max_bytes) {
      return stop_error(
          "stopping.stop",
          absl::StrCat("[", i, "] has ", stop.size(), " bytes, must be in [1, ", max_bytes, "]"),
          params.stop.size(), limits.max_stop_sequences);
    }
    QUIRE_RETURN_IF_ERROR(CheckEncoding(absl::StrCat("stopping.stop[", i, "]"), stop));
  }
  if (params.stop_token_ids.size() > kMaxStopTokenIds) {
    return stop_error("stopping.stop_token_ids",
                      absl::StrCat(" has ", params.stop_token_ids.size(), " ids, the limit is ",
                                   kMaxStopTokenIds),
                      params.stop_token_ids.size(), kMaxStopTokenIds);
  }
  for (std::size_t i = 0; i < params.stop_token_ids.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(CheckTokenId("stopping.stop_token_ids", absl::StrCat("[", i, "] is"), i,
                                       params.stop_token_ids[i], limits.vocab_size));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const SamplingParams& params, const ParamLimits& limits) {
  QUIRE_RETURN_IF_ERROR(CheckFloat("sampling.temperature", params.temperature, 0, 100));
  QUIRE_RETURN_IF_ERROR(CheckFloat("sampling.top_p", params.top_p, 0, 1, /*low_open=*/true));
  QUIRE_RETURN_IF_ERROR(
      CheckInt(Reason::kBadSamplingParam, "sampling.top_k", params.top_k, 0, 2147483647));
  QUIRE_RETURN_IF_ERROR(CheckFloat("sampling.min_p", params.min_p, 0, 1));
  QUIRE_RETURN_IF_ERROR(CheckFloat("sampling.top_n_sigma", params.top_n_sigma, 0, 100));
  QUIRE_RETURN_IF_ERROR(CheckFloat("sampling.xtc_probability", params.xtc_probability, 0, 1));
  QUIRE_RETURN_IF_ERROR(CheckFloat("sampling.xtc_threshold", params.xtc_threshold, 0, 1));
  QUIRE_RETURN_IF_ERROR(CheckFloat("sampling.repetition_penalty", params.repetition_penalty, 0, 10,
                                   /*low_open=*/true));
  QUIRE_RETURN_IF_ERROR(CheckFloat("sampling.presence_penalty", params.presence_penalty, -2, 2));
  QUIRE_RETURN_IF_ERROR(CheckFloat("sampling.frequency_penalty", params.frequency_penalty, -2, 2));
  QUIRE_RETURN_IF_ERROR(CheckInt(Reason::kBadSamplingParam, "sampling.choice_count",
                                 params.choice_count, 1, limits.max_choices));
  QUIRE_RETURN_IF_ERROR(CheckAllowedTokens(params, limits));
  QUIRE_RETURN_IF_ERROR(CheckStrings("sampling.banned_text", params.banned_text));
  QUIRE_RETURN_IF_ERROR(CheckDry(params.dry));
  return CheckLogitBias(params, limits);
}

absl::Status Validate(const StoppingParams& params, const ParamLimits& limits) {
  QUIRE_RETURN_IF_ERROR(CheckInt(Reason::kBadParameter, "stopping.max_tokens", params.max_tokens, 1,
                                 limits.max_tokens_per_request));
  QUIRE_RETURN_IF_ERROR(CheckInt(Reason::kBadParameter, "stopping.min_tokens", params.min_tokens, 0,
                                 params.max_tokens));
  return CheckStops(params, limits);
}

absl::Status Validate(const OutputParams& params, const ParamLimits& limits) {
  if (params.logprobs != -1) {
    QUIRE_RETURN_IF_ERROR(CheckInt(Reason::kBadParameter, "output.logprobs", params.logprobs, 0,
                                   limits.max_logprobs));
  }
  if (params.processed_logprobs && params.logprobs == -1) {
    return WithReason(absl::InvalidArgumentError(
                          "output.processed_logprobs is true, but output.logprobs is not set"),
                      Reason::kBadParameter, {{"field", "output.processed_logprobs"}});
  }
  if (params.prompt_logprobs != -1) {
    QUIRE_RETURN_IF_ERROR(CheckInt(Reason::kBadParameter, "output.prompt_logprobs",
                                   params.prompt_logprobs, 0, limits.max_logprobs));
  }
  QUIRE_RETURN_IF_ERROR(CheckInt(Reason::kBadParameter, "output.stream_interval_tokens",
                                 params.stream_interval_tokens, 1, 1024));
  return absl::OkStatus();
}

}  // namespace quire::engine

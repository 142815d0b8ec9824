#include "models/families/gguf_keys.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace quire::models {
namespace {

constexpr double kMaxFactor = 1e6;

}  // namespace

GgufKeys::GgufKeys(const formats::GgufFile& gguf, absl::string_view architecture)
    : gguf_(gguf), prefix_(absl::StrCat(architecture, ".")) {}

std::string GgufKeys::Name(absl::string_view key) const {
  return absl::StrCat(prefix_, key);
}

bool GgufKeys::Has(absl::string_view key) const {
  return gguf_.Has(Name(key));
}

const formats::GgufTensor* GgufKeys::LayerTensor(std::size_t layer, absl::string_view name) const {
  return gguf_.FindTensor(absl::StrCat("blk.", layer, ".", name));
}

absl::StatusOr<std::uint32_t> GgufKeys::Count(absl::string_view key, std::uint32_t high) const {
  QUIRE_ASSIGN_OR_RETURN(const std::int64_t count, gguf_.Integer(Name(key), 1, high));
  return static_cast<std::uint32_t>(count);
}

absl::StatusOr<std::uint32_t> GgufKeys::CountOr(absl::string_view key, std::uint32_t high,
                                                std::uint32_t fallback, std::uint32_t low) const {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> count,
                         gguf_.OptionalInteger(Name(key), low, high));
  return static_cast<std::uint32_t>(count.value_or(fallback));
}

absl::StatusOr<double> GgufKeys::Positive(absl::string_view key, double fallback) const {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> number, gguf_.OptionalNumber(Name(key)));
  if (number && (*number <= 0 || *number > kMaxFactor)) {
    return Error(key,
                 absl::StrCat("is ", *number, ", it must be above 0 and at most ", kMaxFactor));
  }
  return number.value_or(fallback);
}

absl::StatusOr<std::vector<std::uint32_t>> GgufKeys::PerBlock(absl::string_view key,
                                                              std::size_t num_blocks,
                                                              std::uint32_t high) const {
  std::vector<std::uint32_t> values;
  if (!Has(key)) return values;
  if (gguf_.TypeOf(Name(key)) != formats::GgufType::kArray) {
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t value, gguf_.Integer(Name(key), 0, high));
    values.assign(num_blocks, static_cast<std::uint32_t>(value));
    return values;
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::int32_t>> array,
                         gguf_.OptionalIntegers(Name(key)));
  const std::vector<std::int32_t> numbers = array.value_or(std::vector<std::int32_t>());
  if (numbers.size() != num_blocks) {
    return Error(key, absl::StrCat("has ", numbers.size(), " elements, ", Name("block_count"),
                                   " is ", num_blocks));
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::int32_t number = numbers[i];
    if (number < 0 || static_cast<std::uint32_t>(number) > high) {
      return Error(absl::StrCat(key, "[", i, "]"),
                   absl::StrCat("is ", number, ", it must be 0 to ", high));
    }
    values.push_back(static_cast<std::uint32_t>(number));
  }
  return values;
}

absl::StatusOr<std::uint32_t> GgufKeys::SameInBlocks(absl::string_view key, std::size_t num_blocks,
                                                     std::uint32_t high,
                                                     std::uint32_t fallback) const {
  if (!Has(key)) return fallback;
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::uint32_t> values, PerBlock(key, num_blocks, high));
  std::uint32_t common = 0;
  for (const std::uint32_t value : values) {
    if (value == 0 || value == common) continue;
    if (common != 0) {
      return Unsupported(key, absl::StrCat("with ", common, " and ", value),
                         "the same in all blocks");
    }
    common = value;
  }
  if (common == 0) return Error(key, absl::StrCat("is 0, it must be 1 to ", high));
  return common;
}

absl::Status GgufKeys::Error(absl::string_view key, absl::string_view problem) const {
  return gguf_.Error(Name(key), problem);
}

absl::Status GgufKeys::Unsupported(absl::string_view key, absl::string_view value,
                                   absl::string_view supported) const {
  return absl::UnimplementedError(absl::StrCat(gguf_.label(), ": ", Name(key), " ", value,
                                               " is not supported (supported: ", supported, ")"));
}

}  // namespace quire::models

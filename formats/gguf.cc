#include "formats/gguf.h"

#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status.h"
#include "base/utf8.h"

namespace quire::formats {
namespace {

constexpr std::uint32_t kMaxRank = 4;
constexpr std::uint64_t kMaxNameBytes = 63;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::int64_t kMaxAlignment = std::int64_t{1} << 20;
constexpr char kAlignmentKey[] = "general.alignment";

// The value types in the order of GgufType. Strings and arrays have no fixed size.
constexpr struct {
  absl::string_view name;
  std::uint64_t bytes;
} kTypes[] = {{"uint8", 1},  {"int8", 1},    {"uint16", 2}, {"int16", 2},  {"uint32", 4},
              {"int32", 4},  {"float32", 4}, {"bool", 1},   {"string", 0}, {"array", 0},
              {"uint64", 8}, {"int64", 8},   {"float64", 8}};

// Returns the size of a scalar; 0 for types without a fixed size.
std::uint64_t ScalarBytes(GgufType type) {
  return kTypes[static_cast<std::size_t>(type)].bytes;
}

absl::string_view TypeName(GgufType type) {
  return kTypes[static_cast<std::size_t>(type)].name;
}

std::uint64_t LittleEndian(const std::byte* at, std::uint64_t size_bytes) {
  std::uint64_t bits = 0;
  for (std::uint64_t i = 0; i < size_bytes; ++i) {
    bits |= std::to_integer<std::uint64_t>(at[i]) << (8 * i);
  }
  return bits;
}

bool IsInteger(GgufType type) {
  return ScalarBytes(type) != 0 && type != GgufType::kBool && type != GgufType::kF32 &&
         type != GgufType::kF64;
}

// Returns an integer scalar, or nullopt if it is 2^63 or more.
std::optional<std::int64_t> IntegerAt(const std::byte* at, GgufType type) {
  const std::uint64_t bits = LittleEndian(at, ScalarBytes(type));
  switch (type) {
    case GgufType::kI8:
      return static_cast<std::int8_t>(bits);
    case GgufType::kI16:
      return static_cast<std::int16_t>(bits);
    case GgufType::kI32:
      return static_cast<std::int32_t>(bits);
    case GgufType::kI64:
      return static_cast<std::int64_t>(bits);
    default:
      if (bits > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
        return std::nullopt;
      }
      return static_cast<std::int64_t>(bits);
  }
}

float Float32At(const std::byte* at) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(LittleEndian(at, 4)));
}

absl::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

// Reads the header from front to back.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, absl::string_view label) : bytes_(bytes) {
    file_.label_ = std::string(label);
  }

  absl::StatusOr<GgufFile> Run() {
    std::uint64_t kv_count = 0;
    std::uint64_t tensor_count = 0;
    QUIRE_RETURN_IF_ERROR(ReadPreamble(&tensor_count, &kv_count));
    for (std::uint64_t i = 0; i < kv_count; ++i) QUIRE_RETURN_IF_ERROR(ReadKey(i));
    QUIRE_RETURN_IF_ERROR(ReadAlignment());
    for (std::uint64_t i = 0; i < tensor_count; ++i) QUIRE_RETURN_IF_ERROR(ReadTensor(i));
    const std::uint64_t mask = file_.alignment_ - 1;
    file_.data_offset_ = (at_ + mask) & ~mask;
    return std::move(file_);
  }

 private:
  std::uint64_t left() const { return bytes_.size() - at_; }

  absl::Status Refuse(absl::string_view field, absl::string_view problem) const {
    return file_.Error(field, problem);
  }

  absl::Status Take(std::uint64_t size_bytes, absl::string_view field,
                    std::span<const std::byte>* bytes) {
    if (size_bytes > left()) {
      return Refuse(field, absl::StrCat("needs ", size_bytes, " bytes at offset ", at_,
                                        ", the file has ", left(), " more"));
    }
    *bytes = bytes_.subspan(at_, size_bytes);
    at_ += size_bytes;
    return absl::OkStatus();
  }

  absl::StatusOr<std::uint64_t> TakeNumber(std::uint64_t size_bytes, absl::string_view field) {
    std::span<const std::byte> bytes;
    QUIRE_RETURN_IF_ERROR(Take(size_bytes, field, &bytes));
    return LittleEndian(bytes.data(), size_bytes);
  }

  absl::Status TakeString(absl::string_view field, std::span<const std::byte>* text) {
    QUIRE_ASSIGN_OR_RETURN(const std::uint64_t length, TakeNumber(8, field));
    return Take(length, field, text);
  }

  absl::Status ReadPreamble(std::uint64_t* tensor_count, std::uint64_t* kv_count) {
    std::span<const std::byte> magic;
    QUIRE_RETURN_IF_ERROR(Take(4, "magic", &magic));
    if (TextOf(magic) != "GGUF") return Refuse("magic", "is not GGUF, so this is not a GGUF file");
    QUIRE_ASSIGN_OR_RETURN(const std::uint64_t version, TakeNumber(4, "version"));
    if (version != 2 && version != 3) {
      const bool is_swapped = version == 2u << 24 || version == 3u << 24;
      return Refuse("version", absl::StrCat("is ", version, ", it must be 2 or 3",
                                            is_swapped ? "; the file is big-endian" : ""));
    }
    file_.version_ = static_cast<std::uint32_t>(version);
    QUIRE_ASSIGN_OR_RETURN(*tensor_count, TakeNumber(8, "tensor_count"));
    QUIRE_ASSIGN_OR_RETURN(*kv_count, TakeNumber(8, "kv_count"));
    QUIRE_RETURN_IF_ERROR(CheckCount("tensor_count", *tensor_count));
    return CheckCount("kv_count", *kv_count);
  }

  // Rejects a count that exceeds the file size. With a smaller count, items are read until the file
  // ends, so the error of a truncated file names the item at which the file ends.
  absl::Status CheckCount(absl::string_view field, std::uint64_t count) const {
    if (count <= bytes_.size()) return absl::OkStatus();
    return Refuse(field,
                  absl::StrCat("is ", count, ", more than the file's ", bytes_.size(), " bytes"));
  }

  absl::Status ReadKey(std::uint64_t index) {
    const std::string place = absl::StrCat("kv ", index);
    std::span<const std::byte> text;
    QUIRE_RETURN_IF_ERROR(TakeString(place, &text));
    const absl::string_view key = TextOf(text);
    if (key.empty()) return Refuse(place, "has an empty key");
    if (FirstInvalidUtf8(key)) return Refuse(place, "has a key that is not UTF-8");
    QUIRE_ASSIGN_OR_RETURN(const GgufType type, TakeType(key, "value type"));
    GgufFile::Value value;
    value.type = type;
    QUIRE_RETURN_IF_ERROR(type == GgufType::kArray ? TakeArray(key, &value)
                                                   : TakeScalar(key, type, &value.bytes));
    if (!file_.values_.emplace(key, value).second) return Refuse(key, "occurs twice");
    file_.keys_.push_back(key);
    return absl::OkStatus();
  }

  absl::StatusOr<GgufType> TakeType(absl::string_view key, absl::string_view what) {
    QUIRE_ASSIGN_OR_RETURN(const std::uint64_t number, TakeNumber(4, key));
    if (number > static_cast<std::uint64_t>(GgufType::kF64)) {
      return Refuse(key, absl::StrCat("has ", what, " ", number, ", which is unknown"));
    }
    return static_cast<GgufType>(number);
  }

  absl::Status TakeScalar(absl::string_view field, GgufType type,
                          std::span<const std::byte>* value) {
    if (type == GgufType::kString) return TakeString(field, value);
    QUIRE_RETURN_IF_ERROR(Take(ScalarBytes(type), field, value));
    if (type != GgufType::kBool) return absl::OkStatus();
    return CheckBool(field, value->front());
  }

  absl::Status CheckBool(absl::string_view field, std::byte value) const {
    const auto number = std::to_integer<int>(value);
    if (number <= 1) return absl::OkStatus();
    return Refuse(field, absl::StrCat("is a bool of value ", number, ", it must be 0 or 1"));
  }

  absl::Status TakeArray(absl::string_view key, GgufFile::Value* value) {
    QUIRE_ASSIGN_OR_RETURN(value->element_type, TakeType(key, "element type"));
    if (value->element_type == GgufType::kArray) {
      return Refuse(key, "is an array of arrays, which is not supported");
    }
    QUIRE_ASSIGN_OR_RETURN(value->count, TakeNumber(8, key));
    const bool strings = value->element_type == GgufType::kString;
    const std::uint64_t min_bytes = strings ? 8 : ScalarBytes(value->element_type);
    if (value->count > left() / min_bytes) {
      return Refuse(key, absl::StrCat("has ", value->count, " elements, the file has ", left(),
                                      " more bytes"));
    }
    if (!strings) {
      QUIRE_RETURN_IF_ERROR(Take(value->count * min_bytes, key, &value->bytes));
      if (value->element_type != GgufType::kBool) return absl::OkStatus();
      for (const std::byte element : value->bytes) {
        QUIRE_RETURN_IF_ERROR(CheckBool(key, element));
      }
      return absl::OkStatus();
    }
    const std::uint64_t begin = at_;
    for (std::uint64_t i = 0; i < value->count; ++i) {
      std::span<const std::byte> text;
      QUIRE_RETURN_IF_ERROR(TakeString(key, &text));
    }
    value->bytes = bytes_.subspan(begin, at_ - begin);
    return absl::OkStatus();
  }

  absl::Status ReadAlignment() {
    file_.alignment_ = kDefaultAlignment;
    if (!file_.Has(kAlignmentKey)) return absl::OkStatus();
    const GgufFile::Value& value = *file_.Find(kAlignmentKey);
    if (value.type != GgufType::kU32) return file_.WrongType(kAlignmentKey, value, "uint32");
    const std::uint64_t alignment = LittleEndian(value.bytes.data(), 4);
    if (!std::has_single_bit(alignment) || alignment < 8 || alignment > kMaxAlignment) {
      return Refuse(
          kAlignmentKey,
          absl::StrCat("is ", alignment, ", it must be a power of two from 8 to ", kMaxAlignment));
    }
    file_.alignment_ = alignment;
    return absl::OkStatus();
  }

  absl::Status ReadTensor(std::uint64_t index) {
    const std::string place = absl::StrCat("tensor ", index);
    std::span<const std::byte> text;
    QUIRE_RETURN_IF_ERROR(TakeString(place, &text));
    GgufTensor tensor;
    tensor.name = TextOf(text);
    if (tensor.name.empty() || tensor.name.size() > kMaxNameBytes) {
      return Refuse(place, absl::StrCat("has a name of ", tensor.name.size(),
                                        " bytes, it must be 1 to ", kMaxNameBytes));
    }
    if (FirstInvalidUtf8(tensor.name)) return Refuse(place, "has a name that is not UTF-8");
    const std::string field = absl::StrCat("tensor ", tensor.name);
    QUIRE_RETURN_IF_ERROR(TakeExtents(field, &tensor.extents));
    QUIRE_ASSIGN_OR_RETURN(const std::uint64_t type, TakeNumber(4, field));
    tensor.type = static_cast<std::uint32_t>(type);
    QUIRE_ASSIGN_OR_RETURN(tensor.offset, TakeNumber(8, field));
    if (!file_.tensor_by_name_.emplace(tensor.name, file_.tensors_.size()).second) {
      return Refuse(field, "occurs twice");
    }
    file_.tensors_.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  absl::Status TakeExtents(absl::string_view field, std::vector<std::int64_t>* extents) {
    QUIRE_ASSIGN_OR_RETURN(const std::uint64_t rank, TakeNumber(4, field));
    if (rank < 1 || rank > kMaxRank) {
      return Refuse(field, absl::StrCat("has ", rank, " dimensions, it must have 1 to ", kMaxRank));
    }
    for (std::uint64_t i = 0; i < rank; ++i) {
      QUIRE_ASSIGN_OR_RETURN(const std::uint64_t extent, TakeNumber(8, field));
      if (extent == 0 || extent >= std::uint64_t{1} << 63) {
        return Refuse(field, absl::StrCat("has dimension ", i, " of size ", extent,
                                          ", it must be 1 to 2^63 - 1"));
      }
      extents->push_back(static_cast<std::int64_t>(extent));
    }
    return absl::OkStatus();
  }

  std::span<const std::byte> bytes_;
  std::uint64_t at_ = 0;
  GgufFile file_;
};

absl::StatusOr<GgufFile> GgufFile::Parse(std::span<const std::byte> file, absl::string_view label) {
  return GgufParser(file, label).Run();
}

const GgufTensor* GgufFile::FindTensor(absl::string_view name) const {
  const auto it = tensor_by_name_.find(name);
  return it == tensor_by_name_.end() ? nullptr : &tensors_[it->second];
}

const GgufFile::Value* GgufFile::Find(absl::string_view key) const {
  const auto it = values_.find(key);
  return it == values_.end() ? nullptr : &it->second;
}

absl::Status GgufFile::Error(absl::string_view key, absl::string_view problem) const {
  return absl::InvalidArgumentError(absl::StrCat(label_, ": ", key, " ", problem));
}

absl::Status GgufFile::Missing(absl::string_view key) const {
  return Error(key, "is missing");
}

absl::Status GgufFile::WrongType(absl::string_view key, const Value& value,
                                 absl::string_view wanted) const {
  const std::string type = value.type == GgufType::kArray
                               ? absl::StrCat("an array of ", TypeName(value.element_type))
                               : std::string(TypeName(value.type));
  return Error(key, absl::StrCat("is ", type, ", it must be ", wanted));
}

absl::Status GgufFile::NotUtf8(absl::string_view key, std::size_t at) const {
  return Error(key, absl::StrCat("is not UTF-8 at byte ", at));
}

absl::StatusOr<std::optional<absl::string_view>> GgufFile::OptionalString(
    absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::kString) return WrongType(key, *value, "string");
  const absl::string_view text = TextOf(value->bytes);
  if (const std::optional<std::size_t> bad = FirstInvalidUtf8(text)) return NotUtf8(key, *bad);
  return text;
}

absl::StatusOr<absl::string_view> GgufFile::String(absl::string_view key) const {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<absl::string_view> text, OptionalString(key));
  if (!text) return Missing(key);
  return *text;
}

absl::StatusOr<std::optional<std::int64_t>> GgufFile::OptionalInteger(absl::string_view key,
                                                                      std::int64_t low,
                                                                      std::int64_t high) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!IsInteger(value->type)) return WrongType(key, *value, "an integer");
  const std::optional<std::int64_t> number = IntegerAt(value->bytes.data(), value->type);
  if (!number || *number < low || *number > high) {
    return Error(key, absl::StrCat("is ", number ? absl::StrCat(*number) : "2^63 or more",
                                   ", it must be ", low, " to ", high));
  }
  return number;
}

absl::StatusOr<std::int64_t> GgufFile::Integer(absl::string_view key, std::int64_t low,
                                               std::int64_t high) const {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> number, OptionalInteger(key, low, high));
  if (!number) return Missing(key);
  return *number;
}

absl::StatusOr<std::optional<double>> GgufFile::OptionalNumber(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  double number = 0;
  if (value->type == GgufType::kF32) {
    number = Float32At(value->bytes.data());
  } else if (value->type == GgufType::kF64) {
    number = std::bit_cast<double>(LittleEndian(value->bytes.data(), 8));
  } else {
    return WrongType(key, *value, "float32 or float64");
  }
  if (!std::isfinite(number)) return Error(key, absl::StrCat("is ", number, ", not finite"));
  return number;
}

absl::StatusOr<double> GgufFile::Number(absl::string_view key) const {
  QUIRE_ASSIGN_OR_RETURN(const std::optional<double> number, OptionalNumber(key));
  if (!number) return Missing(key);
  return *number;
}

absl::StatusOr<std::optional<bool>> GgufFile::OptionalBool(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->type != GgufType::kBool) return WrongType(key, *value, "bool");
  return value->bytes.front() != std::byte{0};
}

absl::StatusOr<const GgufFile::Value*> GgufFile::FindArray(absl::string_view key,
                                                           absl::string_view wanted) const {
  const Value* value = Find(key);
  if (value != nullptr && value->type != GgufType::kArray) return WrongType(key, *value, wanted);
  return value;
}

absl::StatusOr<std::optional<std::vector<absl::string_view>>> GgufFile::OptionalStrings(
    absl::string_view key) const {
  constexpr absl::string_view kWanted = "an array of string";
  QUIRE_ASSIGN_OR_RETURN(const Value* value, FindArray(key, kWanted));
  if (value == nullptr) return std::nullopt;
  std::vector<absl::string_view> texts;
  if (value->count == 0) return texts;
  if (value->element_type != GgufType::kString) return WrongType(key, *value, kWanted);
  std::span<const std::byte> rest = value->bytes;
  while (!rest.empty()) {
    const std::uint64_t length = LittleEndian(rest.data(), 8);
    const absl::string_view text = TextOf(rest.subspan(8, length));
    if (const std::optional<std::size_t> bad = FirstInvalidUtf8(text)) {
      return NotUtf8(absl::StrCat(key, "[", texts.size(), "]"), *bad);
    }
    texts.push_back(text);
    rest = rest.subspan(8 + length);
  }
  return texts;
}

absl::StatusOr<std::vector<absl::string_view>> GgufFile::Strings(absl::string_view key) const {
  QUIRE_ASSIGN_OR_RETURN(std::optional<std::vector<absl::string_view>> texts, OptionalStrings(key));
  if (!texts) return Missing(key);
  return *std::move(texts);
}

absl::StatusOr<std::optional<std::vector<std::int32_t>>> GgufFile::OptionalIntegers(
    absl::string_view key) const {
  constexpr absl::string_view kWanted = "an array of an integer type";
  QUIRE_ASSIGN_OR_RETURN(const Value* value, FindArray(key, kWanted));
  if (value == nullptr) return std::nullopt;
  std::vector<std::int32_t> numbers;
  if (value->count == 0) return numbers;
  if (!IsInteger(value->element_type)) return WrongType(key, *value, kWanted);
  const std::uint64_t size_bytes = ScalarBytes(value->element_type);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const std::optional<std::int64_t> number =
        IntegerAt(value->bytes.data() + i * size_bytes, value->element_type);
    if (!number || *number != static_cast<std::int32_t>(*number)) {
      return Error(absl::StrCat(key, "[", i, "]"), "does not fit 32 bits");
    }
    numbers.push_back(static_cast<std::int32_t>(*number));
  }
  return numbers;
}

absl::StatusOr<std::optional<std::vector<bool>>> GgufFile::OptionalBools(
    absl::string_view key) const {
  constexpr absl::string_view kWanted = "an array of bool";
  QUIRE_ASSIGN_OR_RETURN(const Value* value, FindArray(key, kWanted));
  if (value == nullptr) return std::nullopt;
  std::vector<bool> flags;
  if (value->count == 0) return flags;
  if (value->element_type != GgufType::kBool) return WrongType(key, *value, kWanted);
  for (const std::byte byte : value->bytes) flags.push_back(byte != std::byte{0});
  return flags;
}

absl::StatusOr<std::optional<std::vector<float>>> GgufFile::OptionalFloats(
    absl::string_view key) const {
  constexpr absl::string_view kWanted = "an array of float32";
  QUIRE_ASSIGN_OR_RETURN(const Value* value, FindArray(key, kWanted));
  if (value == nullptr) return std::nullopt;
  std::vector<float> numbers;
  if (value->count == 0) return numbers;
  if (value->element_type != GgufType::kF32) return WrongType(key, *value, kWanted);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    numbers.push_back(Float32At(value->bytes.data() + 4 * i));
  }
  return numbers;
}

std::uint64_t GgufFile::ArrayCount(absl::string_view key) const {
  const Value* value = Find(key);
  QUIRE_CHECK(value != nullptr && value->type == GgufType::kArray);
  return value->count;
}

GgufType GgufFile::TypeOf(absl::string_view key) const {
  const Value* value = Find(key);
  QUIRE_CHECK(value != nullptr);
  return value->type;
}

}  // namespace quire::formats

#include "formats/tensors/safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "formats/json_value.h"

namespace quire::formats {
namespace {

constexpr std::size_t kLengthBytes = 8;
// The format defines this limit.
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxRank = 8;
constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();

struct StoredType {
  absl::string_view name;
  std::int64_t bits;
  DType dtype;
};

// All types of the format. Types that weights cannot have are kInvalid.
constexpr StoredType kStoredTypes[] = {
    {"F64", 64, DType::kF64},        {"F32", 32, DType::kF32},
    {"F16", 16, DType::kF16},        {"BF16", 16, DType::kBF16},
    {"F8_E4M3", 8, DType::kF8E4M3},  {"F8_E5M2", 8, DType::kInvalid},
    {"F8_E8M0", 8, DType::kInvalid}, {"F4", 4, DType::kInvalid},
    {"F6_E2M3", 6, DType::kInvalid}, {"F6_E3M2", 6, DType::kInvalid},
    {"I64", 64, DType::kI64},        {"I32", 32, DType::kI32},
    {"I16", 16, DType::kInvalid},    {"I8", 8, DType::kI8},
    {"U64", 64, DType::kInvalid},    {"U32", 32, DType::kInvalid},
    {"U16", 16, DType::kInvalid},    {"U8", 8, DType::kU8},
    {"BOOL", 8, DType::kBool},       {"C64", 64, DType::kInvalid},
};

const StoredType* FindStoredType(absl::string_view name) {
  for (const StoredType& type : kStoredTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

absl::Status Refuse(absl::string_view label, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(label, ": ", problem));
}

absl::Status RefuseTensor(absl::string_view label, absl::string_view name,
                          absl::string_view problem) {
  return Refuse(label, absl::StrCat("tensor ", name, ": ", problem));
}

// A tensor and its range in the data, before the ranges are checked.
struct Entry {
  StoredTensor tensor;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Returns the size of a tensor in bytes, or -1 if the size exceeds 63 bits or is not a whole
// number.
std::int64_t TensorBytes(const std::vector<std::int64_t>& shape, std::int64_t bits) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) {
    if (extent != 0 && elements > kMaxInt64 / extent) return -1;
    elements *= extent;
  }
  if (elements > kMaxInt64 / bits) return -1;
  return elements * bits % 8 == 0 ? elements * bits / 8 : -1;
}

absl::StatusOr<std::vector<std::int64_t>> ReadNumbers(const JsonValue& array) {
  QUIRE_RETURN_IF_ERROR(array.CheckArray());
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < array.size(); ++i) {
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t number, array.At(i).AsInteger(0, kMaxInt64));
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<Entry> ReadEntryFields(absl::string_view name, const JsonValue& value) {
  Entry entry;
  entry.tensor.name = std::string(name);
  QUIRE_ASSIGN_OR_RETURN(entry.tensor.type, value.GetString("dtype"));
  QUIRE_ASSIGN_OR_RETURN(const JsonValue shape, value.Get("shape"));
  QUIRE_ASSIGN_OR_RETURN(entry.tensor.shape, ReadNumbers(shape));
  if (entry.tensor.shape.size() > kMaxRank) {
    return shape.Error(absl::StrCat("has ", entry.tensor.shape.size(),
                                    " dimensions, it may have at most ", kMaxRank));
  }
  QUIRE_ASSIGN_OR_RETURN(const JsonValue offsets, value.Get("data_offsets"));
  QUIRE_ASSIGN_OR_RETURN(const std::vector<std::int64_t> range, ReadNumbers(offsets));
  if (range.size() != 2) {
    return offsets.Error(absl::StrCat("has ", range.size(), " numbers, it must have 2"));
  }
  entry.begin = range[0];
  entry.end = range[1];
  return entry;
}

absl::StatusOr<Entry> ReadEntry(absl::string_view label, absl::string_view name,
                                const JsonValue& value) {
  absl::StatusOr<Entry> entry = ReadEntryFields(name, value);
  if (!entry.ok()) return Refuse(label, entry.status().message());
  StoredTensor& tensor = entry->tensor;
  if (name.empty()) return Refuse(label, "a tensor has an empty name");
  const StoredType* type = FindStoredType(tensor.type);
  if (type == nullptr) {
    return RefuseTensor(label, name, absl::StrCat("dtype \"", tensor.type, "\" is unknown"));
  }
  tensor.dtype = type->dtype;
  tensor.file = std::string(label);
  const std::int64_t bytes = TensorBytes(tensor.shape, type->bits);
  if (bytes < 0) {
    return RefuseTensor(label, name,
                        absl::StrCat("shape ", tensor.ShapeText(), " of ", tensor.type,
                                     " does not have a whole number of bytes below 2^63"));
  }
  if (entry->begin > entry->end) {
    return RefuseTensor(
        label, name,
        absl::StrCat("data_offsets begin at ", entry->begin, ", after their end at ", entry->end));
  }
  if (entry->end - entry->begin != bytes) {
    return RefuseTensor(
        label, name,
        absl::StrCat("shape ", tensor.ShapeText(), " of ", tensor.type, " takes ", bytes,
                     " bytes, data_offsets span ", entry->end - entry->begin));
  }
  return entry;
}

absl::Status CheckMetadata(absl::string_view label, const JsonValue& metadata) {
  const absl::Status status = metadata.CheckObject();
  if (!status.ok()) return Refuse(label, status.message());
  for (const auto& [key, raw] : metadata.raw().items()) {
    const absl::StatusOr<std::string> text = JsonValue(raw, metadata.PathOf(key)).AsString();
    if (!text.ok()) return Refuse(label, text.status().message());
  }
  return absl::OkStatus();
}

// Sorts the entries by position and checks that they cover [0, data_bytes) without gaps and
// overlaps.
absl::Status CheckDataRanges(absl::string_view label, std::int64_t data_bytes,
                             std::vector<Entry>* entries) {
  std::sort(entries->begin(), entries->end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::int64_t covered = 0;
  absl::string_view last = "";
  for (const Entry& entry : *entries) {
    const std::string& name = entry.tensor.name;
    if (entry.end > data_bytes) {
      return RefuseTensor(label, name,
                          absl::StrCat("data_offsets end at ", entry.end, ", the file has ",
                                       data_bytes, " bytes of data"));
    }
    if (entry.begin < covered) {
      return RefuseTensor(label, name,
                          absl::StrCat("data_offsets begin at ", entry.begin,
                                       ", inside the data of ", last, ", which ends at ", covered));
    }
    if (entry.begin > covered) {
      return RefuseTensor(label, name,
                          absl::StrCat("data_offsets begin at ", entry.begin, ", but bytes from ",
                                       covered, " on belong to no tensor"));
    }
    covered = entry.end;
    last = name;
  }
  if (covered != data_bytes) {
    return Refuse(label,
                  absl::StrCat("data is ", data_bytes, " bytes, but the tensors cover ", covered));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::string_view> HeaderText(absl::string_view label,
                                             std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    return Refuse(label, absl::StrCat("file of ", file.size(), " bytes has no header length"));
  }
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length |= std::to_integer<std::uint64_t>(file[i]) << (8 * i);
  }
  const std::uint64_t rest = file.size() - kLengthBytes;
  if (length == 0 || length > rest || length > kMaxHeaderBytes) {
    return Refuse(label, absl::StrCat("header length is ", length, ", it must be 1 to ",
                                      std::min(rest, kMaxHeaderBytes)));
  }
  const absl::string_view header(reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                                 static_cast<std::size_t>(length));
  if (header[0] != '{') return Refuse(label, "header does not begin with {");
  return header;
}

}  // namespace

std::int64_t StoredTensor::num_elements() const {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  return elements;
}

std::string StoredTensor::ShapeText() const {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<std::vector<StoredTensor>> ReadSafetensors(std::span<const std::byte> file,
                                                          absl::string_view label) {
  QUIRE_ASSIGN_OR_RETURN(const absl::string_view header, HeaderText(label, file));
  const absl::StatusOr<JsonDocument> document = JsonDocument::Parse(header);
  if (!document.ok()) {
    return Refuse(label, absl::StrCat("header: ", document.status().message()));
  }
  const JsonValue root = document->root();
  if (!root.is_object()) return Refuse(label, "header is not a JSON object");
  std::vector<Entry> entries;
  for (const auto& [name, raw] : root.raw().items()) {
    const JsonValue value(raw, name);
    if (name == "__metadata__") {
      QUIRE_RETURN_IF_ERROR(CheckMetadata(label, value));
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(Entry entry, ReadEntry(label, name, value));
    entries.push_back(std::move(entry));
  }
  const std::span<const std::byte> data = file.subspan(kLengthBytes + header.size());
  QUIRE_RETURN_IF_ERROR(CheckDataRanges(label, static_cast<std::int64_t>(data.size()), &entries));
  std::vector<StoredTensor> tensors;
  tensors.reserve(entries.size());
  for (Entry& entry : entries) {
    entry.tensor.bytes = data.subspan(static_cast<std::size_t>(entry.begin),
                                      static_cast<std::size_t>(entry.end - entry.begin));
    tensors.push_back(std::move(entry.tensor));
  }
  return tensors;
}

}  // namespace quire::formats

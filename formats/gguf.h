#pragma once

// The container of a GGUF file: its metadata and the table of its tensors.
//
//   "GGUF", u32 version, u64 tensor_count, u64 kv_count             little endian
//   kv_count times      string key, u32 value type, value
//   tensor_count times  string name, u32 rank, u64 extents[rank], u32 type, u64 offset
//   padding to general.alignment, then the data; offsets are relative to the data
//
//   string = u64 length, bytes;  array = u32 element type, u64 count, elements
//
// The file is not trusted: every number is checked against the file size before it is used, and no
// allocation depends on an unchecked number. Source: github.com/ggml-org/ggml, docs/gguf.md.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace quire::formats {

// Values are those of the file format.
enum class GgufType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// One row of the tensor table. The parser does not check `type`, nor whether the data lie inside
// the file.
struct GgufTensor {
  absl::string_view name;             // 1 to 63 bytes of UTF-8
  std::vector<std::int64_t> extents;  // 1 to 4, each positive; the first varies fastest
  std::uint32_t type = 0;             // GgmlType
  std::uint64_t offset = 0;           // relative to data_offset()
};

// Place:      below the readers of a GGUF file's configuration, tokenizer and weights.
// Invariants: keys and tensor names are unique; every value lies inside the file. String
//             values are checked for UTF-8 when a function returns them.
// Threads:    immutable.
// Lifetime:   a view of the file's bytes, which must outlive the GgufFile and all returned strings.
class GgufFile {
 public:
  // `label` starts every message. Returns INVALID_ARGUMENT for a malformed file. The message names
  // the field: "magic", "kv_count", a key or a tensor's name. An item without a readable name is
  // given by its index from 0, such as "kv 6" or "tensor 2". Rejects versions other than 2 and 3,
  // big-endian files, unknown value types, nested arrays and bools other than 0 and 1. Also rejects
  // keys that are empty, duplicate or not UTF-8.
  static absl::StatusOr<GgufFile> Parse(std::span<const std::byte> file, absl::string_view label);

  const std::string& label() const { return label_; }
  std::uint32_t version() const { return version_; }
  std::uint64_t alignment() const { return alignment_; }
  // Offset of the first data byte. May exceed the size of a file without data.
  std::uint64_t data_offset() const { return data_offset_; }
  // Keys and tensors are in file order.
  const std::vector<absl::string_view>& keys() const { return keys_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  // Returns null when there is no such tensor.
  const GgufTensor* FindTensor(absl::string_view name) const;

  bool Has(absl::string_view key) const { return values_.contains(key); }

  // For a wrong type, a value out of range or invalid UTF-8, the functions below return
  // INVALID_ARGUMENT, and the message names the key. For an absent key, Optional functions return
  // nullopt, and the others return an error.

  absl::StatusOr<std::optional<absl::string_view>> OptionalString(absl::string_view key) const;
  absl::StatusOr<absl::string_view> String(absl::string_view key) const;
  // Accepts any integer type.
  absl::StatusOr<std::optional<std::int64_t>> OptionalInteger(absl::string_view key,
                                                              std::int64_t low,
                                                              std::int64_t high) const;
  absl::StatusOr<std::int64_t> Integer(absl::string_view key, std::int64_t low,
                                       std::int64_t high) const;
  // Accepts a finite f32 or f64.
  absl::StatusOr<std::optional<double>> OptionalNumber(absl::string_view key) const;
  absl::StatusOr<double> Number(absl::string_view key) const;
  absl::StatusOr<std::optional<bool>> OptionalBool(absl::string_view key) const;
  // Arrays. Messages name the element: "tokenizer.ggml.tokens[3]". An empty array may have any
  // element type.
  absl::StatusOr<std::optional<std::vector<absl::string_view>>> OptionalStrings(
      absl::string_view key) const;
  absl::StatusOr<std::vector<absl::string_view>> Strings(absl::string_view key) const;
  // Accepts elements of any integer type whose values fit 32 bits.
  absl::StatusOr<std::optional<std::vector<std::int32_t>>> OptionalIntegers(
      absl::string_view key) const;
  absl::StatusOr<std::optional<std::vector<bool>>> OptionalBools(absl::string_view key) const;
  // Accepts f32 elements, NaN and infinities included.
  absl::StatusOr<std::optional<std::vector<float>>> OptionalFloats(absl::string_view key) const;
  // Returns the number of elements. REQUIRES: Has(key) and the value is an array.
  std::uint64_t ArrayCount(absl::string_view key) const;
  // Returns the type of the value; kArray for arrays. REQUIRES: Has(key).
  GgufType TypeOf(absl::string_view key) const;

  // Returns INVALID_ARGUMENT "<label>: <key> <problem>".
  absl::Status Error(absl::string_view key, absl::string_view problem) const;

 private:
  friend class GgufParser;

  struct Value {
    GgufType type = GgufType::kU8;
    GgufType element_type = GgufType::kU8;  // only for arrays
    std::uint64_t count = 0;                // only for arrays
    std::span<const std::byte> bytes;       // the value, all elements, or a string's text
  };

  GgufFile() = default;
  const Value* Find(absl::string_view key) const;
  absl::Status Missing(absl::string_view key) const;
  absl::Status WrongType(absl::string_view key, const Value& value, absl::string_view wanted) const;
  absl::Status NotUtf8(absl::string_view key, std::size_t at) const;
  // Returns the array at `key`, or null when it is absent.
  absl::StatusOr<const Value*> FindArray(absl::string_view key, absl::string_view wanted) const;

  std::string label_;
  std::uint32_t version_ = 0;
  std::uint64_t alignment_ = 0;
  std::uint64_t data_offset_ = 0;
  std::vector<absl::string_view> keys_;
  absl::flat_hash_map<absl::string_view, Value> values_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<absl::string_view, std::size_t> tensor_by_name_;
};

}  // namespace quire::formats

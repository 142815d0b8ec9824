#include "formats/tensors/gguf_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/device_buffer.h"
#include "base/status.h"

namespace quire::formats {
namespace {

constexpr std::int64_t kMaxHeads = 4096;

absl::Status Refuse(const GgufFile& gguf, absl::string_view name, absl::string_view problem) {
  return gguf.Error(absl::StrCat("tensor ", name), problem);
}

DType PlainType(GgmlType type) {
  return type == GgmlType::kF32    ? DType::kF32
         : type == GgmlType::kF16  ? DType::kF16
         : type == GgmlType::kBF16 ? DType::kBF16
                                   : DType::kInvalid;
}

absl::StatusOr<const GgmlFormat*> FormatOfTensor(const GgufFile& gguf, const GgufTensor& tensor) {
  const GgmlFormat* format = FindGgmlFormat(tensor.type);
  if (format == nullptr) {
    return Refuse(gguf, tensor.name, absl::StrCat("has type ", tensor.type, ", which is unknown"));
  }
  if (!format->is_supported) {
    return absl::UnimplementedError(
        absl::StrCat(gguf.label(), ": tensor ", tensor.name, " has type ", format->name,
                     ", which is not supported (supported: ", ReadableGgmlTypes(), ")"));
  }
  if (tensor.extents.front() % format->elements != 0) {
    return Refuse(gguf, tensor.name,
                  absl::StrCat("has rows of ", tensor.extents.front(),
                               " elements, it must be a multiple of the ", format->name,
                               " block size ", format->elements));
  }
  return format;
}

// Returns the size of a tensor in bytes. REQUIRES: rows are whole blocks.
absl::StatusOr<std::uint64_t> BytesOfTensor(const GgufFile& gguf, const GgufTensor& tensor,
                                            const GgmlFormat& format) {
  std::int64_t bytes = format.bytes;
  for (std::size_t i = 0; i < tensor.extents.size(); ++i) {
    const std::int64_t extent = i == 0 ? tensor.extents[i] / format.elements : tensor.extents[i];
    if (extent > std::numeric_limits<std::int64_t>::max() / bytes) {
      return Refuse(gguf, tensor.name, "takes 2^63 bytes or more");
    }
    bytes *= extent;
  }
  return static_cast<std::uint64_t>(bytes);
}

// `previous_tensor` names the previous tensor in the table, whose data lie inside the file. The
// name is empty for the first tensor.
absl::Status CheckDataRange(const GgufFile& gguf, const GgufTensor& tensor, std::uint64_t bytes,
                            std::uint64_t data_bytes, absl::string_view previous_tensor) {
  if (tensor.offset % gguf.alignment() != 0) {
    return Refuse(
        gguf, tensor.name,
        absl::StrCat("has offset ", tensor.offset,
                     ", which is not a multiple of general.alignment ", gguf.alignment()));
  }
  if (tensor.offset > data_bytes || bytes > data_bytes - tensor.offset) {
    return Refuse(gguf, tensor.name,
                  absl::StrCat("takes ", bytes, " bytes from offset ", tensor.offset,
                               ", the file has ", data_bytes, " bytes of data",
                               previous_tensor.empty() ? "" : ", enough for the tensors up to ",
                               previous_tensor));
  }
  return absl::OkStatus();
}

absl::Status CheckOverlaps(const GgufFile& gguf, const std::vector<StoredTensor>& tensors) {
  std::vector<const StoredTensor*> order;
  for (const StoredTensor& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return a->bytes.data() < b->bytes.data();
  });
  for (std::size_t i = 1; i < order.size(); ++i) {
    const StoredTensor& previous_tensor = *order[i - 1];
    if (order[i]->bytes.data() >= previous_tensor.bytes.data() + previous_tensor.bytes.size())
      continue;
    return Refuse(gguf, order[i]->name,
                  absl::StrCat("begins inside the data of tensor ", previous_tensor.name));
  }
  return absl::OkStatus();
}

// Returns the number of heads at `key`. If the value is an array with one element per layer,
// returns the maximum, because layers without attention have 0.
absl::StatusOr<std::optional<std::int64_t>> HeadsOf(const GgufFile& gguf, const std::string& key) {
  if (!gguf.Has(key) || gguf.TypeOf(key) != GgufType::kArray) {
    return gguf.OptionalInteger(key, 1, kMaxHeads);
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::vector<std::int32_t>> heads,
                         gguf.OptionalIntegers(key));
  std::int64_t max_heads = 0;
  for (const std::int32_t count : heads.value_or(std::vector<std::int32_t>())) {
    max_heads = std::max<std::int64_t>(max_heads, count);
  }
  if (max_heads >= 1 && max_heads <= kMaxHeads) return max_heads;
  return gguf.Error(key, absl::StrCat("has no element of 1 to ", kMaxHeads));
}

// Returns the number of heads if the tensor's rows are in the order of interleaved rope, which
// rotates adjacent rows. Returns 0 if the rows need no permutation.
absl::StatusOr<std::int64_t> InterleavedHeads(const GgufFile& gguf, absl::string_view name) {
  const bool is_query =
      absl::EndsWith(name, ".attn_q.weight") || absl::EndsWith(name, ".attn_q.bias");
  const bool is_key =
      absl::EndsWith(name, ".attn_k.weight") || absl::EndsWith(name, ".attn_k.bias");
  if (!is_query && !is_key) return 0;
  QUIRE_ASSIGN_OR_RETURN(const absl::string_view architecture, gguf.String("general.architecture"));
  if (architecture != "llama" && architecture != "granitehybrid") return 0;
  const std::string key = absl::StrCat(architecture, ".attention.head_count");
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> heads, HeadsOf(gguf, key));
  if (!heads) return gguf.Error(key, "is missing");
  if (is_query) return *heads;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<std::int64_t> kv_heads,
                         HeadsOf(gguf, absl::StrCat(key, "_kv")));
  return kv_heads.value_or(*heads);
}

// Copies rows of equal size, and puts the even rows of each head before its odd rows.
void CopyHalves(std::span<const std::byte> from, std::int64_t rows, std::int64_t head_size,
                std::byte* to) {
  const std::size_t row_bytes = from.size() / static_cast<std::size_t>(rows);
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t j = row % head_size;
    const std::int64_t place = row - j + j / 2 + (j % 2) * (head_size / 2);
    std::memcpy(to + static_cast<std::size_t>(place) * row_bytes,
                from.data() + static_cast<std::size_t>(row) * row_bytes, row_bytes);
  }
}

// Copies log(-x) of each element x.
absl::Status CopyLogs(const GgufFile& gguf, const StoredTensor& tensor, std::byte* to) {
  std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
  DequantizeRow(GgmlType::kF32, tensor.bytes, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!(std::isfinite(values[i]) && values[i] < 0)) {
      return Refuse(gguf, tensor.name,
                    absl::StrCat("has element ", i, " of value ", values[i],
                                 ", it must be negative and finite"));
    }
    values[i] = static_cast<float>(std::log(-static_cast<double>(values[i])));
  }
  std::memcpy(to, values.data(), tensor.bytes.size());
  return absl::OkStatus();
}

// A tensor whose elements are rewritten.
struct Rewrite {
  StoredTensor* tensor;
  std::int64_t head_size;  // rows per head, to de-interleave; 0: CopyLogs
};

absl::StatusOr<std::vector<Rewrite>> FindRewrites(const GgufFile& gguf,
                                                  std::vector<StoredTensor>& tensors) {
  std::vector<Rewrite> rewrites;
  for (StoredTensor& tensor : tensors) {
    if (absl::EndsWith(tensor.name, ".ssm_a")) {
      if (tensor.dtype != DType::kF32) {
        return absl::UnimplementedError(absl::StrCat(gguf.label(), ": tensor ", tensor.name,
                                                     " has type ", tensor.type,
                                                     ", which is not supported (supported: F32)"));
      }
      rewrites.push_back({&tensor, 0});
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(const std::int64_t heads, InterleavedHeads(gguf, tensor.name));
    if (heads == 0) continue;
    const std::int64_t rows = tensor.shape.front();
    if (rows % (2 * heads) != 0) {
      return Refuse(
          gguf, tensor.name,
          absl::StrCat("has ", rows, " rows, it must have an even number of rows for each of ",
                       heads, " heads"));
    }
    rewrites.push_back({&tensor, rows / heads});
  }
  return rewrites;
}

absl::Status RewriteTensors(const GgufFile& gguf, GgufTensors* result) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<Rewrite> rewrites, FindRewrites(gguf, result->tensors));
  std::size_t total = 0;
  for (const Rewrite& rewrite : rewrites) total += rewrite.tensor->bytes.size();
  if (total == 0) return absl::OkStatus();
  absl::StatusOr<DeviceBuffer> allocated =
      DeviceBuffer::Allocate(MemoryKind::kHost, static_cast<std::int64_t>(total));
  if (!allocated.ok()) {
    return absl::Status(allocated.status().code(),
                        absl::StrCat(gguf.label(), ": ", allocated.status().message(),
                                     " for tensors that must be converted"));
  }
  std::byte* to = allocated->bytes().data();
  for (const auto& [tensor, head_size] : rewrites) {
    if (head_size == 0) {
      QUIRE_RETURN_IF_ERROR(CopyLogs(gguf, *tensor, to));
    } else {
      CopyHalves(tensor->bytes, tensor->shape.front(), head_size, to);
    }
    tensor->bytes = {to, tensor->bytes.size()};
    to += tensor->bytes.size();
  }
  result->memory = std::make_shared<DeviceBuffer>(*std::move(allocated));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OpenedGguf> OpenGguf(const ModelFiles& files) {
  QUIRE_CHECK(!files.gguf().empty());
  QUIRE_ASSIGN_OR_RETURN(ModelFile file, files.Open(files.gguf()));
  QUIRE_ASSIGN_OR_RETURN(GgufFile gguf, GgufFile::Parse(file.bytes(), file.label()));
  return OpenedGguf{std::move(file), std::move(gguf)};
}

absl::StatusOr<std::vector<StoredTensor>> ReadGgufTensors(const OpenedGguf& opened) {
  const GgufFile& gguf = opened.gguf;
  const std::span<const std::byte> file = opened.file.bytes();
  const std::uint64_t data_offset = std::min<std::uint64_t>(gguf.data_offset(), file.size());
  const std::span<const std::byte> data = file.subspan(data_offset);
  std::vector<StoredTensor> tensors;
  for (const GgufTensor& row : gguf.tensors()) {
    QUIRE_ASSIGN_OR_RETURN(const GgmlFormat* format, FormatOfTensor(gguf, row));
    QUIRE_ASSIGN_OR_RETURN(const std::uint64_t bytes, BytesOfTensor(gguf, row, *format));
    const std::string previous_tensor = tensors.empty() ? "" : tensors.back().name;
    QUIRE_RETURN_IF_ERROR(CheckDataRange(gguf, row, bytes, data.size(), previous_tensor));
    const auto type = static_cast<GgmlType>(format->number);
    StoredTensor tensor;
    tensor.name = std::string(row.name);
    tensor.type = std::string(format->name);
    tensor.dtype = PlainType(type);
    tensor.blocks = tensor.dtype == DType::kInvalid ? type : GgmlType::kNone;
    tensor.shape.assign(row.extents.rbegin(), row.extents.rend());
    tensor.bytes = data.subspan(row.offset, bytes);
    tensor.file = gguf.label();
    tensors.push_back(std::move(tensor));
  }
  QUIRE_RETURN_IF_ERROR(CheckOverlaps(gguf, tensors));
  return tensors;
}

absl::StatusOr<std::vector<float>> ReadRopeFactors(const OpenedGguf& opened,
                                                   absl::string_view name) {
  if (opened.gguf.FindTensor(name) == nullptr) return std::vector<float>();
  QUIRE_ASSIGN_OR_RETURN(const std::vector<StoredTensor> tensors, ReadGgufTensors(opened));
  const auto tensor =
      std::find_if(tensors.begin(), tensors.end(),
                   [&](const StoredTensor& candidate) { return candidate.name == name; });
  if (tensor->dtype != DType::kF32 || tensor->shape.size() != 1) {
    return Refuse(opened.gguf, name,
                  absl::StrCat("is ", tensor->type, " ", tensor->ShapeText(),
                               ", it must be F32 of one dimension"));
  }
  std::vector<float> factors(static_cast<std::size_t>(tensor->num_elements()));
  DequantizeRow(GgmlType::kF32, tensor->bytes, factors);
  for (std::size_t i = 0; i < factors.size(); ++i) {
    if (std::isfinite(factors[i]) && factors[i] > 0) continue;
    return Refuse(opened.gguf, name,
                  absl::StrCat("has element ", i, " of value ", factors[i],
                               ", it must be positive and finite"));
  }
  return factors;
}

absl::StatusOr<GgufTensors> LoadGgufTensors(const OpenedGguf& opened) {
  GgufTensors result;
  QUIRE_ASSIGN_OR_RETURN(result.tensors, ReadGgufTensors(opened));
  std::erase_if(result.tensors, [](const StoredTensor& tensor) {
    return tensor.name == kRopeFactors || tensor.name == kLongRopeFactors ||
           tensor.name == kShortRopeFactors;
  });
  for (StoredTensor& tensor : result.tensors) {
    if (absl::EndsWith(tensor.name, ".ssm_norm.weight")) tensor.shape = {tensor.num_elements()};
  }
  QUIRE_RETURN_IF_ERROR(RewriteTensors(opened.gguf, &result));
  return result;
}

}  // namespace quire::formats

#include "tools/quire/synthetic_weights.h"

#include <array>
#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "base/json_text.h"
#include "base/split_mix.h"
#include "base/status.h"

static_assert(std::endian::native == std::endian::little);  // both formats are little-endian

namespace quire::client {
namespace {

constexpr float kDeviation = 0.02f;

struct Tensor {
  std::string name;  // name in Hugging Face files
  std::string gguf_name;
  std::uint64_t rows = 1, columns = 0;
  bool is_norm = false;
  // Rows per head, for query and key matrices. RoPE rotates the two halves of a head against each
  // other. Hugging Face files store the halves one after the other; GGUF files interleave them.
  std::uint32_t head_rows = 0;
};

std::vector<Tensor> Tensors(const ModelShape& shape) {
  const std::uint64_t hidden = shape.hidden_size, ffn = shape.intermediate_size;
  const std::uint64_t q = std::uint64_t{shape.num_heads} * shape.head_dim;
  const std::uint64_t kv = std::uint64_t{shape.num_kv_heads} * shape.head_dim;
  std::vector<Tensor> tensors = {
      {"model.embed_tokens.weight", "token_embd.weight", shape.vocab_size, hidden}};
  for (std::uint32_t i = 0; i < shape.num_layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, "."),
                      block = absl::StrCat("blk.", i, ".");
    const auto matrix = [&](const char* name, const char* gguf, std::uint64_t rows,
                            std::uint64_t columns, std::uint32_t head_rows = 0) {
      tensors.push_back({absl::StrCat(layer, name, ".weight"), absl::StrCat(block, gguf, ".weight"),
                         rows, columns, false, head_rows});
    };
    const auto norm = [&](const char* name, const char* gguf) {
      tensors.push_back({absl::StrCat(layer, name, ".weight"), absl::StrCat(block, gguf, ".weight"),
                         1, hidden, true});
    };
    norm("input_layernorm", "attn_norm");
    matrix("self_attn.q_proj", "attn_q", q, hidden, shape.head_dim);
    matrix("self_attn.k_proj", "attn_k", kv, hidden, shape.head_dim);
    matrix("self_attn.v_proj", "attn_v", kv, hidden);
    matrix("self_attn.o_proj", "attn_output", hidden, q);
    norm("post_attention_layernorm", "ffn_norm");
    matrix("mlp.gate_proj", "ffn_gate", ffn, hidden);
    matrix("mlp.up_proj", "ffn_up", ffn, hidden);
    matrix("mlp.down_proj", "ffn_down", hidden, ffn);
  }
  tensors.push_back({"model.norm.weight", "output_norm.weight", 1, hidden, true});
  if (!shape.tie_word_embeddings) {
    tensors.push_back({"lm_head.weight", "output.weight", shape.vocab_size, hidden});
  }
  return tensors;
}

// Approximates a normal distribution by the sum of four uniform values, whose standard deviation is
// sqrt(4 / 12).
BF16 Value(const Tensor& tensor, std::uint64_t stream, std::uint64_t index) {
  if (tensor.is_norm) return BF16::FromFloat(1.0f);
  const std::uint64_t bits = SplitMix(stream + index * kSplitMixStep);
  const std::uint64_t sum =
      (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  const float centred = (static_cast<float>(sum) - 131070.0f) / 65535.0f;
  return BF16::FromFloat(centred * kDeviation * 1.7320508f);
}

std::uint64_t MakeStream(std::uint64_t seed, std::size_t tensor) {
  return SplitMix(SplitMix(seed) + static_cast<std::uint64_t>(tensor));
}

// Returns the row of the Hugging Face matrix that is row `row` of the GGUF matrix.
std::uint64_t SourceRow(const Tensor& tensor, std::uint64_t row) {
  if (tensor.head_rows == 0) return row;
  const std::uint64_t head = row / tensor.head_rows, inside = row % tensor.head_rows;
  return head * tensor.head_rows + inside / 2 + inside % 2 * (tensor.head_rows / 2);
}

void WriteRow(const Tensor& tensor, std::uint64_t stream, std::uint64_t row, std::ostream* out) {
  std::vector<BF16> values(tensor.columns);
  for (std::uint64_t i = 0; i < tensor.columns; ++i) {
    values[i] = Value(tensor, stream, row * tensor.columns + i);
  }
  out->write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(BF16)));
}

absl::Status CheckAbsent(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(path.string(), " exists"));
}

absl::StatusOr<std::ofstream> Create(const std::filesystem::path& path) {
  QUIRE_RETURN_IF_ERROR(CheckAbsent(path));
  std::ofstream file(path, std::ios::binary);
  if (!file) return absl::FailedPreconditionError(absl::StrCat("cannot write ", path.string()));
  return file;
}

absl::Status Close(std::ofstream* file, const std::string& path) {
  file->close();
  if (!*file) return absl::FailedPreconditionError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

// Writes the parts of a GGUF header, little-endian.
class GgufHeader {
 public:
  enum Type : std::uint32_t { kUint32 = 4, kInt32 = 5, kFloat32 = 6, kString = 8, kArray = 9 };

  template <typename T>
  void Number(T value) {
    std::array<char, sizeof(T)> raw;
    std::memcpy(raw.data(), &value, sizeof(T));
    bytes_.append(raw.data(), raw.size());
  }
  void Text(absl::string_view text) {
    Number<std::uint64_t>(text.size());
    bytes_.append(text.data(), text.size());
  }
  void Key(absl::string_view key, Type type) {
    Text(key);
    Number<std::uint32_t>(type);
    ++keys_;
  }
  void Uint32(absl::string_view key, std::uint32_t value) {
    Key(key, kUint32);
    Number(value);
  }
  void Float(absl::string_view key, float value) {
    Key(key, kFloat32);
    Number(value);
  }
  void String(absl::string_view key, absl::string_view value) {
    Key(key, kString);
    Text(value);
  }
  void Strings(absl::string_view key, const std::vector<std::string>& values) {
    Key(key, kArray);
    Number<std::uint32_t>(kString);
    Number<std::uint64_t>(values.size());
    for (const std::string& value : values) Text(value);
  }
  void Ints(absl::string_view key, const std::vector<std::int32_t>& values) {
    Key(key, kArray);
    Number<std::uint32_t>(kInt32);
    Number<std::uint64_t>(values.size());
    for (const std::int32_t value : values) Number(value);
  }

  const std::string& bytes() const { return bytes_; }
  std::uint64_t keys() const { return keys_; }

 private:
  std::string bytes_;
  std::uint64_t keys_ = 0;
};

constexpr std::uint64_t kGgufAlignment = 32;
constexpr std::uint32_t kGgmlF32 = 0, kGgmlBf16 = 30, kFileTypeBf16 = 32;

std::uint64_t Aligned(std::uint64_t bytes) {
  return (bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
}

void AddVocabulary(const ModelShape& shape, GgufHeader* header) {
  constexpr std::int32_t kNormal = 1, kControl = 3;
  std::vector<std::int32_t> types(shape.vocab_size, kNormal);
  types[shape.vocab_size - 2] = types[shape.vocab_size - 1] = kControl;
  header->String("tokenizer.ggml.model", "gpt2");
  header->String("tokenizer.ggml.pre", "gpt-2");
  header->Strings("tokenizer.ggml.tokens", SyntheticVocabulary(shape));
  header->Ints("tokenizer.ggml.token_type", types);
  header->Strings("tokenizer.ggml.merges", {});
  header->Uint32("tokenizer.ggml.bos_token_id", shape.vocab_size - 2);
  header->Uint32("tokenizer.ggml.eos_token_id", shape.vocab_size - 1);
}

void AddMetadata(const ModelShape& shape, GgufHeader* header) {
  header->String("general.architecture", "llama");
  header->String("general.name", shape.name);
  header->Uint32("general.file_type", kFileTypeBf16);
  header->Uint32("llama.block_count", shape.num_layers);
  header->Uint32("llama.context_length", shape.max_position_embeddings);
  header->Uint32("llama.embedding_length", shape.hidden_size);
  header->Uint32("llama.feed_forward_length", shape.intermediate_size);
  header->Uint32("llama.attention.head_count", shape.num_heads);
  header->Uint32("llama.attention.head_count_kv", shape.num_kv_heads);
  header->Uint32("llama.rope.dimension_count", shape.head_dim);
  header->Uint32("llama.vocab_size", shape.vocab_size);
  header->Float("llama.rope.freq_base", static_cast<float>(shape.rope_theta));
  header->Float("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  AddVocabulary(shape, header);
}

std::uint64_t GgufBytes(const Tensor& tensor) {
  return tensor.rows * tensor.columns * (tensor.is_norm ? sizeof(float) : sizeof(BF16));
}

void WritePadding(std::uint64_t bytes, std::ostream* out) {
  const std::string zeros(Aligned(bytes) - bytes, '\0');
  out->write(zeros.data(), static_cast<std::streamsize>(zeros.size()));
}

void WriteGgufTensor(const Tensor& tensor, std::uint64_t stream, std::ostream* out) {
  if (tensor.is_norm) {
    const std::vector<float> ones(tensor.columns, 1.0f);
    out->write(reinterpret_cast<const char*>(ones.data()),
               static_cast<std::streamsize>(ones.size() * sizeof(float)));
  } else {
    for (std::uint64_t row = 0; row < tensor.rows; ++row) {
      WriteRow(tensor, stream, SourceRow(tensor, row), out);
    }
  }
  WritePadding(GgufBytes(tensor), out);
}

}  // namespace

absl::Status WriteSyntheticWeights(const ModelShape& shape, std::uint64_t seed,
                                   const std::string& directory) {
  const std::vector<Tensor> tensors = Tensors(shape);
  nlohmann::ordered_json header = {{"__metadata__", {{"format", "pt"}}}};
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    const std::uint64_t end = offset + tensor.rows * tensor.columns * sizeof(BF16);
    header[tensor.name] = {{"dtype", "BF16"}, {"data_offsets", {offset, end}}};
    header[tensor.name]["shape"] =
        tensor.is_norm ? nlohmann::ordered_json::array({tensor.columns})
                       : nlohmann::ordered_json::array({tensor.rows, tensor.columns});
    offset = end;
  }
  std::string text = JsonText(header);
  text.append((8 - text.size() % 8) % 8, ' ');
  const std::filesystem::path path = std::filesystem::path(directory) / "model.safetensors";
  QUIRE_ASSIGN_OR_RETURN(std::ofstream file, Create(path));
  const std::uint64_t length = text.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::uint64_t row = 0; row < tensors[i].rows; ++row) {
      WriteRow(tensors[i], MakeStream(seed, i), row, &file);
    }
  }
  return Close(&file, path.string());
}

absl::Status CheckGguf(const ModelShape& shape, const std::string& path) {
  if (shape.original_max_position_embeddings > 0) {
    return absl::UnimplementedError(
        absl::StrCat(shape.name, " has scaled RoPE, which --gguf does not write"));
  }
  return CheckAbsent(path);
}

absl::Status WriteSyntheticGguf(const ModelShape& shape, std::uint64_t seed,
                                const std::string& path) {
  QUIRE_RETURN_IF_ERROR(CheckGguf(shape, path));
  const std::vector<Tensor> tensors = Tensors(shape);
  GgufHeader metadata, infos, start;
  AddMetadata(shape, &metadata);
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    infos.Text(tensor.gguf_name);
    infos.Number<std::uint32_t>(tensor.is_norm ? 1 : 2);  // dimensions, the innermost first
    infos.Number(tensor.columns);
    if (!tensor.is_norm) infos.Number(tensor.rows);
    infos.Number(tensor.is_norm ? kGgmlF32 : kGgmlBf16);
    infos.Number(offset);
    offset += Aligned(GgufBytes(tensor));
  }
  start.Number<std::uint32_t>(0x46554747);  // "GGUF"
  start.Number<std::uint32_t>(3);
  start.Number<std::uint64_t>(tensors.size());
  start.Number(metadata.keys());
  QUIRE_ASSIGN_OR_RETURN(std::ofstream file, Create(path));
  file << start.bytes() << metadata.bytes() << infos.bytes();
  WritePadding(start.bytes().size() + metadata.bytes().size() + infos.bytes().size(), &file);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    WriteGgufTensor(tensors[i], MakeStream(seed, i), &file);
  }
  return Close(&file, path);
}

}  // namespace quire::client

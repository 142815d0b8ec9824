#include "tools/quire/synthetic_weights.h"

#include <array>
#include <bit>
#include <cmath>
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

enum class ValueKind : std::uint8_t {
  kRandom,
  kOnes,
  kZerosForOnes,  // norm weights of Qwen3.5, to which 1 is added; GGUF files have the sum
  kDecayLogs,     // A_log; GGUF files have -exp(A_log)
  kTimeSteps,     // dt_bias
};

// Rows (or columns) from `first` on belong to value heads of `size` rows each. Hugging Face files
// store the `per_key` value heads of a key head one after the other. GGUF files store the first
// value head of every key head, then the second value heads.
struct ValueHeads {
  std::uint64_t first = 0;
  std::uint32_t size = 0, per_key = 0;  // size 0: no value heads
  bool are_columns = false;
};

struct Tensor {
  std::string name;  // name in Hugging Face files
  std::string gguf_name;
  std::vector<std::uint64_t> shape;  // shape in Hugging Face files
  ValueKind values = ValueKind::kRandom;
  bool is_f32_in_gguf = false;
  // Rows per head, for query and key matrices of Llama; 0 for others. RoPE rotates each row of the
  // first half of a head together with the same row of the second half. Hugging Face files store
  // the halves one after the other. GGUF files interleave them.
  std::uint32_t rope_head_rows = 0;
  ValueHeads heads = {};

  std::uint64_t columns() const { return shape.size() == 1 ? 1 : shape.back(); }
  std::uint64_t rows() const { return elements() / columns(); }
  std::uint64_t elements() const {
    std::uint64_t product = 1;
    for (const std::uint64_t size : shape) product *= size;
    return product;
  }
};

// Collects the tensors of a layer.
struct LayerTensors {
  std::string layer, block;
  std::vector<Tensor>* tensors;

  Tensor& Add(absl::string_view name, absl::string_view gguf, std::vector<std::uint64_t> shape,
              ValueKind values = ValueKind::kRandom) const {
    tensors->push_back({.name = absl::StrCat(layer, name),
                        .gguf_name = absl::StrCat(block, gguf),
                        .shape = std::move(shape),
                        .values = values,
                        .is_f32_in_gguf = values != ValueKind::kRandom});
    return tensors->back();
  }
  Tensor& Matrix(absl::string_view name, absl::string_view gguf, std::uint64_t rows,
                 std::uint64_t columns) const {
    return Add(absl::StrCat(name, ".weight"), absl::StrCat(gguf, ".weight"), {rows, columns});
  }
};

void AddAttention(const ModelShape& shape, const LayerTensors& layer) {
  const std::uint64_t hidden = shape.hidden_size, q = shape.num_heads * shape.head_dim;
  const std::uint64_t kv = shape.num_kv_heads * shape.head_dim;
  const std::uint32_t rope_rows = shape.is_hybrid() ? 0 : shape.head_dim;
  layer.Matrix("self_attn.q_proj", "attn_q", shape.is_hybrid() ? 2 * q : q, hidden).rope_head_rows =
      rope_rows;
  layer.Matrix("self_attn.k_proj", "attn_k", kv, hidden).rope_head_rows = rope_rows;
  layer.Matrix("self_attn.v_proj", "attn_v", kv, hidden);
  layer.Matrix("self_attn.o_proj", "attn_output", hidden, q);
  if (!shape.is_hybrid()) return;
  for (const char* which : {"q", "k"}) {
    layer.Add(absl::StrCat("self_attn.", which, "_norm.weight"),
              absl::StrCat("attn_", which, "_norm.weight"), {shape.head_dim},
              ValueKind::kZerosForOnes);
  }
}

void AddRecurrent(const ModelShape& shape, const LayerTensors& layer) {
  const std::uint64_t hidden = shape.hidden_size, values = shape.linear_value_columns();
  const std::uint64_t keys = 2 * std::uint64_t{shape.linear_key_columns()};
  const std::uint64_t heads = shape.linear_value_heads;
  const std::uint32_t per_key = shape.linear_value_heads / shape.linear_key_heads;
  const ValueHeads rows{.size = ModelShape::kLinearHeadSize, .per_key = per_key};
  ValueHeads after_keys = rows, columns = rows, single = rows;
  after_keys.first = keys;
  columns.are_columns = true;
  single.size = 1;
  layer.Matrix("linear_attn.in_proj_qkv", "attn_qkv", keys + values, hidden).heads = after_keys;
  layer.Matrix("linear_attn.in_proj_z", "attn_gate", values, hidden).heads = rows;
  layer.Matrix("linear_attn.in_proj_b", "ssm_beta", heads, hidden).heads = single;
  layer.Matrix("linear_attn.in_proj_a", "ssm_alpha", heads, hidden).heads = single;
  Tensor& conv = layer.Add("linear_attn.conv1d.weight", "ssm_conv1d.weight",
                           {keys + values, 1, ModelShape::kConvWidth});
  conv.is_f32_in_gguf = true;
  conv.heads = after_keys;
  layer.Add("linear_attn.A_log", "ssm_a", {heads}, ValueKind::kDecayLogs).heads = single;
  layer.Add("linear_attn.dt_bias", "ssm_dt.bias", {heads}, ValueKind::kTimeSteps).heads = single;
  layer.Add("linear_attn.norm.weight", "ssm_norm.weight", {ModelShape::kLinearHeadSize},
            ValueKind::kOnes);
  layer.Matrix("linear_attn.out_proj", "ssm_out", hidden, values).heads = columns;
}

std::vector<Tensor> Tensors(const ModelShape& shape) {
  const std::uint64_t hidden = shape.hidden_size, ffn = shape.intermediate_size;
  const ValueKind norm = shape.is_hybrid() ? ValueKind::kZerosForOnes : ValueKind::kOnes;
  std::vector<Tensor> tensors;
  const LayerTensors model{.layer = "", .block = "", .tensors = &tensors};
  model.Matrix("model.embed_tokens", "token_embd", shape.vocab_size, hidden);
  for (std::uint32_t i = 0; i < shape.num_layers; ++i) {
    const LayerTensors layer{.layer = absl::StrCat("model.layers.", i, "."),
                             .block = absl::StrCat("blk.", i, "."),
                             .tensors = &tensors};
    layer.Add("input_layernorm.weight", "attn_norm.weight", {hidden}, norm);
    if (shape.is_recurrent(i)) {
      AddRecurrent(shape, layer);
    } else {
      AddAttention(shape, layer);
    }
    layer.Add("post_attention_layernorm.weight",
              shape.is_hybrid() ? "post_attention_norm.weight" : "ffn_norm.weight", {hidden}, norm);
    layer.Matrix("mlp.gate_proj", "ffn_gate", ffn, hidden);
    layer.Matrix("mlp.up_proj", "ffn_up", ffn, hidden);
    layer.Matrix("mlp.down_proj", "ffn_down", hidden, ffn);
  }
  model.Add("model.norm.weight", "output_norm.weight", {hidden}, norm);
  if (!shape.tie_word_embeddings) {
    model.Matrix("lm_head", "output", shape.vocab_size, hidden);
  }
  return tensors;
}

// Approximates a normal distribution by the sum of four uniform values. The sum has the standard
// deviation sqrt(4 / 12).
float RandomValue(std::uint64_t stream, std::uint64_t index) {
  const std::uint64_t bits = SplitMix(stream + index * kSplitMixStep);
  const std::uint64_t sum =
      (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  const float centred = (static_cast<float>(sum) - 131070.0f) / 65535.0f;
  return centred * kDeviation * 1.7320508f;
}

// Returns an element of the Hugging Face file. The decays of recurrent layers are exp(-exp(A_log) *
// softplus(dt_bias + a)). With the values of kDecayLogs and kTimeSteps and a = 0, the decay is 0.98
// in the first head and 0.75 in the 16th.
BF16 Value(const Tensor& tensor, std::uint64_t stream, std::uint64_t index) {
  switch (tensor.values) {
    case ValueKind::kRandom:
      return BF16::FromFloat(RandomValue(stream, index));
    case ValueKind::kOnes:
      return BF16::FromFloat(1.0f);
    case ValueKind::kZerosForOnes:
      return BF16::FromFloat(0.0f);
    case ValueKind::kDecayLogs:
      return BF16::FromFloat(std::log(static_cast<float>(1 + index % 16)));
    case ValueKind::kTimeSteps:
      break;
  }
  return BF16::FromFloat(-4.0f);
}

// Converts a value of the Hugging Face file to the value that the GGUF file stores.
float GgufValue(const Tensor& tensor, BF16 value) {
  const float stored = value.ToFloat();
  if (tensor.values == ValueKind::kZerosForOnes) return stored + 1.0f;
  return tensor.values == ValueKind::kDecayLogs ? -std::exp(stored) : stored;
}

std::uint64_t MakeStream(std::uint64_t seed, std::size_t tensor) {
  return SplitMix(SplitMix(seed) + static_cast<std::uint64_t>(tensor));
}

// Returns the row (or column) of the Hugging Face file that is row (or column) `at` of the GGUF
// file. The tensor has `count` rows (or columns).
std::uint64_t SourceOfValueHeads(const ValueHeads& heads, std::uint64_t count, std::uint64_t at) {
  if (heads.size == 0 || at < heads.first) return at;
  const std::uint64_t key_heads = (count - heads.first) / heads.size / heads.per_key;
  const std::uint64_t head = (at - heads.first) / heads.size,
                      inside = (at - heads.first) % heads.size;
  const std::uint64_t source = head % key_heads * heads.per_key + head / key_heads;
  return heads.first + source * heads.size + inside;
}

// Returns the row of the Hugging Face matrix that is row `row` of the GGUF matrix.
std::uint64_t SourceRow(const Tensor& tensor, std::uint64_t row) {
  if (!tensor.heads.are_columns) row = SourceOfValueHeads(tensor.heads, tensor.rows(), row);
  if (tensor.rope_head_rows == 0) return row;
  const std::uint64_t head = row / tensor.rope_head_rows, inside = row % tensor.rope_head_rows;
  return head * tensor.rope_head_rows + inside / 2 + inside % 2 * (tensor.rope_head_rows / 2);
}

std::vector<BF16> Row(const Tensor& tensor, std::uint64_t stream, std::uint64_t row) {
  std::vector<BF16> values(tensor.columns());
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    values[i] = Value(tensor, stream, row * values.size() + i);
  }
  return values;
}

std::vector<BF16> GgufRow(const Tensor& tensor, std::uint64_t stream, std::uint64_t row) {
  std::vector<BF16> source = Row(tensor, stream, SourceRow(tensor, row));
  if (!tensor.heads.are_columns) return source;
  std::vector<BF16> values(source.size());
  for (std::uint64_t i = 0; i < values.size(); ++i) {
    values[i] = source[SourceOfValueHeads(tensor.heads, values.size(), i)];
  }
  return values;
}

template <typename T>
void Write(const std::vector<T>& values, std::ostream* out) {
  out->write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(T)));
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

// Adds the keys that both architectures have.
void AddShape(const ModelShape& shape, absl::string_view architecture, GgufHeader* header) {
  const auto key = [&](absl::string_view name) { return absl::StrCat(architecture, ".", name); };
  header->String("general.architecture", architecture);
  header->String("general.name", shape.name);
  header->Uint32("general.file_type", kFileTypeBf16);
  header->Uint32(key("block_count"), shape.num_layers);
  header->Uint32(key("context_length"), shape.max_position_embeddings);
  header->Uint32(key("embedding_length"), shape.hidden_size);
  header->Uint32(key("feed_forward_length"), shape.intermediate_size);
  header->Uint32(key("attention.head_count"), shape.num_heads);
  header->Uint32(key("attention.head_count_kv"), shape.num_kv_heads);
  header->Uint32(key("rope.dimension_count"),
                 shape.is_hybrid() ? shape.head_dim / 4 : shape.head_dim);
  header->Uint32(key("vocab_size"), shape.vocab_size);
  header->Float(key("rope.freq_base"), static_cast<float>(shape.rope_theta));
  header->Float(key("attention.layer_norm_rms_epsilon"), shape.is_hybrid() ? 1e-6f : 1e-5f);
}

void AddMetadata(const ModelShape& shape, GgufHeader* header) {
  AddShape(shape, shape.is_hybrid() ? "qwen35" : "llama", header);
  if (shape.is_hybrid()) {
    header->Uint32("qwen35.attention.key_length", shape.head_dim);
    header->Uint32("qwen35.attention.value_length", shape.head_dim);
    header->Ints("qwen35.rope.dimension_sections", {11, 11, 10, 0});
    header->Uint32("qwen35.full_attention_interval", ModelShape::kFullAttentionInterval);
    header->Uint32("qwen35.ssm.conv_kernel", ModelShape::kConvWidth);
    header->Uint32("qwen35.ssm.state_size", ModelShape::kLinearHeadSize);
    header->Uint32("qwen35.ssm.group_count", shape.linear_key_heads);
    header->Uint32("qwen35.ssm.time_step_rank", shape.linear_value_heads);
    header->Uint32("qwen35.ssm.inner_size", shape.linear_value_columns());
  }
  AddVocabulary(shape, header);
}

std::uint64_t GgufBytes(const Tensor& tensor) {
  return tensor.elements() * (tensor.is_f32_in_gguf ? sizeof(float) : sizeof(BF16));
}

// Returns the dimensions of a tensor in a GGUF file, the innermost first. Dimensions of size 1 are
// omitted.
std::vector<std::uint64_t> GgufDimensions(const Tensor& tensor) {
  std::vector<std::uint64_t> dimensions;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1) dimensions.push_back(tensor.shape[i]);
  }
  return dimensions;
}

void WritePadding(std::uint64_t bytes, std::ostream* out) {
  const std::string zeros(Aligned(bytes) - bytes, '\0');
  out->write(zeros.data(), static_cast<std::streamsize>(zeros.size()));
}

void WriteGgufTensor(const Tensor& tensor, std::uint64_t stream, std::ostream* out) {
  for (std::uint64_t row = 0; row < tensor.rows(); ++row) {
    const std::vector<BF16> values = GgufRow(tensor, stream, row);
    if (tensor.is_f32_in_gguf) {
      std::vector<float> floats;
      for (const BF16 value : values) floats.push_back(GgufValue(tensor, value));
      Write(floats, out);
    } else {
      Write(values, out);
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
    const std::uint64_t end = offset + tensor.elements() * sizeof(BF16);
    header[tensor.name] = {{"dtype", "BF16"}, {"data_offsets", {offset, end}}};
    header[tensor.name]["shape"] = tensor.shape;
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
    for (std::uint64_t row = 0; row < tensors[i].rows(); ++row) {
      Write(Row(tensors[i], MakeStream(seed, i), row), &file);
    }
  }
  return Close(&file, path.string());
}

absl::Status CheckCanWriteGguf(const ModelShape& shape, const std::string& path) {
  if (shape.original_max_position_embeddings > 0) {
    return absl::UnimplementedError(
        absl::StrCat(shape.name, " has scaled RoPE, which --gguf does not write"));
  }
  return CheckAbsent(path);
}

absl::Status WriteSyntheticGguf(const ModelShape& shape, std::uint64_t seed,
                                const std::string& path) {
  QUIRE_RETURN_IF_ERROR(CheckCanWriteGguf(shape, path));
  const std::vector<Tensor> tensors = Tensors(shape);
  GgufHeader metadata, infos, start;
  AddMetadata(shape, &metadata);
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    infos.Text(tensor.gguf_name);
    const std::vector<std::uint64_t> dimensions = GgufDimensions(tensor);
    infos.Number(static_cast<std::uint32_t>(dimensions.size()));
    for (const std::uint64_t size : dimensions) infos.Number(size);
    infos.Number(tensor.is_f32_in_gguf ? kGgmlF32 : kGgmlBf16);
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

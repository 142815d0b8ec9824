#include "tests/parity/hybrid_formats.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "models/families/registry.h"
#include "models/weights/checkpoint.h"
#include "models/weights/dummy_checkpoint.h"
#include "runtime/model.h"
#include "tests/parity/fp8_fixture.h"
#include "tests/parity/ggml_encoder.h"
#include "tests/parity/gguf_conversion.h"

namespace quire::models::parity {
namespace {

using formats::GgmlType;
using nlohmann::json;

constexpr std::int32_t kHidden = 256;  // hidden_size of all models

// Values that keep activations and states of ordinary magnitude.
std::vector<float> RandomValues(const formats::StoredTensor& tensor, std::mt19937* random) {
  float low = -0.1f, high = 0.1f;  // biases
  if (absl::StrContains(tensor.name, "conv") && tensor.shape.size() > 1) {
    low = -0.6f, high = 0.6f;
  } else if (tensor.shape.size() > 1) {
    high = std::sqrt(3 / static_cast<float>(tensor.shape.back()));
    low = -high;
  } else if (absl::StrContains(tensor.name, "norm") || absl::EndsWith(tensor.name, ".D")) {
    low = 0.5f, high = 1.5f;
  } else if (absl::EndsWith(tensor.name, "A_log")) {
    low = 0, high = 1;
  } else if (absl::EndsWith(tensor.name, "dt_bias")) {
    low = -3, high = 0;
  }
  std::vector<float> values;
  for (std::int64_t i = 0; i < tensor.num_elements(); ++i) {
    const float unit = static_cast<float>((*random)() >> 8) * 0x1p-24f;
    values.push_back(low + (high - low) * unit);
  }
  return values;
}

// Returns the model of the case with random bf16 weights.
EditedFixture MakeModel(const HybridCase& hybrid) {
  EditedFixture fixture(hybrid.folder);
  fixture.config().merge_patch(json::parse(hybrid.sizes));
  const auto read = runtime::ReadModelSpec(fixture.Files(), DeviceKind::kCpu);
  QUIRE_CHECK(read.ok());
  const auto shapes = DummyCheckpoint(read->config, read->spec, TensorNamesOf(read->config),
                                      /*with_values=*/false);
  QUIRE_CHECK(shapes.ok());
  std::mt19937 random(7);
  std::vector<FileTensor> tensors;
  for (const formats::StoredTensor& tensor : shapes->tensors()) {
    std::vector<std::int64_t> shape = tensor.shape;
    if (absl::StrContains(tensor.name, "conv") && shape.size() == 2 && shape[1] <= kMaxConvWidth) {
      shape = {shape[0], 1, shape[1]};
    }
    tensors.push_back({tensor.name, "BF16",
                       EncodeGgml(GgmlType::kBF16, RandomValues(tensor, &random)),
                       std::move(shape)});
  }
  fixture.Text("model.safetensors") = SafetensorsOf(tensors);
  return fixture;
}

// Returns a bf16 tensor. Stacks of experts become a matrix for each expert, as in quantized
// checkpoints, unless the format has stacks.
std::vector<FloatMatrix> MatricesOf(const formats::StoredTensor& tensor, bool has_stacks) {
  const std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  FloatMatrix whole{tensor.name, tensor.shape, DecodeGgml(GgmlType::kBF16, bytes)};
  const bool is_down = absl::EndsWith(tensor.name, "experts.down_proj");
  if (has_stacks || (!is_down && !absl::EndsWith(tensor.name, "experts.gate_up_proj"))) {
    return {std::move(whole)};
  }
  const std::vector<std::string> parts = is_down ? std::vector<std::string>{"down_proj"}
                                                 : std::vector<std::string>{"gate_proj", "up_proj"};
  const std::string prefix = whole.name.substr(0, whole.name.rfind('.'));
  const std::int64_t rows = whole.shape[1] / static_cast<std::int64_t>(parts.size());
  std::vector<FloatMatrix> matrices;
  auto from = whole.values.begin();
  for (std::int64_t e = 0; e < whole.shape[0]; ++e) {
    for (const std::string& part : parts) {
      const auto end = from + rows * whole.columns();
      matrices.push_back({absl::StrCat(prefix, ".", e, ".", part, ".weight"),
                          {rows, whole.columns()},
                          {from, end}});
      from = end;
    }
  }
  return matrices;
}

bool IsEncoded(const FloatMatrix& matrix, const CodedFormat& format) {
  const std::size_t dims = matrix.shape.size();
  const bool is_matrix = dims == 2 || (dims == 3 && format.has_stacks);
  // Routers have fewer rows.
  return is_matrix && absl::StrContains(matrix.name, "layers.") && matrix.columns() % 32 == 0 &&
         matrix.shape[dims - 2] % 8 == 0;
}

// Encodes the matrices of layers that the format supports. `exact` gets their values in f32.
void Encode(const CodedFormat& format, EditedFixture* coded, EditedFixture* exact) {
  const auto checkpoint = Checkpoint::Open(coded->Files());
  QUIRE_CHECK(checkpoint.ok());
  std::vector<FileTensor> coded_tensors, exact_tensors;
  for (const formats::StoredTensor& tensor : checkpoint->tensors()) {
    for (const FloatMatrix& matrix : MatricesOf(tensor, format.has_stacks)) {
      if (!IsEncoded(matrix, format)) {
        for (auto* tensors : {&coded_tensors, &exact_tensors}) {
          tensors->push_back(
              {matrix.name, "BF16", EncodeGgml(GgmlType::kBF16, matrix.values), matrix.shape});
        }
        continue;
      }
      CodedMatrix encoded = format.encode(matrix);
      std::move(encoded.tensors.begin(), encoded.tensors.end(), std::back_inserter(coded_tensors));
      exact_tensors.push_back({matrix.name, "F32", BytesOfValues(encoded.values), matrix.shape});
    }
  }
  coded->Text("model.safetensors") = SafetensorsOf(coded_tensors);
  exact->Text("model.safetensors") = SafetensorsOf(exact_tensors);
  coded->config()["quantization_config"] = format.config;
}

const EditedFixture& ModelOf(const HybridCase& hybrid) {
  static std::map<std::string, EditedFixture> models;
  const auto found = models.find(hybrid.folder);
  if (found != models.end()) return found->second;
  return models.emplace(hybrid.folder, MakeModel(hybrid)).first->second;
}

}  // namespace

void PrintTo(const HybridCase& hybrid, std::ostream* stream) {
  *stream << hybrid.folder;
}

void PrintTo(const HybridFormat& format, std::ostream* stream) {
  *stream << format.name;
}

const std::vector<HybridCase>& HybridCases() {
  static const std::vector<HybridCase> kCases = {
      {"qwen3-next-bf16", "qwen3next",
       R"({"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
         "intermediate_size": 256, "num_experts": 3, "moe_intermediate_size": 256,
         "mlp_only_layers": [1], "shared_expert_intermediate_size": 256,
         "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 32,
         "linear_value_head_dim": 32})"},
      {"qwen35-bf16", "qwen35",
       R"({"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
         "intermediate_size": 256, "full_attention_interval": 2,
         "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 4,
         "linear_num_value_heads": 8, "linear_key_head_dim": 32, "linear_value_head_dim": 32})"},
      {"qwen35-moe-bf16", "qwen35moe",
       R"({"text_config": {"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8,
         "num_experts": 3, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 256,
         "full_attention_interval": 2, "layer_types": ["linear_attention", "full_attention"],
         "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 32,
         "linear_value_head_dim": 32}})"},
      {"granite-hybrid-bf16", "granitehybrid",
       R"({"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "intermediate_size": 256, "shared_intermediate_size": 256,
         "layer_types": ["mamba", "attention"], "num_local_experts": 3, "mamba_n_heads": 8,
         "mamba_expand": 1})"},
      {"nemotron-h-bf16", "nemotron_h_moe",
       R"({"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8,
         "intermediate_size": 256, "moe_intermediate_size": 256, "n_routed_experts": 3,
         "moe_latent_size": 256, "moe_shared_expert_intermediate_size": 256,
         "hybrid_override_pattern": "ME*-",
         "mamba_num_heads": 8, "mamba_head_dim": 32})"},
      {"lfm2-bf16", "lfm2",
       R"({"hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_heads": 8,
         "block_dim": 256, "block_ff_dim": 384, "conv_dim": 256, "conv_dim_out": 256,
         "layer_types": ["conv", "full_attention"]})"},
      {"kimi-linear-bf16", "kimi-linear",
       R"({"hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 256,
         "moe_intermediate_size": 256, "num_experts": 3, "kv_lora_rank": 256,
         "qk_nope_head_dim": 128, "v_head_dim": 128,
         "linear_attn_config": {"kda_layers": [1], "full_attn_layers": [2],
         "head_dim": 128, "num_heads": 8}})"}};
  return kCases;
}

std::vector<HybridFormat> HybridFormats() {
  std::vector<HybridFormat> formats;
  for (const Quantization quantization : kAllQuantizations) {
    const auto form = ConvertedForm(quantization, MatrixRole::kLayer);
    if (!form) continue;
    formats.push_back({.name = absl::StrCat("load_", QuantizationName(quantization)),
                       .held = form->format,
                       .quantization = quantization});
  }
  for (const CodedFormat& coded : CodedFormats()) {
    formats.push_back({.name = coded.name, .held = coded.held, .coded = &coded});
  }
  for (const GgmlType type : {GgmlType::kF16, GgmlType::kBF16, GgmlType::kQ8_0, GgmlType::kQ4_0,
                              GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K}) {
    const formats::GgmlFormat& ggml = formats::FormatOf(type);
    const WeightFormat held =
        ggml.elements == 1 ? WeightFormat::kPlain : formats::IntegerShapeOf(type, 256, 256).format;
    formats.push_back({.name = absl::StrCat("gguf_", ggml.name), .held = held, .ggml = type});
  }
  return formats;
}

HybridModel::HybridModel(const HybridCase& hybrid, const HybridFormat& format)
    : coded_(ModelOf(hybrid)), exact_(coded_) {
  if (format.coded != nullptr) Encode(*format.coded, &coded_, &exact_);
  if (format.ggml == GgmlType::kNone) return;
  GgufOptions options{.type = format.ggml, .in_layers_only = true};
  coded_gguf_ = ConvertToGguf(coded_, hybrid.architecture, options).File();
  options.is_dequantized = true;
  exact_gguf_ = ConvertToGguf(coded_, hybrid.architecture, options).File();
}

formats::ModelFiles HybridModel::Files(const std::string& gguf, EditedFixture* fixture) {
  if (gguf.empty()) return fixture->Files();
  return formats::ModelFiles::FromMemory(
      "written", {{"model.gguf", std::as_bytes(std::span(gguf.data(), gguf.size()))}});
}

absl::StatusOr<std::vector<float>> RunHybrid(const formats::ModelFiles& files,
                                             const ReplayOptions& options) {
  ReferencePrompt prompt;
  for (std::int32_t i = 0; i < kHybridTokens; ++i) prompt.tokens.push_back(i * 23 % 300);
  auto hidden = ReplayHidden(files, prompt, options);
  if (!hidden.ok()) return hidden.status();
  return std::vector<float>(hidden->end() - kHybridTokens * kHidden, hidden->end());
}

std::string HybridTestName(const HybridCase& hybrid, const HybridFormat& format) {
  std::string name = absl::StrCat(hybrid.folder, "_", format.name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace quire::models::parity

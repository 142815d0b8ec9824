// Other families than Llama as GGUF files. The fixtures of tests/testdata/models are rewritten with
// the keys and tensor names of llama.cpp's converter. They must compute the same as Hugging Face
// transformers with the originals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/thread_pool.h"
#include "formats/tensors/quantized_tensor.h"
#include "kernels/backend/backend.h"
#include "models/families/read_model_config.h"
#include "models/weights/checkpoint.h"
#include "runtime/model.h"
#include "tests/parity/edited_fixture.h"
#include "tests/parity/gguf_writer.h"
#include "tests/parity/parity_harness.h"

namespace quire::models::parity {
namespace {

using nlohmann::json;

// Maps the part of a name after "model.layers.N." to the part after "blk.N.".
const std::map<std::string, std::string>& LayerNames(const std::string& architecture) {
  static const std::map<std::string, std::string> kPreNorm = {
      {"input_layernorm", "attn_norm"},
      {"post_attention_layernorm", "ffn_norm"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"self_attn.qkv_proj", "attn_qkv"},
      {"self_attn.q_norm", "attn_q_norm"},
      {"self_attn.k_norm", "attn_k_norm"},
      {"mlp.gate_proj", "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.gate_up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"},
      {"mlp.gate", "ffn_gate_inp"},
      {"block_sparse_moe.gate", "ffn_gate_inp"}};
  static const std::map<std::string, std::string> kSandwich = [] {
    std::map<std::string, std::string> names = kPreNorm;
    names["post_attention_layernorm"] = "post_attention_norm";
    names["pre_feedforward_layernorm"] = "ffn_norm";
    names["post_feedforward_layernorm"] = "post_ffw_norm";
    return names;
  }();
  static const std::map<std::string, std::string> kGptOss = [] {
    std::map<std::string, std::string> names = kPreNorm;
    names["post_attention_layernorm"] = "post_attention_norm";
    names["mlp.router"] = "ffn_gate_inp";
    return names;
  }();
  if (architecture == "gpt-oss") return kGptOss;
  return absl::StartsWith(architecture, "gemma") ? kSandwich : kPreNorm;
}

std::string GgufName(const std::string& name, const std::string& architecture) {
  if (name == "model.embed_tokens.weight") return "token_embd.weight";
  if (name == "model.norm.weight") return "output_norm.weight";
  if (name == "lm_head.weight") return "output.weight";
  const std::string prefix = "model.layers.";
  QUIRE_CHECK(absl::StartsWith(name, prefix));
  const std::size_t dot = name.find('.', prefix.size());
  if (absl::EndsWith(name, ".self_attn.sinks")) {
    return absl::StrCat("blk.", name.substr(prefix.size(), dot - prefix.size()),
                        ".attn_sinks.weight");
  }
  const std::size_t ending = name.rfind('.');
  const std::string part = name.substr(dot + 1, ending - dot - 1);
  return absl::StrCat("blk.", name.substr(prefix.size(), dot - prefix.size()), ".",
                      LayerNames(architecture).at(part), name.substr(ending));
}

// Vectors are stored as F32, and the weights of Gemma's norms include the added 1.
void AddTensor(GgufWriter* writer, const formats::StoredTensor& tensor,
               const std::string& architecture) {
  const std::string name = GgufName(tensor.name, architecture);
  QUIRE_CHECK(tensor.dtype == DType::kBF16);
  if (tensor.shape.size() > 1) {
    writer->Tensor(name, tensor.shape, 30, tensor.bytes.data(), tensor.bytes.size());
    return;
  }
  const bool adds_one =
      absl::StartsWith(architecture, "gemma") && absl::EndsWith(name, "norm.weight");
  std::vector<BF16> stored(static_cast<std::size_t>(tensor.num_elements()));
  std::memcpy(stored.data(), tensor.bytes.data(), tensor.bytes.size());
  std::vector<float> values;
  for (const BF16 value : stored) values.push_back(value.ToFloat() + (adds_one ? 1.0f : 0.0f));
  writer->Floats(name, values);
}

// Returns the rows of q and k in the order of llama files, which interleave the halves of each
// head.
std::string Interleaved(const formats::StoredTensor& tensor, std::size_t head_size) {
  const std::size_t row = tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0]);
  std::string bytes(tensor.bytes.size(), '\0');
  for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.shape[0]); ++i) {
    const std::size_t j = i % head_size;
    const std::size_t from = i - j + j / 2 + j % 2 * (head_size / 2);
    std::memcpy(bytes.data() + i * row, tensor.bytes.data() + from * row, row);
  }
  return bytes;
}

// Writes the experts of a layer as three stacks.
void AddExperts(GgufWriter* writer, const Checkpoint& checkpoint, const std::string& root,
                const std::vector<std::string>& parts, std::uint32_t num_experts,
                std::size_t layer) {
  const char* const kStacks[] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    std::string bytes;
    std::vector<std::int64_t> shape = {num_experts};
    for (std::uint32_t e = 0; e < num_experts; ++e) {
      const formats::StoredTensor* const tensor =
          checkpoint.Find(absl::StrCat(root, ".experts.", e, ".", parts[i], ".weight"));
      QUIRE_CHECK(tensor != nullptr);
      bytes.append(reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size());
      if (e == 0) shape.insert(shape.end(), tensor->shape.begin(), tensor->shape.end());
    }
    writer->Tensor(absl::StrCat("blk.", layer, ".", kStacks[i], ".weight"), shape, 30, bytes.data(),
                   bytes.size());
  }
}

void AddAllExperts(GgufWriter* writer, const Checkpoint& checkpoint, const json& config,
                   const std::string& architecture) {
  const bool is_mixtral = architecture == "llama";
  const auto experts =
      config[is_mixtral ? "num_local_experts" : "num_experts"].get<std::uint32_t>();
  writer->Integer(architecture + ".expert_count", experts);
  writer->Integer(architecture + ".expert_used_count",
                  config["num_experts_per_tok"].get<std::uint32_t>());
  if (!is_mixtral) {
    writer->Integer(architecture + ".expert_feed_forward_length",
                    config["moe_intermediate_size"].get<std::uint32_t>());
  }
  for (std::size_t layer = 0; layer < config["num_hidden_layers"].get<std::size_t>(); ++layer) {
    const std::string root =
        absl::StrCat("model.layers.", layer, is_mixtral ? ".block_sparse_moe" : ".mlp");
    AddExperts(writer, checkpoint, root,
               is_mixtral ? std::vector<std::string>{"w1", "w3", "w2"}
                          : std::vector<std::string>{"gate_proj", "up_proj", "down_proj"},
               experts, layer);
  }
}

// Appends output `row` of expert `e`. The stack is bf16 [experts, inputs, outputs] or mxfp4
// [experts, outputs, inputs]. The result is bf16, or blocks of 17 bytes: the exponent, then inputs
// i and i + 16 in one byte, where the original stores neighbours.
void AppendExpertRow(const formats::StoredTensor& stack, std::int64_t e, std::int64_t row,
                     std::string* bytes) {
  if (stack.quantized == nullptr) {
    const std::int64_t k = stack.shape[1], rows = stack.shape[2];
    for (std::int64_t i = 0; i < k; ++i) {
      const std::byte* at = stack.bytes.data() + ((e * k + i) * rows + row) * 2;
      bytes->append(reinterpret_cast<const char*>(at), 2);
    }
    return;
  }
  const formats::QuantizedParts& parts = stack.quantized->parts();
  const std::int64_t blocks = stack.shape[2] / 32;
  for (std::int64_t b = 0; b < blocks; ++b) {
    const std::int64_t block = (e * stack.shape[1] + row) * blocks + b;
    const auto* codes =
        reinterpret_cast<const std::uint8_t*>(parts.codes.bytes.data()) + 16 * block;
    const auto code = [&](int i) { return codes[i / 2] >> (i % 2 * 4) & 15; };
    bytes->push_back(static_cast<char>(parts.scales.bytes[static_cast<std::size_t>(block)]));
    for (int i = 0; i < 16; ++i) bytes->push_back(static_cast<char>(code(i) | code(i + 16) << 4));
  }
}

// Adds outputs first, first + step, ... of all experts and their biases as one stack.
void AddExpertStack(GgufWriter* writer, const Checkpoint& checkpoint, const std::string& from,
                    const std::string& to, std::int64_t first, std::int64_t step) {
  const formats::StoredTensor* const stack = checkpoint.Find(from);
  const formats::StoredTensor* const biases = checkpoint.Find(from + "_bias");
  QUIRE_CHECK(stack != nullptr && biases != nullptr);
  const bool is_quantized = stack->quantized != nullptr;
  const std::int64_t experts = stack->shape[0], rows = biases->shape[1];
  const std::int64_t k = is_quantized ? stack->shape[2] : stack->shape[1];
  std::string bytes;
  std::vector<float> values;
  for (std::int64_t e = 0; e < experts; ++e) {
    for (std::int64_t row = first; row < rows; row += step) {
      AppendExpertRow(*stack, e, row, &bytes);
      BF16 bias;
      std::memcpy(&bias, biases->bytes.data() + (e * rows + row) * 2, sizeof(bias));
      values.push_back(bias.ToFloat());
    }
  }
  writer->Tensor(to + ".weight", {experts, rows / step, k}, is_quantized ? 39 : 30, bytes.data(),
                 bytes.size());
  writer->Tensor(to + ".bias", {experts, rows / step}, 0, values.data(), values.size() * 4);
}

void AddGptOss(GgufWriter* writer, const Checkpoint& checkpoint, const json& config) {
  const auto integer = [&](const std::string& suffix, const json& value) {
    writer->Integer("gpt-oss." + suffix, value.get<std::uint32_t>());
  };
  integer("expert_count", config["num_local_experts"]);
  integer("expert_used_count", config["num_experts_per_tok"]);
  integer("expert_feed_forward_length", config["intermediate_size"]);
  integer("attention.sliding_window", config["sliding_window"]);
  const json& rope = config["rope_scaling"];
  writer->Text("gpt-oss.rope.scaling.type", "yarn");
  writer->Number("gpt-oss.rope.scaling.factor", rope["factor"].get<double>());
  integer("rope.scaling.original_context_length", rope["original_max_position_embeddings"]);
  for (std::size_t layer = 0; layer < config["num_hidden_layers"].get<std::size_t>(); ++layer) {
    const std::string from = absl::StrCat("model.layers.", layer, ".mlp.experts.");
    const std::string to = absl::StrCat("blk.", layer, ".ffn_");
    AddExpertStack(writer, checkpoint, from + "gate_up_proj", to + "gate_exps", 0, 2);
    AddExpertStack(writer, checkpoint, from + "gate_up_proj", to + "up_exps", 1, 2);
    AddExpertStack(writer, checkpoint, from + "down_proj", to + "down_exps", 0, 1);
  }
}

void AddCommonKeys(GgufWriter* writer, const json& config, const std::string& architecture) {
  const auto integer = [&](const std::string& suffix, const char* key) {
    writer->Integer(absl::StrCat(architecture, ".", suffix), config[key].get<std::uint32_t>());
  };
  writer->Text("general.architecture", architecture);
  integer("context_length", "max_position_embeddings");
  integer("embedding_length", "hidden_size");
  integer("block_count", "num_hidden_layers");
  integer("feed_forward_length", "intermediate_size");
  integer("attention.head_count", "num_attention_heads");
  integer("attention.head_count_kv", "num_key_value_heads");
  writer->Number(architecture + ".attention.layer_norm_rms_epsilon",
                 config["rms_norm_eps"].get<double>());
  writer->Number(architecture + ".rope.freq_base", config["rope_theta"].get<double>());
  if (!config.contains("head_dim")) return;
  integer("attention.key_length", "head_dim");
  integer("attention.value_length", "head_dim");
}

void AddGemmaKeys(GgufWriter* writer, const json& config, const std::string& architecture) {
  writer->Integer(architecture + ".attention.sliding_window",
                  config["sliding_window"].get<std::uint32_t>());
  // Converters omit it, since published models follow a rule. This one does not.
  writer->Number(architecture + ".attention.scale",
                 1 / std::sqrt(config["query_pre_attn_scalar"].get<double>()));
  if (architecture == "gemma2") {
    writer->Number("gemma2.attn_logit_softcapping", config["attn_logit_softcapping"].get<double>());
    writer->Number("gemma2.final_logit_softcapping",
                   config["final_logit_softcapping"].get<double>());
  } else {
    writer->Text("gemma3.rope.scaling.type", "linear");
    writer->Number("gemma3.rope.scaling.factor", config["rope_scaling"]["factor"].get<double>());
  }
}

void AddPhiKeys(GgufWriter* writer, const json& config) {
  const std::uint32_t head = config["hidden_size"].get<std::uint32_t>() /
                             config["num_attention_heads"].get<std::uint32_t>();
  const double partial = config.value("partial_rotary_factor", 1.0);
  writer->Integer("phi3.rope.dimension_count", static_cast<std::uint32_t>(partial * head));
  writer->Integer("phi3.attention.sliding_window", config["sliding_window"].get<std::uint32_t>());
  const auto original = config["original_max_position_embeddings"].get<std::uint32_t>();
  writer->Integer("phi3.rope.scaling.original_context_length", original);
  if (!config["rope_scaling"].is_object()) return;
  const double factor = config["max_position_embeddings"].get<double>() / original;
  writer->Number("phi3.rope.scaling.attn_factor",
                 std::sqrt(1 + std::log(factor) / std::log(double(original))));
  writer->Floats("rope_factors_long.weight",
                 config["rope_scaling"]["long_factor"].get<std::vector<float>>());
  writer->Floats("rope_factors_short.weight",
                 config["rope_scaling"]["short_factor"].get<std::vector<float>>());
}

GgufWriter Convert(EditedFixture& fixture, const std::string& architecture) {
  GgufWriter writer;
  const json& config = fixture.config();
  AddCommonKeys(&writer, config, architecture);
  if (absl::StartsWith(architecture, "gemma")) AddGemmaKeys(&writer, config, architecture);
  if (architecture == "phi3") AddPhiKeys(&writer, config);
  const formats::ModelFiles files = fixture.Files();
  const auto original = ReadModelConfig(files);
  QUIRE_CHECK(original.ok());
  const auto checkpoint = Checkpoint::Open(files, original->stored_quantization);
  QUIRE_CHECK(checkpoint.ok());
  if (architecture == "gpt-oss") {
    AddGptOss(&writer, *checkpoint, config);
  } else if (config.contains("num_experts_per_tok")) {
    AddAllExperts(&writer, *checkpoint, config, architecture);
  }
  for (const formats::StoredTensor& tensor : checkpoint->tensors()) {
    if (absl::StrContains(tensor.name, ".experts.")) continue;
    const bool is_rotated = absl::StrContains(tensor.name, "self_attn.q_proj.") ||
                            absl::StrContains(tensor.name, "self_attn.k_proj.");
    if (architecture != "llama" || !is_rotated) {
      AddTensor(&writer, tensor, architecture);
      continue;
    }
    const std::size_t head_size =
        config["hidden_size"].get<std::size_t>() / config["num_attention_heads"].get<std::size_t>();
    const std::string bytes = Interleaved(tensor, head_size);
    writer.Tensor(GgufName(tensor.name, architecture), tensor.shape, 30, bytes.data(),
                  bytes.size());
  }
  return writer;
}

formats::ModelFiles FilesOf(const std::string& file) {
  return formats::ModelFiles::FromMemory(
      "written", {{"model.gguf", std::as_bytes(std::span(file.data(), file.size()))}});
}

struct Case {
  const char* folder;
  const char* architecture;
  std::uint32_t border = 1u << 30;  // see families_parity_test.cc
};

void PrintTo(const Case& fixture, std::ostream* stream) {
  *stream << fixture.folder;
}

constexpr Case kCases[] = {{"qwen2-bf16", "qwen2"},     {"qwen3-hd128-bf16", "qwen3"},
                           {"gemma2-bf16", "gemma2"},   {"gemma3-text-bf16", "gemma3"},
                           {"phi3-bf16", "phi3"},       {"phi3-longrope-bf16", "phi3", 140},
                           {"mixtral-bf16", "llama"},   {"qwen3-moe-bf16", "qwen3moe"},
                           {"gpt-oss-bf16", "gpt-oss"}, {"gpt-oss-mxfp4", "gpt-oss"}};

// No key stores the clamp of expert products. Files imply the published models' value.
void SetSwigluLimit(const json& config, ModelSpec* spec) {
  if (!config.contains("swiglu_limit")) return;
  for (LayerSpec& layer : spec->layers) {
    EXPECT_EQ(layer.moe.expert.limit, 7);
    layer.moe.expert.limit = config["swiglu_limit"].get<float>();
  }
}

class GgufFamiliesTest : public testing::TestWithParam<Case> {};

TEST_P(GgufFamiliesTest, ComputesTheSameAsTheOriginal) {
  const auto reference = ReadReference(GetParam().folder);
  ASSERT_TRUE(reference.ok()) << reference.status();
  EditedFixture fixture(GetParam().folder);
  const std::string file = Convert(fixture, GetParam().architecture).File();
  const auto got = ReplayByContext(
      FilesOf(file), *reference,
      {.threads = 2,
       .edit_spec = [&](ModelSpec* spec) { SetSwigluLimit(fixture.config(), spec); },
       .quantization = Quantization::kNone},
      GetParam().border);
  ASSERT_TRUE(got.ok()) << got.status();
  const Deviation deviation = CompareLogits(*got, *reference);
  std::printf("%s as GGUF: logits differ by %.2e relative, %.2e at most\n", GetParam().folder,
              deviation.relative, deviation.max_abs);
  EXPECT_LE(deviation.relative, kMaxRelative);
  EXPECT_LE(deviation.max_abs, kMaxAbsolute);
  EXPECT_EQ(CountTokenMismatches(*got, *reference), 0u);
}

TEST_P(GgufFamiliesTest, SpecEqualsTheOriginal) {
  EditedFixture fixture(GetParam().folder);
  const std::string file = Convert(fixture, GetParam().architecture).File();
  auto got = runtime::ReadModelSpec(FilesOf(file), DeviceKind::kCpu);
  ASSERT_TRUE(got.ok()) << got.status();
  SetSwigluLimit(fixture.config(), &got->spec);
  const auto original = runtime::ReadModelSpec(fixture.Files(), DeviceKind::kCpu);
  ASSERT_TRUE(original.ok()) << original.status();
  ModelSpec want = original->spec;
  // Norms already include their 1, ids belong to the tokenizer, which this file lacks, and factors
  // were rounded to float32.
  for (NormSpec* norm : {&want.final_norm}) norm->weight_offset = 0;
  for (LayerSpec& layer : want.layers) {
    for (NormSpec* norm :
         {&layer.attn_in, &layer.attn_out, &layer.mlp_in, &layer.mlp_out, &layer.heads.qk_norm}) {
      norm->weight_offset = 0;
    }
  }
  want.eos_ids.clear();
  want.bos_id.reset();
  want.pad_id.reset();
  EXPECT_EQ(DumpSpec(got->spec), DumpSpec(want));
}

INSTANTIATE_TEST_SUITE_P(Families, GgufFamiliesTest, testing::ValuesIn(kCases),
                         [](const auto& info) {
                           std::string name = info.param.folder;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Blocks of both files become the same integers, whatever their layout.
TEST(GgufFamiliesMxfp4Test, AutoEqualsTheOriginalBitwise) {
  const auto reference = ReadReference("gpt-oss-mxfp4");
  ASSERT_TRUE(reference.ok()) << reference.status();
  EditedFixture fixture("gpt-oss-mxfp4");
  const std::string file = Convert(fixture, "gpt-oss").File();
  const ReplayOptions options = {.threads = 2, .feed_reference = true, .generated = 8};
  ReplayOptions of_gguf = options;
  of_gguf.edit_spec = [&](ModelSpec* spec) { SetSwigluLimit(fixture.config(), spec); };
  const auto got = Replay(FilesOf(file), *reference, of_gguf);
  const auto want = Replay(fixture.Files(), *reference, options);
  ASSERT_TRUE(got.ok()) << got.status();
  ASSERT_TRUE(want.ok()) << want.status();
  for (std::size_t i = 0; i < want->size(); ++i) {
    EXPECT_EQ((*got)[i].logits, (*want)[i].logits);
    EXPECT_EQ((*got)[i].sampled, (*want)[i].sampled);
  }
  // Activation quantization must have an effect, otherwise this would not be the integer path.
  EXPECT_GT(CompareLogits(*got, *reference).relative, kMaxRelative);
}

std::string ErrorOf(const std::string& folder, const std::string& architecture,
                    const std::function<void(GgufWriter*)>& add) {
  EditedFixture fixture(folder);
  GgufWriter writer = Convert(fixture, architecture);
  add(&writer);
  const std::string file = writer.File();
  const auto read = runtime::ReadModelSpec(FilesOf(file), DeviceKind::kCpu);
  EXPECT_FALSE(read.ok());
  return std::string(read.status().message());
}

TEST(GgufFamiliesRefusalTest, NamesKeysOfOtherFamiliesAndBrokenFactors) {
  EXPECT_THAT(
      ErrorOf("qwen2-bf16", "qwen2",
              [](GgufWriter* writer) { writer->Integer("qwen2.attention.sliding_window", 32); }),
      testing::HasSubstr("qwen2.attention.sliding_window 32 is not supported by qwen2"));
  EXPECT_THAT(
      ErrorOf("phi3-bf16", "phi3",
              [](GgufWriter* writer) { writer->Number("phi3.rope.scaling.attn_factor", 1.2); }),
      testing::HasSubstr("phi3.rope.scaling.attn_factor 1.2 without tensor"));
  EXPECT_THAT(
      ErrorOf("phi3-bf16", "phi3",
              [](GgufWriter* writer) {
                writer->Floats("rope_factors_long.weight", {1, 2});
              }),
      testing::HasSubstr("tensor rope_factors_long.weight has 2 elements, it must have 16"));
  EXPECT_THAT(ErrorOf("phi3-bf16", "phi3",
                      [](GgufWriter* writer) {
                        writer->Floats("rope_factors_long.weight", std::vector<float>(16, 1));
                      }),
              testing::HasSubstr("tensor rope_factors_short.weight is missing"));
  EXPECT_THAT(
      ErrorOf("gemma3-text-bf16", "gemma3",
              [](GgufWriter* writer) { writer->Number("gemma3.attn_logit_softcapping", 50); }),
      testing::HasSubstr("gemma3.attn_logit_softcapping 50 is not supported by gemma3"));
  EXPECT_THAT(
      ErrorOf("gpt-oss-bf16", "gpt-oss",
              [](GgufWriter* writer) { writer->Integer("gpt-oss.expert_shared_count", 1); }),
      testing::HasSubstr("gpt-oss.expert_shared_count 1 is not supported by gpt_oss"));
}

// Files older than the key are recognized by their sizes: Phi-3-mini and medium with 4k and 128k.
TEST(GgufFamiliesRuleTest, WindowOfPhi3WithoutItsKey) {
  const auto read = [](std::uint32_t context, std::uint32_t blocks, int window) {
    GgufWriter writer;
    AddCommonKeys(&writer,
                  {{"max_position_embeddings", context},
                   {"hidden_size", 64},
                   {"num_hidden_layers", blocks},
                   {"intermediate_size", 32},
                   {"num_attention_heads", 4},
                   {"num_key_value_heads", 2},
                   {"rms_norm_eps", 1e-6},
                   {"rope_theta", 1e4}},
                  "phi3");
    if (window >= 0) {
      writer.Integer("phi3.attention.sliding_window", static_cast<std::uint32_t>(window));
    }
    const std::vector<float> rows(300 * 64, 0);
    writer.Tensor("token_embd.weight", {300, 64}, 0, rows.data(), rows.size() * 4);
    const std::string file = writer.File();
    return runtime::ReadModelSpec(FilesOf(file), DeviceKind::kCpu);
  };
  const struct {
    std::uint32_t context, blocks;
    int window;  // of the key; -1 if absent
    std::uint32_t want;
  } cases[] = {{4096, 32, -1, 2047},   {4096, 40, -1, 2047}, {131072, 32, -1, 0},
               {131072, 40, -1, 0},    {4096, 32, 0, 0},     {4096, 32, 100, 100},
               {131072, 32, 100, 100}, {16384, 40, 0, 0}};
  for (const auto& each : cases) {
    const auto got = read(each.context, each.blocks, each.window);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(got->spec.layers.back().heads.window, each.want)
        << each.context << " " << each.blocks << " " << each.window;
  }
  for (const auto& [context, blocks] : {std::pair{4096u, 24u}, {8192u, 32u}}) {
    const auto got = read(context, blocks, -1);
    ASSERT_FALSE(got.ok());
    EXPECT_THAT(std::string(got.status().message()),
                testing::AllOf(testing::HasSubstr("phi3.attention.sliding_window is missing"),
                               testing::HasSubstr(absl::StrCat("phi3.context_length ", context)),
                               testing::HasSubstr(absl::StrCat("phi3.block_count ", blocks))));
  }
}

// Random weights have the names and shapes of the files, including experts.
TEST(GgufFamiliesRuleTest, DummyWeightsHaveRealSizes) {
  ThreadPool threads(2);
  const auto backend =
      kernels::Backend::Create(Device::Cpu(), &threads, kernels::CpuActivations::kInt8);
  ASSERT_TRUE(backend.ok());
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.folder);
    // Random weights have no mxfp4 blocks.
    if (each.folder == std::string("gpt-oss-mxfp4")) continue;
    EditedFixture fixture(each.folder);
    const std::string file = Convert(fixture, each.architecture).File();
    const auto real = runtime::LoadModel(FilesOf(file), *backend, {});
    const auto dummy =
        runtime::LoadModel(FilesOf(file), *backend, {.mode = runtime::LoadMode::kDummy});
    ASSERT_TRUE(real.ok()) << real.status();
    ASSERT_TRUE(dummy.ok()) << dummy.status();
    EXPECT_EQ((*dummy)->weight_bytes, (*real)->weight_bytes);
    EXPECT_EQ((*dummy)->parameter_count, (*real)->parameter_count);
  }
}

// A value that files omit: the score scale follows the head size, except in one published size.
TEST(GgufFamiliesRuleTest, ScoreScaleOfPublishedGemmas) {
  const auto scale = [](std::uint32_t blocks) {
    GgufWriter writer;
    AddCommonKeys(&writer,
                  {{"max_position_embeddings", 8192},
                   {"hidden_size", 96},
                   {"num_hidden_layers", blocks},
                   {"intermediate_size", 32},
                   {"num_attention_heads", 4},
                   {"num_key_value_heads", 2},
                   {"rms_norm_eps", 1e-6},
                   {"rope_theta", 1e4},
                   {"head_dim", 16}},
                  "gemma2");
    const std::vector<float> rows(300 * 96, 0);
    writer.Tensor("token_embd.weight", {300, 96}, 0, rows.data(), rows.size() * 4);
    const std::string file = writer.File();
    const auto read = runtime::ReadModelSpec(FilesOf(file), DeviceKind::kCpu);
    EXPECT_TRUE(read.ok()) << read.status();
    return read.ok() ? read->spec.layers[0].heads : AttentionSpec();
  };
  EXPECT_FLOAT_EQ(scale(26).scale, 0.25f) << "head size 16";
  EXPECT_FLOAT_EQ(scale(46).scale, 1 / std::sqrt(24.0f)) << "27B: 96 / 4";
  EXPECT_EQ(scale(26).window, 4096u);
  EXPECT_EQ(scale(26).softcap, 50);
}

}  // namespace
}  // namespace quire::models::parity

#include "tools/quire/synthetic_model.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json_text.h"
#include "base/status.h"

namespace quire::client {
namespace {

using nlohmann::json;

constexpr char kBegin[] = "<|begin_of_text|>";
constexpr char kEnd[] = "<|end_of_text|>";

// Returns a code point below 2048 as UTF-8.
std::string Utf8(std::uint32_t point) {
  if (point < 0x80) return std::string(1, static_cast<char>(point));
  return {static_cast<char>(0xc0 | (point >> 6)), static_cast<char>(0x80 | (point & 0x3f))};
}

// Returns the printable character of each byte in a byte-level vocabulary (GPT-2's mapping). Bytes
// that are printable in Latin-1 become the code points of the same value. Other bytes become code
// points from 256 on.
std::vector<std::string> ByteCharacters() {
  std::vector<std::string> characters;
  std::uint32_t next = 256;
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    characters.push_back(Utf8(printable ? byte : next++));
  }
  return characters;
}

// Returns the index-th word of at least two letters: "aa", "ba", ..., "zz", "aaa", ...
std::string Word(std::uint32_t index) {
  std::uint32_t count = 26 * 26;
  int length = 2;
  while (index >= count) {
    index -= count;
    count *= 26;
    ++length;
  }
  std::string word;
  for (; length > 0; --length) {
    word += static_cast<char>('a' + index % 26);
    index /= 26;
  }
  return word;
}

json Tokenizer(const ModelShape& shape) {
  json vocab = json::object();
  std::uint32_t id = 0;
  for (const std::string& text : SyntheticVocabulary(shape)) vocab[text] = id++;
  json added = json::array();
  for (const auto& [text, token] :
       {std::pair{kBegin, shape.vocab_size - 2}, std::pair{kEnd, shape.vocab_size - 1}}) {
    added.push_back({{"id", token},
                     {"content", text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const json byte_level = {{"type", "ByteLevel"},
                           {"add_prefix_space", false},
                           {"trim_offsets", true},
                           {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", std::move(added)},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"ignore_merges", false},
            {"vocab", std::move(vocab)},
            {"merges", json::array()}}}};
}

// Replaces keys of Llama by those of Qwen3.5, which has no key mlp_bias and has rope_theta in
// rope_parameters.
void MakeHybrid(const ModelShape& shape, json* config) {
  for (const char* key : {"mlp_bias", "rope_theta", "rope_scaling"}) config->erase(key);
  config->update({{"architectures", {"Qwen3_5ForCausalLM"}},
                  {"model_type", "qwen3_5_text"},
                  {"rms_norm_eps", 1e-6},
                  {"attn_output_gate", true},
                  {"full_attention_interval", ModelShape::kFullAttentionInterval},
                  {"linear_conv_kernel_dim", ModelShape::kConvWidth},
                  {"linear_key_head_dim", ModelShape::kLinearHeadSize},
                  {"linear_value_head_dim", ModelShape::kLinearHeadSize},
                  {"linear_num_key_heads", shape.linear_key_heads},
                  {"linear_num_value_heads", shape.linear_value_heads},
                  {"rope_parameters",
                   {{"rope_type", "default"},
                    {"rope_theta", shape.rope_theta},
                    {"partial_rotary_factor", 0.25},
                    {"mrope_section", {11, 11, 10}}}}});
}

json Config(const ModelShape& shape) {
  json config = {{"architectures", {"LlamaForCausalLM"}},
                 {"model_type", "llama"},
                 {"hidden_size", shape.hidden_size},
                 {"intermediate_size", shape.intermediate_size},
                 {"num_hidden_layers", shape.num_layers},
                 {"num_attention_heads", shape.num_heads},
                 {"num_key_value_heads", shape.num_kv_heads},
                 {"head_dim", shape.head_dim},
                 {"vocab_size", shape.vocab_size},
                 {"max_position_embeddings", shape.max_position_embeddings},
                 {"rms_norm_eps", 1e-5},
                 {"rope_theta", shape.rope_theta},
                 {"rope_scaling", nullptr},
                 {"hidden_act", "silu"},
                 {"tie_word_embeddings", shape.tie_word_embeddings},
                 {"attention_bias", false},
                 {"mlp_bias", false},
                 {"bos_token_id", shape.vocab_size - 2},
                 {"eos_token_id", shape.vocab_size - 1},
                 {"torch_dtype", "bfloat16"}};
  if (shape.is_hybrid()) MakeHybrid(shape, &config);
  if (shape.original_max_position_embeddings > 0) {
    config["rope_scaling"] = {
        {"rope_type", "llama3"},
        {"factor", 8.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position_embeddings", shape.original_max_position_embeddings}};
  }
  return config;
}

// Returns the published shape of Qwen3.5-4B with these numbers of layers and tokens.
ModelShape Qwen4b(const char* name, std::uint32_t layers, std::uint32_t vocabulary) {
  return {.name = name,
          .hidden_size = 2560,
          .intermediate_size = 9216,
          .num_layers = layers,
          .num_heads = 16,
          .num_kv_heads = 4,
          .head_dim = 256,
          .vocab_size = vocabulary,
          .max_position_embeddings = 262144,
          .rope_theta = 10000000,
          .tie_word_embeddings = true,
          .linear_key_heads = 16,
          .linear_value_heads = 32};
}

absl::Status WriteFile(const std::filesystem::path& path, const json& content) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    return absl::FailedPreconditionError(absl::StrCat(path.string(), " exists"));
  }
  std::ofstream file(path);
  file << JsonText(content) << "\n";
  file.close();
  if (!file) return absl::FailedPreconditionError(absl::StrCat("cannot write ", path.string()));
  return absl::OkStatus();
}

}  // namespace

const std::vector<ModelShape>& KnownShapes() {
  static const auto& shapes =
      *new std::vector<ModelShape>{{.name = "llama-3.1-8b",
                                    .hidden_size = 4096,
                                    .intermediate_size = 14336,
                                    .num_layers = 32,
                                    .num_heads = 32,
                                    .num_kv_heads = 8,
                                    .head_dim = 128,
                                    .vocab_size = 128256,
                                    .max_position_embeddings = 131072,
                                    .rope_theta = 500000,
                                    .original_max_position_embeddings = 8192},
                                   {.name = "tiny",
                                    .hidden_size = 128,
                                    .intermediate_size = 256,
                                    .num_layers = 2,
                                    .num_heads = 2,
                                    .num_kv_heads = 1,
                                    .head_dim = 64,
                                    .vocab_size = 512,
                                    .max_position_embeddings = 512},
                                   {.name = "llama-0.5b",
                                    .hidden_size = 1024,
                                    .intermediate_size = 4864,
                                    .num_layers = 24,
                                    .num_heads = 16,
                                    .num_kv_heads = 4,
                                    .head_dim = 64,
                                    .vocab_size = 32000,
                                    .max_position_embeddings = 4096},
                                   {.name = "llama-1.1b",
                                    .hidden_size = 2048,
                                    .intermediate_size = 5632,
                                    .num_layers = 22,
                                    .num_heads = 32,
                                    .num_kv_heads = 4,
                                    .head_dim = 64,
                                    .vocab_size = 32000,
                                    .max_position_embeddings = 4096},
                                   Qwen4b("qwen3.5-4b", 32, 248320),
                                   Qwen4b("qwen3.5-4b-quarter", 8, 62080)};
  return shapes;
}

absl::StatusOr<ModelShape> FindShape(absl::string_view name) {
  for (const ModelShape& known : KnownShapes()) {
    if (known.name == name) return known;
  }
  const auto append = [](std::string* out, const ModelShape& known) { out->append(known.name); };
  return absl::NotFoundError(absl::StrCat("unknown shape \"", name, "\"; known shapes are ",
                                          absl::StrJoin(KnownShapes(), ", ", append)));
}

std::vector<std::string> SyntheticVocabulary(const ModelShape& shape) {
  std::vector<std::string> texts = ByteCharacters();
  for (std::uint32_t word = 0; texts.size() < shape.vocab_size - 2; ++word) {
    texts.push_back(Word(word));
  }
  texts.emplace_back(kBegin);
  texts.emplace_back(kEnd);
  return texts;
}

absl::Status WriteSyntheticModel(absl::string_view shape_name, const std::string& directory) {
  QUIRE_ASSIGN_OR_RETURN(const ModelShape shape, FindShape(shape_name));
  const std::filesystem::path path(directory);
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot create ", directory, ": ", error.message()));
  }
  QUIRE_RETURN_IF_ERROR(WriteFile(path / "config.json", Config(shape)));
  QUIRE_RETURN_IF_ERROR(
      WriteFile(path / "generation_config.json",
                {{"bos_token_id", shape.vocab_size - 2}, {"eos_token_id", shape.vocab_size - 1}}));
  QUIRE_RETURN_IF_ERROR(WriteFile(path / "tokenizer.json", Tokenizer(shape)));
  return WriteFile(path / "tokenizer_config.json",
                   {{"tokenizer_class", "PreTrainedTokenizerFast"},
                    {"bos_token", kBegin},
                    {"eos_token", kEnd},
                    {"clean_up_tokenization_spaces", false},
                    {"model_max_length", shape.max_position_embeddings}});
}

}  // namespace quire::client

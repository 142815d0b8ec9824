// GGUF files: the container, the configuration and the tensors of every fixture, compared with
// tests/testdata/gguf/models/*/reference.json.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "formats/tensors/gguf_tensors.h"
#include "models/families/gguf_config.h"
#include "models/families/read_model_config.h"
#include "models/weights/checkpoint.h"
#include "models/weights/fingerprint.h"
#include "runtime/model.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

const char* const kFolders[] = {"llama-align64",
                                "llama-bf16",
                                "llama-bias",
                                "llama-f16",
                                "llama-f32",
                                "llama-metadata",
                                "llama-q4_0",
                                "llama-q4_1",
                                "llama-q4_k",
                                "llama-q4_k_m",
                                "llama-q4_k_m-odd-rows",
                                "llama-q5_0",
                                "llama-q5_k",
                                "llama-q5_k_m",
                                "llama-q6_k",
                                "llama-q8_0",
                                "llama-rope-linear",
                                "llama-rope-llama3",
                                "llama-rope-yarn",
                                "llama-spm",
                                "llama-tied"};

std::string ModelPath(absl::string_view folder) {
  return TestDataPath(absl::StrCat("gguf/models/", folder, "/model.gguf"));
}

nlohmann::json ReferenceOf(absl::string_view folder) {
  return nlohmann::json::parse(
      ReadTestFile(absl::StrCat("gguf/models/", folder, "/reference.json")));
}

// CRC-32 of ISO 3309, as in zlib.
std::uint32_t Crc32(std::span<const std::byte> bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<std::uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

// Returns the element type of a tensor for DequantizeRow.
formats::GgmlType TypeOf(const formats::StoredTensor& tensor) {
  if (tensor.blocks != formats::GgmlType::kNone) return tensor.blocks;
  if (tensor.dtype == DType::kF32) return formats::GgmlType::kF32;
  return tensor.dtype == DType::kF16 ? formats::GgmlType::kF16 : formats::GgmlType::kBF16;
}

class GgufModelTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    reference_ = ReferenceOf(GetParam());
    auto files = formats::ModelFiles::FromPath(ModelPath(GetParam()));
    ASSERT_TRUE(files.ok()) << files.status();
    files_ = *std::move(files);
    auto opened = formats::OpenGguf(files_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    opened_.emplace(*std::move(opened));
  }

  const formats::GgufFile& gguf() const { return opened_->gguf; }

  nlohmann::json reference_;
  formats::ModelFiles files_ = formats::ModelFiles::FromMemory("", {});
  std::optional<formats::OpenedGguf> opened_;
};

TEST_P(GgufModelTest, Header) {
  const auto& header = reference_["header"];
  EXPECT_EQ(gguf().version(), header["version"].get<std::uint32_t>());
  EXPECT_EQ(gguf().tensors().size(), header["tensor_count"].get<std::size_t>());
  EXPECT_EQ(gguf().keys().size(), header["kv_count"].get<std::size_t>());
  EXPECT_EQ(gguf().alignment(), header["alignment"].get<std::uint64_t>());
  EXPECT_EQ(gguf().data_offset(), header["data_offset"].get<std::uint64_t>());
}

// Compares a value with the reference's notation. Numbers are written directly, floats as
// big-endian bits, long strings and arrays as digests.
void ExpectValue(const formats::GgufFile& gguf, const nlohmann::json& want) {
  const auto key = want["key"].get<std::string>();
  const auto type = want["type"].get<std::string>();
  SCOPED_TRACE(key);
  if (type == "string") {
    const auto got = gguf.String(key);
    ASSERT_TRUE(got.ok()) << got.status();
    if (want["value"].is_string()) {
      EXPECT_EQ(*got, want["value"].get<std::string>());
    } else {
      EXPECT_EQ(got->size(), want["value"]["bytes"].get<std::size_t>());
    }
  } else if (type == "bool") {
    EXPECT_EQ(gguf.OptionalBool(key)->value(), want["value"].get<bool>());
  } else if (type == "float32" || type == "float64") {
    const bool is_double = type == "float64";
    const auto bits = std::stoull(want["value"]["bits"].get<std::string>(), nullptr, 16);
    const double number = is_double ? std::bit_cast<double>(static_cast<std::uint64_t>(bits))
                                    : std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    const auto got = gguf.OptionalNumber(key);
    ASSERT_EQ(got.ok(), std::isfinite(number));
    if (got.ok()) {
      EXPECT_EQ(std::bit_cast<std::uint64_t>(**got), std::bit_cast<std::uint64_t>(number));
    }
  } else if (type == "array") {
    EXPECT_EQ(gguf.ArrayCount(key), want["count"].get<std::uint64_t>());
  } else if (want["value"].is_number_unsigned() &&
             want["value"].get<std::uint64_t>() > std::uint64_t{1} << 63) {
    EXPECT_FALSE(gguf.Integer(key, INT64_MIN, INT64_MAX).ok());
  } else {
    const auto got = gguf.Integer(key, INT64_MIN, INT64_MAX);
    ASSERT_TRUE(got.ok()) << got.status();
    EXPECT_EQ(*got, want["value"].get<std::int64_t>());
  }
}

TEST_P(GgufModelTest, Metadata) {
  std::size_t row = 0;
  for (const auto& want : reference_["metadata"]) {
    ASSERT_EQ(gguf().keys().at(row++), want["key"].get<std::string>());
    ExpectValue(gguf(), want);
  }
}

TEST_P(GgufModelTest, TensorsDequantizeToTheSameBits) {
  const auto tensors = formats::ReadGgufTensors(*opened_);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), reference_["tensors"].size());
  for (std::size_t i = 0; i < tensors->size(); ++i) {
    const formats::StoredTensor& tensor = (*tensors)[i];
    const auto& want = reference_["tensors"][i];
    SCOPED_TRACE(tensor.name);
    EXPECT_EQ(tensor.name, want["name"].get<std::string>());
    EXPECT_EQ(tensor.type, want["type"].get<std::string>());
    EXPECT_EQ(tensor.shape, want["shape"].get<std::vector<std::int64_t>>());
    EXPECT_EQ(tensor.bytes.size(), want["bytes"].get<std::size_t>());
    EXPECT_EQ(absl::StrFormat("%08x", Crc32(tensor.bytes)), want["raw_crc32"].get<std::string>());
    std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
    formats::DequantizeRow(TypeOf(tensor), tensor.bytes, values);
    EXPECT_EQ(absl::StrFormat("%08x", Crc32(std::as_bytes(std::span(values)))),
              want["f32_crc32"].get<std::string>());
  }
}

// The file's configuration equals that of the equivalent config.json.
TEST_P(GgufModelTest, ConfigEqualsTheOneOfConfigJson) {
  EditableFiles json;
  json.Set("config.json", reference_["config"].dump());
  const auto want = ReadModelConfig(json.Files());
  ASSERT_TRUE(want.ok()) << want.status();
  const auto got = ReadModelConfig(files_);
  ASSERT_TRUE(got.ok()) << got.status();
  EXPECT_TRUE(got->is_gguf);
  EXPECT_EQ(got->family, want->family);
  EXPECT_EQ(got->architecture, want->architecture);
  EXPECT_EQ(got->model_type, want->model_type);
  EXPECT_EQ(got->vocab_size, want->vocab_size);
  EXPECT_EQ(got->hidden_size, want->hidden_size);
  EXPECT_EQ(got->intermediate_size, want->intermediate_size);
  EXPECT_EQ(got->num_hidden_layers, want->num_hidden_layers);
  EXPECT_EQ(got->num_attention_heads, want->num_attention_heads);
  EXPECT_EQ(got->num_key_value_heads, want->num_key_value_heads);
  EXPECT_EQ(got->head_dim, want->head_dim);
  EXPECT_EQ(got->max_position_embeddings, want->max_position_embeddings);
  EXPECT_EQ(got->rms_norm_eps, want->rms_norm_eps);
  EXPECT_EQ(got->hidden_act, want->hidden_act);
  EXPECT_EQ(got->attention_bias, want->attention_bias);
  EXPECT_EQ(got->mlp_bias, want->mlp_bias);
  EXPECT_EQ(got->tie_word_embeddings, want->tie_word_embeddings);
  EXPECT_EQ(got->eos_ids, want->eos_ids);
  EXPECT_EQ(got->bos_id, want->bos_id);
  EXPECT_THAT(got->warnings, testing::IsEmpty());
  const auto got_table = BuildRopeTable(got->rope, got->head_dim);
  const auto want_table = BuildRopeTable(want->rope, want->head_dim);
  ASSERT_TRUE(got_table.ok() && want_table.ok());
  EXPECT_EQ(got_table->attention_factor, want_table->attention_factor);
  for (std::size_t i = 0; i < want_table->inv_freq.size(); ++i) {
    // llama3 files store rounded factors, which are divisors.
    const float near = want->rope.kind == RopeKind::kLlama3 ? 4e-7f : 0.0f;
    EXPECT_NEAR(got_table->inv_freq[i], want_table->inv_freq[i], near * want_table->inv_freq[i]);
  }
}

TEST_P(GgufModelTest, RowsOfQAndKEqualHuggingFace) {
  const auto stored = formats::ReadGgufTensors(*opened_);
  const auto loaded = formats::LoadGgufTensors(*opened_);
  ASSERT_TRUE(stored.ok() && loaded.ok());
  const auto heads = reference_["hyper_parameters"]["head_count"].get<std::int64_t>();
  const auto kv_heads = reference_["hyper_parameters"]["head_count_kv"].get<std::int64_t>();
  int moved = 0;
  for (const formats::StoredTensor& tensor : loaded->tensors) {
    const auto from =
        std::find_if(stored->begin(), stored->end(),
                     [&](const formats::StoredTensor& other) { return other.name == tensor.name; });
    ASSERT_NE(from, stored->end());
    ASSERT_EQ(tensor.bytes.size(), from->bytes.size());
    const bool is_q = tensor.name.find("attn_q.") != std::string::npos;
    const bool is_k = tensor.name.find("attn_k.") != std::string::npos;
    if (!is_q && !is_k) {
      EXPECT_EQ(tensor.bytes.data(), from->bytes.data()) << tensor.name;
      continue;
    }
    ++moved;
    const std::int64_t rows = tensor.shape[0];
    const std::int64_t d = rows / (is_q ? heads : kv_heads);
    const std::size_t row_bytes = tensor.bytes.size() / static_cast<std::size_t>(rows);
    const auto row = [&](const formats::StoredTensor& of, std::int64_t r) {
      return of.bytes.data() + static_cast<std::size_t>(r) * row_bytes;
    };
    for (std::int64_t h = 0; h < rows; h += d) {
      for (std::int64_t j = 0; j < d / 2; ++j) {
        ASSERT_EQ(std::memcmp(row(tensor, h + j), row(*from, h + 2 * j), row_bytes), 0);
        ASSERT_EQ(std::memcmp(row(tensor, h + j + d / 2), row(*from, h + 2 * j + 1), row_bytes), 0);
      }
    }
  }
  const bool bias = reference_["hyper_parameters"]["bias"].get<bool>();
  EXPECT_EQ(moved, reference_["hyper_parameters"]["block_count"].get<int>() * (bias ? 4 : 2));
}

std::string FolderName(const testing::TestParamInfo<const char*>& info) {
  std::string name(info.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Fixtures, GgufModelTest, testing::ValuesIn(kFolders), FolderName);

// Little-endian pieces of a file.
std::string Number(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return text;
}
std::string Text(absl::string_view text) {
  return absl::StrCat(Number(text.size(), 8), text);
}
std::string Header(std::uint64_t keys) {
  return absl::StrCat("GGUF", Number(3, 4), Number(0, 8), Number(keys, 8));
}
absl::StatusOr<formats::GgufFile> Parse(const std::string& file) {
  return formats::GgufFile::Parse(std::as_bytes(std::span(file.data(), file.size())), "f");
}

TEST(GgufFileTest, TypedReads) {
  const std::string file =
      absl::StrCat(Header(7), Text("a"), Number(0, 4), Number(200, 1), Text("b"), Number(5, 4),
                   Number(0xffffffff, 4), Text("words"), Number(9, 4), Number(8, 4), Number(2, 8),
                   Text("x"), Text("\xff"), Text("ids"), Number(9, 4), Number(11, 4), Number(2, 8),
                   Number(7, 8), Number(std::uint64_t{1} << 31, 8), Text("scores"), Number(9, 4),
                   Number(6, 4), Number(2, 8), Number(0x3fc00000, 4), Number(0x7fc00000, 4),
                   Text("none"), Number(9, 4), Number(10, 4), Number(0, 8), Text("flags"),
                   Number(9, 4), Number(7, 4), Number(2, 8), Number(1, 1), Number(0, 1));
  const auto gguf = Parse(file);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ(*gguf->Integer("a", 0, 255), 200);
  EXPECT_EQ(*gguf->Integer("b", -1, 0), -1);
  EXPECT_EQ(gguf->Integer("a", 0, 199).status().message(), "f: a is 200, it must be 0 to 199");
  EXPECT_EQ(gguf->Integer("c", 0, 1).status().message(), "f: c is missing");
  EXPECT_FALSE(gguf->OptionalInteger("c", 0, 1)->has_value());
  EXPECT_EQ(gguf->String("a").status().message(), "f: a is uint8, it must be string");
  EXPECT_EQ(gguf->Strings("words").status().message(), "f: words[1] is not UTF-8 at byte 0");
  EXPECT_EQ(gguf->OptionalIntegers("ids").status().message(), "f: ids[1] does not fit 32 bits");
  EXPECT_EQ(gguf->OptionalIntegers("words").status().message(),
            "f: words is an array of string, it must be an array of an integer type");
  const auto scores = gguf->OptionalFloats("scores");
  ASSERT_TRUE(scores.ok() && scores->has_value());
  EXPECT_EQ((**scores)[0], 1.5f);
  EXPECT_TRUE(std::isnan((**scores)[1]));
  EXPECT_TRUE(gguf->Strings("none")->empty());
  EXPECT_TRUE(gguf->OptionalFloats("none")->value().empty());
  EXPECT_EQ(gguf->OptionalBools("flags")->value(), (std::vector<bool>{true, false}));
  EXPECT_TRUE(gguf->OptionalBools("none")->value().empty());
  EXPECT_FALSE(gguf->OptionalBools("absent")->has_value());
  EXPECT_EQ(gguf->OptionalBools("ids").status().message(),
            "f: ids is an array of int64, it must be an array of bool");
  EXPECT_EQ(gguf->ArrayCount("none"), 0u);
  EXPECT_EQ(gguf->TypeOf("ids"), formats::GgufType::kArray);
}

TEST(GgufFileTest, ModelPathIsAFileOrADirectory) {
  const auto file = formats::ModelFiles::FromPath(ModelPath("llama-tied"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->source(), ModelPath("llama-tied"));
  EXPECT_EQ(file->gguf(), "model.gguf");
  EXPECT_EQ(file->LabelOf(file->gguf()), file->source());
  const auto directory = formats::ModelFiles::FromPath(TestDataPath("models/tiny_base"));
  ASSERT_TRUE(directory.ok());
  EXPECT_TRUE(directory->gguf().empty());
  EXPECT_EQ(formats::ModelFiles::FromPath(TestDataPath("none.gguf")).status().code(),
            absl::StatusCode::kNotFound);
  // A directory with only a GGUF file is not a model directory. The message tells the remedy.
  const auto holder = formats::ModelFiles::FromPath(TestDataPath("gguf/models/llama-tied"));
  ASSERT_TRUE(holder.ok());
  EXPECT_THAT(std::string(ReadModelConfig(*holder).status().message()),
              testing::HasSubstr("model.gguf"));
}

// A changed byte of the header, of rope_freqs.weight or of a weight gives another fingerprint.
TEST(GgufFileTest, FingerprintCoversTheWholeFile) {
  const std::string whole = ReadTestFile("gguf/models/llama-rope-llama3/model.gguf");
  const auto fingerprint = [](std::string bytes) {
    EditableFiles files;
    files.Set("model.gguf", std::move(bytes));
    const auto checkpoint = Checkpoint::Open(files.Files());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return *Fingerprint(files.Files(), *checkpoint);
  };
  const std::string unchanged = fingerprint(whole);
  EXPECT_EQ(fingerprint(whole), unchanged);
  const auto data = ReferenceOf("llama-rope-llama3")["header"]["data_offset"].get<std::size_t>();
  for (const std::size_t at : {whole.find("quire fixture"), data, data + 64, whole.size() - 1}) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    EXPECT_NE(fingerprint(changed), unchanged) << "byte " << at;
  }
}

// A change of one key, and the required text of the message.
struct EditedKey {
  const char* name;
  std::string from;
  std::string to;
  const char* message;
};
void PrintTo(const EditedKey& edit, std::ostream* stream) {
  *stream << edit.name;
}

class GgufRefusalTest : public testing::TestWithParam<EditedKey> {};

TEST_P(GgufRefusalTest, NamesTheKey) {
  std::string bytes = ReadTestFile("gguf/models/llama-rope-yarn/model.gguf");
  const std::size_t at = bytes.find(GetParam().from);
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(GetParam().from.size(), GetParam().to.size());
  bytes.replace(at, GetParam().to.size(), GetParam().to);
  EditableFiles files;
  files.Set("model.gguf", std::move(bytes));
  const auto config = ReadModelConfig(files.Files());
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(std::string(config.status().message()), testing::HasSubstr(GetParam().message));
}

std::string U32(absl::string_view key, std::uint32_t value) {
  return absl::StrCat(Text(key), Number(4, 4), Number(value, 4));
}

INSTANTIATE_TEST_SUITE_P(
    Keys, GgufRefusalTest,
    testing::Values(
        EditedKey{"Longrope", Text("yarn"), Text("long"),
                  "llama.rope.scaling.type \"long\" is not supported by llama"},
        EditedKey{"ValueLength", U32("llama.attention.value_length", 32),
                  U32("llama.attention.value_length", 16), "llama.attention.value_length 16"},
        EditedKey{"PartialRotation", U32("llama.rope.dimension_count", 32),
                  U32("llama.rope.dimension_count", 16), "llama.rope.dimension_count 16"},
        EditedKey{"OddHead", U32("llama.attention.key_length", 32),
                  U32("llama.attention.key_length", 31), "llama.attention.key_length"},
        EditedKey{"OriginalLength", U32("llama.rope.scaling.original_context_length", 64),
                  U32("llama.rope.scaling.original_context_length", 0),
                  "llama.rope.scaling.original_context_length is 0"},
        EditedKey{"Missing", Text("llama.block_count"), Text("other.block_count"),
                  "llama.block_count is missing"},
        EditedKey{"OtherMathematics", U32("llama.block_count", 2), U32("llama.logit_scale", 2),
                  "llama.logit_scale 2 is not supported by llama"}),
    [](const testing::TestParamInfo<EditedKey>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quire::models

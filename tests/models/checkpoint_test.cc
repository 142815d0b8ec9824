#include "models/weights/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/weights/fingerprint.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

std::string MessageOf(const absl::Status& status) {
  return std::string(status.message());
}

TEST(SafetensorsTest, ReadsTensorsInOrderOfTheirData) {
  const std::string file = SafetensorsFile(
      R"({"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},"a":{"dtype":"BF16","shape":[1,2],)"
      R"("data_offsets":[0,4]},"empty":{"dtype":"I64","shape":[0,3],"data_offsets":[12,12]}})",
      "0123456789ab");
  const auto tensors = formats::ReadSafetensors(std::as_bytes(std::span(file)), "x");
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].dtype, DType::kBF16);
  EXPECT_EQ((*tensors)[0].ShapeText(), "[1, 2]");
  EXPECT_EQ((*tensors)[1].name, "b");
  EXPECT_EQ(std::memcmp((*tensors)[1].bytes.data(), "456789ab", 8), 0);
  EXPECT_EQ((*tensors)[2].num_elements(), 0);
}

TEST(SafetensorsTest, ReadsTypesInvalidForWeights) {
  const std::string file =
      SafetensorsFile(R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", "ab");
  const auto tensors = formats::ReadSafetensors(std::as_bytes(std::span(file)), "x");
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ((*tensors)[0].dtype, DType::kInvalid);
  const std::string odd =
      SafetensorsFile(R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", "ab");
  EXPECT_THAT(MessageOf(formats::ReadSafetensors(std::as_bytes(std::span(odd)), "x").status()),
              HasSubstr("does not have a whole number of bytes"));
}

TEST(SafetensorsTest, RejectsTooManyDimensions) {
  const std::string file = SafetensorsFile(
      R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})", "abcd");
  EXPECT_THAT(MessageOf(formats::ReadSafetensors(std::as_bytes(std::span(file)), "x").status()),
              HasSubstr("9 dimensions, it may have at most 8"));
}

// Uses a temporary folder that TearDown removes.
class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / absl::StrCat("quire_checkpoint_test_", getpid());
    fs::remove_all(directory_);
    fs::create_directories(directory_ / "snapshots" / "rev");
    fs::create_directories(directory_ / "blobs");
  }
  void TearDown() override { fs::remove_all(directory_); }

  void Write(const fs::path& path, const std::string& text) {
    std::ofstream(directory_ / path, std::ios::binary) << text;
  }
  absl::StatusOr<Checkpoint> OpenAt(const fs::path& path) {
    auto files = formats::ModelFiles::FromDirectory((directory_ / path).string());
    if (!files.ok()) return files.status();
    return Checkpoint::Open(*files);
  }

  fs::path directory_;
};

// Only file-backed memory may be released while loading, because the rest has no other copy.
TEST(CheckpointMappingTest, DistinguishesFileBackedBytes) {
  const auto files = formats::ModelFiles::FromDirectory(TestDataPath("models/llama-sharded-bf16"));
  ASSERT_TRUE(files.ok()) << files.status();
  const auto mapped = Checkpoint::Open(*files);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  for (const formats::StoredTensor& tensor : mapped->tensors())
    EXPECT_TRUE(tensor.is_mapped) << tensor.name;
  const EditableFiles copies("models/llama-sharded-bf16");
  const auto in_memory = Checkpoint::Open(copies.Files());
  ASSERT_TRUE(in_memory.ok()) << in_memory.status();
  for (const formats::StoredTensor& tensor : in_memory->tensors()) EXPECT_FALSE(tensor.is_mapped);
  const auto gguf =
      formats::ModelFiles::FromPath(TestDataPath("gguf/models/llama-q8_0/model.gguf"));
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  const auto rearranged = Checkpoint::Open(*gguf);
  ASSERT_TRUE(rearranged.ok()) << rearranged.status();
  for (const formats::StoredTensor& tensor : rearranged->tensors()) {
    const bool is_copy =
        absl::StrContains(tensor.name, "attn_q.") || absl::StrContains(tensor.name, "attn_k.");
    EXPECT_EQ(tensor.is_mapped, !is_copy) << tensor.name;
  }
}

TEST_F(CheckpointTest, FollowsTheSymbolicLinksOfACacheSnapshot) {
  Write("blobs/0123", ReadTestFile("models/tiny_base/model.safetensors"));
  fs::create_symlink("../../blobs/0123", directory_ / "snapshots/rev/model.safetensors");
  const auto checkpoint = OpenAt("snapshots/rev");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_NE(checkpoint->Find("model.norm.weight"), nullptr);
  EXPECT_EQ(checkpoint->Find("model.norm"), nullptr);
}

TEST_F(CheckpointTest, NamesADanglingLink) {
  fs::create_symlink("../../blobs/gone", directory_ / "snapshots/rev/model.safetensors");
  EXPECT_THAT(MessageOf(OpenAt("snapshots/rev").status()), HasSubstr("rev/model.safetensors"));
}

TEST_F(CheckpointTest, RejectsOtherFormatsWithAHint) {
  const std::pair<const char*, const char*> cases[] = {
      {"pytorch_model.bin", "convert them to safetensors"},
      {"consolidated.00.pth", "convert them to safetensors"},
      {"model.q4_0.gguf", "path to the file, not to its directory"},
      {"consolidated.safetensors", "Hugging Face layout"},
      {"model-00001-of-00002.safetensors", "model.safetensors.index.json"},
      {"training_args.bin", "contains neither model.safetensors nor"},
  };
  for (const auto& [name, hint] : cases) {
    Write(fs::path("snapshots/rev") / name, "x");
    const absl::Status status = OpenAt("snapshots/rev").status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(MessageOf(status), HasSubstr(hint)) << name;
    fs::remove(directory_ / "snapshots/rev" / name);
  }
}

TEST_F(CheckpointTest, RejectsAPathThatIsNotADirectory) {
  Write("model.gguf", "x");
  Write("model.bin", "x");
  EXPECT_THAT(MessageOf(OpenAt("model.gguf").status()), HasSubstr("or a .gguf file"));
  EXPECT_THAT(MessageOf(OpenAt("model.bin").status()), HasSubstr("convert them to safetensors"));
  EXPECT_EQ(OpenAt("nowhere").status().code(), absl::StatusCode::kNotFound);
}

TEST(ModelFilesTest, RejectsNamesThatLeaveTheDirectory) {
  const auto files = formats::ModelFiles::FromDirectory(TestDataPath("models/tiny_base"));
  ASSERT_TRUE(files.ok());
  EXPECT_TRUE(files->Open("config.json").ok());
  for (const char* name : {"../tiny_base/config.json", "/etc/hostname", "..", ".", ""}) {
    EXPECT_EQ(files->Open(name).status().code(), absl::StatusCode::kInvalidArgument) << name;
  }
}

TEST(CheckpointIndexTest, WarnsWhereHeadersAndIndexDisagree) {
  for (const char* folder : {"sharded-wrong-file", "sharded-total-size"}) {
    const auto files =
        formats::ModelFiles::FromDirectory(TestDataPath(absl::StrCat("safetensors/", folder)));
    const auto checkpoint = Checkpoint::Open(*files);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    EXPECT_EQ(checkpoint->warnings().size(), 1u) << folder;
  }
}

std::string FingerprintOf(const formats::ModelFiles& files) {
  const auto checkpoint = Checkpoint::Open(files);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto fingerprint = Fingerprint(files, *checkpoint);
  EXPECT_TRUE(fingerprint.ok()) << fingerprint.status();
  return *fingerprint;
}

TEST(FingerprintTest, DependsOnContentAndNotOnPackaging) {
  EditableFiles files("models/tiny_base");
  const std::string original = FingerprintOf(files.Files());
  EXPECT_EQ(original.size(), 32u);
  EXPECT_EQ(FingerprintOf(files.Files()), original);

  EditableFiles sharded("safetensors/sharded-good");
  for (const char* name : {"config.json", "tokenizer.json"}) sharded.Set(name, files.Get(name));
  EXPECT_EQ(FingerprintOf(sharded.Files()), original);
}

TEST(FingerprintTest, ChangesWithEveryPart) {
  const EditableFiles files("models/tiny_base");
  const std::string original = FingerprintOf(files.Files());
  for (const char* name : {"config.json", "tokenizer.json", "model.safetensors"}) {
    EditableFiles changed = files;
    std::string text = files.Get(name);
    // Changes a byte that no structure covers: a space, or the lowest bit of the last weight.
    if (std::string(name) == "model.safetensors") {
      text[text.size() - 2] = static_cast<char>(text[text.size() - 2] ^ 1);
    } else {
      text += ' ';
    }
    changed.Set(name, std::move(text));
    EXPECT_NE(FingerprintOf(changed.Files()), original) << name;
  }
}

}  // namespace
}  // namespace quire::models

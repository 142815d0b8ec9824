// Every broken file of tests/testdata/{safetensors,config} is rejected with the field in its index,
// and control files load. Files truncated or changed at any position at most fail to load.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/families/read_model_config.h"
#include "models/weights/checkpoint.h"
#include "runtime/model.h"
#include "tests/models/model_check.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

struct Case {
  std::string folder;  // "config" or "safetensors"
  std::string file;
  std::string field;   // empty if none
  std::string accept;  // "no", "either", "yes"
};

void PrintTo(const Case& test_case, std::ostream* stream) {
  *stream << test_case.file;
}

std::vector<Case> Cases(const std::string& folder) {
  std::vector<Case> cases;
  const nlohmann::json index = nlohmann::json::parse(ReadTestFile(folder + "/index.json"));
  for (const auto& entry : index["cases"]) {
    cases.push_back({folder, entry["file"].get<std::string>(),
                     entry["field"].is_null() ? "" : entry["field"].get<std::string>(),
                     entry["accept"].get<std::string>()});
  }
  return cases;
}

// The base model with the case's file in place of the original.
EditableFiles FilesOf(const Case& test_case) {
  EditableFiles files("models/tiny_base");
  const std::string path = absl::StrCat(test_case.folder, "/", test_case.file);
  if (test_case.folder == "config") {
    files.Set("config.json", ReadTestFile(path));
  } else if (absl::EndsWith(test_case.file, ".safetensors")) {
    files.Set("model.safetensors", ReadTestFile(path));
  } else {
    files.Remove("model.safetensors");
    const auto shards = formats::ModelFiles::FromDirectory(TestDataPath(path));
    for (const std::string& name : shards->names()) {
      files.Set(name, ReadTestFile(absl::StrCat(path, "/", name)));
    }
  }
  return files;
}

class MalformedTest : public testing::TestWithParam<Case> {};

TEST_P(MalformedTest, IsRejectedWithTheField) {
  const Case& test_case = GetParam();
  const EditableFiles files = FilesOf(test_case);
  TestBackend cpu;
  const auto model = runtime::LoadModel(files.Files(), cpu.backend, {});
  if (test_case.accept == "yes") {
    ASSERT_TRUE(model.ok()) << model.status();
  } else if (test_case.accept == "no") {
    ASSERT_FALSE(model.ok());
  }
  if (model.ok()) {
    ExpectWorks(**model, cpu.backend);
    return;
  }
  std::printf("%s: %s\n", test_case.file.c_str(), std::string(model.status().message()).c_str());
  EXPECT_THAT(std::string(model.status().message()), testing::HasSubstr(test_case.field));
  // The message is one sentence that starts with the position, not a dump.
  EXPECT_LT(model.status().message().size(), 1500u);
  EXPECT_THAT(std::string(model.status().message()), testing::StartsWith("edited"));
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  std::string name;
  for (const char c : info.param.file)
    name += absl::ascii_isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Safetensors, MalformedTest, testing::ValuesIn(Cases("safetensors")),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Config, MalformedTest, testing::ValuesIn(Cases("config")), CaseName);

TEST(MalformedListTest, HasEveryCase) {
  EXPECT_EQ(Cases("safetensors").size(), 78u);
  EXPECT_EQ(Cases("config").size(), 75u);
}

// Weights truncated at any length are rejected, since each byte of the format matters.
TEST(TruncationTest, NoPrefixOfTheWeightsLoads) {
  EditableFiles files("models/tiny_base");
  const std::string whole = files.Get("model.safetensors");
  for (std::size_t length = 0; length < whole.size(); ++length) {
    files.Set("model.safetensors", whole.substr(0, length));
    EXPECT_FALSE(Checkpoint::Open(files.Files()).ok()) << length << " bytes";
  }
}

TEST(TruncationTest, NoPrefixOfTheConfigurationLoads) {
  EditableFiles files("models/tiny_base");
  const std::string whole = files.Get("config.json");
  const std::size_t end = whole.rfind('}');
  for (std::size_t length = 0; length <= end; ++length) {
    files.Set("config.json", whole.substr(0, length));
    EXPECT_FALSE(ReadModelConfig(files.Files()).ok()) << length << " bytes";
  }
}

// Flips one bit anywhere. Loading fails with a message, or gives a working model. A weight with a
// changed exponent may be so large that the logits overflow.
void FlipBits(const std::string& name, std::size_t first_byte, std::size_t last_byte) {
  EditableFiles files("models/tiny_base");
  const std::string whole = files.Get(name);
  TestBackend cpu;
  int loaded = 0;
  int refused = 0;
  for (std::size_t byte = first_byte; byte < std::min(last_byte, whole.size()); ++byte) {
    for (int bit = 0; bit < 8; bit += 1 + static_cast<int>(byte % 3)) {
      std::string changed = whole;
      changed[byte] = static_cast<char>(changed[byte] ^ (1 << bit));
      files.Set(name, std::move(changed));
      const auto model = runtime::LoadModel(files.Files(), cpu.backend, {});
      if (model.ok()) {
        ++loaded;
        ExpectWorks(**model, cpu.backend, /*sound=*/false);
      } else {
        ++refused;
        EXPECT_FALSE(model.status().message().empty());
      }
    }
  }
  EXPECT_GT(refused, 0);
  std::printf("%s: %d changes load, %d are refused\n", name.c_str(), loaded, refused);
}

TEST(BitFlipTest, WeightsHeader) {
  const std::string file = ReadTestFile("models/tiny_base/model.safetensors");
  FlipBits("model.safetensors", 0,
           8 + static_cast<unsigned char>(file[0]) + 256 * static_cast<unsigned char>(file[1]));
}
TEST(BitFlipTest, WeightsData) {
  FlipBits("model.safetensors", 6000, 6384);
}
TEST(BitFlipTest, Configuration) {
  FlipBits("config.json", 0, 4096);
}

}  // namespace
}  // namespace quire::models

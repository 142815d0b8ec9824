// Every broken file of tests/testdata/gguf/malformed is rejected with the field in its index, and
// control files load. Files truncated or changed at any position at most fail to load.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "formats/tensors/gguf_tensors.h"
#include "runtime/model.h"
#include "tests/models/model_check.h"
#include "tests/models/test_files.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/tokenizer.h"

namespace quire::models {
namespace {

struct Case {
  std::string file;
  std::string field;   // empty if none
  std::string accept;  // "no", "either", "yes"
};

void PrintTo(const Case& test_case, std::ostream* stream) {
  *stream << test_case.file;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const nlohmann::json index = nlohmann::json::parse(ReadTestFile("gguf/malformed/index.json"));
  for (const auto& entry : index["cases"]) {
    cases.push_back({entry["file"].get<std::string>(),
                     entry["field"].is_null() ? "" : entry["field"].get<std::string>(),
                     entry["accept"].get<std::string>()});
  }
  return cases;
}

struct Loaded {
  std::unique_ptr<runtime::Model> model;
  std::unique_ptr<text::Tokenizer> tokenizer;
};

// Loads everything that a daemon reads of a file before it serves.
absl::StatusOr<Loaded> Load(const formats::ModelFiles& files, const kernels::Backend& backend) {
  Loaded loaded;
  QUIRE_ASSIGN_OR_RETURN(loaded.model, runtime::LoadModel(files, backend, {}));
  QUIRE_ASSIGN_OR_RETURN(const formats::OpenedGguf opened, formats::OpenGguf(files));
  QUIRE_ASSIGN_OR_RETURN(const text::GgufVocabulary vocabulary,
                         text::ReadGgufVocabulary(opened.gguf));
  QUIRE_ASSIGN_OR_RETURN(loaded.tokenizer, text::Tokenizer::FromGguf(vocabulary));
  return loaded;
}

void ExpectWorks(const Loaded& loaded, const kernels::Backend& backend, bool sound = true) {
  models::ExpectWorks(*loaded.model, backend, sound);
  const auto ids = loaded.tokenizer->Encode("ab a", {});
  ASSERT_TRUE(ids.ok()) << ids.status();
  const auto text = loaded.tokenizer->Decode(*ids, /*skip_special_tokens=*/false);
  ASSERT_TRUE(text.ok()) << text.status();
}

class GgufMalformedTest : public testing::TestWithParam<Case> {};

TEST_P(GgufMalformedTest, IsRejectedWithTheField) {
  const Case& test_case = GetParam();
  const std::string path = TestDataPath("gguf/malformed/" + test_case.file);
  TestBackend cpu;
  absl::StatusOr<formats::ModelFiles> files = formats::ModelFiles::FromPath(path);
  const absl::StatusOr<Loaded> loaded =
      files.ok() ? Load(*files, cpu.backend) : absl::StatusOr<Loaded>(files.status());
  if (test_case.accept == "yes") {
    ASSERT_TRUE(loaded.ok()) << loaded.status();
  } else if (test_case.accept == "no") {
    ASSERT_FALSE(loaded.ok());
  }
  if (loaded.ok()) {
    ExpectWorks(*loaded, cpu.backend);
    return;
  }
  const std::string message(loaded.status().message());
  std::printf("%s\n", message.substr(std::min(message.size(), TestDataPath("").size())).c_str());
  EXPECT_THAT(message, testing::HasSubstr(test_case.field));
  // The message is one sentence that starts with the position, not a dump.
  EXPECT_LT(message.size(), 500u);
  EXPECT_THAT(message, testing::StartsWith(path));
}

std::string CaseName(const testing::TestParamInfo<Case>& info) {
  std::string name;
  for (const char c : info.param.file) {
    name += absl::ascii_isalnum(static_cast<unsigned char>(c)) ? c : '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(Gguf, GgufMalformedTest, testing::ValuesIn(Cases()), CaseName);

TEST(GgufMalformedListTest, HasEveryCase) {
  EXPECT_EQ(Cases().size(), 151u);
}

TEST(GgufTruncationTest, NoPrefixLoads) {
  const std::string whole = ReadTestFile("gguf/malformed/good.gguf");
  TestBackend cpu;
  constexpr std::size_t kPadding = 16;  // after the last tensor; a file without padding is complete
  for (std::size_t length = 0; length < whole.size() - kPadding; ++length) {
    EditableFiles files;
    files.Set("model.gguf", whole.substr(0, length));
    EXPECT_FALSE(runtime::LoadModel(files.Files(), cpu.backend, {}).ok()) << length << " bytes";
  }
}

// Flips one bit anywhere. Loading fails with a message, or gives a working model and tokenizer. A
// weight with a changed exponent may be so large that the logits overflow.
TEST(GgufBitFlipTest, FailsOrWorks) {
  const std::string whole = ReadTestFile("gguf/malformed/good.gguf");
  TestBackend cpu;
  int num_loaded = 0;
  int num_refused = 0;
  for (std::size_t byte = 0; byte < whole.size(); ++byte) {
    for (int bit = 0; bit < 8; bit += 1 + static_cast<int>(byte % 3)) {
      std::string changed = whole;
      changed[byte] = static_cast<char>(changed[byte] ^ (1 << bit));
      EditableFiles files;
      files.Set("model.gguf", std::move(changed));
      const auto loaded = Load(files.Files(), cpu.backend);
      if (loaded.ok()) {
        ++num_loaded;
        ExpectWorks(*loaded, cpu.backend, /*sound=*/false);
      } else {
        ++num_refused;
        EXPECT_FALSE(loaded.status().message().empty());
      }
    }
  }
  EXPECT_GT(num_refused, 1000);
  EXPECT_GT(num_loaded, 100);
  std::printf("%d changes load, %d are refused\n", num_loaded, num_refused);
}

}  // namespace
}  // namespace quire::models

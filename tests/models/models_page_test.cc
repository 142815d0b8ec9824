// docs/models.md lists exactly the families of the registry, and each one has a fixture.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "models/config/hybrid_config.h"
#include "models/families/registry.h"
#include "tests/models/test_files.h"
#include "tests/testing/paths.h"

namespace quire::models {
namespace {

std::string Quoted(std::span<const absl::string_view> names) {
  return absl::StrJoin(names, ", ", [](std::string* out, absl::string_view name) {
    absl::StrAppend(out, "`", name, "`");
  });
}

std::string RowOf(const Family& family) {
  std::vector<absl::string_view> names = {family.gguf_architecture, family.gguf_moe_architecture};
  std::erase(names, "");
  const std::string gguf = Quoted(names);
  return absl::StrCat("| ", family.name, " | ", Quoted(family.architectures), " | ",
                      Quoted(family.model_types), " | ", gguf, " | ", Quoted(family.keys), " |");
}

TEST(ModelsPageTest, TableOfFamiliesEqualsTheRegistry) {
  std::ifstream stream(paths::Source("docs/models.md"));
  std::stringstream text;
  text << stream.rdbuf();
  const std::vector<std::string> lines = absl::StrSplit(text.str(), '\n');
  std::size_t at = 0;
  while (at < lines.size() && lines[at].rfind("| family | architectures", 0) != 0) ++at;
  ASSERT_LT(at + 2, lines.size()) << "the page has no table of families";
  std::vector<std::string> want;
  for (const Family* family : AllFamilies()) want.push_back(RowOf(*family));
  std::vector<std::string> got;
  for (at += 2; at < lines.size() && !lines[at].empty(); ++at) got.push_back(lines[at]);
  EXPECT_EQ(got, want) << "write in docs/models.md:\n" << absl::StrJoin(want, "\n");
}

// An architecture without a comparison with transformers is rejected, so each listed one has a
// folder with recorded logits.
TEST(ModelsPageTest, EveryArchitectureHasAFixture) {
  // These fixtures are derived from others by wrapping or unwrapping them (text_config_test.cc).
  std::set<std::string> found = {"Gemma3ForConditionalGeneration", "Gemma4ForConditionalGeneration",
                                 "Llama4ForConditionalGeneration",
                                 "Qwen3_5ForConditionalGeneration", "Qwen3_5MoeForCausalLM"};
  for (const auto& entry : std::filesystem::directory_iterator(TestDataPath("models"))) {
    if (!std::filesystem::exists(entry.path() / "reference.json")) continue;
    const std::string name = absl::StrCat("models/", entry.path().filename().string());
    const std::string config = ReadTestFile(name + "/config.json");
    found.insert(
        nlohmann::json::parse(WithQuotedInfinity(config))["architectures"][0].get<std::string>());
  }
  for (const Family* family : AllFamilies()) {
    for (const absl::string_view architecture : family->architectures) {
      EXPECT_EQ(found.count(std::string(architecture)), 1u) << architecture;
    }
  }
}

}  // namespace
}  // namespace quire::models

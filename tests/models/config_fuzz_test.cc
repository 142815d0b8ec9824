// Random edits of the fixtures' config.json give a model that computes, or a rejection that names
// the file. They never cause a crash, a hang or a silently ignored key.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/config/hybrid_config.h"
#include "runtime/model.h"
#include "tests/models/model_check.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRuns = 10'000;
constexpr absl::string_view kFixtures[] = {"llama-bias-bf16",
                                           "llama-rope-llama3-bf16",
                                           "llama-rope-yarn-newstyle-bf16",
                                           "qwen2-bf16",
                                           "qwen3-hd128-bf16",
                                           "mistral-window-bf16",
                                           "smollm3-bf16",
                                           "granite-bf16",
                                           "gemma2-bf16",
                                           "gemma3-text-bf16",
                                           "phi3-longrope-bf16",
                                           "olmo2-bf16",
                                           "mixtral-bf16",
                                           "qwen3-moe-bf16",
                                           "gpt-oss-bf16",
                                           "gpt-oss-mxfp4",
                                           "deepseek-v2-bf16",
                                           "deepseek-v3-bf16",
                                           "ministral-bf16",
                                           "phi4-mini-bf16",
                                           "deepseek-v2-lite-bf16",
                                           "nemotron-h-bf16",
                                           "granite-hybrid-bf16",
                                           "kimi-linear-bf16",
                                           "lfm2-bf16",
                                           "deepseek-v32-bf16",
                                           "glm-moe-dsa-bf16",
                                           "qwen3-next-bf16",
                                           "qwen35-bf16",
                                           "qwen35-moe-bf16",
                                           "llama4-bf16",
                                           "glm4-moe-bf16",
                                           "glm4-moe-lite-bf16",
                                           "minimax-m2-bf16",
                                           "olmo3-bf16",
                                           "gemma4-bf16",
                                           "gemma4-moe-bf16"};
constexpr absl::string_view kUnknownKey = "an_unheard_of_key";

// Values that parsers of numbers, flags, names and lists often mishandle.
const Json& Values() {
  static const Json& values = *new Json(Json::parse(R"([
    null, true, false, 0, 1, 2, 3, 7, 64, 128, -1, -2147483649, 2147483648, 4294967296,
    9223372036854775807, 18446744073709551615, 0.0, -0.0, 0.5, 1.5, 1e-320, 1e-6, 1e30, 1e308,
    -1e308, "", "silu", "gelu", "gelu_pytorch_tanh", "1", "nonsense", "\u0000", [], [0], [1, 2, 3],
    [[[[]]]], ["full_attention"], ["sliding_attention", "full_attention"], {},
    {"rope_type": "yarn"}, {"rope_type": "linear", "factor": 2.0}, {"type": "dynamic", "factor": 4},
    {"quant_method": "gptq"}])"));
  return values;
}

class Fuzzer {
 public:
  explicit Fuzzer(std::uint64_t seed) : random_(seed) {
    for (const absl::string_view name : kFixtures) {
      files_.emplace_back(absl::StrCat("models/", name));
      configs_.push_back(Json::parse(WithQuotedInfinity(files_.back().Get("config.json"))));
    }
  }

  // Returns a fixture whose config.json has one to three edits. It is valid until the next call.
  const EditableFiles& Next() {
    const std::size_t fixture = Below(files_.size());
    Json config = configs_[fixture];
    for (std::size_t edits = 1 + Below(3); edits > 0; --edits) Edit(&config);
    Json read = config;
    read.erase("vision_config");  // no key of it is read
    has_unknown_ = absl::StrContains(read.dump(), absl::StrCat("\"", kUnknownKey, "\":"));
    std::string text = config.dump(Below(2) == 0 ? -1 : 1);
    if (Below(12) == 0) {
      Damage(&text);
      has_unknown_ = false;  // the unknown key may be the damaged one
    }
    EditableFiles& files = files_[fixture];
    files.Set("config.json", std::move(text));
    return files;
  }
  // Returns whether the config contains a key that the reader does not know.
  bool has_unknown() const { return has_unknown_; }

 private:
  std::size_t Below(std::size_t n) { return random_() % n; }

  // Returns the object itself or sometimes a nested object that a fixture also has. A key that an
  // edit adds elsewhere, for example inside transformers_version, has no effect.
  Json* Somewhere(Json* object) {
    std::vector<Json*> inner;
    for (auto& [key, value] : object->items()) {
      if (value.is_object() && !value.empty() && HoldsObjects(key)) inner.push_back(&value);
    }
    return inner.empty() || Below(3) != 0 ? object : inner[Below(inner.size())];
  }

  bool HoldsObjects(const std::string& key) const {
    return std::any_of(configs_.begin(), configs_.end(), [&](const Json& config) {
      return config.contains(key) && config[key].is_object();
    });
  }

  void Edit(Json* config) {
    if (config->empty()) return;
    Json* const object = Somewhere(config);
    auto entry = object->begin();
    std::advance(entry, Below(object->size()));
    switch (Below(6)) {
      case 0:
        entry.value() = Values()[Below(Values().size())];
        return;
      case 1:
        Nudge(&entry.value());
        return;
      case 2:
        object->erase(entry.key());
        return;
      case 3:
        // Skips the first value, null, which is equivalent to an absent key.
        (*object)[std::string(kUnknownKey)] = Values()[1 + Below(Values().size() - 1)];
        return;
      default:
        Borrow(config);
        return;
    }
  }

  // Changes a number by one, or the length of a list.
  void Nudge(Json* value) {
    if (value->is_number_integer()) {
      const auto old = value->get<std::uint64_t>();  // wraps around where the signed type must not
      const std::uint64_t next[] = {old + 1, old - 1, old * 2, old / 2, 0 - old};
      *value = static_cast<std::int64_t>(next[Below(std::size(next))]);
    } else if (value->is_number_float()) {
      const double factors[] = {0.5, 2, 1.0001, -1, 1e-3, 1e6};
      *value = value->get<double>() * factors[Below(std::size(factors))];
    } else if (value->is_boolean()) {
      *value = !value->get<bool>();
    } else if (value->is_array() && !value->empty()) {
      if (Below(2) == 0) {
        value->erase(value->size() - 1);
      } else {
        value->push_back(value->front());
      }
    }
  }

  // Copies one key of any fixture, possibly of another family.
  void Borrow(Json* config) {
    const Json& other = configs_[Below(configs_.size())];
    auto entry = other.begin();
    std::advance(entry, Below(other.size()));
    (*config)[entry.key()] = entry.value();
  }

  void Damage(std::string* text) {
    const std::size_t at = Below(text->size());
    switch (Below(4)) {
      case 0:
        text->resize(at);
        return;
      case 1:
        (*text)[at] = static_cast<char>(random_());
        return;
      case 2:
        text->insert(at, text->substr(Below(text->size()), Below(64)));
        return;
      default:
        text->erase(at, 1 + Below(16));
        return;
    }
  }

  std::mt19937_64 random_;
  std::vector<EditableFiles> files_;
  std::vector<Json> configs_;
  bool has_unknown_ = false;
};

bool HasWarningOf(const runtime::Model& model, absl::string_view key) {
  return std::any_of(model.warnings.begin(), model.warnings.end(),
                     [&](const std::string& warning) { return absl::StrContains(warning, key); });
}

TEST(ConfigFuzzTest, EveryEditIsAcceptedOrRejectedByName) {
  Fuzzer fuzzer(20261122);
  TestBackend cpu;
  std::map<absl::StatusCode, int> ends;
  for (int run = 0; run < kRuns; ++run) {
    const EditableFiles& files = fuzzer.Next();
    SCOPED_TRACE(absl::StrCat("run ", run, ": ", files.Get("config.json")));
    const auto model = runtime::LoadModel(files.Files(), cpu.backend, {});
    ++ends[model.status().code()];
    if (model.ok()) {
      // Edited factors may make numbers overflow, which is legitimate.
      ExpectWorks(**model, cpu.backend, /*sound=*/false);
      EXPECT_TRUE(!fuzzer.has_unknown() || HasWarningOf(**model, kUnknownKey));
    } else {
      const std::string message(model.status().message());
      EXPECT_THAT(message, testing::StartsWith("edited"));
      EXPECT_LT(message.size(), 1000u) << message;
    }
    if (testing::Test::HasFailure()) return;  // the first failure is enough
  }
  for (const auto& [code, count] : ends) {
    std::printf("%s: %d\n", absl::StatusCodeToString(code).c_str(), count);
  }
  // Both outcomes must occur, and a rejection must not be caused by memory or an internal error.
  EXPECT_GT(ends[absl::StatusCode::kOk], kRuns / 10);
  EXPECT_GT(ends[absl::StatusCode::kInvalidArgument], kRuns / 10);
  EXPECT_GT(ends[absl::StatusCode::kUnimplemented], kRuns / 100);
  EXPECT_EQ(ends[absl::StatusCode::kOk] + ends[absl::StatusCode::kInvalidArgument] +
                ends[absl::StatusCode::kUnimplemented],
            kRuns);
}

}  // namespace
}  // namespace quire::models

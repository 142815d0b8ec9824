#include "runtime/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "models/weights/weights.h"
#include "runtime/memory_plan.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using testing::HasSubstr;

TEST(LoadModelTest, FillsTheModelDescription) {
  TestBackend cpu(2);
  const auto model =
      runtime::LoadModel(TestDataPath("models/llama-theta500k-multieos-bf16"), cpu.backend, {});
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->architecture, "LlamaForCausalLM");
  EXPECT_EQ((*model)->parameter_count, 246400);
  EXPECT_EQ((*model)->stored_dtype, DType::kBF16);
  EXPECT_EQ((*model)->fingerprint.size(), 32u);
  EXPECT_THAT((*model)->spec.eos_ids, testing::ElementsAre(1, 3, 4));
  EXPECT_FLOAT_EQ(*(*model)->generation.temperature, 0.6f);
  EXPECT_FLOAT_EQ(*(*model)->generation.top_p, 0.9f);
  EXPECT_THAT((*model)->source, testing::EndsWith("llama-theta500k-multieos-bf16"));
}

// The plan reads only headers and is exact to the byte.
TEST(LoadModelTest, MemoryPlanIsExact) {
  TestBackend cpu;
  for (const char* folder : {"llama-bias-bf16", "llama-mha-f32", "llama-untied-f16",
                             "llama-gqa-tied-bf16", "llama-sharded-bf16"}) {
    const auto files =
        formats::ModelFiles::FromDirectory(TestDataPath(absl::StrCat("models/", folder)));
    const auto plan = runtime::PlanMemory(
        *files,
        {.page_size = 16, .num_blocks = 9, .runner = {.max_rows = 4, .max_step_tokens = 32}});
    ASSERT_TRUE(plan.ok()) << plan.status();
    const auto model = runtime::LoadModel(*files, cpu.backend, {});
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(plan->weight_bytes, (*model)->weight_bytes) << folder;
    EXPECT_EQ(plan->weight_bytes, (*model)->weights->size_bytes()) << folder;
    const auto geometry = runtime::KvGeometryFor((*model)->spec, 16, DType::kBF16, 9);
    ASSERT_TRUE(geometry.ok());
    EXPECT_EQ(plan->pool_bytes, 9 * geometry->page_bytes());
    cache::CacheManagerOptions cache;
    cache.geometry = *geometry;
    cache.max_rows = 4;
    cache.max_context_tokens = (*model)->spec.max_position;
    EXPECT_EQ(plan->prefix_index_bytes, cache::CacheManager::PrefixIndexBytes(cache));
    const auto& heads = (*model)->spec.layers[0].heads;
    EXPECT_EQ(plan->page_bytes, std::int64_t{2} * 2 * 16 * heads.num_kv_heads * heads.head_size *
                                    static_cast<std::int64_t>((*model)->spec.layers.size()));
  }
}

TEST(LoadModelTest, WeightLimitIsCheckedBeforeLoading) {
  TestBackend cpu;
  const auto files = formats::ModelFiles::FromDirectory(TestDataPath("models/tiny_base"));
  const auto whole = runtime::LoadModel(*files, cpu.backend, {});
  ASSERT_TRUE(whole.ok());
  const std::int64_t bytes = (*whole)->weight_bytes;
  EXPECT_TRUE(runtime::LoadModel(*files, cpu.backend, {.weight_limit_bytes = bytes}).ok());
  const auto refused = runtime::LoadModel(*files, cpu.backend, {.weight_limit_bytes = bytes - 1});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr(absl::StrCat(bytes)));
}

TEST(LoadModelTest, TiedHeadInTheFileIsIgnoredWithAWarningWhenItDiffers) {
  TestBackend cpu;
  EditableFiles files("models/llama-extra-buffers-bf16");
  const auto equal = runtime::LoadModel(files.Files(), cpu.backend, {});
  ASSERT_TRUE(equal.ok()) << equal.status();
  EXPECT_THAT((*equal)->warnings, testing::Not(testing::Contains(HasSubstr("lm_head.weight"))));

  std::string weights = files.Get("model.safetensors");
  const auto checkpoint = Checkpoint::Open(files.Files());
  const formats::StoredTensor* head = checkpoint->Find("lm_head.weight");
  ASSERT_NE(head, nullptr);
  const std::size_t offset = static_cast<std::size_t>(
      reinterpret_cast<const char*>(head->bytes.data()) - files.Get("model.safetensors").data());
  weights[offset] = static_cast<char>(weights[offset] ^ 1);
  files.Set("model.safetensors", weights);
  const auto differs = runtime::LoadModel(files.Files(), cpu.backend, {});
  ASSERT_TRUE(differs.ok()) << differs.status();
  EXPECT_THAT((*differs)->warnings, testing::Contains(HasSubstr("lm_head.weight")));
}

// Tensors of one file may have different types. Loading rounds none of them.
TEST(LoadModelTest, PartsOfDifferentTypesAreWidened) {
  TestBackend cpu;
  EditableFiles files("models/tiny_base");
  const std::string file = files.Get("model.safetensors");
  const auto checkpoint = Checkpoint::Open(files.Files());
  ASSERT_TRUE(checkpoint.ok());
  nlohmann::json header;
  std::string data;
  for (const formats::StoredTensor& tensor : checkpoint->tensors()) {
    std::string bytes(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    std::string type = tensor.type;
    if (tensor.name == "model.layers.0.self_attn.k_proj.weight") {
      // Converts bf16 to f32 by two zero bytes below each value.
      std::string wide;
      for (std::size_t i = 0; i < bytes.size(); i += 2) {
        wide.append(2, '\0');
        wide.append(bytes, i, 2);
      }
      bytes = wide;
      type = "F32";
    }
    header[tensor.name] = {{"dtype", type},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }
  const auto original = runtime::LoadModel(files.Files(), cpu.backend, {});
  ASSERT_TRUE(original.ok()) << original.status();
  EditableFiles mixed = files;
  mixed.Set("model.safetensors", SafetensorsFile(header.dump(), data));
  const auto model = runtime::LoadModel(mixed.Files(), cpu.backend, {});
  ASSERT_TRUE(model.ok()) << model.status();
  const kernels::PackedLinear& want = (*original)->weights->layers()[0].qkv.matrices[0];
  const kernels::PackedLinear& got = (*model)->weights->layers()[0].qkv.matrices[0];
  EXPECT_EQ(want.dtype(), DType::kBF16);
  EXPECT_EQ(got.dtype(), DType::kF32);
  for (std::uint32_t n = 0; n < want.n(); ++n) {
    for (std::uint32_t k = 0; k < want.k(); ++k) EXPECT_EQ(got.At(n, k), want.At(n, k));
  }
  EXPECT_EQ((*model)->weight_bytes, (*model)->weights->size_bytes());
}

TEST(KvGeometryTest, ComputesThePagesThatFit) {
  TestBackend cpu;
  const auto model = runtime::LoadModel(TestDataPath("models/tiny_base"), cpu.backend, {});
  ASSERT_TRUE(model.ok());
  const auto geometry = runtime::KvGeometryFor((*model)->spec, 16, DType::kF32, 2);
  ASSERT_TRUE(geometry.ok());
  const std::int64_t page = geometry->page_bytes();
  EXPECT_EQ(*runtime::NumBlocksForBytes(*geometry, 10 * page + page - 1), 10u);
  EXPECT_THAT(std::string(runtime::NumBlocksForBytes(*geometry, 2 * page - 1).status().message()),
              HasSubstr(absl::StrCat(page, " bytes")));
  // A view has less than 2^31 rows for any amount of memory.
  const auto most = runtime::NumBlocksForBytes(*geometry, std::int64_t{1} << 62);
  ASSERT_TRUE(most.ok());
  EXPECT_EQ(*most, geometry->max_num_blocks());
  EXPECT_FALSE(runtime::KvGeometryFor((*model)->spec, 17, DType::kF32, 2).ok());
}

TEST(KvGeometryTest, ComputesThePagesThatFitWithTheirPrefixIndex) {
  TestBackend cpu;
  const auto model = runtime::LoadModel(TestDataPath("models/tiny_base"), cpu.backend, {});
  ASSERT_TRUE(model.ok());
  const auto geometry = runtime::KvGeometryFor((*model)->spec, 16, DType::kF32, 2);
  ASSERT_TRUE(geometry.ok());
  cache::CacheManagerOptions options;
  options.geometry = *geometry;
  options.max_rows = 4;
  options.max_context_tokens = 128;
  const auto bytes = [&](std::uint32_t num_blocks) {
    options.geometry.num_blocks = num_blocks;
    return num_blocks * geometry->page_bytes() + cache::CacheManager::PrefixIndexBytes(options);
  };
  for (const std::uint32_t num_blocks : {2u, 3u, 57u, 58u, 1000u}) {
    EXPECT_EQ(*runtime::NumBlocksWithIndex(options, bytes(num_blocks)), num_blocks);
    EXPECT_EQ(*runtime::NumBlocksWithIndex(options, bytes(num_blocks + 1) - 1), num_blocks);
  }
  // Two pages would fit without their prefix index.
  EXPECT_THAT(std::string(runtime::NumBlocksWithIndex(options, bytes(2) - 1).status().message()),
              testing::MatchesRegex("kv cache of [0-9]+ bytes is too small: 2 pages take [0-9]+ "
                                    "bytes and their prefix index [0-9]+"));
  EXPECT_EQ(runtime::NumBlocksWithIndex(options, 2 * geometry->page_bytes() - 1).status(),
            runtime::NumBlocksForBytes(*geometry, 2 * geometry->page_bytes() - 1).status());
}

}  // namespace
}  // namespace quire::models

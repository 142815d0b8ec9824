// A mixture of experts with every option set: its block in double precision, batch invariance,
// cost, and rejections of tensors and keys.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "models/blocks/moe_block.h"
#include "models/blocks/step_buffers.h"
#include "models/weights/dummy_checkpoint.h"
#include "models/weights/weights.h"
#include "runtime/model.h"
#include "tests/models/test_files.h"

namespace quire::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr std::uint32_t kHidden = 64;
constexpr std::uint32_t kExperts = 8;
constexpr std::uint32_t kChosen = 3;

constexpr TensorNames kNames{.choice_bias = "gate.e_score_correction_bias",
                             .latent_in = "latent_in",
                             .latent_out = "latent_out",
                             .shared = "shared_experts",
                             .shared_gate = "shared_expert_gate"};

// A dense layer, then one with experts.
ModelSpec TestSpec() {
  LayerSpec dense;
  dense.attn_in = {.kind = NormKind::kRms, .eps = 1e-5f};
  dense.mlp_in = dense.attn_in;
  dense.heads.num_heads = 2;
  dense.heads.num_kv_heads = 1;
  dense.heads.head_size = 16;
  dense.heads.v_head_size = 16;
  dense.heads.rotary_size = 16;
  dense.heads.rope = 0;
  dense.heads.scale = 0.25f;
  dense.dense.intermediate = 96;
  LayerSpec sparse = dense;
  sparse.mlp = MlpKind::kMoe;
  sparse.dense = MlpSpec{};
  MoeSpec& moe = sparse.moe;
  moe.num_experts = kExperts;
  moe.top_k = kChosen;
  moe.expert = {.intermediate = 96, .gate_bias = true, .up_bias = true, .down_bias = true};
  moe.score = RouterScore::kSigmoid;
  moe.router_bias = true;
  moe.choice_bias = true;
  moe.groups = 4;
  moe.groups_kept = 2;
  moe.group_score = GroupScore::kTop2Sum;
  moe.renormalize = true;
  moe.renorm_eps = 1e-20f;
  moe.weight_scale = 2.5f;
  moe.shared = MlpSpec{.intermediate = 32};
  moe.shared_gate = true;
  ModelSpec spec;
  spec.vocab_size = 16;
  spec.hidden = kHidden;
  spec.max_position = 64;
  spec.layers = {dense, sparse};
  spec.rope_tables.push_back({std::vector<float>(8, 0.5f), 1.0f});
  spec.final_norm = dense.attn_in;
  spec.tie_embeddings = true;
  AssignCacheGroups(&spec);
  return spec;
}

// TestSpec with experts of squared relu without gate, behind a latent projection unless it is 0.
ModelSpec LatentSpec(std::uint32_t latent) {
  ModelSpec spec = TestSpec();
  MoeSpec& moe = spec.layers[1].moe;
  moe.latent = latent;
  moe.expert = {.gated = false,
                .intermediate = 96,
                .up_bias = true,
                .down_bias = true,
                .act = Activation::kRelu2};
  moe.shared = MlpSpec{.gated = false, .intermediate = 32, .act = Activation::kRelu2};
  return spec;
}

// The tensors of a spec with random values, which tests modify before FindWeights.
struct Tensors {
  explicit Tensors(const ModelSpec& spec) {
    ModelConfig config;
    config.dtype = DType::kF32;
    const auto dummy = DummyCheckpoint(config, spec, kNames, /*with_values=*/false);
    EXPECT_TRUE(dummy.ok()) << dummy.status();
    std::mt19937 random(5);
    for (const formats::StoredTensor& tensor : dummy->tensors()) {
      const double inputs = static_cast<double>(tensor.shape.back());
      double deviation = tensor.shape.size() == 1 ? 0.3 : 1.6 / std::sqrt(inputs);
      // The values are small enough that every expert gets rows.
      if (absl::EndsWith(tensor.name, "correction_bias")) deviation = 0.05;
      std::normal_distribution<float> normal(0, static_cast<float>(deviation));
      std::vector<float> values(static_cast<std::size_t>(tensor.num_elements()));
      for (float& value : values) value = normal(random);
      Set(tensor.name, tensor.shape, values);
    }
  }

  void Set(const std::string& name, const std::vector<std::int64_t>& shape,
           const std::vector<float>& values) {
    shapes[name] = shape;
    all[name] = std::make_shared<std::vector<float>>(values);
  }
  const std::vector<float>& operator[](const std::string& name) const { return *all.at(name); }

  // Stores the tensor as bf16 in the first half of its memory.
  void MakeHalf(const std::string& name) { halves.insert(name); }

  Checkpoint Make() const {
    std::vector<formats::StoredTensor> tensors;
    for (const auto& [name, values] : all) {
      const bool half = halves.contains(name);
      formats::StoredTensor tensor;
      tensor.name = name;
      tensor.type = half ? "BF16" : "F32";
      tensor.dtype = half ? DType::kBF16 : DType::kF32;
      tensor.shape = shapes.at(name);
      tensor.bytes = std::as_bytes(std::span(*values));
      if (half) tensor.bytes = tensor.bytes.first(tensor.bytes.size() / 2);
      tensor.file = "made up";
      tensors.push_back(std::move(tensor));
    }
    return Checkpoint::FromTensors(std::move(tensors), nullptr);
  }

  std::map<std::string, std::vector<std::int64_t>> shapes;
  std::map<std::string, std::shared_ptr<std::vector<float>>> all;
  std::set<std::string> halves;
};

std::string Layer1(const std::string& name) {
  return absl::StrCat("model.layers.1.", name);
}

struct Loaded {
  Loaded(const ModelSpec& s, const Tensors& tensors, int threads,
         Quantization quantization = Quantization::kNone)
      : spec(s), backend(threads), checkpoint(tensors.Make()) {
    const WeightTarget target{.quantization = quantization};
    auto slots = FindWeights(spec, kNames, checkpoint, target);
    EXPECT_TRUE(slots.ok()) << slots.status();
    auto loaded = Weights::Load(*slots, backend.backend, target);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    weights = std::make_unique<Weights>(*std::move(loaded));
    EXPECT_EQ(weights->size_bytes(), WeightBytes(*slots, target));
    auto allocated = Weights::Allocate(*slots, quantization, backend.backend);
    EXPECT_EQ(allocated->size_bytes(), weights->size_bytes());
    EXPECT_EQ(allocated->Sections().size(), weights->Sections().size());
  }

  // Returns the residual stream after the block of layer 1. The rows of x are its input.
  std::vector<float> Run(const std::vector<float>& x) {
    const auto rows = static_cast<std::uint32_t>(x.size() / kHidden);
    const StepLimits limits{.max_rows = 1, .max_step_tokens = rows + 3, .head_rows = 1};
    auto buffers = StepBuffers::Allocate(spec, limits);
    EXPECT_TRUE(buffers.ok()) << buffers.status();
    // Unwritten memory must not be read.
    std::memset(buffers->memory.data(), 0xff,
                static_cast<std::size_t>(buffers->memory.size_bytes()));
    std::copy(x.begin(), x.end(), buffers->x);
    const StepContext step{.backend = &backend.backend,
                           .kv = {},
                           .plans = {},
                           .maps = {},
                           .buffers = &*buffers,
                           .angles = {},
                           .num_tokens = rows,
                           .batch_size = 1,
                           .hidden = kHidden};
    const absl::Status status = MoeBlock(step, spec.layers[1], weights->layers()[1]);
    EXPECT_TRUE(status.ok()) << status;
    return {buffers->x, buffers->x + x.size()};
  }

  ModelSpec spec;
  TestBackend backend;
  Checkpoint checkpoint;
  std::unique_ptr<Weights> weights;
};

using Doubles = std::vector<double>;

// Returns W x + b. `bias` is empty without a bias.
Doubles Product(const Tensors& tensors, const std::string& name, const Doubles& x, bool has_bias) {
  const std::vector<float>& w = tensors[Layer1(name + ".weight")];
  const std::size_t rows = w.size() / x.size();
  Doubles y(rows);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t i = 0; i < x.size(); ++i) y[r] += double{w[r * x.size() + i]} * x[i];
    if (has_bias) y[r] += double{tensors[Layer1(name + ".bias")][r]};
  }
  return y;
}

double Sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// The MLP is gated by silu, or has squared relu if there is no gate.
Doubles Mlp(const Tensors& tensors, const std::string& name, const Doubles& x, bool has_bias) {
  if (!tensors.all.contains(Layer1(name + ".gate_proj.weight"))) {
    Doubles inner = Product(tensors, name + ".up_proj", x, has_bias);
    for (double& value : inner) value = value > 0 ? value * value : 0;
    return Product(tensors, name + ".down_proj", inner, has_bias);
  }
  Doubles gate = Product(tensors, name + ".gate_proj", x, has_bias);
  const Doubles up = Product(tensors, name + ".up_proj", x, has_bias);
  for (std::size_t i = 0; i < gate.size(); ++i) gate[i] *= Sigmoid(gate[i]) * up[i];
  return Product(tensors, name + ".down_proj", gate, has_bias);
}

// Returns the experts of a row, best first.
std::vector<std::size_t> Choose(const Doubles& choice) {
  constexpr std::size_t kPerGroup = 2;
  std::vector<std::size_t> groups = {0, 1, 2, 3};
  std::stable_sort(groups.begin(), groups.end(), [&](std::size_t a, std::size_t b) {
    return choice[2 * a] + choice[2 * a + 1] > choice[2 * b] + choice[2 * b + 1];
  });
  std::vector<std::size_t> experts;
  for (const std::size_t g : {groups[0], groups[1]}) {
    for (std::size_t i = 0; i < kPerGroup; ++i) experts.push_back(g * kPerGroup + i);
  }
  std::sort(experts.begin(), experts.end(),
            [&](std::size_t a, std::size_t b) { return choice[a] > choice[b]; });
  experts.resize(kChosen);
  return experts;
}

// Computes one row of the block in double precision. `hit` counts the rows of each expert.
Doubles ExactRow(const Tensors& tensors, const float* x, std::vector<int>* hit) {
  Doubles n(x, x + kHidden);
  double squares = 0;
  for (const double value : n) squares += value * value;
  for (std::size_t i = 0; i < n.size(); ++i) {
    n[i] *= double{tensors[Layer1("post_attention_layernorm.weight")][i]} /
            std::sqrt(squares / kHidden + double{1e-5f});
  }
  Doubles scores = Product(tensors, "mlp.gate", n, /*has_bias=*/true);
  Doubles choice;
  for (std::size_t e = 0; e < kExperts; ++e) {
    scores[e] = Sigmoid(scores[e]);
    choice.push_back(scores[e] + double{tensors[Layer1("mlp.gate.e_score_correction_bias")][e]});
  }
  const std::vector<std::size_t> experts = Choose(choice);
  double sum = 1e-20;
  for (const std::size_t e : experts) sum += scores[e];
  Doubles y(x, x + kHidden);
  const bool is_latent = tensors.all.contains(Layer1("mlp.latent_in.weight"));
  const Doubles input = is_latent ? Product(tensors, "mlp.latent_in", n, false) : n;
  Doubles routed(input.size());
  for (const std::size_t e : experts) {
    ++(*hit)[e];
    const Doubles out = Mlp(tensors, absl::StrCat("mlp.experts.", e), input, /*has_bias=*/true);
    for (std::size_t i = 0; i < out.size(); ++i) routed[i] += 2.5 * scores[e] / sum * out[i];
  }
  if (is_latent) routed = Product(tensors, "mlp.latent_out", routed, false);
  for (std::size_t i = 0; i < kHidden; ++i) y[i] += routed[i];
  const double gate = Sigmoid(Product(tensors, "mlp.shared_expert_gate", n, false)[0]);
  const Doubles shared = Mlp(tensors, "mlp.shared_experts", n, /*has_bias=*/false);
  for (std::size_t i = 0; i < kHidden; ++i) y[i] += gate * shared[i];
  return y;
}

std::vector<float> RandomRows(std::uint32_t rows) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> x(std::size_t{rows} * kHidden);
  for (float& value : x) value = normal(random);
  return x;
}

TEST(MoeBlockTest, EqualsDoublePrecision) {
  for (const bool shared_gate : {true, false}) {
    ModelSpec spec = TestSpec();
    spec.layers[1].moe.shared_gate = shared_gate;
    Tensors tensors(spec);
    Loaded loaded(spec, tensors, 2);
    if (!shared_gate) {
      // For the reference this is an open gate.
      tensors.Set(Layer1("mlp.shared_expert_gate.weight"), {1, kHidden},
                  std::vector<float>(kHidden, 0.0f));
    }
    constexpr std::uint32_t kRows = 100;
    const auto x = RandomRows(kRows);
    const auto got = loaded.Run(x);
    std::vector<int> hit(kExperts, 0);
    double difference = 0;
    double norm = 0;
    for (std::uint32_t m = 0; m < kRows; ++m) {
      const float* const row = x.data() + m * kHidden;
      Doubles want = ExactRow(tensors, row, &hit);
      if (!shared_gate) {
        // The gate of zeros passed half of the shared expert, and the reference passes all of it.
        std::vector<int> ignored(kExperts, 0);
        Tensors without = tensors;
        without.Set(Layer1("mlp.shared_experts.down_proj.weight"), {kHidden, 32},
                    std::vector<float>(kHidden * 32, 0.0f));
        const Doubles routed = ExactRow(without, row, &ignored);
        for (std::size_t i = 0; i < kHidden; ++i) want[i] += want[i] - routed[i];
      }
      for (std::size_t i = 0; i < kHidden; ++i) {
        difference += std::pow(double{got[m * kHidden + i]} - want[i], 2);
        norm += std::pow(want[i] - double{row[i]}, 2);
      }
    }
    EXPECT_LE(std::sqrt(difference / norm), 2e-6);
    EXPECT_GE(*std::min_element(hit.begin(), hit.end()), 1) << "rows that reach all experts";
  }
}

// The latent width may be below or above the hidden size, also without a shared expert.
TEST(MoeBlockTest, LatentExpertsWithoutGateEqualDoublePrecision) {
  for (const std::uint32_t latent : {40u, 80u, 0u}) {
    const Tensors tensors(LatentSpec(latent));
    Loaded loaded(LatentSpec(latent), tensors, 2);
    constexpr std::uint32_t kRows = 100;
    const auto x = RandomRows(kRows);
    const auto got = loaded.Run(x);
    std::vector<int> hit(kExperts, 0);
    double difference = 0;
    double norm = 0;
    for (std::uint32_t m = 0; m < kRows; ++m) {
      const float* const row = x.data() + m * kHidden;
      const Doubles want = ExactRow(tensors, row, &hit);
      for (std::size_t i = 0; i < kHidden; ++i) {
        difference += std::pow(double{got[m * kHidden + i]} - want[i], 2);
        norm += std::pow(want[i] - double{row[i]}, 2);
      }
    }
    EXPECT_LE(std::sqrt(difference / norm), 2e-6) << latent;
    EXPECT_GE(*std::min_element(hit.begin(), hit.end()), 1) << "rows that reach all experts";
  }
}

class MoeBatchTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Specs, MoeBatchTest, testing::Bool(), [](const auto& info) {
  return info.param ? "LatentWithoutGate" : "Gated";
});

TEST_P(MoeBatchTest, RowsAreBatchInvariant) {
  const ModelSpec spec = GetParam() ? LatentSpec(96) : TestSpec();
  const Tensors tensors(spec);
  constexpr std::uint32_t kRows = 33;
  const auto x = RandomRows(kRows);
  for (const Quantization quantization :
       {Quantization::kNone, Quantization::kInt8G32, Quantization::kInt4G32}) {
    Loaded one(spec, tensors, 1, quantization);
    Loaded three(spec, tensors, 3, quantization);
    const auto together = one.Run(x);
    EXPECT_EQ(together, three.Run(x));
    for (const auto& [begin, end] : {std::pair{0u, 1u}, {5u, 6u}, {7u, 20u}, {32u, 33u}}) {
      const std::vector<float> some(x.begin() + begin * kHidden, x.begin() + end * kHidden);
      const auto part = three.Run(some);
      EXPECT_EQ(
          std::memcmp(part.data(), together.data() + begin * kHidden, part.size() * sizeof(float)),
          0)
          << QuantizationName(quantization) << " rows " << begin << " to " << end;
    }
  }
}

// The matrices of experts that no row chose are not read, so they may contain anything.
TEST(MoeBlockTest, ComputesOnlyChosenExperts) {
  const ModelSpec spec = TestSpec();
  const Tensors tensors(spec);
  Loaded loaded(spec, tensors, 1);
  const auto x = RandomRows(1);
  const auto want = loaded.Run(x);
  std::vector<int> hit(kExperts, 0);
  ExactRow(tensors, x.data(), &hit);
  EXPECT_EQ(std::count(hit.begin(), hit.end(), 0), kExperts - kChosen);
  std::size_t poisoned = 0;
  for (const Weights::Section& section : loaded.weights->Sections()) {
    for (std::uint32_t e = 0; e < kExperts; ++e) {
      if (hit[e] > 0 ||
          !absl::StartsWith(section.label, absl::StrCat("layers.1.experts.", e, "."))) {
        continue;
      }
      std::memset(section.bytes.data(), 0xff, section.bytes.size());
      ++poisoned;
    }
  }
  EXPECT_EQ(poisoned, 2u * (kExperts - kChosen));
  EXPECT_EQ(loaded.Run(x), want);
}

absl::Status FindError(const ModelSpec& spec, const Tensors& tensors) {
  const Checkpoint checkpoint = tensors.Make();
  return FindWeights(spec, kNames, checkpoint, {}).status();
}

TEST(MoeWeightsTest, RejectsMissingSurplusAndMisshapenExpertsByName) {
  const ModelSpec spec = TestSpec();
  const std::string expert = Layer1("mlp.experts.5.up_proj.weight");
  Tensors missing(spec);
  ASSERT_EQ(missing.all.erase(expert), 1u);
  absl::Status status = FindError(spec, missing);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(expert + " is missing"));

  Tensors surplus(spec);
  const std::string ninth = Layer1("mlp.experts.8.up_proj.weight");
  surplus.Set(ninth, {96, kHidden}, std::vector<float>(96 * kHidden));
  status = FindError(spec, surplus);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(ninth + " is not used"));

  Tensors misshapen(spec);
  misshapen.Set(expert, {kHidden, 96}, std::vector<float>(96 * kHidden));
  status = FindError(spec, misshapen);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(expert + ": shape is [64, 96]"));

  Tensors router(spec);
  router.Set(Layer1("mlp.gate.weight"), {7, kHidden}, std::vector<float>(7 * kHidden));
  EXPECT_THAT(std::string(FindError(spec, router).message()), HasSubstr("mlp.gate.weight"));

  Tensors dense_too(spec);
  dense_too.Set(Layer1("mlp.gate_proj.weight"), {96, kHidden}, std::vector<float>(96 * kHidden));
  EXPECT_THAT(std::string(FindError(spec, dense_too).message()),
              HasSubstr("mlp.gate_proj.weight is not used"));
}

// A GPU computes all experts at once. With bf16 activations elements of both types become bf16.
TEST(MoeWeightsTest, RejectsExpertsOfDifferentFormsOnGpus) {
  const ModelSpec spec = TestSpec();
  Tensors tensors(spec);
  const auto status_for = [&](const WeightTarget& target) {
    const Checkpoint checkpoint = tensors.Make();
    return FindWeights(spec, kNames, checkpoint, target).status();
  };
  const WeightTarget f32{.cuda = true, .activation = DType::kF32};
  EXPECT_TRUE(status_for(f32).ok()) << status_for(f32);
  const std::string down = Layer1("mlp.experts.5.down_proj.weight");
  tensors.MakeHalf(down);
  const absl::Status status = status_for(f32);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat(down, " would be stored as bf16, but ",
                                     Layer1("mlp.experts.0.down_proj.weight"), " as f32; GPUs")));
  EXPECT_TRUE(status_for({}).ok()) << status_for({});
  EXPECT_TRUE(status_for({.cuda = true, .activation = DType::kBF16}).ok());
  EXPECT_TRUE(status_for({.cuda = true, .quantization = Quantization::kInt8G32}).ok());
}

TEST(MoeWeightsTest, NeverConvertsRouterAndSharedGate) {
  const ModelSpec spec = TestSpec();
  const Tensors tensors(spec);
  Loaded loaded(spec, tensors, 1, Quantization::kInt4G32);
  const MoeWeights& moe = loaded.weights->layers()[1].moe;
  EXPECT_EQ(moe.router.matrices[0].format(), WeightFormat::kPlain);
  EXPECT_EQ(moe.shared_gate.matrices[0].format(), WeightFormat::kPlain);
  EXPECT_EQ(moe.gate_up[3].matrices[0].format(), WeightFormat::kInt4);
  EXPECT_EQ(moe.shared_down.matrices[0].format(), WeightFormat::kInt4);
}

TEST(MoeSpecTest, BothDevicesSupportItAndRejectOthersByName) {
  ModelSpec spec = TestSpec();
  EXPECT_TRUE(ValidateSpec(spec).ok()) << ValidateSpec(spec);
  EXPECT_TRUE(CheckSupported(spec, DeviceKind::kCpu).ok())
      << CheckSupported(spec, DeviceKind::kCpu);
  EXPECT_TRUE(CheckSupported(spec, DeviceKind::kCuda).ok())
      << CheckSupported(spec, DeviceKind::kCuda);
  spec.layers[1].moe.weight_on_input = true;
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    EXPECT_TRUE(CheckSupported(spec, device).ok()) << CheckSupported(spec, device);
  }
  spec.layers[1].moe.router_norm.kind = NormKind::kLayer;
  for (const DeviceKind device : {DeviceKind::kCpu, DeviceKind::kCuda}) {
    const absl::Status status = CheckSupported(spec, device);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()), HasSubstr("layer 1 with router_norm LayerNorm"));
  }
}

TEST(MoeSpecTest, GpuRejectsMoreExpertsThanItsRouterSupports) {
  ModelSpec spec = TestSpec();
  MoeSpec& moe = spec.layers[1].moe;
  moe.num_experts = (3072 - moe.groups) / 2;
  EXPECT_TRUE(CheckSupported(spec, DeviceKind::kCuda).ok())
      << CheckSupported(spec, DeviceKind::kCuda);
  ++moe.num_experts;
  EXPECT_TRUE(CheckSupported(spec, DeviceKind::kCpu).ok())
      << CheckSupported(spec, DeviceKind::kCpu);
  EXPECT_THAT(std::string(CheckSupported(spec, DeviceKind::kCuda).message()),
              HasSubstr("layer 1 with 2 * num_experts + groups above 3072"));
}

// Qwen3-MoE: its fixture's config.json with one key changed.
absl::StatusOr<ModelSpec> QwenSpec(const json& changes) {
  EditableFiles files("models/qwen3-moe-bf16");
  json config = json::parse(files.Get("config.json"));
  for (const auto& [key, value] : changes.items()) config[key] = value;
  files.Set("config.json", config.dump());
  auto checked = runtime::ReadModelSpec(files.Files(), DeviceKind::kCpu);
  if (!checked.ok()) return checked.status();
  return std::move(checked->spec);
}

TEST(MoeConfigTest, ConfigurationSelectsDenseLayers) {
  auto spec = QwenSpec({{"num_hidden_layers", 6},
                        {"max_window_layers", 6},
                        {"decoder_sparse_step", 2},
                        {"mlp_only_layers", {3}}});
  ASSERT_TRUE(spec.ok()) << spec.status();
  for (std::size_t i = 0; i < 6; ++i) {
    const bool sparse = i == 1 || i == 5;
    const LayerSpec& layer = spec->layers[i];
    EXPECT_EQ(layer.mlp, sparse ? MlpKind::kMoe : MlpKind::kDense) << i;
    EXPECT_EQ(layer.dense.intermediate, sparse ? 0u : 192u) << i;
    EXPECT_EQ(layer.moe.expert.intermediate, sparse ? 32u : 0u) << i;
  }
}

TEST(MoeConfigTest, AliasesMustAgreeAndNumbersMustFit) {
  auto same = QwenSpec({{"num_local_experts", 8}});
  EXPECT_TRUE(same.ok()) << same.status();
  const std::pair<json, const char*> refused[] = {
      {{{"num_local_experts", 4}}, "num_local_experts is 4, but num_experts is 8"},
      {{{"num_experts_per_tok", 9}}, "num_experts_per_tok is 9"},
      {{{"num_experts", 0}}, "num_experts"},
      {{{"mlp_only_layers", {7}}}, "mlp_only_layers has layer 7"},
      {{{"decoder_sparse_step", 0}}, "decoder_sparse_step"},
      {{{"moe_intermediate_size", -1}}, "moe_intermediate_size"},
      {{{"shared_expert_intermediate_size", 64}}, "shared_expert_intermediate_size 64"},
      {{{"routed_scaling_factor", 2.5}}, "routed_scaling_factor 2.5"},
      {{{"n_group", 4}}, "n_group 4"}};
  for (const auto& [changes, message] : refused) {
    const auto spec = QwenSpec(changes);
    ASSERT_FALSE(spec.ok()) << message;
    EXPECT_THAT(std::string(spec.status().message()), HasSubstr(message));
  }
}

TEST(MoeConfigTest, FixtureSpecsEqualTheGoldenTexts) {
  const auto moe_line = [](const char* folder) {
    const auto files = formats::ModelFiles::FromDirectory(TestDataPath(folder));
    const auto checked = runtime::ReadModelSpec(*files, DeviceKind::kCpu);
    EXPECT_TRUE(checked.ok()) << checked.status();
    const std::string dump = DumpSpec(checked->spec);
    const std::size_t begin = dump.find("experts ");
    return dump.substr(begin, dump.find(';', begin) - begin);
  };
  EXPECT_EQ(moe_line("models/mixtral-bf16"),
            "experts 2 of 4 softmax_all gated silu 96 renormalize eps 0");
  EXPECT_EQ(moe_line("models/qwen3-moe-bf16"),
            "experts 2 of 8 softmax_all gated silu 32 renormalize eps 0");
}

TEST(MoeWeightsTest, PackedFilesContainExpertsAndMlaHeads) {
  const std::string folder = testing::TempDir() + "/moe_packed";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const TestBackend backend;
  for (const char* fixture : {"models/qwen3-moe-bf16", "models/deepseek-v2-bf16"}) {
    const auto files = formats::ModelFiles::FromDirectory(TestDataPath(fixture));
    const runtime::LoadOptions options{.quantization = Quantization::kInt8G32,
                                       .packed_dir = folder};
    const auto packed = runtime::LoadModel(*files, backend.backend, options);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const auto read = runtime::LoadModel(*files, backend.backend, options);
    ASSERT_TRUE(read.ok()) << read.status();
    const auto want = (*packed)->weights->Sections();
    const auto got = (*read)->weights->Sections();
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].label, want[i].label);
      EXPECT_TRUE(std::equal(got[i].bytes.begin(), got[i].bytes.end(), want[i].bytes.begin(),
                             want[i].bytes.end()))
          << got[i].label;
    }
  }
  std::size_t files_left = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    files_left += entry.path().extension() == ".quirepack" ? 1 : 0;
  }
  EXPECT_EQ(files_left, 2u);
  std::filesystem::remove_all(folder);
}

TEST(MoeConfigTest, DummyWeightsHaveExpertsToo) {
  const auto files = formats::ModelFiles::FromDirectory(TestDataPath("models/mixtral-bf16"));
  const TestBackend backend;
  const auto real = runtime::LoadModel(*files, backend.backend, {});
  const auto dummy =
      runtime::LoadModel(*files, backend.backend, {.mode = runtime::LoadMode::kDummy});
  ASSERT_TRUE(real.ok()) << real.status();
  ASSERT_TRUE(dummy.ok()) << dummy.status();
  EXPECT_EQ((*dummy)->weight_bytes, (*real)->weight_bytes);
  EXPECT_EQ((*dummy)->parameter_count, (*real)->parameter_count);
}

}  // namespace
}  // namespace quire::models

// The part of the self-check that compares matrix products. A kind of product is a matrix of the
// model together with the epilogue that the model uses for it.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/weight_format.h"
#include "kernels/cuda/context.h"
#include "kernels/elementwise/activation.h"
#include "kernels/linear/fp8_rows.h"
#include "kernels/linear/grouped_linear.h"
#include "kernels/linear/head_linear.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_reduction.h"
#include "models/blocks/mlp_block.h"
#include "runtime/self_check_context.h"

namespace quire::runtime {
namespace {

using kernels::ConstFloatPtr;
using kernels::FloatPtr;
using kernels::PackedLinear;

// Number of experts that rows are dispatched to.
constexpr std::uint32_t kExperts = 3;
// The host computes at most this number of output features, the first and the last ones.
constexpr std::uint32_t kHostFeatures = 64;
// Results are copied to the host in pieces of this size.
constexpr std::size_t kCopiedBytes = std::size_t{16} << 20;
// The reference kernel computes tiles of this number of rows.
constexpr double kScalarTileRows = 32;

// Features of a matrix, [feature][k].
using HostMatrix = std::vector<std::vector<double>>;

// A product to check. Rows of x are x_columns elements apart, and rows of y are y_stride apart.
struct Product {
  std::string kernel;
  std::string form;        // format of the weights
  std::string dimensions;  // "256 x 1024"
  std::int64_t x_columns = 0;
  std::int64_t y_columns = 0;  // columns of y that are written
  std::int64_t y_stride = 0;
  DType y_dtype = DType::kF32;
  bool adds_residual = false;      // y is read, added and written
  bool is_batch_invariant = true;  // the bits of a row do not depend on the batch
  double limit = 0;
  double weight_bytes = 0;
  double flops_per_row = 0;
  // Enqueues the product of `rows` rows.
  std::function<absl::Status(ConstFloatPtr x, FloatPtr y, std::uint32_t rows)> run;
  // The same for the kPatterns rows of x, each computed alone. Null: `run` with one row.
  std::function<absl::Status(ConstFloatPtr x, FloatPtr y)> run_alone = nullptr;
  // Row i of y belongs to row order(rows)[i] of x. Null: row i.
  std::function<absl::StatusOr<std::vector<std::uint32_t>>(std::uint32_t rows)> order = nullptr;
  // The kPatterns rows of x and of the residual in f32, in host and device memory.
  struct Inputs {
    std::span<const float> host_x;
    ConstFloatPtr x;
    const float* residual;  // device; null: none
    std::span<const float> host_residual;
  };
  // Returns the reference, [kPatterns, columns].
  std::function<absl::StatusOr<std::vector<float>>(const Inputs& inputs)> reference;
  std::vector<std::uint32_t> columns;  // columns of y that the reference has; empty: all
};

std::string FormOf(const PackedLinear& weight) {
  std::string form = weight.format() == WeightFormat::kPlain
                         ? std::string(DTypeName(weight.dtype()))
                         : std::string(WeightFormatName(weight.format()));
  if (weight.format() != WeightFormat::kPlain && weight.group() < weight.k()) {
    absl::StrAppend(&form, " g", weight.group());
  }
  if (weight.has_zero_points()) absl::StrAppend(&form, " zero points");
  if (weight.act_order() != nullptr) absl::StrAppend(&form, " act-order");
  if (weight.has_row_major_fp8()) absl::StrAppend(&form, " by fp8");
  return form;
}

// Returns the maximum relative error in the Euclidean norm. f32 sums differ only in their order.
// e4m3 sums keep about 14 bits of the largest addend. bf16 results are rounded.
double LimitOf(const PackedLinear& weight, DType y) {
  const double sums = weight.has_row_major_fp8() ? 2e-3 : 1e-4;
  return y == DType::kBF16 ? 4e-3 + sums : sums;
}

// Collects the products of a model, each kind once, and compares them.
class ProductCheck {
 public:
  explicit ProductCheck(SelfCheckContext* context)
      : context_(context), backend_(*context->params().backend) {}

  absl::Status CheckLayer(const models::LayerSpec& spec, const models::LayerWeights& weights);
  absl::Status CheckHead();

 private:
  // The ops that a product fuses after the multiplication, and its output type.
  struct Epilogue {
    std::string name;
    DType y = DType::kF32;
    bool adds_residual = false;
    std::optional<kernels::GateShape> gate;
  };

  // The rows of the experts that are checked.
  struct ExpertRows {
    std::uint32_t count = 0;           // experts of the layer
    std::uint32_t* offsets = nullptr;  // [count + 1] device
    std::uint32_t* rows = nullptr;     // device
    std::uint32_t expert_of(std::uint32_t row) const {
      const std::uint32_t chosen[kExperts] = {0, count / 2, count - 1};
      return chosen[row % kPatterns % kExperts];
    }
  };

  Epilogue EpilogueOf(absl::string_view name, const models::LayerSpec& spec) const;
  absl::Status CheckMatrices(const Epilogue& epilogue, const models::LinearWeights& linear,
                             std::uint32_t max_rows);
  absl::StatusOr<std::vector<std::uint32_t>> SortByExpert(std::uint32_t rows, ExpertRows* experts);
  absl::Status CheckExperts(const Epilogue& epilogue,
                            std::span<const models::LinearWeights> experts,
                            std::span<const kernels::LinearGroups> groups);
  absl::Status CheckHeads(const Epilogue& epilogue, std::span<const models::LinearWeights> heads);

  // Returns a product with the fields that follow from matrix and epilogue.
  Product Describe(const Epilogue& epilogue, const PackedLinear& weight) const;
  kernels::LinearParams ParamsOf(const Product& product, const Epilogue& epilogue,
                                 const PackedLinear& weight, const float* bias, ConstFloatPtr x,
                                 FloatPtr y, std::uint32_t rows) const;
  bool IsNew(const Product& product);

  // The rows of x and of the residual that are repeated, in device memory.
  struct Inputs {
    FloatPtr patterns;
    float* residual = nullptr;  // null: none
    std::vector<float> host_residual;
  };

  // Compares one product at all numbers of rows up to max_rows that fit.
  absl::Status Check(const Product& product, std::uint32_t max_rows);
  absl::Status ComputeReferences(const Product& product, std::span<const float> values,
                                 const Inputs& inputs);
  double ErrorOf(const Product& product, std::span<const std::byte> row,
                 std::uint32_t pattern) const;
  void CompareRow(const Product& product, std::uint32_t row, bool is_first_run,
                  std::span<const std::byte> got, std::span<const std::uint32_t> order,
                  kernels::KernelCheck* check, std::string* fault);
  absl::Status CheckRows(const Product& product, std::uint32_t rows, ConstFloatPtr x, FloatPtr y,
                         const float* residual);
  absl::StatusOr<std::vector<float>> ScalarReference(const Epilogue& epilogue,
                                                     const PackedLinear& weight, const float* bias,
                                                     const Product::Inputs& inputs);
  absl::StatusOr<HostMatrix> DownloadFeatures(const PackedLinear& weight,
                                              std::span<const std::uint32_t> features);
  absl::StatusOr<std::vector<float>> HostReference(const Epilogue& epilogue,
                                                   const PackedLinear& weight, const float* bias,
                                                   const Product::Inputs& inputs,
                                                   std::span<const std::uint32_t> columns);
  void SetReference(const Epilogue& epilogue, const PackedLinear& weight, const float* bias,
                    Product* product);
  absl::Status FillOutput(const Product& product, std::uint32_t rows, FloatPtr y,
                          const float* residual);
  void CountWork(const Product& product, std::uint32_t rows);

  SelfCheckContext* const context_;
  const kernels::Backend& backend_;
  std::set<std::string> seen_;
  // The product under comparison: its rows computed alone, and its reference.
  std::vector<std::byte> alone_;
  std::vector<std::byte> first_run_;  // for a product whose bits depend on the batch
  std::vector<std::byte> copied_;
  std::vector<float> reference_;
};

ProductCheck::Epilogue ProductCheck::EpilogueOf(absl::string_view name,
                                                const models::LayerSpec& spec) const {
  Epilogue epilogue{.name = std::string(name), .y = context_->activation(), .gate = {}};
  const bool is_shared = absl::StartsWith(name, "shared_");
  const auto is_one_of = [&](std::initializer_list<absl::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (absl::EndsWith(name, "gate_up")) {
    const models::MlpSpec& mlp = spec.mlp == models::MlpKind::kDense ? spec.dense
                                 : is_shared                         ? *spec.moe.shared
                                                                     : spec.moe.expert;
    if (mlp.gated) epilogue.gate = models::GateShapeOf(mlp);
  } else if (is_one_of({"o", "down", "recurrent_out", "short_conv_out"})) {
    epilogue.y = DType::kF32;
    epilogue.adds_residual = true;
  } else if (absl::EndsWith(name, "down") ||
             is_one_of({"router", "shared_gate", "recurrent_in", "recurrent_gate",
                        "recurrent_decay", "short_conv_in", "latent_out"})) {
    epilogue.y = DType::kF32;
  }
  return epilogue;
}

Product ProductCheck::Describe(const Epilogue& epilogue, const PackedLinear& weight) const {
  Product product;
  product.kernel = absl::StrCat(DTypeName(context_->activation()), " product ", epilogue.name);
  product.form = FormOf(weight);
  product.dimensions = absl::StrCat(weight.n(), " x ", weight.k());
  product.x_columns = weight.k();
  product.y_stride = weight.n();
  product.y_columns = epilogue.gate ? weight.n() / 2 : weight.n();
  product.y_dtype = epilogue.y;
  product.adds_residual = epilogue.adds_residual;
  product.is_batch_invariant = weight.library_plans() == nullptr;
  product.limit = LimitOf(weight, epilogue.y);
  product.weight_bytes = static_cast<double>(weight.size_bytes());
  product.flops_per_row = 2.0 * weight.n() * weight.k();
  return product;
}

kernels::LinearParams ProductCheck::ParamsOf(const Product& product, const Epilogue& epilogue,
                                             const PackedLinear& weight, const float* bias,
                                             ConstFloatPtr x, FloatPtr y,
                                             std::uint32_t rows) const {
  return {.x = x,
          .weight = &weight,
          .bias = bias,
          .residual = epilogue.adds_residual ? y.f32() : nullptr,
          .y = y,
          .x_stride = product.x_columns,
          .residual_stride = product.y_stride,
          .y_stride = product.y_stride,
          .num_rows = rows,
          .gate = epilogue.gate};
}

bool ProductCheck::IsNew(const Product& product) {
  return seen_
      .insert(absl::StrCat(product.kernel, product.form, product.dimensions,
                           product.adds_residual ? " residual" : ""))
      .second;
}

absl::Status ProductCheck::CheckMatrices(const Epilogue& epilogue,
                                         const models::LinearWeights& linear,
                                         std::uint32_t max_rows) {
  const float* bias = linear.bias;
  for (const PackedLinear& weight : linear.matrices) {
    Epilogue own = epilogue;
    if (own.gate && (linear.matrices.size() > 1 ||
                     !kernels::CanFuseGate(backend_, weight, context_->activation(), epilogue.y))) {
      own.gate.reset();
    }
    Product product = Describe(own, weight);
    if (IsNew(product)) {
      product.run = [this, &product, &own, &weight, bias](ConstFloatPtr x, FloatPtr y,
                                                          std::uint32_t rows) {
        return kernels::Linear(backend_, ParamsOf(product, own, weight, bias, x, y, rows));
      };
      SetReference(own, weight, bias, &product);
      QUIRE_RETURN_IF_ERROR(Check(product, max_rows));
    }
    if (bias != nullptr) bias += weight.n();
  }
  return absl::OkStatus();
}

// Sorts rows by the expert of their pattern, so that a row has the same expert in every batch.
absl::StatusOr<std::vector<std::uint32_t>> ProductCheck::SortByExpert(std::uint32_t rows,
                                                                      ExpertRows* experts) {
  std::vector<std::uint32_t> order(rows);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return experts->expert_of(a) < experts->expert_of(b);
  });
  std::vector<std::uint32_t> begins(experts->count + 1, 0);
  for (const std::uint32_t row : order) ++begins[experts->expert_of(row) + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  const auto bytes = [](const auto& list) {
    return static_cast<std::int64_t>(list.size() * sizeof(std::uint32_t));
  };
  if (experts->offsets == nullptr) {
    QUIRE_ASSIGN_OR_RETURN(std::byte* const offsets, context_->Take(bytes(begins)));
    QUIRE_ASSIGN_OR_RETURN(std::byte* const list,
                           context_->Take(std::end(kCheckedRows)[-1] * sizeof(std::uint32_t)));
    experts->offsets = reinterpret_cast<std::uint32_t*>(offsets);
    experts->rows = reinterpret_cast<std::uint32_t*>(list);
  }
  QUIRE_RETURN_IF_ERROR(context_->Copy(experts->offsets, begins.data(), bytes(begins)));
  QUIRE_RETURN_IF_ERROR(context_->Copy(experts->rows, order.data(), bytes(order)));
  return order;
}

absl::Status ProductCheck::CheckExperts(const Epilogue& epilogue,
                                        std::span<const models::LinearWeights> experts,
                                        std::span<const kernels::LinearGroups> groups) {
  for (std::size_t m = 0; m < groups.size(); ++m) {
    const kernels::LinearGroups& group = groups[m];
    Epilogue own = epilogue;
    if (own.gate && (groups.size() > 1 ||
                     !kernels::CanFuseGroupedGate(group, context_->activation(), epilogue.y))) {
      own.gate.reset();
    }
    Product product = Describe(own, *group.first);
    if (!IsNew(product)) continue;
    product.weight_bytes *= kExperts;
    ExpertRows rows{.count = static_cast<std::uint32_t>(experts.size())};
    const auto matrix = [&](std::uint32_t pattern) -> const PackedLinear& {
      return experts[rows.expert_of(pattern)].matrices[m];
    };
    const auto bias = [&](std::uint32_t pattern) {
      return group.bias == nullptr ? nullptr
                                   : group.bias + rows.expert_of(pattern) * group.bias_distance;
    };
    product.order = [&](std::uint32_t count) { return SortByExpert(count, &rows); };
    product.run = [&](ConstFloatPtr x, FloatPtr y, std::uint32_t count) {
      return kernels::GroupedLinear(backend_, {.x = x,
                                               .weights = group,
                                               .offsets = rows.offsets,
                                               .y = y,
                                               .x_stride = product.x_columns,
                                               .y_stride = product.y_stride,
                                               .num_rows = count,
                                               .rows = rows.rows,
                                               .gate = own.gate});
    };
    product.run_alone = [&](ConstFloatPtr x, FloatPtr y) -> absl::Status {
      for (std::uint32_t p = 0; p < kPatterns; ++p) {
        QUIRE_RETURN_IF_ERROR(kernels::Linear(
            backend_, ParamsOf(product, own, matrix(p), bias(p), x + p * product.x_columns,
                               y + p * product.y_stride, 1)));
      }
      return absl::OkStatus();
    };
    product.reference = [&](const Product::Inputs& inputs) -> absl::StatusOr<std::vector<float>> {
      std::vector<float> result;
      for (std::uint32_t p = 0; p < kPatterns; ++p) {
        QUIRE_ASSIGN_OR_RETURN(const std::vector<float> all,
                               ScalarReference(own, matrix(p), bias(p), inputs));
        const auto row = all.begin() + p * product.y_columns;
        result.insert(result.end(), row, row + product.y_columns);
      }
      return result;
    };
    QUIRE_RETURN_IF_ERROR(Check(product, UINT32_MAX));
  }
  return absl::OkStatus();
}

absl::Status ProductCheck::CheckHeads(const Epilogue& epilogue,
                                      std::span<const models::LinearWeights> heads) {
  const std::size_t count = std::min<std::size_t>(heads.size(), kernels::kMaxHeadsPerLaunch);
  std::vector<const PackedLinear*> matrices;
  for (std::size_t h = 0; h < count; ++h) matrices.push_back(heads[h].matrices.data());
  const std::int64_t n = matrices[0]->n(), k = matrices[0]->k();
  Product product = Describe(epilogue, *matrices[0]);
  if (!IsNew(product)) return absl::OkStatus();
  const auto num_heads = static_cast<std::int64_t>(count);
  product.dimensions = absl::StrCat(count, " heads of ", product.dimensions);
  product.x_columns = num_heads * k;
  product.y_columns = product.y_stride = num_heads * n;
  product.weight_bytes *= static_cast<double>(count);
  product.flops_per_row *= static_cast<double>(count);
  product.run = [&](ConstFloatPtr x, FloatPtr y, std::uint32_t rows) {
    return kernels::HeadLinear(backend_, {.weights = matrices,
                                          .x = x,
                                          .y = y,
                                          .x_stride = product.x_columns,
                                          .y_stride = product.y_stride,
                                          .x_head_stride = k,
                                          .y_head_stride = n,
                                          .num_rows = rows});
  };
  const auto head_params = [&](std::int64_t h, ConstFloatPtr x, FloatPtr y, std::uint32_t rows) {
    return kernels::LinearParams{.x = x + h * k,
                                 .weight = matrices[static_cast<std::size_t>(h)],
                                 .y = y + h * n,
                                 .x_stride = product.x_columns,
                                 .y_stride = product.y_stride,
                                 .num_rows = rows};
  };
  product.run_alone = [&](ConstFloatPtr x, FloatPtr y) -> absl::Status {
    for (std::int64_t p = 0; p < kPatterns; ++p) {
      for (std::int64_t h = 0; h < num_heads; ++h) {
        QUIRE_RETURN_IF_ERROR(kernels::Linear(
            backend_,
            head_params(h, x + p * product.x_columns, y + p * product.y_stride, /*rows=*/1)));
      }
    }
    return absl::OkStatus();
  };
  product.reference = [&](const Product::Inputs& inputs) -> absl::StatusOr<std::vector<float>> {
    QUIRE_ASSIGN_OR_RETURN(const FloatPtr y,
                           context_->TakeFloats(DType::kF32, kPatterns * product.y_stride));
    for (std::int64_t h = 0; h < num_heads; ++h) {
      QUIRE_RETURN_IF_ERROR(kernels::internal::LinearScalarCuda(
          context_->cuda(), head_params(h, inputs.x, y, kPatterns)));
    }
    return context_->DownloadFloats(y, kPatterns * product.y_stride);
  };
  return Check(product, UINT32_MAX);
}

absl::Status ProductCheck::CheckLayer(const models::LayerSpec& spec,
                                      const models::LayerWeights& weights) {
  for (const auto& [name, linear] : models::LinearsOf(weights)) {
    const bool is_part = absl::StartsWith(name, "experts.") || absl::StartsWith(name, "heads.");
    if (is_part || linear->matrices.empty()) continue;
    QUIRE_RETURN_IF_ERROR(CheckMatrices(EpilogueOf(name, spec), *linear, UINT32_MAX));
  }
  const models::MoeWeights& moe = weights.moe;
  if (!moe.gate_up.empty()) {
    QUIRE_RETURN_IF_ERROR(
        CheckExperts(EpilogueOf("expert gate_up", spec), moe.gate_up, moe.gate_up_groups));
    QUIRE_RETURN_IF_ERROR(CheckExperts(EpilogueOf("expert down", spec), moe.down, moe.down_groups));
  }
  for (const auto& [name, heads] : {std::pair("to_latent", &weights.mla.to_latent),
                                    std::pair("from_latent", &weights.mla.from_latent)}) {
    if (!heads->empty()) QUIRE_RETURN_IF_ERROR(CheckHeads(EpilogueOf(name, spec), *heads));
  }
  return absl::OkStatus();
}

absl::Status ProductCheck::CheckHead() {
  const models::LinearWeights& head = context_->params().weights->head();
  return CheckMatrices({.name = "head", .gate = {}}, head, context_->params().limits.head_rows);
}

void ProductCheck::SetReference(const Epilogue& epilogue, const PackedLinear& weight,
                                const float* bias, Product* product) {
  const bool is_plain_f32 =
      weight.format() == WeightFormat::kPlain && context_->activation() == DType::kF32;
  if (!weight.has_row_major_fp8() && !is_plain_f32) {
    product->reference = [this, epilogue, &weight, bias](const Product::Inputs& inputs) {
      return ScalarReference(epilogue, weight, bias, inputs);
    };
    return;
  }
  // The scalar kernel does not read row-major weights, and it is the kernel under test for f32.
  const auto width = static_cast<std::uint32_t>(product->y_columns);
  for (std::uint32_t n = 0; n < width; ++n) {
    if (n < kHostFeatures / 2 || n + kHostFeatures / 2 >= width) product->columns.push_back(n);
  }
  product->reference = [this, epilogue, &weight, bias, product](const Product::Inputs& inputs) {
    return HostReference(epilogue, weight, bias, inputs, product->columns);
  };
}

absl::StatusOr<std::vector<float>> ProductCheck::ScalarReference(const Epilogue& epilogue,
                                                                 const PackedLinear& weight,
                                                                 const float* bias,
                                                                 const Product::Inputs& inputs) {
  const std::int64_t n = weight.n(), k = weight.k();
  const std::int64_t mark = context_->used();
  QUIRE_ASSIGN_OR_RETURN(
      const FloatPtr y,
      context_->TakeFloats(epilogue.gate ? DType::kBF16 : DType::kF32, kPatterns * n));
  kernels::LinearParams params{.x = inputs.x,
                               .weight = &weight,
                               .bias = bias,
                               .residual = inputs.residual,
                               .y = y,
                               .x_stride = k,
                               .residual_stride = n,
                               .y_stride = n,
                               .num_rows = kPatterns};
  if (weight.act_order() != nullptr || weight.quantizes_activations()) {
    QUIRE_ASSIGN_OR_RETURN(const FloatPtr x, context_->TakeFloats(DType::kF32, kPatterns * k));
    QUIRE_RETURN_IF_ERROR(
        weight.act_order() != nullptr
            ? kernels::internal::PermuteInputsCuda(context_->cuda(), params, x)
            : kernels::internal::RoundFp8RowsCuda(
                  context_->cuda(),
                  {.x = params.x, .x_stride = k, .k = weight.k(), .num_rows = kPatterns}, x));
    params.x = x;
  }
  QUIRE_RETURN_IF_ERROR(kernels::internal::LinearScalarCuda(context_->cuda(), params));
  context_->work().scalar_flops += 2 * kScalarTileRows * static_cast<double>(n * k);
  std::int64_t columns = n;
  if (epilogue.gate) {
    columns = n / 2;
    QUIRE_RETURN_IF_ERROR(kernels::GatedProduct(backend_, {.gate = y,
                                                           .up = y + columns,
                                                           .y = y,
                                                           .gate_stride = n,
                                                           .up_stride = n,
                                                           .y_stride = n,
                                                           .num_rows = kPatterns,
                                                           .columns = weight.n() / 2,
                                                           .shape = *epilogue.gate}));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::vector<float> all, context_->DownloadFloats(y, kPatterns * n));
  context_->Release(mark);
  std::vector<float> result;
  for (std::uint32_t p = 0; p < kPatterns; ++p) {
    result.insert(result.end(), all.begin() + p * n, all.begin() + p * n + columns);
  }
  return result;
}

// Copies the elements and the scales of features of a matrix to the host.
absl::StatusOr<HostMatrix> ProductCheck::DownloadFeatures(const PackedLinear& weight,
                                                          std::span<const std::uint32_t> features) {
  const std::size_t k = weight.k();
  const bool is_fp8 = weight.has_row_major_fp8();
  const std::size_t element = is_fp8 ? 1 : static_cast<std::size_t>(DTypeSize(weight.dtype()));
  const std::size_t padded_k =
      is_fp8 ? std::size_t{kernels::cuda::LinearTilesK(weight.k())} * kernels::cuda::kLinearTileK
             : k;
  const std::size_t padded_n =
      std::size_t{kernels::cuda::LinearTilesN(weight.n())} * kernels::cuda::kLinearTileN;
  std::vector<float> scales(is_fp8 ? (k + weight.group() - 1) / weight.group() * padded_n : 0);
  QUIRE_RETURN_IF_ERROR(context_->Copy(scales.data(), weight.scales(),
                                       static_cast<std::int64_t>(scales.size() * sizeof(float))));
  HostMatrix matrix;
  std::vector<std::byte> row(k * element);
  for (const std::uint32_t n : features) {
    QUIRE_RETURN_IF_ERROR(context_->Copy(
        row.data(), static_cast<const std::byte*>(weight.data()) + n * padded_k * element,
        static_cast<std::int64_t>(row.size())));
    std::vector<double>& values = matrix.emplace_back(k);
    for (std::size_t i = 0; i < k; ++i) {
      values[i] =
          is_fp8 ? double{ElementAt<F8E4M3>(row, i)} * scales[i / weight.group() * padded_n + n]
          : weight.dtype() == DType::kF32  ? ElementAt<float>(row, i)
          : weight.dtype() == DType::kBF16 ? ElementAt<BF16>(row, i)
                                           : ElementAt<F16>(row, i);
    }
  }
  return matrix;
}

absl::StatusOr<std::vector<float>> ProductCheck::HostReference(
    const Epilogue& epilogue, const PackedLinear& weight, const float* bias,
    const Product::Inputs& inputs, std::span<const std::uint32_t> columns) {
  const std::size_t k = weight.k();
  std::vector<std::uint32_t> features(columns.begin(), columns.end());
  if (epilogue.gate) {
    for (const std::uint32_t column : columns) features.push_back(column + weight.n() / 2);
  }
  QUIRE_ASSIGN_OR_RETURN(const HostMatrix matrix, DownloadFeatures(weight, features));
  std::vector<float> biases(bias == nullptr ? 0 : weight.n());
  QUIRE_RETURN_IF_ERROR(context_->Copy(biases.data(), bias,
                                       static_cast<std::int64_t>(biases.size() * sizeof(float))));
  std::vector<float> x(inputs.host_x.begin(), inputs.host_x.end());
  std::vector<float> result;
  for (std::uint32_t p = 0; p < kPatterns; ++p) {
    float* const row = &x[p * k];
    if (weight.quantizes_activations()) {
      kernels::RoundRowFp8(row, weight.k(), /*factor=*/1, row);
    }
    std::vector<float> sums;
    for (std::size_t f = 0; f < features.size(); ++f) {
      double sum = bias == nullptr ? 0 : biases[features[f]];
      if (inputs.residual != nullptr) sum += inputs.host_residual[p * weight.n() + features[f]];
      for (std::size_t i = 0; i < k; ++i) sum += matrix[f][i] * row[i];
      sums.push_back(epilogue.gate ? BF16::FromFloat(static_cast<float>(sum)).ToFloat()
                                   : static_cast<float>(sum));
    }
    if (epilogue.gate) {
      const auto count = static_cast<std::uint32_t>(columns.size());
      kernels::internal::GatedProductCpu({.gate = ConstFloatPtr(sums.data()),
                                          .up = ConstFloatPtr(sums.data() + count),
                                          .y = FloatPtr(sums.data()),
                                          .gate_stride = count,
                                          .up_stride = count,
                                          .y_stride = count,
                                          .num_rows = 1,
                                          .columns = count,
                                          .shape = *epilogue.gate},
                                         0, 1);
      sums.resize(count);
    }
    result.insert(result.end(), sums.begin(), sums.end());
  }
  return result;
}

absl::Status ProductCheck::FillOutput(const Product& product, std::uint32_t rows, FloatPtr y,
                                      const float* residual) {
  const std::int64_t row_bytes = product.y_stride * DTypeSize(product.y_dtype);
  QUIRE_RETURN_IF_ERROR(context_->Poison(y.data(), (std::int64_t{rows} + 1) * row_bytes));
  if (residual == nullptr) return absl::OkStatus();
  return context_->Repeat(y.data(), residual, kPatterns, row_bytes, 0, rows);
}

void ProductCheck::CountWork(const Product& product, std::uint32_t rows) {
  SelfCheckWork& work = context_->work();
  work.weight_bytes += product.weight_bytes;
  work.tensor_flops += product.flops_per_row * rows;
  ++work.launches;
}

// Computes reference_ and alone_.
absl::Status ProductCheck::ComputeReferences(const Product& product, std::span<const float> values,
                                             const Inputs& inputs) {
  const std::int64_t mark = context_->used();
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr wide,
                         context_->TakeFloats(DType::kF32, kPatterns * product.x_columns));
  QUIRE_RETURN_IF_ERROR(context_->UploadFloats(wide, values));
  QUIRE_ASSIGN_OR_RETURN(reference_, product.reference({.host_x = values,
                                                        .x = wide,
                                                        .residual = inputs.residual,
                                                        .host_residual = inputs.host_residual}));
  context_->Release(mark);
  // Takes memory for the rows computed alone and for one row after them.
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr y,
                         context_->TakeFloats(product.y_dtype, (kPatterns + 1) * product.y_stride));
  QUIRE_RETURN_IF_ERROR(FillOutput(product, kPatterns, y, inputs.residual));
  if (product.run_alone != nullptr) {
    QUIRE_RETURN_IF_ERROR(product.run_alone(inputs.patterns, y));
  }
  for (std::uint32_t p = 0; p < kPatterns; ++p) {
    CountWork(product, 1);
    if (product.run_alone != nullptr) continue;
    QUIRE_RETURN_IF_ERROR(
        product.run(inputs.patterns + p * product.x_columns, y + p * product.y_stride, 1));
  }
  alone_.resize(
      static_cast<std::size_t>(kPatterns * product.y_stride * DTypeSize(product.y_dtype)));
  QUIRE_RETURN_IF_ERROR(
      context_->Copy(alone_.data(), y.data(), static_cast<std::int64_t>(alone_.size())));
  context_->Release(mark);
  return absl::OkStatus();
}

absl::Status ProductCheck::Check(const Product& product, std::uint32_t max_rows) {
  context_->Begin(product.kernel, absl::StrCat(product.form, ", ", product.dimensions));
  // Memory that stays free for the lists of `order`.
  const std::int64_t spare = product.order == nullptr ? 1 << 10 : 64 << 10;
  context_->Free();
  const DType activation = context_->activation();
  const std::int64_t x_bytes = product.x_columns * DTypeSize(activation);
  const std::int64_t row_bytes = x_bytes + product.y_stride * DTypeSize(product.y_dtype);
  const std::vector<float> values =
      RandomValues(static_cast<std::size_t>(kPatterns * product.x_columns), 1);
  Inputs inputs;
  QUIRE_ASSIGN_OR_RETURN(inputs.patterns,
                         context_->TakeFloats(activation, kPatterns * product.x_columns));
  QUIRE_RETURN_IF_ERROR(context_->UploadFloats(inputs.patterns, values));
  if (product.adds_residual) {
    inputs.host_residual = RandomValues(static_cast<std::size_t>(kPatterns * product.y_stride), 2);
    QUIRE_ASSIGN_OR_RETURN(const FloatPtr residual,
                           context_->TakeFloats(DType::kF32, kPatterns * product.y_stride));
    QUIRE_RETURN_IF_ERROR(context_->UploadFloats(residual, inputs.host_residual));
    inputs.residual = residual.f32();
  }
  QUIRE_RETURN_IF_ERROR(ComputeReferences(product, values, inputs));
  const std::int64_t fit = (context_->free_bytes() - spare) / row_bytes - 1;
  std::vector<std::uint32_t> counts;
  for (const std::uint32_t rows : kCheckedRows) {
    if (rows <= std::min(max_rows, context_->params().limits.max_step_tokens) && rows <= fit) {
      counts.push_back(rows);
    }
  }
  if (counts.empty()) return context_->Take(2 * row_bytes + spare).status();
  const std::int64_t num_rows = std::int64_t{counts.back()} + 1;
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr x,
                         context_->TakeFloats(activation, num_rows * product.x_columns));
  QUIRE_ASSIGN_OR_RETURN(const FloatPtr y,
                         context_->TakeFloats(product.y_dtype, num_rows * product.y_stride));
  // A kernel that uses rows of x beyond the last one gives NaN.
  QUIRE_RETURN_IF_ERROR(context_->Poison(x.data(), num_rows * x_bytes));
  std::uint32_t filled = 0;
  for (const std::uint32_t rows : counts) {
    QUIRE_RETURN_IF_ERROR(
        context_->Repeat(x.data(), inputs.patterns.data(), kPatterns, x_bytes, filled, rows));
    filled = rows;
    QUIRE_RETURN_IF_ERROR(CheckRows(product, rows, x, y, inputs.residual));
  }
  return absl::OkStatus();
}

double ProductCheck::ErrorOf(const Product& product, std::span<const std::byte> row,
                             std::uint32_t pattern) const {
  const std::size_t columns = product.columns.empty() ? static_cast<std::size_t>(product.y_columns)
                                                      : product.columns.size();
  std::vector<float> got;
  for (std::size_t c = 0; c < columns; ++c) {
    const std::size_t n = product.columns.empty() ? c : product.columns[c];
    got.push_back(product.y_dtype == DType::kF32 ? ElementAt<float>(row, n)
                                                 : ElementAt<BF16>(row, n));
  }
  return RelativeError(got, std::span(reference_).subspan(pattern * columns, columns));
}

// Compares one row of a run. Keeps the first description of wrong bits in `fault`.
void ProductCheck::CompareRow(const Product& product, std::uint32_t row, bool is_first_run,
                              std::span<const std::byte> got, std::span<const std::uint32_t> order,
                              kernels::KernelCheck* check, std::string* fault) {
  const auto rows = static_cast<std::uint32_t>(order.size());
  const std::size_t used_bytes = static_cast<std::size_t>(product.y_columns) *
                                 static_cast<std::size_t>(DTypeSize(product.y_dtype));
  if (row == rows) {
    const bool is_untouched =
        std::all_of(got.begin(), got.end(), [](std::byte b) { return b == std::byte{0xff}; });
    if (!is_untouched && fault->empty()) *fault = "memory after the last row was written";
    return;
  }
  if (is_first_run && (row == 0 || row == rows / 2 || row == rows - 1)) {
    const double error = ErrorOf(product, got, order[row] % kPatterns);
    // An error of NaN is kept.
    if (!std::isnan(check->error) && !(error <= check->error)) check->error = error;
  }
  if (!fault->empty()) return;
  const std::byte* const alone = alone_.data() + order[row] % kPatterns * got.size();
  if (product.is_batch_invariant) {
    if (std::memcmp(got.data(), alone, used_bytes) != 0) {
      *fault = is_first_run ? absl::StrCat("row ", row, " differs from the same row computed alone")
                            : absl::StrCat("two runs differ in row ", row);
    }
  } else if (is_first_run) {
    first_run_.insert(first_run_.end(), got.begin(), got.end());
  } else if (std::memcmp(got.data(), first_run_.data() + row * got.size(), used_bytes) != 0) {
    *fault = absl::StrCat("two runs differ in row ", row);
  }
}

absl::Status ProductCheck::CheckRows(const Product& product, std::uint32_t rows, ConstFloatPtr x,
                                     FloatPtr y, const float* residual) {
  std::vector<std::uint32_t> order(rows);
  std::iota(order.begin(), order.end(), 0u);
  if (product.order != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(order, product.order(rows));
  }
  kernels::KernelCheck check{
      .kernel = product.kernel,
      .shape = absl::StrCat(product.form, ", ", rows, " x ", product.dimensions),
      .limit = product.limit,
      .fault = {}};
  context_->Begin(check.kernel, check.shape);
  const auto row_bytes = static_cast<std::size_t>(product.y_stride * DTypeSize(product.y_dtype));
  const std::size_t rows_per_copy = std::max<std::size_t>(kCopiedBytes / row_bytes, 1);
  std::string fault;
  first_run_.clear();
  for (const bool is_first_run : {true, false}) {
    QUIRE_RETURN_IF_ERROR(FillOutput(product, rows, y, residual));
    QUIRE_RETURN_IF_ERROR(product.run(x, y, rows));
    CountWork(product, rows);
    for (std::size_t begin = 0; begin <= rows; begin += rows_per_copy) {
      const std::size_t count = std::min(rows_per_copy, rows + 1 - begin);
      copied_.resize(count * row_bytes);
      QUIRE_RETURN_IF_ERROR(context_->Copy(
          copied_.data(), static_cast<const std::byte*>(y.data()) + begin * row_bytes,
          static_cast<std::int64_t>(copied_.size())));
      for (std::size_t i = 0; i < count; ++i) {
        CompareRow(product, static_cast<std::uint32_t>(begin + i), is_first_run,
                   std::span(copied_).subspan(i * row_bytes, row_bytes), order, &check, &fault);
      }
    }
  }
  // If the error is above the limit, SelfCheckContext::Add describes that, which is more useful.
  if (check.error <= check.limit) check.fault = fault;
  context_->Add(std::move(check));
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckProducts(SelfCheckContext* context) {
  if constexpr (kernels::kHasCuda) {
    const SelfCheckParams& params = context->params();
    ProductCheck check(context);
    for (std::size_t i = 0; i < params.spec->layers.size(); ++i) {
      QUIRE_RETURN_IF_ERROR(check.CheckLayer(params.spec->layers[i], params.weights->layers()[i]));
    }
    if (params.spec->has_head) return check.CheckHead();
  }
  return absl::OkStatus();
}

}  // namespace quire::runtime

#include "kernels/linear/cublaslt.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/shared_library.h"
#include "base/status.h"
#include "kernels/linear/cublaslt_api.h"

namespace quire::kernels::cuda {

// The library is column-major and computes y^T [N, rows] = W [N, K] x^T [K, rows]. A row-major
// matrix has the same bytes as its column-major transpose.
struct LtPlans {
  struct Plan {
    cublasLtMatrixLayout_t y = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
  };
  std::uint32_t n = 0;
  std::uint32_t k = 0;
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t w = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t residual = nullptr;
  Plan f32;
  Plan bf16;
};

namespace {

// Required alignment of rows and pointers in bytes. It allows every algorithm to use the widest
// loads.
constexpr std::uint32_t kAlignment = 16;

absl::Status LtStatus(const CublasLtApi& api, cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat("cuBLASLt: ", what, ": ", api.status_string(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) return absl::ResourceExhaustedError(message);
  if (status == CUBLAS_STATUS_NOT_INITIALIZED || status == CUBLAS_STATUS_ARCH_MISMATCH) {
    return absl::FailedPreconditionError(message);
  }
  return absl::InternalError(message);
}

bool IsAligned(const void* p, std::int64_t stride_bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % kAlignment == 0 && stride_bytes % kAlignment == 0;
}

// Returns the library's candidate algorithms for the number of rows in the layout plans.x, best
// first.
absl::StatusOr<std::vector<cublasLtMatmulHeuristicResult_t>> Candidates(const CublasLtApi& api,
                                                                        cublasLtHandle_t handle,
                                                                        const LtPlans& plans,
                                                                        cublasLtMatrixLayout_t c,
                                                                        cublasLtMatrixLayout_t y) {
  cublasLtMatmulPreference_t preference = nullptr;
  QUIRE_RETURN_IF_ERROR(
      LtStatus(api, api.preference_create(&preference), "cannot create a preference"));
  const std::uint64_t workspace = CublasLt::kWorkspaceBytes;
  cublasStatus_t status = api.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace, sizeof workspace);
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, std::uint32_t value) {
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = api.preference_set(preference, attribute, &value, sizeof value);
    }
  };
  set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_NONE);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
  std::vector<cublasLtMatmulHeuristicResult_t> results(16);
  int found = 0;
  if (status == CUBLAS_STATUS_SUCCESS) {
    status = api.heuristic(handle, plans.product, plans.w, plans.x, c, y, preference,
                           static_cast<int>(results.size()), results.data(), &found);
  }
  api.preference_destroy(preference);
  if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED) {
    return LtStatus(api, status, "cannot choose an algorithm");
  }
  results.resize(static_cast<std::size_t>(found));
  return results;
}

// True if the algorithm does not split K and fits in the workspace.
bool IsUsableAlgorithm(const CublasLtApi& api, const cublasLtMatmulHeuristicResult_t& candidate) {
  std::int32_t splits = 0;
  std::size_t written = 0;
  return candidate.state == CUBLAS_STATUS_SUCCESS &&
         candidate.workspaceSize <= std::size_t{CublasLt::kWorkspaceBytes} &&
         api.algo_config_get(&candidate.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                             sizeof splits, &written) == CUBLAS_STATUS_SUCCESS &&
         (splits == 0 || splits == 1);
}

}  // namespace

absl::StatusOr<std::shared_ptr<CublasLt>> CublasLt::Open(const Stream& stream,
                                                         absl::string_view library) {
  QUIRE_ASSIGN_OR_RETURN(SharedLibrary opened,
                         SharedLibrary::Open("engine.determinism fast", library));
  CublasLtApi api{};
  opened.Resolve("cublasLtCreate", api.create);
  opened.Resolve("cublasLtDestroy", api.destroy);
  opened.Resolve("cublasLtGetStatusString", api.status_string);
  opened.Resolve("cublasLtMatmulDescCreate", api.desc_create);
  opened.Resolve("cublasLtMatmulDescDestroy", api.desc_destroy);
  opened.Resolve("cublasLtMatmulDescSetAttribute", api.desc_set);
  opened.Resolve("cublasLtMatrixLayoutCreate", api.layout_create);
  opened.Resolve("cublasLtMatrixLayoutDestroy", api.layout_destroy);
  opened.Resolve("cublasLtMatrixLayoutSetAttribute", api.layout_set);
  opened.Resolve("cublasLtMatmulPreferenceCreate", api.preference_create);
  opened.Resolve("cublasLtMatmulPreferenceDestroy", api.preference_destroy);
  opened.Resolve("cublasLtMatmulPreferenceSetAttribute", api.preference_set);
  opened.Resolve("cublasLtMatmulAlgoGetHeuristic", api.heuristic);
  opened.Resolve("cublasLtMatmulAlgoConfigGetAttribute", api.algo_config_get);
  opened.Resolve("cublasLtMatmulAlgoCheck", api.algo_check);
  opened.Resolve("cublasLtMatmul", api.matmul);
  QUIRE_RETURN_IF_ERROR(opened.status());
  return Create(stream, api);
}

absl::StatusOr<std::shared_ptr<CublasLt>> CublasLt::Create(const Stream& stream,
                                                           const CublasLtApi& api) {
  std::shared_ptr<CublasLt> library(new CublasLt(stream, api));
  cublasLtHandle_t handle = nullptr;
  QUIRE_RETURN_IF_ERROR(LtStatus(api, api.create(&handle), "cannot create a handle"));
  library->handle_ = handle;
  QUIRE_ASSIGN_OR_RETURN(library->workspace_,
                         DeviceBuffer::Allocate(MemoryKind::kDevice, kWorkspaceBytes));
  return library;
}

CublasLt::CublasLt(const Stream& stream, const CublasLtApi& api)
    : stream_(stream), api_(std::make_unique<const CublasLtApi>(api)) {}

CublasLt::~CublasLt() {
  for (const auto& [shape, plans] : plans_) Destroy(plans.get());
  if (handle_ != nullptr) api_->destroy(static_cast<cublasLtHandle_t>(handle_));
}

bool CublasLt::Supports(DType dtype, std::uint32_t n, std::uint32_t k) {
  return dtype == DType::kBF16 && n % 8 == 0 && k % 8 == 0;
}

absl::Status CublasLt::Describe(LtPlans* plans) const {
  const auto layout = [&](cublasLtMatrixLayout_t* to, cudaDataType_t type, std::uint32_t rows,
                          std::uint32_t columns) {
    return LtStatus(*api_, api_->layout_create(to, type, rows, columns, rows),
                    "cannot create a layout");
  };
  const std::uint32_t n = plans->n;
  const std::uint32_t k = plans->k;
  QUIRE_RETURN_IF_ERROR(LtStatus(*api_,
                                 api_->desc_create(&plans->product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                                 "cannot create a matmul descriptor"));
  const std::int32_t transpose = CUBLAS_OP_T;
  QUIRE_RETURN_IF_ERROR(LtStatus(
      *api_,
      api_->desc_set(plans->product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose),
      "cannot set the transposition"));
  QUIRE_RETURN_IF_ERROR(layout(&plans->w, CUDA_R_16BF, k, n));
  QUIRE_RETURN_IF_ERROR(layout(&plans->x, CUDA_R_16BF, k, kPinnedRows));
  QUIRE_RETURN_IF_ERROR(layout(&plans->residual, CUDA_R_32F, n, kPinnedRows));
  QUIRE_RETURN_IF_ERROR(layout(&plans->f32.y, CUDA_R_32F, n, kPinnedRows));
  return layout(&plans->bf16.y, CUDA_R_16BF, n, kPinnedRows);
}

absl::Status CublasLt::SetRows(const LtPlans& plans, std::uint32_t num_rows, std::int64_t x_stride,
                               std::int64_t y_stride, std::int64_t residual_stride) const {
  const std::uint64_t columns = num_rows;
  const auto set = [&](cublasLtMatrixLayout_t layout, std::int64_t stride) {
    QUIRE_RETURN_IF_ERROR(LtStatus(
        *api_, api_->layout_set(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns),
        "cannot set the number of rows"));
    return LtStatus(*api_,
                    api_->layout_set(layout, CUBLASLT_MATRIX_LAYOUT_LD, &stride, sizeof stride),
                    "cannot set the stride");
  };
  QUIRE_RETURN_IF_ERROR(set(plans.x, x_stride));
  QUIRE_RETURN_IF_ERROR(set(plans.residual, residual_stride));
  QUIRE_RETURN_IF_ERROR(set(plans.f32.y, y_stride));
  return set(plans.bf16.y, y_stride);
}

absl::Status CublasLt::Choose(LtPlans* plans, bool y_is_bf16) const {
  LtPlans::Plan& plan = y_is_bf16 ? plans->bf16 : plans->f32;
  auto* const c = y_is_bf16 ? plan.y : plans->residual;
  const auto handle = static_cast<cublasLtHandle_t>(handle_);
  QUIRE_ASSIGN_OR_RETURN(const auto candidates, Candidates(*api_, handle, *plans, c, plan.y));
  for (const cublasLtMatmulHeuristicResult_t& candidate : candidates) {
    if (!IsUsableAlgorithm(*api_, candidate)) continue;
    bool supports_all = true;
    for (const std::uint32_t rows : {1u, 7u, 64u, 4 * kPinnedRows}) {
      QUIRE_RETURN_IF_ERROR(SetRows(*plans, rows, plans->k, plans->n, plans->n));
      cublasLtMatmulHeuristicResult_t checked{};
      supports_all = supports_all &&
                     api_->algo_check(handle, plans->product, plans->w, plans->x, c, plan.y,
                                      &candidate.algo, &checked) == CUBLAS_STATUS_SUCCESS &&
                     checked.workspaceSize <= std::size_t{kWorkspaceBytes};
    }
    QUIRE_RETURN_IF_ERROR(SetRows(*plans, kPinnedRows, plans->k, plans->n, plans->n));
    if (!supports_all) continue;
    plan.algorithm = candidate.algo;
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "none of the ", candidates.size(), " algorithms of cuBLASLt for [", plans->n, ", ", plans->k,
      "] and ", y_is_bf16 ? "bf16" : "f32", " results supports every number of rows"));
}

absl::StatusOr<const LtPlans*> CublasLt::Pin(std::uint32_t n, std::uint32_t k) {
  const MutexLock lock(&mutex_);
  auto& entry = plans_[{n, k}];
  if (entry != nullptr) return entry.get();
  auto plans = std::make_unique<LtPlans>();
  plans->n = n;
  plans->k = k;
  absl::Status status = Describe(plans.get());
  if (status.ok()) status = Choose(plans.get(), false);
  if (status.ok()) status = Choose(plans.get(), true);
  if (!status.ok()) {
    Destroy(plans.get());
    return status;
  }
  entry = std::move(plans);
  return entry.get();
}

void CublasLt::Destroy(LtPlans* plans) const {
  if (plans == nullptr) return;
  for (auto* const layout : {plans->w, plans->x, plans->residual, plans->f32.y, plans->bf16.y}) {
    if (layout != nullptr) api_->layout_destroy(layout);
  }
  if (plans->product != nullptr) api_->desc_destroy(plans->product);
}

absl::Status CublasLt::Matmul(const LtPlans& plans, const LinearParams& params) {
  const bool y_is_bf16 = params.y.dtype() == DType::kBF16;
  const bool adds = params.residual != nullptr;
  if (params.x.dtype() != DType::kBF16 || params.bias != nullptr || (adds && y_is_bf16)) {
    return absl::InvalidArgumentError(
        "cuBLASLt supports bf16 x without a bias, and a residual only with f32 y");
  }
  if (!IsAligned(params.x.data(), params.x_stride * 2) ||
      !IsAligned(params.y.data(), params.y_stride * DTypeSize(params.y.dtype())) ||
      (adds && !IsAligned(params.residual, params.residual_stride * 4))) {
    return absl::InvalidArgumentError(
        absl::StrCat("linear [", plans.n, ", ", plans.k, "] by cuBLASLt has strides x ",
                     params.x_stride, ", y ", params.y_stride, ", residual ",
                     params.residual_stride, ", rows must be aligned to ", kAlignment, " bytes"));
  }
  QUIRE_RETURN_IF_ERROR(SetRows(plans, params.num_rows, params.x_stride, params.y_stride,
                                adds ? params.residual_stride : params.y_stride));
  const LtPlans::Plan& plan = y_is_bf16 ? plans.bf16 : plans.f32;
  const float alpha = 1;
  const float beta = adds ? 1 : 0;
  const void* const c = adds ? static_cast<const void*>(params.residual) : params.y.data();
  return LtStatus(
      *api_,
      api_->matmul(static_cast<cublasLtHandle_t>(handle_), plans.product, &alpha,
                   params.weight->data(), plans.w, params.x.data(), plans.x, &beta, c,
                   y_is_bf16 ? plan.y : plans.residual, params.y.data(), plan.y, &plan.algorithm,
                   workspace_.data(), kWorkspaceBytes, stream_.cuda()),
      absl::StrCat("product [", plans.n, ", ", plans.k, "] of ", params.num_rows, " rows"));
}

}  // namespace quire::kernels::cuda

// Tests quire's calls of cuBLASLt on a fake library that computes naively and records its calls.

#include "kernels/linear/cublaslt.h"

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "kernels/linear/cublaslt_api.h"
#include "tests/cuda_emulator/emulator.h"
#include "tests/kernels/kernel_test_util.h"

namespace quire::kernels::cuda {
namespace {

using testing::HasSubstr;

struct Layout {
  cudaDataType type;
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t stride;
};
struct Product {
  std::int32_t transpose_a = CUBLAS_OP_N;
};

// The recorded calls, and the configured answers.
struct Fake {
  int handles = 0;
  int objects = 0;  // live descriptors
  int heuristic_calls = 0;
  std::uint64_t heuristic_rows = 0;
  std::map<int, std::uint64_t> preferences;
  std::vector<std::uint64_t> used;            // algorithms used by products
  std::vector<std::int32_t> splits = {4, 1};  // of the candidates, best first
  std::uint64_t refused_rows = 0;             // row count rejected by the first unsplit candidate
  bool refuse_product = false;
};
Fake fake;

Layout* Of(cublasLtMatrixLayout_t layout) {
  return reinterpret_cast<Layout*>(layout);
}
float Load(const void* data, cudaDataType type, std::int64_t index) {
  return type == CUDA_R_32F ? static_cast<const float*>(data)[index]
                            : static_cast<const BF16*>(data)[index].ToFloat();
}

template <typename T, typename H>
cublasStatus_t Destroy(H handle) {
  delete reinterpret_cast<T*>(handle);
  --fake.objects;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t Multiply(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                        const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                        cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                        cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                        const cublasLtMatmulAlgo_t* algorithm, void* workspace, std::size_t bytes,
                        cudaStream_t) {
  if (fake.refuse_product) return CUBLAS_STATUS_NOT_SUPPORTED;
  EXPECT_NE(workspace, nullptr);
  EXPECT_EQ(bytes, std::size_t{CublasLt::kWorkspaceBytes});
  EXPECT_EQ(reinterpret_cast<Product*>(product)->transpose_a, CUBLAS_OP_T);
  const Layout &wa = *Of(a_layout), &xb = *Of(b_layout), &rc = *Of(c_layout), &yd = *Of(d_layout);
  EXPECT_EQ(wa.rows, xb.rows);
  EXPECT_EQ(wa.columns, yd.rows);
  EXPECT_EQ(xb.columns, yd.columns);
  EXPECT_EQ(rc.columns, yd.columns);
  EXPECT_EQ(rc.type, yd.type);
  fake.used.push_back(algorithm->data[0]);
  for (std::uint64_t column = 0; column < yd.columns; ++column) {
    for (std::uint64_t row = 0; row < yd.rows; ++row) {
      double sum = 0;
      for (std::uint64_t k = 0; k < wa.rows; ++k) {
        sum += double{Load(
                   a, wa.type,
                   static_cast<std::int64_t>(row) * wa.stride + static_cast<std::int64_t>(k))} *
               Load(b, xb.type,
                    static_cast<std::int64_t>(column) * xb.stride + static_cast<std::int64_t>(k));
      }
      sum *= *static_cast<const float*>(alpha);
      const auto i = static_cast<std::int64_t>(row);
      const auto j = static_cast<std::int64_t>(column);
      const float scale = *static_cast<const float*>(beta);
      if (scale != 0) sum += scale * Load(c, rc.type, j * rc.stride + i);
      const auto y = static_cast<float>(sum);
      if (yd.type == CUDA_R_32F) {
        static_cast<float*>(d)[j * yd.stride + i] = y;
      } else {
        static_cast<BF16*>(d)[j * yd.stride + i] = BF16::FromFloat(y);
      }
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

void SetObjects(CublasLtApi& api) {
  api.create = [](cublasLtHandle_t* handle) {
    *handle = reinterpret_cast<cublasLtHandle_t>(&fake);
    ++fake.handles;
    return CUBLAS_STATUS_SUCCESS;
  };
  api.destroy = [](cublasLtHandle_t) {
    --fake.handles;
    return CUBLAS_STATUS_SUCCESS;
  };
  api.status_string = [](cublasStatus_t) { return "refused"; };
  api.desc_create = [](cublasLtMatmulDesc_t* desc, cublasComputeType_t compute,
                       cudaDataType_t scale) {
    EXPECT_EQ(compute, CUBLAS_COMPUTE_32F);
    EXPECT_EQ(scale, CUDA_R_32F);
    *desc = reinterpret_cast<cublasLtMatmulDesc_t>(new Product);
    ++fake.objects;
    return CUBLAS_STATUS_SUCCESS;
  };
  api.desc_destroy = [](cublasLtMatmulDesc_t desc) { return Destroy<Product>(desc); };
  api.desc_set = [](cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                    const void* value, std::size_t size) {
    EXPECT_EQ(attribute, CUBLASLT_MATMUL_DESC_TRANSA);
    EXPECT_EQ(size, sizeof(std::int32_t));
    std::memcpy(&reinterpret_cast<Product*>(desc)->transpose_a, value, size);
    return CUBLAS_STATUS_SUCCESS;
  };
  api.layout_create = [](cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                         std::uint64_t columns, std::int64_t stride) {
    *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, stride});
    ++fake.objects;
    return CUBLAS_STATUS_SUCCESS;
  };
  api.layout_destroy = [](cublasLtMatrixLayout_t layout) { return Destroy<Layout>(layout); };
  api.layout_set = [](cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute,
                      const void* value, std::size_t size) {
    EXPECT_EQ(size, 8u);
    if (attribute == CUBLASLT_MATRIX_LAYOUT_COLS) {
      std::memcpy(&Of(layout)->columns, value, 8);
    } else {
      EXPECT_EQ(attribute, CUBLASLT_MATRIX_LAYOUT_LD);
      std::memcpy(&Of(layout)->stride, value, 8);
    }
    return CUBLAS_STATUS_SUCCESS;
  };
  api.preference_create = [](cublasLtMatmulPreference_t* preference) {
    *preference = reinterpret_cast<cublasLtMatmulPreference_t>(new int);
    ++fake.objects;
    return CUBLAS_STATUS_SUCCESS;
  };
  api.preference_destroy = [](cublasLtMatmulPreference_t p) { return Destroy<int>(p); };
}

void SetChoice(CublasLtApi& api) {
  api.preference_set = [](cublasLtMatmulPreference_t,
                          cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                          std::size_t size) {
    std::uint64_t number = 0;
    std::memcpy(&number, value, size);
    fake.preferences[attribute] = number;
    return CUBLAS_STATUS_SUCCESS;
  };
  api.heuristic = [](cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                     cublasLtMatrixLayout_t x, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                     cublasLtMatmulPreference_t, int requested,
                     cublasLtMatmulHeuristicResult_t* results, int* found) {
    ++fake.heuristic_calls;
    fake.heuristic_rows = Of(x)->columns;
    *found = static_cast<int>(fake.splits.size());
    EXPECT_LE(*found, requested);
    for (int i = 0; i < *found; ++i) {
      results[i].state = CUBLAS_STATUS_SUCCESS;
      results[i].algo.data[0] = static_cast<std::uint64_t>(i);
      results[i].workspaceSize = 1024;
    }
    return CUBLAS_STATUS_SUCCESS;
  };
  api.algo_config_get = [](const cublasLtMatmulAlgo_t* algorithm,
                           cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                           std::size_t size, std::size_t* written) {
    EXPECT_EQ(attribute, CUBLASLT_ALGO_CONFIG_SPLITK_NUM);
    std::memcpy(value, &fake.splits[algorithm->data[0]], size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
  };
  api.algo_check = [](cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                      cublasLtMatrixLayout_t x, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                      const cublasLtMatmulAlgo_t* algorithm,
                      cublasLtMatmulHeuristicResult_t* result) {
    result->workspaceSize = 1024;
    const bool refused = algorithm->data[0] == 1 && Of(x)->columns == fake.refused_rows;
    return refused ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  };
}

CublasLtApi FakeApi() {
  CublasLtApi api{};
  SetObjects(api);
  SetChoice(api);
  api.matmul = Multiply;
  return api;
}

class CublasLtTest : public testing::Test {
 protected:
  CublasLtTest() {
    fake = Fake{};
    // The fake multiplies on the host.
    cuda_emulator::EmulatorOptions options = cuda_emulator::GetOptions();
    options.host_may_touch = true;
    cuda_emulator::SetOptions(options);
    library_ = *CublasLt::Create(stream_, FakeApi());
  }
  ~CublasLtTest() override {
    library_ = nullptr;
    cuda_emulator::Reset();
    EXPECT_EQ(fake.objects, 0);
    EXPECT_EQ(fake.handles, 0);
  }

  // Returns device memory that contains the values.
  template <typename T>
  T* Place(std::span<const float> values) {
    auto buffer = DeviceBuffer::Allocate(MemoryKind::kDevice,
                                         static_cast<std::int64_t>(values.size() * sizeof(T)));
    const auto bytes = Encode(values, kDTypeOf<T>);
    EXPECT_TRUE(stream_.Copy(buffer->data(), bytes.data(), buffer->size_bytes()).ok());
    EXPECT_TRUE(stream_.Synchronize().ok());
    buffers_.push_back(*std::move(buffer));
    return static_cast<T*>(buffers_.back().data());
  }

  ThreadPool pool_{1};
  Device device_ = *OpenCudaDevice(0);
  Stream stream_ = *Stream::Create(device_);
  Backend backend_ = *Backend::CreateCuda(stream_, Determinism::kBatchInvariant, &pool_);
  std::vector<DeviceBuffer> buffers_;
  std::shared_ptr<CublasLt> library_;
};

constexpr std::uint32_t kN = 24, kK = 16, kRows = 3;
constexpr std::int64_t kXStride = 24, kYStride = 32, kResidualStride = 40;

TEST_F(CublasLtTest, PinsOneUnsplitAlgorithmPerShapeAndType) {
  const auto plans = library_->Pin(kN, kK);
  ASSERT_TRUE(plans.ok()) << plans.status();
  EXPECT_EQ(fake.heuristic_calls, 2);  // y f32 and y bf16
  EXPECT_EQ(fake.heuristic_rows, CublasLt::kPinnedRows);
  EXPECT_EQ(*library_->Pin(kN, kK), *plans);
  EXPECT_EQ(fake.heuristic_calls, 2);

  const auto w = RandomFloats(kN * kK, 1, 0.1f);
  const auto bytes = Encode(w, DType::kBF16);
  const auto packed = PackLinearWeight(backend_, bytes.data(), DType::kBF16, kN, kK);
  ASSERT_TRUE(packed.ok());
  const BF16* const x = Place<BF16>(RandomFloats(kRows * kXStride, 2));
  const auto residual = RandomFloats(kRows * kResidualStride, 3);
  const float* const added = Place<float>(residual);
  float* const y = Place<float>(std::vector<float>(kRows * kYStride, 77.0f));
  BF16* const y16 = Place<BF16>(std::vector<float>(kRows * kYStride, 77.0f));
  for (const std::uint32_t rows : {1u, kRows}) {
    LinearParams params{.x = x,
                        .weight = &*packed,
                        .residual = added,
                        .y = y,
                        .x_stride = kXStride,
                        .residual_stride = kResidualStride,
                        .y_stride = kYStride,
                        .num_rows = rows};
    ASSERT_TRUE(library_->Matmul(**plans, params).ok());
    params.residual = nullptr;
    params.y = y16;
    ASSERT_TRUE(library_->Matmul(**plans, params).ok());
  }
  EXPECT_EQ(fake.heuristic_calls, 2);
  EXPECT_EQ(fake.used, std::vector<std::uint64_t>(4, 1));
  const auto rounded = Rounded(w, DType::kBF16);
  std::vector<float> got, got16;
  std::vector<double> exact, exact16;
  for (std::uint32_t m = 0; m < kRows; ++m) {
    for (std::uint32_t n = 0; n < kN; ++n) {
      double sum = 0;
      for (std::uint32_t k = 0; k < kK; ++k) {
        sum += double{x[m * kXStride + k].ToFloat()} * rounded[n * kK + k];
      }
      exact16.push_back(sum);
      exact.push_back(sum + residual[m * kResidualStride + n]);
      got.push_back(y[m * kYStride + n]);
      got16.push_back(y16[m * kYStride + n].ToFloat());
    }
    EXPECT_EQ(y[m * kYStride + kN], 77.0f) << "behind the row";
  }
  EXPECT_LE(RelativeError(got, exact), 1e-6);
  EXPECT_LE(RelativeError(got16, exact16), 3e-3);
}

// The memory plan's figure for products equals the allocations of backend and library.
TEST_F(CublasLtTest, AllocatesWhatThePlanCounts) {
  for (const Determinism determinism : {Determinism::kFast, Determinism::kStrict}) {
    const std::uint64_t before = cuda_emulator::DeviceBytesAllocated();
    const auto backend = Backend::CreateCuda(stream_, determinism, &pool_);
    ASSERT_TRUE(backend.ok()) << backend.status();
    std::shared_ptr<CublasLt> library;
    if (determinism == Determinism::kFast) library = *CublasLt::Create(stream_, FakeApi());
    EXPECT_EQ(cuda_emulator::DeviceBytesAllocated() - before,
              static_cast<std::uint64_t>(LinearWorkspaceBytes(determinism)));
  }
}

TEST_F(CublasLtTest, RequestsUnsplitSumsInAFixedWorkspace) {
  ASSERT_TRUE(library_->Pin(kN, kK).ok());
  EXPECT_EQ(fake.preferences[CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES],
            std::uint64_t{CublasLt::kWorkspaceBytes});
  EXPECT_EQ(fake.preferences[CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK],
            std::uint64_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  for (int attribute = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
       attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; ++attribute) {
    EXPECT_EQ(fake.preferences[attribute], 16u);
  }
}

TEST_F(CublasLtTest, SkipsAlgorithmsThatRejectARowCount) {
  fake.splits = {4, 1, 1};
  fake.refused_rows = 7;
  EXPECT_TRUE(library_->Pin(kN, kK).ok());
  fake.splits = {4, 1};
  const absl::Status status = library_->Pin(kN, 2 * kK).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("[24, 32]"));
}

TEST_F(CublasLtTest, NamesUnsupportedProducts) {
  const auto plans = library_->Pin(kN, kK);
  ASSERT_TRUE(plans.ok());
  const auto bytes = Encode(RandomFloats(kN * kK, 1), DType::kBF16);
  const auto packed = PackLinearWeight(backend_, bytes.data(), DType::kBF16, kN, kK);
  ASSERT_TRUE(packed.ok());
  const BF16* const x = Place<BF16>(RandomFloats(kRows * kXStride, 2));
  float* const y = Place<float>(std::vector<float>(kRows * kYStride));
  const LinearParams good{.x = x,
                          .weight = &*packed,
                          .y = y,
                          .x_stride = kXStride,
                          .y_stride = kYStride,
                          .num_rows = kRows};
  ASSERT_TRUE(library_->Matmul(**plans, good).ok());
  LinearParams params = good;
  params.bias = y;
  EXPECT_THAT(library_->Matmul(**plans, params).message(), HasSubstr("without a bias"));
  params = good;
  params.x_stride = 25;
  EXPECT_THAT(library_->Matmul(**plans, params).message(), HasSubstr("strides x 25"));
  fake.refuse_product = true;
  const absl::Status status = library_->Matmul(**plans, good);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), HasSubstr("product [24, 16] of 3 rows: refused"));
}

TEST_F(CublasLtTest, LinearUsesItForSupportedProducts) {
  // Sets the fake library in the way of Backend::CreateCuda with kFast.
  const_cast<CudaContext*>(backend_.cuda())->cublaslt = library_.get();
  const auto w = RandomFloats(kN * kK, 1);
  const auto pack = [&](std::uint32_t n, std::uint32_t k) {
    const auto bytes = Encode({w.data(), std::size_t{n} * k}, DType::kBF16);
    auto packed = PackLinearWeight(backend_, bytes.data(), DType::kBF16, n, k);
    EXPECT_TRUE(packed.ok()) << packed.status();
    return *std::move(packed);
  };
  const PackedLinear even = pack(kN, kK);
  EXPECT_EQ(fake.heuristic_calls, 2);
  const PackedLinear odd = pack(kN - 1, kK);
  EXPECT_EQ(fake.heuristic_calls, 2);
  const BF16* const x = Place<BF16>(RandomFloats(kRows * kXStride, 2));
  const float* const wide = Place<float>(RandomFloats(kRows * kXStride, 2));
  float* const y = Place<float>(std::vector<float>(kRows * kYStride));
  BF16* const y16 = Place<BF16>(std::vector<float>(kRows * kYStride));
  const auto products = [&](const PackedLinear& weight, ConstFloatPtr from, FloatPtr to,
                            const float* bias) {
    fake.used.clear();
    const absl::Status status = Linear(backend_, {.x = from,
                                                  .weight = &weight,
                                                  .bias = bias,
                                                  .y = to,
                                                  .x_stride = kXStride,
                                                  .y_stride = kYStride,
                                                  .num_rows = kRows});
    EXPECT_TRUE(status.ok()) << status;
    return fake.used.size();
  };
  EXPECT_EQ(products(even, x, y, nullptr), 1u);
  EXPECT_EQ(products(even, x, y16, nullptr), 1u);
  EXPECT_EQ(products(even, x, y, wide), 0u) << "a bias";
  EXPECT_EQ(products(odd, x, y, nullptr), 0u) << "23 features";
  EXPECT_EQ(products(even, wide, y, nullptr), 0u) << "f32";
  EXPECT_TRUE(stream_.Synchronize().ok());
}

TEST_F(CublasLtTest, NamesAMissingLibrary) {
  const absl::Status status = CublasLt::Open(stream_, "libquire-absent.so.13").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << "not a reason to take the CPU";
  EXPECT_THAT(status.message(), HasSubstr("libquire-absent.so.13"));
  // The C library exists but lacks the functions.
  EXPECT_THAT(CublasLt::Open(stream_, "libc.so.6").status().message(), HasSubstr("cublasLtCreate"));
}

}  // namespace
}  // namespace quire::kernels::cuda

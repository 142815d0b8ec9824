// Upload of GGML quantization blocks to an emulated GPU.

#include <gtest/gtest.h>

#include <vector>

#include "base/dtype.h"
#include "base/stream.h"
#include "kernels/cuda/uploader.h"
#include "models/weights/weights.h"
#include "tests/models/block_model.h"

namespace quire::models {
namespace {

// The embedding takes 16 MiB as f16, more than one conversion and upload piece.
TEST(CudaBlocksTest, EmbeddingArrivesInSeveralPieces) {
  constexpr std::int64_t kRows = 8192;
  ThreadPool threads(2);
  const Stream stream = *Stream::Create(*OpenCudaDevice(0));
  const auto backend =
      kernels::Backend::CreateCuda(stream, kernels::Determinism::kBatchInvariant, &threads);
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto uploader =
      kernels::Uploader::Create(stream, &threads, kernels::Uploader::kPieceBytes, 0);
  ASSERT_TRUE(uploader.ok()) << uploader.status();
  backend->SetUploader(uploader->get());
  const BlockModel model(kRows);
  const auto weights =
      Weights::Load(model.slots, *backend, {.cuda = true, .activation = DType::kBF16});
  backend->SetUploader(nullptr);
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_TRUE((*uploader)->Finish().ok());
  ASSERT_EQ(weights->embedding_dtype(), DType::kF16);
  std::vector<F16> rows(static_cast<std::size_t>(kRows * BlockModel::kInputs));
  ASSERT_TRUE(stream
                  .Copy(rows.data(), weights->embedding(),
                        static_cast<std::int64_t>(rows.size() * sizeof(F16)))
                  .ok());
  ASSERT_TRUE(stream.Synchronize().ok());
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t i = 0; i < BlockModel::kInputs; i += 3) {
      const F16 held = rows[static_cast<std::size_t>(row * BlockModel::kInputs + i)];
      ASSERT_EQ(held.ToFloat(), BlockModel::ValueAt(row, i)) << row << " " << i;
    }
  }
}

}  // namespace
}  // namespace quire::models

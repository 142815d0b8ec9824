#pragma once

// Reads rows of stored tensors in the dtypes and formats of weights.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/tensors/safetensors.h"
#include "kernels/backend/backend.h"
#include "kernels/linear/fp8_linear.h"
#include "kernels/linear/quantized_linear.h"
#include "models/weights/quantization.h"

namespace quire::models {

// Converts row `row` of [rows, k] to f32. A vector is a single row. Rows of a tensor with more
// dimensions are numbered across its matrices. REQUIRES: the tensor's type is supported.
void WidenRow(const formats::StoredTensor& tensor, std::int64_t row, std::span<float> out);

// Converts rows [begin, end) of [rows, k] to `dtype`, f32 or f16, at `out`. Uses all threads of the
// backend and temporary memory of one row per thread. If a value exceeds the range of f16, returns
// INVALID_ARGUMENT with the tensor, the element and its value.
absl::Status ConvertRows(const formats::StoredTensor& tensor, DType dtype, std::int64_t begin,
                         std::int64_t end, const kernels::Backend& backend, void* out);

// Returns the form that keeps a matrix as stored: its dtype, or the integers or e4m3 values of its
// quantized weights. Returns PlainForm if no kernel can use the quantized weights without
// loss.
MatrixForm StoredForm(const formats::StoredTensor& tensor);
// Returns the form of a matrix on GPUs. It differs from StoredForm for e2m1, which GPUs keep as
// e2m1, and for GGML blocks with minimums or in groups of 16, which become PlainForm. Returns
// UNIMPLEMENTED with the tensor for quantized weights that no GPU kernel supports.
absl::StatusOr<MatrixForm> CudaMatrixForm(const formats::StoredTensor& tensor);
// Returns the unquantized form that represents every value of a quantized matrix exactly.
MatrixForm PlainForm(const formats::StoredTensor& tensor);

// Converts one row to `dtype`, f32, bf16 or f16, at `out`. REQUIRES: `dtype` represents the values
// exactly (PlainForm).
void ReadPlainRow(const formats::StoredTensor& tensor, DType dtype, std::int64_t row,
                  std::byte* out);

// Converts one row to a quantized form. A row that is stored in this form is copied; other rows are
// converted to f32 and quantized to integers. A non-finite value makes a scale or minimum
// non-finite. REQUIRES: `out` has the sizes of the form.
void ReadQuantizedRow(const formats::StoredTensor& tensor, const MatrixForm& form, std::int64_t row,
                      const QuantizedRow& out);

// Reads one row of e4m3 values and scales. REQUIRES: StoredForm is fp8, and `out` has its sizes.
void ReadFp8Row(const formats::StoredTensor& tensor, std::int64_t row, const quire::Fp8Row& out);

// If an element is NaN or infinite, returns INVALID_ARGUMENT with the tensor, the element and its
// value.
absl::Status CheckFinite(const formats::StoredTensor& tensor, const kernels::Backend& backend);

}  // namespace quire::models

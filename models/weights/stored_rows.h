#pragma once

// Values of stored tensors, row by row, in the types that weights are made of.

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

// Row `row` of [rows, k] as f32; of a vector, row 0 is all of it; of more dimensions the rows of
// all matrices one behind the other. REQUIRES: the tensor has a plain type, blocks that are read or
// codes.
void WidenRow(const formats::StoredTensor& tensor, std::int64_t row, std::span<float> out);

// Rows [begin, end) of [rows, k] in `dtype`, f32 or f16, one behind the other at `out`, with all
// threads of the backend and no memory but a row for each of them. Returns INVALID_ARGUMENT that
// names the tensor, the element and its value when it is beyond f16.
absl::Status ConvertRows(const formats::StoredTensor& tensor, DType dtype, std::int64_t begin,
                         std::int64_t end, const kernels::Backend& backend, void* out);

// The form that holds a matrix as it is stored: its own type, or the integers or e4m3 of its blocks
// or codes; of codes that no kernel holds without loss PlainForm.
MatrixForm StoredForm(const formats::StoredTensor& tensor);
// The same for GPUs, which hold e2m1 codes as such, and of blocks with minimums or in groups of 16
// PlainForm. Returns UNIMPLEMENTED that names the tensor for codes that no kernel of GPUs reads.
absl::StatusOr<MatrixForm> CudaStoredForm(const formats::StoredTensor& tensor);
// The plain form that holds every value of a matrix of blocks or codes without loss.
MatrixForm PlainForm(const formats::StoredTensor& tensor);

// One row in `dtype`, f32, bf16 or f16, at `out`. REQUIRES: `dtype` holds the values (PlainForm).
void PlainRow(const formats::StoredTensor& tensor, DType dtype, std::int64_t row, std::byte* out);

// One row in a form that is not plain: decoded when that is the form of its blocks or codes, else
// widened and quantised to integers. `out` has the sizes of the form; a value that is not finite
// gives a scale or min that is not.
void CodedRow(const formats::StoredTensor& tensor, const MatrixForm& form, std::int64_t row,
              const QuantizedRow& out);

// One row of e4m3 codes and scales. REQUIRES: the form is that of its codes, StoredForm, and `out`
// has its sizes.
void Fp8Row(const formats::StoredTensor& tensor, std::int64_t row, const quire::Fp8Row& out);

// INVALID_ARGUMENT that names the tensor, the element and its value when one is NaN or infinite.
absl::Status CheckFinite(const formats::StoredTensor& tensor, const kernels::Backend& backend);

}  // namespace quire::models

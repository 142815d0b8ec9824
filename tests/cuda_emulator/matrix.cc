#include "tests/cuda_emulator/matrix.h"

#include <cstddef>
#include <cstring>

#include "tests/cuda_emulator/access_check.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator {
namespace {

struct LoadOperand {
  std::uint32_t* registers;
  const void* row;
  const void* code;
};

std::uint32_t Pair(std::uint16_t low, std::uint16_t high) {
  return low | static_cast<std::uint32_t>(high) << 16;
}

std::uint16_t Half(std::uint32_t pair, std::uint32_t index) {
  return static_cast<std::uint16_t>(pair >> (16 * index));
}

// argument: count, and 16 for transposed.
void LoadAll(void* const* operands, std::uint32_t, std::uint64_t argument) {
  const auto count = static_cast<std::uint32_t>(argument & 7);
  const bool transposed = (argument & 16) != 0;
  for (std::uint32_t m = 0; m < count; ++m) {
    std::uint16_t matrix[8][8];
    for (std::uint32_t row = 0; row < 8; ++row) {
      const auto* const operand = static_cast<const LoadOperand*>(operands[8 * m + row]);
      const std::uint32_t at = SharedAddress(operand->row, 16, 16, "ldmatrix");
      const std::uint32_t thread = current_thread->warp * kWarpSize + 8 * m + row;
      CheckShared(Threads()[thread], at, 16, Access::kRead, operand->code);
      std::memcpy(matrix[row], operand->row, 16);
    }
    for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
      const std::uint32_t r = lane / 4;
      const std::uint32_t c = 2 * (lane % 4);
      static_cast<const LoadOperand*>(operands[lane])->registers[m] =
          transposed ? Pair(matrix[c][r], matrix[c + 1][r]) : Pair(matrix[r][c], matrix[r][c + 1]);
    }
  }
}

void TransposeAll(void* const* operands, std::uint32_t, std::uint64_t) {
  std::uint16_t matrix[8][8];
  for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
    const std::uint32_t pair = *static_cast<const std::uint32_t*>(operands[lane]);
    matrix[lane / 4][2 * (lane % 4)] = Half(pair, 0);
    matrix[lane / 4][2 * (lane % 4) + 1] = Half(pair, 1);
  }
  for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
    const std::uint32_t c = 2 * (lane % 4);
    *static_cast<std::uint32_t*>(operands[lane]) =
        Pair(matrix[c][lane / 4], matrix[c + 1][lane / 4]);
  }
}

struct MultiplyOperand {
  float* d;
  const std::uint32_t* a;
  const std::uint32_t* b;
};

void MultiplyAll(void* const* operands, std::uint32_t, std::uint64_t is_bf16) {
  float a[16][16];
  double b[16][8];
  double d[16][8];
  const auto element = [&](std::uint32_t pair, std::uint32_t i) {
    return Element16(Half(pair, i), is_bf16 != 0);
  };
  for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
    const auto& own = *static_cast<const MultiplyOperand*>(operands[lane]);
    const std::uint32_t g = lane / 4;
    const std::uint32_t c = 2 * (lane % 4);
    for (std::uint32_t i = 0; i < 2; ++i) {
      a[g][c + i] = element(own.a[0], i);
      a[g + 8][c + i] = element(own.a[1], i);
      a[g][c + 8 + i] = element(own.a[2], i);
      a[g + 8][c + 8 + i] = element(own.a[3], i);
      b[c + i][g] = element(own.b[0], i);
      b[c + 8 + i][g] = element(own.b[1], i);
      d[g][c + i] = own.d[i];
      d[g + 8][c + i] = own.d[2 + i];
    }
  }
  AddProduct(d[0], a[0], b[0], 16, 8);
  for (std::uint32_t lane = 0; lane < kWarpSize; ++lane) {
    float* const out = static_cast<const MultiplyOperand*>(operands[lane])->d;
    for (std::uint32_t i = 0; i < 4; ++i) {
      out[i] = static_cast<float>(d[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2]);
    }
  }
}

}  // namespace

QUIRE_VECTOR_CLONES void AddProduct(double* sums, const float* a, const double* b,
                                    std::uint32_t rows, std::uint32_t columns) {
  constexpr std::size_t kDepth = 16;
  for (std::size_t m = 0; m < rows; ++m) {
    for (std::size_t n = 0; n < columns; n += kSums) {
      Sums sum;
      std::memcpy(&sum, sums + m * columns + n, sizeof(sum));
      for (std::size_t k = 0; k < kDepth; ++k) {
        Sums from;
        std::memcpy(&from, b + k * columns + n, sizeof(from));
        sum += double{a[m * kDepth + k]} * from;
      }
      std::memcpy(sums + m * columns + n, &sum, sizeof(sum));
    }
  }
}

void LoadMatrices(std::uint32_t* registers, std::uint32_t count, bool transposed, const void* row) {
  LoadOperand operand{.registers = registers, .row = row, .code = __builtin_return_address(0)};
  WarpCollective("ldmatrix", LoadAll, count | (transposed ? 16u : 0u), 0xffffffffu, &operand,
                 /*all_live=*/true);
}

std::uint32_t TransposeMatrix(std::uint32_t fragment) {
  WarpCollective("movmatrix", TransposeAll, 0, 0xffffffffu, &fragment, /*all_live=*/true);
  return fragment;
}

void MultiplyAdd(float* d, const std::uint32_t* a, const std::uint32_t* b, bool is_bf16) {
  MultiplyOperand operand{.d = d, .a = a, .b = b};
  WarpCollective("mma", MultiplyAll, is_bf16 ? 1 : 0, 0xffffffffu, &operand, /*all_live=*/true);
}

}  // namespace quire::cuda_emulator

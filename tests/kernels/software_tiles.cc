#include "tests/kernels/software_tiles.h"

#include <csignal>
#include <cstring>

#if defined(__x86_64__) && defined(__linux__)
#include <ucontext.h>
#endif

#include "base/check.h"
#include "base/dtype.h"
#include "kernels/backend/backend.h"
#include "kernels/linear/bf16_linear.h"

namespace quire::kernels {

void Tiles::Configure(const std::uint8_t* config) {
  Release();
  const std::uint8_t palette = config[0];
  QUIRE_CHECK(palette <= 1);
  if (palette == 0) return;
  // A start row other than 0 resumes an interrupted load or store; no kernel sets one.
  for (std::size_t i = 1; i < 16; ++i) QUIRE_CHECK(config[i] == 0);
  for (std::size_t i = 32; i < 48; ++i) QUIRE_CHECK(config[i] == 0);
  for (std::size_t i = 56; i < 64; ++i) QUIRE_CHECK(config[i] == 0);
  for (std::size_t tile = 0; tile < kNumTiles; ++tile) {
    const std::size_t row_bytes = config[16 + 2 * tile] + config[17 + 2 * tile] * std::size_t{256};
    const std::size_t rows = config[48 + tile];
    QUIRE_CHECK(row_bytes <= kMaxRowBytes);
    QUIRE_CHECK(rows <= kMaxRows);
    QUIRE_CHECK((row_bytes == 0) == (rows == 0));
    tiles_[tile].rows = rows;
    tiles_[tile].row_bytes = row_bytes;
  }
}

void Tiles::Release() {
  tiles_ = {};
}

Tiles::Tile& Tiles::At(std::size_t tile) {
  QUIRE_CHECK(tile < kNumTiles);
  QUIRE_CHECK(tiles_[tile].rows > 0);
  return tiles_[tile];
}

void Tiles::Zero(std::size_t tile) {
  At(tile).bytes = {};
}

void Tiles::Load(std::size_t tile, const std::uint8_t* from, std::int64_t stride) {
  Tile& to = At(tile);
  to.bytes = {};
  for (std::size_t row = 0; row < to.rows; ++row) {
    std::memcpy(to.bytes[row].data(), from + static_cast<std::int64_t>(row) * stride, to.row_bytes);
  }
}

void Tiles::Store(std::size_t tile, std::uint8_t* to, std::int64_t stride) {
  const Tile& from = At(tile);
  for (std::size_t row = 0; row < from.rows; ++row) {
    std::memcpy(to + static_cast<std::int64_t>(row) * stride, from.bytes[row].data(),
                from.row_bytes);
  }
}

void Tiles::CheckShapes(std::size_t sums, std::size_t left, std::size_t right) {
  QUIRE_CHECK(sums != left && sums != right && left != right);
  const Tile& c = At(sums);
  const Tile& a = At(left);
  const Tile& b = At(right);
  QUIRE_CHECK(c.row_bytes % 4 == 0 && a.row_bytes % 4 == 0 && b.row_bytes % 4 == 0);
  QUIRE_CHECK(c.rows == a.rows);
  QUIRE_CHECK(c.row_bytes == b.row_bytes);
  QUIRE_CHECK(a.row_bytes / 4 == b.rows);
}

void Tiles::MultiplyAddBF16(std::size_t sums, std::size_t left, std::size_t right) {
  CheckShapes(sums, left, right);
  Tile& c = At(sums);
  const Tile& a = At(left);
  const Tile& b = At(right);
  const auto element = [](const Tile& tile, std::size_t row, std::size_t i) {
    BF16 value;
    std::memcpy(&value, &tile.bytes[row][2 * i], sizeof(value));
    return value.ToFloat();
  };
  for (std::size_t m = 0; m < c.rows; ++m) {
    for (std::size_t n = 0; n < c.row_bytes / 4; ++n) {
      float parts[2] = {};
      for (std::size_t k = 0; k < a.row_bytes / 2; ++k) {
        parts[k % 2] =
            internal::FlushedFma(element(a, m, k), element(b, k / 2, 2 * n + k % 2), parts[k % 2]);
      }
      float sum;
      std::memcpy(&sum, &c.bytes[m][4 * n], sizeof(sum));
      sum = internal::FlushedAdd(sum, internal::FlushedAdd(parts[0], parts[1]));
      std::memcpy(&c.bytes[m][4 * n], &sum, sizeof(sum));
    }
  }
}

void Tiles::MultiplyAdd(std::size_t sums, std::size_t signed_bytes, std::size_t unsigned_bytes) {
  CheckShapes(sums, signed_bytes, unsigned_bytes);
  Tile& c = At(sums);
  const Tile& a = At(signed_bytes);
  const Tile& b = At(unsigned_bytes);
  for (std::size_t m = 0; m < c.rows; ++m) {
    std::array<std::uint32_t, kMaxRowBytes / 4> row;
    static_assert(sizeof(row) == kMaxRowBytes);
    std::memcpy(row.data(), c.bytes[m].data(), sizeof(row));
    for (std::size_t k = 0; k < a.row_bytes; ++k) {
      // NOLINTNEXTLINE(bugprone-signed-char-misuse): the sign is wanted.
      const std::int32_t x = static_cast<std::int8_t>(a.bytes[m][k]);
      for (std::size_t n = 0; n < c.row_bytes / 4; ++n) {
        row[n] += static_cast<std::uint32_t>(x * b.bytes[k / 4][n * 4 + k % 4]);
      }
    }
    std::memcpy(c.bytes[m].data(), row.data(), sizeof(row));
  }
}

#if defined(__x86_64__) && defined(__linux__)

namespace {

thread_local Tiles thread_tiles;
struct sigaction previous_action;

// General registers by their number in machine code.
std::uint64_t RegisterValue(const ucontext_t& context, unsigned number) {
  static constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                         REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                         REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<std::uint64_t>(context.uc_mcontext.gregs[kRegisters[number]]);
}

// The parts of an instruction with a three-byte VEX prefix, opcode map 0F38, 128 bits and W0. All
// tile instructions have this form.
struct Instruction {
  std::size_t size = 0;  // bytes; 0 if the instruction has another form
  unsigned prefix = 0;   // 0 none, 1 66, 2 F3, 3 F2
  unsigned opcode = 0;
  unsigned reg = 0;
  unsigned rm = 0;
  unsigned vvvv = 0;
  bool is_memory = false;   // the operand is base + index, not the register rm
  std::uint64_t base = 0;   // includes the displacement
  std::uint64_t index = 0;  // scaled
};

Instruction Decode(const ucontext_t& context) {
  const auto* const at = reinterpret_cast<const std::uint8_t*>(context.uc_mcontext.gregs[REG_RIP]);
  Instruction out;
  if (at[0] != 0xc4 || (at[1] & 0x9f) != 0x82 || (at[2] & 0x84) != 0) return out;
  const unsigned index_high = at[1] & 0x40 ? 0 : 8;
  const unsigned base_high = at[1] & 0x20 ? 0 : 8;
  const std::uint8_t modrm = at[4];
  const unsigned mode = modrm >> 6;
  out.prefix = at[2] & 3;
  out.opcode = at[3];
  out.vvvv = ~(at[2] >> 3) & 15;
  out.reg = modrm >> 3 & 7;
  out.rm = modrm & 7;
  out.is_memory = mode != 3;
  out.size = 5;
  if (!out.is_memory) return out;
  unsigned base = out.rm;
  if (base == 4) {  // a SIB byte follows
    const std::uint8_t sib = at[out.size++];
    const unsigned index = (sib >> 3 & 7) | index_high;
    base = sib & 7;
    if (index != 4) out.index = RegisterValue(context, index) << (sib >> 6);
  }
  if (mode == 0 && base == 5) return {};  // RIP-relative or without a base: not supported
  out.base = RegisterValue(context, base | base_high);
  if (mode == 1) {
    out.base += static_cast<std::uint64_t>(std::int64_t{static_cast<std::int8_t>(at[out.size])});
    out.size += 1;
  } else if (mode == 2) {
    std::int32_t displacement;
    std::memcpy(&displacement, at + out.size, 4);
    out.base += static_cast<std::uint64_t>(std::int64_t{displacement});
    out.size += 4;
  }
  return out;
}

// Returns false if `code` is none of the tile instructions that software_tiles.h lists.
bool Execute(const Instruction& code, Tiles& tiles) {
  constexpr unsigned kConfigure = 0x49, kMove = 0x4b, kMultiplyBF16 = 0x5c, kMultiply = 0x5e;
  constexpr unsigned kNone = 0, k66 = 1, kF3 = 2, kF2 = 3;
  auto* const memory = reinterpret_cast<std::uint8_t*>(code.base);
  const auto stride = static_cast<std::int64_t>(code.index);
  if (code.size == 0) return false;
  if (code.opcode == kConfigure && code.prefix == kNone && code.reg == 0) {
    if (code.is_memory) {
      tiles.Configure(memory + stride);
    } else {
      tiles.Release();
    }
  } else if (code.opcode == kConfigure && code.prefix == kF2 && !code.is_memory) {
    tiles.Zero(code.reg);
  } else if (code.opcode == kMove && (code.prefix == kF2 || code.prefix == k66) && code.is_memory) {
    tiles.Load(code.reg, memory, stride);
  } else if (code.opcode == kMove && code.prefix == kF3 && code.is_memory) {
    tiles.Store(code.reg, memory, stride);
  } else if (code.opcode == kMultiply && code.prefix == kF3 && !code.is_memory) {
    tiles.MultiplyAdd(code.reg, code.rm, code.vvvv);
  } else if (code.opcode == kMultiplyBF16 && code.prefix == kF3 && !code.is_memory) {
    tiles.MultiplyAddBF16(code.reg, code.rm, code.vvvv);
  } else {
    return false;
  }
  return true;
}

void OnIllegalInstruction(int, siginfo_t*, void* raw_context) {
  ucontext_t& context = *static_cast<ucontext_t*>(raw_context);
  const Instruction code = Decode(context);
  if (Execute(code, thread_tiles)) {
    context.uc_mcontext.gregs[REG_RIP] += static_cast<greg_t>(code.size);
  } else {
    sigaction(SIGILL, &previous_action, nullptr);  // the instruction faults again
  }
}

}  // namespace

ScopedSoftwareTiles::ScopedSoftwareTiles() {
  struct sigaction action = {};
  action.sa_sigaction = OnIllegalInstruction;
  action.sa_flags = SA_SIGINFO;
  QUIRE_CHECK(sigaction(SIGILL, &action, &previous_action) == 0);
}

ScopedSoftwareTiles::~ScopedSoftwareTiles() {
  QUIRE_CHECK(sigaction(SIGILL, &previous_action, nullptr) == 0);
}

#else

ScopedSoftwareTiles::ScopedSoftwareTiles() = default;
ScopedSoftwareTiles::~ScopedSoftwareTiles() = default;

#endif

bool ScopedTiles::CanRun() {
  const bool has_avx512 = SelectCpuIsa("avx512").ok();
  QUIRE_CHECK(SelectCpuIsa("auto").ok());
  return has_avx512 && internal::kBf16MultiplyAmx != nullptr;
}

ScopedTiles::ScopedTiles() {
  const absl::Status hardware = SelectCpuIsa("amx");
  QUIRE_CHECK(SelectCpuIsa("auto").ok());
  if (!hardware.ok()) software_.emplace();
}

}  // namespace quire::kernels

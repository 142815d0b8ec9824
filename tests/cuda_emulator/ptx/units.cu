// Kernels that call each wrapper of kernels/cuda/*.cuh of compute capability 8.0, alone or with the
// wrappers that it requires. nvcc compiles this file to PTX with the wrappers, and the host
// compiler compiles it with their host emulation. Both get the same `in` and must compute the same
// `out`.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/convert.cuh"
#include "kernels/cuda/memory.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/thread.cuh"

namespace quire::kernels::cuda {
namespace {

// Copies `words` words of `in` to shared memory. All threads take part.
__device__ std::uint32_t* Fill(const std::uint32_t* in, std::uint32_t words) {
  auto* const shared = reinterpret_cast<std::uint32_t*>(SharedMemory16());
  for (std::uint32_t i = ThreadIndex(); i < words; i += BlockThreads()) shared[i] = in[i];
  SyncBlock();
  return shared;
}

template <int kN>
__device__ void Store(std::uint32_t* out, const std::uint32_t (&values)[kN]) {
  for (int i = 0; i < kN; ++i) out[ThreadIndex() * kN + i] = values[i];
}

// Words 10 l to 10 l + 9 are d, a and b of lane l.
template <typename Mma>
__device__ void Multiply(const std::uint32_t* in, std::uint32_t* out, const Mma& mma) {
  float d[4];
  std::uint32_t a[4];
  std::uint32_t b[2];
  in += Lane() * 10;
  for (int i = 0; i < 4; ++i) d[i] = BitsFloat(in[i]);
  for (int i = 0; i < 4; ++i) a[i] = in[4 + i];
  for (int i = 0; i < 2; ++i) b[i] = in[8 + i];
  mma(d, a, b);
  for (int i = 0; i < 4; ++i) out[Lane() * 4 + i] = FloatBits(d[i]);
}

// Makes three copies of kBytes per thread. The second copy is not valid. The third is in a group
// that is waited for later.
template <int kWords, typename Copy>
__device__ void CopyThree(const std::uint32_t* in, std::uint32_t* out, const Copy& copy) {
  auto* const shared = reinterpret_cast<std::uint32_t*>(SharedMemory16());
  const std::uint32_t own = ThreadIndex() * 3 * kWords;
  copy(shared + own, in + own, true);
  copy(shared + own + kWords, in + own + kWords, in[own] == 0);
  CpAsyncCommit();
  copy(shared + own + 2 * kWords, in + own + 2 * kWords, true);
  CpAsyncCommit();
  CpAsyncWait<1>();
  for (int i = 0; i < 2 * kWords; ++i) out[own + i] = shared[own + i];
  CpAsyncWait<0>();
  for (int i = 2 * kWords; i < 3 * kWords; ++i) out[own + i] = shared[own + i];
}

}  // namespace

extern "C" {

__global__ void WhereUnit(const std::uint32_t*, std::uint32_t* out) {
  const std::uint32_t block = BlockY() * GridX() + BlockX();
  const std::uint32_t values[] = {
      BlockX(),
      BlockY(),
      GridX(),
      GridY(),
      BlockThreads(),
      ThreadIndex(),
      Lane(),
      Warp(),
      static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(SharedMemory()) % 1024),
      static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(SharedMemory16()) % 16)};
  Store(out + block * BlockThreads() * 10, values);
}

__global__ void ShuffleUnit(const std::uint32_t* in, std::uint32_t* out) {
  const std::uint32_t own = in[Lane()];
  const std::uint64_t wide = std::uint64_t{own} << 32 | in[32 + Lane()];
  const std::uint32_t half = Lane() < 16 ? 0xffffu : 0xffff0000u;
  SyncWarp();
  const std::uint64_t turned = ShuffleXor(wide, 17u);
  const std::uint32_t values[] = {ShuffleXor(own, 5u),
                                  Shuffle(own, in[64 + Lane()] % 32),
                                  ShuffleUp(own, 3u),
                                  FloatBits(ShuffleUp(BitsFloat(own), 9u)),
                                  static_cast<std::uint32_t>(turned),
                                  static_cast<std::uint32_t>(turned >> 32),
                                  Ballot(own % 3 == 0),
                                  AnyLane(own == in[7]) ? 1u : 0u,
                                  AnyLane((own & 0x7fffffffu) == 0x7fffffffu) ? 1u : 0u,
                                  ShuffleXor(own, 3u, half),
                                  Ballot(own % 2 == 0, half)};
  SyncWarp(half);
  Store(out, values);
}

__global__ void AtomicUnit(const std::uint32_t* in, std::uint32_t* out) {
  const std::uint32_t own = in[ThreadIndex()];
  const std::uint64_t wide = std::uint64_t{own} << 20;
  auto* const wides = reinterpret_cast<std::uint64_t*>(out);
  auto* const shared = reinterpret_cast<std::uint32_t*>(SharedMemory16());
  if (ThreadIndex() == 0) {
    wides[0] = wides[1] = wide;
    wides[2] = ~wide;
    for (int i = 6; i < 12; ++i) out[i] = 0;
    shared[0] = 0;
    DeviceFence();
  }
  SyncBlock();
  AtomicAdd(wides, wide);
  AtomicMax(wides + 1, wide);
  AtomicMin(wides + 2, wide);
  AtomicMax(out + 6, own);
  AtomicOr(out + 7, own & 0x11111111u << ThreadIndex() % 4);
  const std::uint32_t before = AtomicAdd(out + 8, 1u);
  AtomicAdd(out + 9, before);
  AtomicAdd(shared, own);
  SyncBlock();
  if (ThreadIndex() == 0) {
    out[10] = shared[0];
    out[11] = AtomicMax(out + 6, 0u);
  }
}

// Warp 0 passes four values to warp 1 through two named barriers. It arrives at two further
// barriers in an order in which waiting would deadlock.
__global__ void NamedBarrierUnit(const std::uint32_t* in, std::uint32_t* out) {
  auto* const shared = reinterpret_cast<std::uint32_t*>(SharedMemory16());
  for (std::uint32_t step = 0; step < 4; ++step) {
    if (Warp() == 0) {
      if (step > 0) NamedSync(2, 64);
      shared[Lane()] = in[step * 32 + Lane()];
      NamedArrive(1, 64);
    } else {
      NamedSync(1, 64);
      out[step * 32 + Lane()] = shared[Lane()];
      if (step < 3) NamedArrive(2, 64);
    }
  }
  if (Warp() == 0) {
    NamedArrive(3, 64);
    NamedArrive(4, 64);
  } else {
    NamedSync(4, 64);
    NamedSync(3, 64);
  }
}

__global__ void LoadUnit(const std::uint32_t* in, std::uint32_t* out) {
  const uint4 four = LoadStreaming(in + ThreadIndex() * 4);
  const std::uint32_t values[] = {
      four.x,
      four.y,
      four.z,
      four.w,
      LoadAtL2(in + ThreadIndex()),
      FloatBits(LoadAtL2(reinterpret_cast<const float*>(in) + 7 + ThreadIndex()))};
  Store(out, values);
}

__global__ void CpAsync16Unit(const std::uint32_t* in, std::uint32_t* out) {
  CopyThree<4>(in, out, [](void* to, const void* from, bool valid) { CpAsync16(to, from, valid); });
}
__global__ void CpAsync4Unit(const std::uint32_t* in, std::uint32_t* out) {
  CopyThree<1>(in, out, [](void* to, const void* from, bool valid) { CpAsync4(to, from, valid); });
}

__global__ void LdMatrixX4Unit(const std::uint32_t* in, std::uint32_t* out) {
  std::uint32_t r[4];
  LdMatrixX4(r, Fill(in, 128) + (Lane() ^ 1) * 4);
  Store(out, r);
}
__global__ void LdMatrixX2Unit(const std::uint32_t* in, std::uint32_t* out) {
  std::uint32_t r[2];
  LdMatrixX2(r, Fill(in, 128) + (Lane() ^ 1) * 4);
  Store(out, r);
}
__global__ void LdMatrixX4TransUnit(const std::uint32_t* in, std::uint32_t* out) {
  std::uint32_t r[4];
  LdMatrixX4Trans(r, Fill(in, 128) + (Lane() ^ 1) * 4);
  Store(out, r);
}
__global__ void LdMatrixX2TransUnit(const std::uint32_t* in, std::uint32_t* out) {
  std::uint32_t r[2];
  LdMatrixX2Trans(r, Fill(in, 128) + (Lane() ^ 1) * 4);
  Store(out, r);
}
__global__ void MovMatrixUnit(const std::uint32_t* in, std::uint32_t* out) {
  out[Lane()] = MovMatrixTrans(in[Lane()]);
}

__global__ void MmaBF16Unit(const std::uint32_t* in, std::uint32_t* out) {
  Multiply(in, out, [](auto& d, const auto& a, const auto& b) { MmaBF16(d, a, b); });
}
__global__ void MmaF16Unit(const std::uint32_t* in, std::uint32_t* out) {
  Multiply(in, out, [](auto& d, const auto& a, const auto& b) { MmaF16(d, a, b); });
}

__global__ void ArithmeticUnit(const std::uint32_t* in, std::uint32_t* out) {
  const float a = BitsFloat(in[3 * ThreadIndex()]);
  const float b = BitsFloat(in[3 * ThreadIndex() + 1]);
  const float c = BitsFloat(in[3 * ThreadIndex() + 2]);
  const std::uint32_t values[] = {
      FloatBits(Fma(a, b, c)), FloatBits(Mul(a, b)),   FloatBits(Add(a, b)), FloatBits(Sub(a, b)),
      FloatBits(Div(a, b)),    FloatBits(Sqrt(a * a)), FloatBits(Max(a, b)), FloatBits(Min(a, b))};
  Store(out, values);
}

__global__ void ApproxUnit(const std::uint32_t* in, std::uint32_t* out) {
  const float x = BitsFloat(in[ThreadIndex()]);
  const std::uint32_t values[] = {FloatBits(Exp2Approx(x)), FloatBits(ReciprocalApprox(x))};
  Store(out, values);
}

__global__ void FloatPairUnit(const std::uint32_t* in, std::uint32_t* out) {
  const float a = BitsFloat(in[2 * ThreadIndex()]);
  const float b = BitsFloat(in[2 * ThreadIndex() + 1]);
  const float2 bf16 = UnpackBF16(in[2 * ThreadIndex()]);
  const std::uint32_t values[] = {PackBF16(a, b), PackF16(a, b), FloatToE4M3(a), FloatBits(bf16.x),
                                  FloatBits(bf16.y)};
  Store(out, values);
}

__global__ void HalfPairUnit(const std::uint32_t* in, std::uint32_t* out) {
  const std::uint32_t a = in[3 * ThreadIndex()];
  const std::uint32_t b = in[3 * ThreadIndex() + 1];
  const std::uint32_t c = in[3 * ThreadIndex() + 2];
  const float2 f16 = UnpackF16(a);
  const std::uint32_t values[] = {FloatBits(f16.x), FloatBits(f16.y), MulF16(a, b),  SubF16(a, b),
                                  FmaF16(a, b, c),  SubBF16(a, b),    AndOr(a, b, c)};
  Store(out, values);
}

// Converts all 256 e4m3 values except the two NaNs.
__global__ void E4M3Unit(const std::uint32_t*, std::uint32_t* out) {
  const std::uint32_t low = ThreadIndex() % 0x7f;
  out[ThreadIndex()] = E4M3ToF16(low | (low ^ 0x80u) << 8);
}

__global__ void BitsUnit(const std::uint32_t* in, std::uint32_t* out) {
  const std::uint32_t a = in[2 * ThreadIndex()];
  const std::uint32_t b = in[2 * ThreadIndex() + 1];
  const std::uint32_t values[] = {BytePermute(a, b, 0x6240u), BytePermute(a, b, b & 0xffffu),
                                  CountBits(a), LeadingZeros(a >> b % 32), LeadingZeros(b % 2)};
  Store(out, values);
}

}  // extern "C"

}  // namespace quire::kernels::cuda

// Instructions in which the lanes of a warp or the threads of a block meet. The models of the
// emulator compute (warp.h, matrix.h, simt.h). This file maps registers and forms of the
// instructions.

#include <bit>
#include <cstdint>
#include <string>

#include "tests/cuda_emulator/matrix.h"
#include "tests/cuda_emulator/ptx/decode.h"
#include "tests/cuda_emulator/simt.h"
#include "tests/cuda_emulator/warp.h"

namespace quire::cuda_emulator::ptx {
namespace {

// shfl.sync.bfly.b32 d|p, a, lane, clamp, lanes of the warp. `clamp` is the last lane of a segment
// (31), or for `up` the first (0). Its bits from 8 on encode segments shorter than a warp.
Step DecodeShuffle(Form* form) {
  form->Expect("sync");
  constexpr ShuffleKind kKinds[] = {ShuffleKind::kXor, ShuffleKind::kLane, ShuffleKind::kUp};
  const ShuffleKind kind = kKinds[form->TakeOneOf({"bfly", "idx", "up"})];
  form->Expect("b32");
  const auto [result, predicate] = form->TakeRegisterAndPredicate();
  const Value a = form->TakeU32();
  const Value operand = form->TakeU32();
  const Value clamp = form->TakeU32();
  const Value mask = form->TakeU32();
  const std::uint32_t whole_warp = kind == ShuffleKind::kUp ? 0 : 31;
  return [=, to = result, in_range = predicate](Frame& frame) {
    if (clamp.Read32(frame) != whole_warp) {
      Fatal("shfl in segments of less than a warp is not interpreted");
    }
    const std::uint32_t distance = operand.Read32(frame) & 31;
    const std::uint64_t bits = ShuffleBits(a.Read(frame), kind, distance, mask.Read32(frame));
    Write(frame, to, bits & 0xffffffffu);
    Write(frame, in_range, kind != ShuffleKind::kUp || distance <= current_thread->lane);
  };
}

// vote.sync.ballot.b32 d, p, lanes; vote.sync.any.pred q, p, lanes.
Step DecodeVote(Form* form) {
  form->Expect("sync");
  const bool any = form->TakeOneOf({"ballot", "any"}) == 1;
  form->Expect(any ? "pred" : "b32");
  const std::uint32_t to = form->TakeRegister();
  const Value p = form->TakePredicate();
  const Value mask = form->TakeU32();
  return [=](Frame& frame) {
    const std::uint32_t votes = Ballot(p.Read(frame) != 0, mask.Read32(frame));
    Write(frame, to, any ? votes != 0 : votes);
  };
}

// barrier.cluster.arrive.relaxed.aligned, barrier.cluster.wait.acquire.aligned; barrier.cta.sync
// id, threads; barrier.cta.arrive; bar.sync without `threads` for all threads. `bar` implies
// .aligned, and nothing more is checked for it.
Step DecodeBarrier(Form* form) {
  if (form->opcode() == "bar" && form->Take("warp")) {
    form->Expect("sync");
    const Value mask = form->TakeU32();
    return [=](Frame& frame) { SyncWarp("bar.warp.sync", mask.Read32(frame)); };
  }
  if (form->Take("cluster")) {
    if (form->TakeOneOf({"arrive", "wait"}) == 0) {
      form->Expect({"relaxed", "aligned"});
      return [](Frame&) { ArriveCluster(); };
    }
    form->Expect({"acquire", "aligned"});
    return [](Frame&) { WaitCluster(); };
  }
  if (form->opcode() == "barrier") form->Expect("cta");
  const bool waits = form->TakeOneOf({"sync", "arrive"}) == 0;
  const Value id = form->TakeU32();
  const bool named = !waits || form->Peek() != nullptr;
  const Value threads = named ? form->TakeU32() : Value{};
  return [=](Frame& frame) {
    if (named) return NamedBarrier(id.Read32(frame), threads.Read32(frame), waits);
    if (id.Read32(frame) != 0) Fatal("a named barrier of all threads is not interpreted");
    SyncBlock();
  };
}

// ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {r, r, r, r}, [row]
Step DecodeLoadMatrix(Form* form) {
  form->Expect({"sync", "aligned", "m8n8"});
  const std::uint32_t count = form->TakeOneOf({"x4", "x2"}) == 0 ? 4 : 2;
  const bool transposed = form->Take("trans");
  form->Expect({"shared", "b16"});
  const std::vector<std::uint32_t> to = form->TakeRegisters(count);
  const Address row = form->TakeAddress();
  return [=](Frame& frame) {
    std::uint32_t registers[4];
    LoadMatrices(registers, count, transposed, AtShared(row.Read(frame)));
    for (std::uint32_t i = 0; i < count; ++i) Write(frame, to[i], registers[i]);
  };
}

Step DecodeMoveMatrix(Form* form) {
  form->Expect({"sync", "aligned", "m8n8", "trans", "b16"});
  const std::uint32_t to = form->TakeRegister();
  const Value a = form->TakeU32();
  return [=](Frame& frame) { Write(frame, to, TransposeMatrix(a.Read32(frame))); };
}

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 d, a, b, c
Step DecodeMultiply(Form* form) {
  form->Expect({"sync", "aligned", "m16n8k16", "row", "col", "f32"});
  const bool is_bf16 = form->TakeOneOf({"bf16", "f16"}) == 0;
  form->Expect({is_bf16 ? "bf16" : "f16", "f32"});
  const Type f32{"f32", 32};
  const std::vector<std::uint32_t> d = form->TakeRegisters(4);
  const std::vector<Value> a = form->TakeValues(f32, 4);
  const std::vector<Value> b = form->TakeValues(f32, 2);
  const std::vector<Value> c = form->TakeValues(f32, 4);
  return [=](Frame& frame) {
    float sums[4];
    std::uint32_t factors[4];
    for (std::size_t i = 0; i < 4; ++i) sums[i] = c[i].ReadFloat(frame);
    for (std::size_t i = 0; i < 4; ++i) factors[i] = a[i].Read32(frame);
    const std::uint32_t others[2] = {b[0].Read32(frame), b[1].Read32(frame)};
    MultiplyAdd(sums, factors, others, is_bf16);
    for (std::size_t i = 0; i < 4; ++i) WriteFloat(frame, d[i], sums[i]);
  };
}

}  // namespace

Step DecodeWarp(Form* form) {
  const absl::string_view opcode = form->opcode();
  if (opcode == "shfl") return DecodeShuffle(form);
  if (opcode == "vote") return DecodeVote(form);
  if (opcode == "bar" || opcode == "barrier") return DecodeBarrier(form);
  if (opcode == "ldmatrix") return DecodeLoadMatrix(form);
  if (opcode == "movmatrix") return DecodeMoveMatrix(form);
  if (opcode == "mma") return DecodeMultiply(form);
  return {};
}

}  // namespace quire::cuda_emulator::ptx

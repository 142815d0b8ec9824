// Asynchronous copies and products, and the instructions that wait for them. The models of the
// emulator (async_copy.h, barrier.h, tensor_map.h, warpgroup.h) decide when bytes arrive and when
// products are computed.

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/dtype.h"
#include "tests/cuda_emulator/async_copy.h"
#include "tests/cuda_emulator/barrier.h"
#include "tests/cuda_emulator/ptx/decode.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/simt.h"
#include "tests/cuda_emulator/tensor_map.h"
#include "tests/cuda_emulator/warp.h"
#include "tests/cuda_emulator/warpgroup.h"

namespace quire::cuda_emulator::ptx {
namespace {

const void* Global(std::uint64_t address) {
  return reinterpret_cast<const void*>(address);
}
std::byte* BarrierAt(std::uint64_t address) {
  return SharedPointer(static_cast<std::uint32_t>(address), 8, 8, "mbarrier");
}

// cp.async.cg.shared.global [to], [from], bytes, bytes to read. The other bytes are zeros.
Step DecodeCopy(Form* form) {
  const bool skips_l1 = form->TakeOneOf({"cg", "ca"}) == 0;
  form->Expect({"shared", "global"});
  const Address to = form->TakeAddress();
  const Address from = form->TakeAddress();
  const auto bytes = static_cast<std::uint32_t>(form->TakeConstant());
  const Value source = form->TakeU32();
  if (bytes != 16 && (skips_l1 || bytes != 4)) {
    form->Fail(absl::StrCat("a copy of ", bytes, " bytes is not interpreted"));
  }
  return [=](Frame& frame) {
    const std::uint32_t read = source.Read32(frame);
    if (read != 0 && read != bytes) {
      Fatal(absl::StrCat("cp.async of ", bytes, " bytes reads ", read, ": all or none"));
    }
    Hint(frame, skips_l1 ? "cp.async.cg" : "cp.async.ca");
    IssueCopy(AtShared(to.Read(frame)), Global(from.Read(frame)), bytes, read != 0);
  };
}

// cp.async.bulk.tensor.2d...multicast::cluster [to], [map, {x, y}], [barrier], ranks
Step DecodeMulticast(Form* form) {
  const Address to = form->TakeAddress();
  const Address from = form->TakeAddress(2);
  const Address barrier = form->TakeAddress();
  const Value ranks = form->TakeValue({"u16", 16});
  return [=](Frame& frame) {
    const auto on = static_cast<std::uint32_t>(barrier.Read(frame));
    BarrierAt(on);
    const std::int32_t coordinates[] = {
        static_cast<std::int32_t>(from.coordinates[0].Read32(frame)),
        static_cast<std::int32_t>(from.coordinates[1].Read32(frame))};
    MulticastBox(AtShared(to.Read(frame)),
                 static_cast<const CUtensorMap*>(Global(from.Read(frame))), on, coordinates,
                 ranks.Read32(frame));
  };
}

Step DecodeBulkCopy(Form* form) {
  const bool tensor = form->Take("tensor");
  const std::uint32_t rank = tensor ? form->TakeOneOf({"2d", "3d"}) == 0 ? 2 : 3 : 0;
  form->Expect({"shared::cluster", "global", "mbarrier::complete_tx::bytes"});
  if (rank == 2 && form->Take("multicast::cluster")) return DecodeMulticast(form);
  form->Expect("L2::cache_hint");
  const Address to = form->TakeAddress();
  const Address from = form->TakeAddress(rank);
  const Value bytes = tensor ? Value{} : form->TakeU32();
  const Address barrier = form->TakeAddress();
  const Value policy = form->TakeU64();
  return [=](Frame& frame) {
    HintPolicy(frame, policy.Read(frame));
    const auto on = static_cast<std::uint32_t>(barrier.Read(frame));
    BarrierAt(on);
    if (!tensor) {
      return LoadBytes(AtShared(to.Read(frame)), Global(from.Read(frame)), bytes.Read32(frame), on);
    }
    std::int32_t coordinates[3] = {};
    for (std::uint32_t i = 0; i < rank; ++i) {
      coordinates[i] = static_cast<std::int32_t>(from.coordinates[i].Read32(frame));
    }
    LoadBox(AtShared(to.Read(frame)), static_cast<const CUtensorMap*>(Global(from.Read(frame))), on,
            rank, coordinates);
  };
}

Step DecodeCp(Form* form) {
  form->Expect("async");
  if (form->Take("bulk")) return DecodeBulkCopy(form);
  if (form->Take("commit_group")) {
    return [](Frame&) { CommitCopies(); };
  }
  if (form->Take("wait_group")) {
    const auto pending = static_cast<std::uint32_t>(form->TakeConstant());
    return [=](Frame&) { WaitCopies(pending); };
  }
  if (!form->Take("mbarrier")) return DecodeCopy(form);
  // Without .noinc the arrival would be one more than the barrier expects.
  form->Expect({"arrive", "noinc", "shared::cta", "b64"});
  const Address barrier = form->TakeAddress();
  return [=](Frame& frame) { ArriveAfterCopies(BarrierAt(barrier.Read(frame))); };
}

// mbarrier.try_wait.parity.shared::cta.b64 p, [barrier], parity. A device may time out before the
// phase is complete, and this does so at random, so the caller must retry.
Step DecodeTryWait(Form* form) {
  form->Expect({"parity", "shared::cta", "b64"});
  const std::uint32_t done = form->TakeRegister();
  const Address barrier = form->TakeAddress();
  const Value parity = form->TakeU32();
  return [=](Frame& frame) {
    const bool waits = BlockRandom().Below(2) == 0;
    if (waits) WaitBarrier(BarrierAt(barrier.Read(frame)), parity.Read32(frame));
    Write(frame, done, waits ? 1 : 0);
  };
}

// An address of the cluster's shared memory as mapa creates it: the rank + 1 in the bits above the
// block's own address.
constexpr std::uint32_t kRankAt = 24;

// mbarrier.arrive.shared::cluster.b64 _, [barrier]
Step DecodeArriveIn(Form* form) {
  form->Expect("b64");
  form->TakeSink();
  const Address barrier = form->TakeAddress();
  return [=](Frame& frame) {
    const std::uint64_t at = barrier.Read(frame);
    if (at >> kRankAt == 0) Fatal("an arrival at an address that is not mapa's");
    ArriveBarrierIn(static_cast<std::uint32_t>(at >> kRankAt) - 1,
                    BarrierAt(at & ((1u << kRankAt) - 1)));
  };
}

// mapa.shared::cluster.u32 d, a, rank
Step DecodeMapToRank(Form* form) {
  form->Expect({"shared::cluster", "u32"});
  const std::uint32_t to = form->TakeRegister();
  const Value address = form->TakeU32();
  const Value rank = form->TakeU32();
  return [=](Frame& frame) {
    Write(frame, to, address.Read(frame) | (rank.Read(frame) + 1) << kRankAt);
  };
}

Step DecodeMbarrier(Form* form) {
  const std::size_t kind = form->TakeOneOf({"init", "arrive", "try_wait"});
  if (kind == 2) return DecodeTryWait(form);
  const bool expects = kind == 1 && form->Take("expect_tx");
  if (kind == 1 && !expects && form->Take("shared::cluster")) return DecodeArriveIn(form);
  form->Expect({"shared::cta", "b64"});
  if (kind == 1) form->TakeSink();
  const Address barrier = form->TakeAddress();
  const Value count = kind == 0 || expects ? form->TakeU32() : Value{};
  return [=](Frame& frame) {
    std::byte* const at = BarrierAt(barrier.Read(frame));
    if (kind == 0) {
      InitBarrier(at, count.Read32(frame));
    } else {
      ArriveBarrier(at, count.Read32(frame));
    }
  };
}

bool Holds(const Frame& frame, const HeldRegisters& held) {
  for (std::size_t i = 0; i < held.registers.size(); ++i) {
    if (frame.registers[held.registers[i]] != std::bit_cast<std::uint32_t>(held.values[i])) {
      return false;
    }
  }
  return true;
}
void CheckHeld(const Frame& frame) {
  for (const auto* const all : {&frame.accumulators, &frame.fragments}) {
    for (const HeldRegisters& held : *all) {
      if (!Holds(frame, held)) Fatal("a register of a wgmma product under way was written");
    }
  }
}
void Load(const Frame& frame, HeldRegisters* held) {
  for (const std::uint32_t reg : held->registers) {
    held->values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(frame.registers[reg])));
  }
}

// Storage of the product's accumulators, which a device keeps in registers. The model keeps the
// address of `values`, which is stable when other entries are added or removed.
HeldRegisters& Accumulators(Frame& frame, const std::vector<std::uint32_t>& registers) {
  for (HeldRegisters& held : frame.accumulators) {
    if (held.registers == registers) return held;
    for (const std::uint32_t reg : registers) {
      if (std::count(held.registers.begin(), held.registers.end(), reg) > 0) {
        Fatal("two wgmma products under way share some of their accumulators");
      }
    }
  }
  frame.accumulators.push_back({.registers = registers, .values = {}});
  Load(frame, &frame.accumulators.back());
  return frame.accumulators.back();
}
void Store(Frame& frame) {
  for (const HeldRegisters& held : frame.accumulators) {
    for (std::size_t i = 0; i < held.registers.size(); ++i) {
      WriteFloat(frame, held.registers[i], held.values[i]);
    }
  }
}

struct Product {
  std::vector<std::uint32_t> d{};
  std::vector<Value> a_registers{};  // empty if A is in shared memory
  Value a{};                         // the descriptor of A in shared memory
  Value b{};
  Value accumulate{};
  DType type = DType::kInvalid;
  bool transposed_b = false;
};

void Issue(Frame& frame, const Product& product) {
  CheckHeld(frame);
  HeldRegisters& held = Accumulators(frame, product.d);
  held.group = frame.product_groups + 1;
  std::uint32_t a[4] = {};
  HeldRegisters fragment{.registers = {}, .values = {}, .group = held.group};
  for (std::size_t i = 0; i < product.a_registers.size(); ++i) {
    a[i] = product.a_registers[i].Read32(frame);
    if (product.a_registers[i].reg == kNoRegister) continue;
    fragment.registers.push_back(product.a_registers[i].reg);
  }
  Load(frame, &fragment);
  frame.fragments.push_back(std::move(fragment));
  IssueProduct(held.values.data(),
               {.columns = static_cast<std::uint32_t>(2 * held.values.size()),
                .type = product.type,
                .transposed_b = product.transposed_b,
                .accumulate = product.accumulate.Read(frame) != 0},
               product.a.Read(frame), product.a_registers.empty() ? nullptr : a,
               product.b.Read(frame));
  Store(frame);
}

void Wait(Frame& frame, std::uint32_t pending) {
  CheckHeld(frame);
  WaitProducts(pending);
  Store(frame);
  const std::uint32_t groups = frame.product_groups;
  const std::uint32_t done = groups > pending ? groups - pending : 0;
  for (auto* const all : {&frame.accumulators, &frame.fragments}) {
    std::erase_if(*all, [=](const HeldRegisters& held) { return held.group <= done; });
  }
}

// wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 d, a, b, accumulate, scale of a, scale of
// b, transposition of a (if it is in shared memory), transposition of b. For e4m3 it is k32 without
// transpositions.
Step DecodeProduct(Form* form) {
  form->Expect({"sync", "aligned"});
  const std::size_t shape = form->TakeOneOf(
      {"m64n32k16", "m64n64k16", "m64n128k16", "m64n256k16", "m64n64k32", "m64n128k32"});
  const bool is_fp8 = shape > 3;
  const std::size_t n = std::size_t{32} << (is_fp8 ? shape - 3 : shape);
  form->Expect("f32");
  const char* const type = is_fp8 ? "e4m3" : "bf16";
  form->Expect({type, type});
  Product product{.d = form->TakeRegisters(n / 2)};
  product.type = is_fp8 ? DType::kF8E4M3 : DType::kBF16;
  const Operand* const a = form->Peek();
  const bool in_registers = !is_fp8 && a != nullptr && a->kind == Operand::Kind::kVector;
  if (in_registers) {
    product.a_registers = form->TakeValues({"b32", 32}, 4);
  } else {
    product.a = form->TakeU64();
  }
  product.b = form->TakeU64();
  product.accumulate = form->TakePredicate();
  for (const char* const factor : {"A", "B"}) {
    const auto scale = static_cast<std::int64_t>(form->TakeConstant());
    if (scale != 1) form->Fail(absl::StrCat("a scale of ", scale, " for ", factor));
  }
  if (is_fp8) return [product = std::move(product)](Frame& frame) { Issue(frame, product); };
  if (!in_registers && form->TakeConstant() != 0) form->Fail("A is transposed");
  const std::uint64_t transposed = form->TakeConstant();
  if (transposed > 1) form->Fail(absl::StrCat("a transposition of ", transposed, " for B"));
  product.transposed_b = transposed == 1;
  return [product = std::move(product)](Frame& frame) { Issue(frame, product); };
}

Step DecodeWgmma(Form* form) {
  if (form->Take("mma_async")) return DecodeProduct(form);
  const std::size_t kind = form->TakeOneOf({"fence", "commit_group", "wait_group"});
  form->Expect({"sync", "aligned"});
  if (kind == 0) {
    return [](Frame&) { FenceProducts(); };
  }
  if (kind == 1) {
    return [](Frame& frame) {
      ++frame.product_groups;
      CommitProducts();
    };
  }
  const auto pending = static_cast<std::uint32_t>(form->TakeConstant());
  return [=](Frame& frame) { Wait(frame, pending); };
}

Step DecodeGridDependency(Form* form) {
  if (form->TakeOneOf({"wait", "launch_dependents"}) == 1) {
    return [](Frame& frame) { Hint(frame, "launch_dependents"); };
  }
  return [](Frame&) { WaitForKernelInFront(); };
}

// setmaxnreg.inc.sync.aligned.u32 n: the budget grows with .inc and shrinks with .dec.
Step DecodeRegisterBudget(Form* form) {
  const bool grows = form->TakeOneOf({"inc", "dec"}) == 0;
  form->Expect({"sync", "aligned", "u32"});
  const auto n = static_cast<std::uint32_t>(form->TakeConstant());
  if (n < 24 || n > 256 || n % 8 != 0) form->Fail(absl::StrCat("a budget of ", n, " registers"));
  return [=](Frame& frame) {
    SyncWarp("setmaxnreg", 0xffffffffu);
    if (grows ? n < frame.register_budget : n > frame.register_budget) {
      Fatal(absl::StrCat("setmaxnreg.", grows ? "inc" : "dec", " from ", frame.register_budget,
                         " to ", n, " registers"));
    }
    frame.register_budget = n;
    Hint(frame, grows ? "setmaxnreg.inc" : "setmaxnreg.dec");
  };
}

}  // namespace

Step DecodeAsync(Form* form) {
  const absl::string_view opcode = form->opcode();
  if (opcode == "cp") return DecodeCp(form);
  if (opcode == "mbarrier") return DecodeMbarrier(form);
  if (opcode == "mapa") return DecodeMapToRank(form);
  if (opcode == "wgmma") return DecodeWgmma(form);
  if (opcode == "griddepcontrol") return DecodeGridDependency(form);
  if (opcode == "setmaxnreg") return DecodeRegisterBudget(form);
  return {};
}

}  // namespace quire::cuda_emulator::ptx

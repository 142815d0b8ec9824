// Loads, stores, atomics, addresses and fences. A generic address is the host's pointer: the
// emulated device shares the address space, and its shared memory is a window in it. One thread
// runs at a time, so a fence has no effect here, but its text is still parsed.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/cuda_emulator/async_copy.h"
#include "tests/cuda_emulator/ptx/decode.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/simt.h"

namespace quire::cuda_emulator::ptx {
namespace {

enum class Space : std::uint8_t { kParameter, kGlobal, kShared, kGeneric };

Space TakeSpace(Form* form) {
  if (form->Take("param")) return Space::kParameter;
  if (form->Take("global")) return Space::kGlobal;
  if (form->Take("shared") || form->Take("shared::cta")) return Space::kShared;
  return Space::kGeneric;
}

std::byte* ToPointer(std::uint64_t address) {
  return reinterpret_cast<std::byte*>(address);
}

// Returns the host location of `bytes` bytes at `address`, with a device's checks.
std::byte* Locate(Space space, std::uint64_t address, std::uint32_t bytes, const char* what) {
  std::byte* p = ToPointer(address);
  if (space == Space::kShared) p = AtShared(address);
  if (space == Space::kShared || (space == Space::kGeneric && IsSharedPointer(p))) {
    SharedAddress(p, bytes, bytes, what);
    return p;
  }
  CheckAligned(p, bytes, what);
  CheckGlobal(p, bytes, what);
  return p;
}

std::uint32_t TakeVectorLength(Form* form) {
  if (form->Take("v2")) return 2;
  return form->Take("v4") ? 4 : 1;
}

// L2 policies as createpolicy encodes them for all addresses (CUTLASS, TMA::CacheHintSm90).
constexpr std::uint64_t kNormal = 0x1000000000000000;
constexpr std::uint64_t kEvictFirst = 0x12F0000000000000;
constexpr std::uint64_t kEvictLast = 0x14F0000000000000;

// Null if the compiler selected the cache operator of a plain load.
const char* TakeCacheOperator(Form* form) {
  if (form->Take("cg")) return "ld.cg";
  if (form->Take("L1::no_allocate")) return "ld.L1::no_allocate";
  form->Take("nc");
  return nullptr;
}

Step DecodeLoad(Form* form) {
  const Space space = TakeSpace(form);
  const char* const hint = space == Space::kGlobal ? TakeCacheOperator(form) : nullptr;
  const bool has_policy = space == Space::kGlobal && form->Take("L2::cache_hint");
  const std::uint32_t count = TakeVectorLength(form);
  const Type type = form->TakeType();
  if (type.IsSigned() && type.bits < 32) form->Fail("sign extension is not interpreted");
  const std::vector<std::uint32_t> to =
      count > 1 ? form->TakeRegisters(count) : std::vector<std::uint32_t>{form->TakeRegister()};
  const Address from = form->TakeAddress();
  const Value policy = has_policy ? form->TakeU64() : Value{};
  const std::uint32_t bytes = type.bits / 8;
  return [=](Frame& frame) {
    if (hint != nullptr) Hint(frame, hint);
    if (has_policy) HintPolicy(frame, policy.Read(frame));
    const std::byte* const p = space == Space::kParameter
                                   ? frame.parameters + from.Read(frame)
                                   : Locate(space, from.Read(frame), bytes * count, "ld");
    for (std::uint32_t i = 0; i < count; ++i) {
      std::uint64_t bits = 0;
      std::memcpy(&bits, p + std::size_t{i} * bytes, bytes);
      Write(frame, to[i], bits);
    }
  };
}

Step DecodeStore(Form* form) {
  const Space space = TakeSpace(form);
  if (space == Space::kParameter) form->Fail("parameters are not written");
  const std::uint32_t count = TakeVectorLength(form);
  const Type type = form->TakeType();
  const Address to = form->TakeAddress();
  const std::vector<Value> values =
      count > 1 ? form->TakeValues(type, count) : std::vector<Value>{form->TakeValue(type)};
  const std::uint32_t bytes = type.bits / 8;
  return [=](Frame& frame) {
    std::byte* const p = Locate(space, to.Read(frame), bytes * count, "st");
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint64_t bits = values[i].Read(frame);
      std::memcpy(p + std::size_t{i} * bytes, &bits, bytes);
    }
  };
}

template <typename T>
T Combine(std::size_t operation, T before, T x) {
  switch (operation) {
    case 0:
      return before + x;
    case 1:
      return before < x ? x : before;
    case 2:
      return x < before ? x : before;
    default:
      return before | x;
  }
}
template <typename T>
std::uint64_t Exchange(std::size_t operation, std::byte* p, std::uint64_t x) {
  T before;
  std::memcpy(&before, p, sizeof(T));
  const T after = Combine(operation, before, static_cast<T>(x));
  std::memcpy(p, &after, sizeof(T));
  return before;
}

// atom.global.max.u32 d, [a], b. `red` has no d.
Step DecodeAtomic(Form* form) {
  const Space space = TakeSpace(form);
  const std::size_t operation = form->TakeOneOf({"add", "max", "min", "or"});
  const Type type = form->TakeType();
  if (type.IsSigned() || !type.IsInteger() || type.bits < 32) form->Fail("not an unsigned type");
  const std::uint32_t to = form->opcode() == "atom" ? form->TakeRegister() : kNoRegister;
  const Address at = form->TakeAddress();
  const Value x = form->TakeValue(type);
  return [=](Frame& frame) {
    std::byte* const p = Locate(space, at.Read(frame), type.bits / 8, "atom");
    Write(frame, to,
          type.bits == 32 ? Exchange<std::uint32_t>(operation, p, x.Read(frame))
                          : Exchange<std::uint64_t>(operation, p, x.Read(frame)));
  };
}

// cvta.SPACE d, a converts from the space to generic, cvta.to.SPACE back.
Step DecodeAddressConversion(Form* form) {
  const bool to_space = form->Take("to");
  const Space space = TakeSpace(form);
  form->Expect("u64");
  const std::uint32_t to = form->TakeRegister();
  const Value a = form->TakeU64();
  if (space == Space::kGeneric || (space == Space::kParameter && to_space)) {
    form->Fail("a space is missing");
  }
  return [=](Frame& frame) {
    std::uint64_t address = a.Read(frame);
    if (space == Space::kParameter) {
      address += reinterpret_cast<std::uintptr_t>(frame.parameters);
    } else if (space == Space::kShared && to_space) {
      if (!IsSharedPointer(ToPointer(address))) Fatal("cvta.to.shared: not in shared memory");
      address -= reinterpret_cast<std::uintptr_t>(AtShared(0));
    } else if (space == Space::kShared) {
      address = reinterpret_cast<std::uintptr_t>(AtShared(address));
    }
    Write(frame, to, address);
  };
}

Step DecodeFence(Form* form) {
  const std::size_t kind = form->TakeOneOf({"acq_rel", "proxy", "mbarrier_init"});
  if (kind == 0) {
    form->Expect("gpu");
    return [](Frame& frame) { Hint(frame, "fence.acq_rel.gpu"); };
  }
  if (kind == 1) {
    form->Expect({"async", "shared::cta"});
    return [](Frame& frame) { Hint(frame, "fence.proxy.async"); };
  }
  form->Expect({"release", "cluster"});
  return [](Frame& frame) { Hint(frame, "fence.mbarrier_init"); };
}

Step DecodePrefetch(Form* form) {
  form->Expect("tensormap");
  const Address at = form->TakeAddress();
  return [=](Frame& frame) {
    CheckAligned(ToPointer(at.Read(frame)), 64, "prefetch.tensormap");
    Hint(frame, "prefetch.tensormap");
  };
}

Step DecodePolicy(Form* form) {
  form->Expect({"fractional", "L2::evict_first", "b64"});
  const std::uint32_t to = form->TakeRegister();
  return [=](Frame& frame) { Write(frame, to, kEvictFirst); };
}

}  // namespace

std::byte* AtShared(std::uint64_t address) {
  std::byte* const start = SharedStart();
  return start - SharedAddress(start, 0, 16, "shared memory") + address;
}

void Hint(Frame& frame, const char* name) {
  frame.hints->insert(name);
}

void HintPolicy(Frame& frame, std::uint64_t policy) {
  if (policy == kNormal) return Hint(frame, "L2 normal");
  if (policy == kEvictFirst) return Hint(frame, "L2 evict_first");
  if (policy == kEvictLast) return Hint(frame, "L2 evict_last");
  Fatal(absl::StrCat("0x", absl::Hex(policy), " is no policy of L2"));
}

Step DecodeMemory(Form* form) {
  const absl::string_view opcode = form->opcode();
  if (opcode == "ld") return DecodeLoad(form);
  if (opcode == "st") return DecodeStore(form);
  if (opcode == "atom" || opcode == "red") return DecodeAtomic(form);
  if (opcode == "cvta") return DecodeAddressConversion(form);
  if (opcode == "fence") return DecodeFence(form);
  if (opcode == "prefetch") return DecodePrefetch(form);
  if (opcode == "createpolicy") return DecodePolicy(form);
  return {};
}

}  // namespace quire::cuda_emulator::ptx

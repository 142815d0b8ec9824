// Register operations of one thread, and branches. f32 uses the host's IEEE arithmetic. f16 pairs
// are computed in f64 and rounded once.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>

#include "base/dtype.h"
#include "tests/cuda_emulator/ptx/decode.h"

namespace quire::cuda_emulator::ptx {
namespace {

using Bits = std::uint64_t;

std::int64_t Signed(Bits value, const Type& type) {
  return static_cast<std::int64_t>(value << (64 - type.bits)) >> (64 - type.bits);
}

// Rounds to `digits` binary digits with ties to even. The step is at least that at 2^min_exponent.
double RoundTo(double x, int digits, int min_exponent) {
  if (x == 0.0 || !std::isfinite(x)) return x;
  const double step = std::ldexp(1.0, std::max(std::ilogb(x), min_exponent) + 1 - digits);
  return std::nearbyint(x / step) * step;
}

// Returns the bits of the f16 nearest to x. Values from the midpoint between the largest and 2^16
// on are infinite.
Bits ToF16(double x) {
  if (std::isnan(x)) return 0x7fff;
  const double y = RoundTo(x, 11, -14);
  return F16::FromFloat(
             static_cast<float>(std::fabs(y) >= 65536.0 ? std::copysign(INFINITY, x) : y))
      .bits;
}
Bits ToBF16(double x) {
  if (std::isnan(x)) return 0x7fff;
  return BF16::FromFloat(static_cast<float>(RoundTo(x, 8, -126))).bits;
}
Bits ToE4M3Saturating(double x) {
  if (std::isnan(x)) return 0x7f;
  const double y = RoundTo(std::clamp(x, -448.0, 448.0), 4, -6);
  return F8E4M3::FromFloat(static_cast<float>(y)).bits;
}
double FromF16(Bits bits) {
  return double{F16{static_cast<std::uint16_t>(bits)}.ToFloat()};
}
double FromBF16(Bits bits) {
  return double{BF16{static_cast<std::uint16_t>(bits)}.ToFloat()};
}
float ToFloat(Bits bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits));
}
Bits FromFloat(float x) {
  return std::bit_cast<std::uint32_t>(x);
}

template <typename Op>
Step Unary(Form* form, const Type& type, const Op& op) {
  const std::uint32_t to = form->TakeRegister();
  const Value a = form->TakeValue(type);
  return [=](Frame& frame) { Write(frame, to, op(a.Read(frame))); };
}
template <typename Op>
Step Binary(Form* form, const Type& type, const Op& op) {
  const std::uint32_t to = form->TakeRegister();
  const Value a = form->TakeValue(type);
  const Value b = form->TakeValue(type);
  return [=](Frame& frame) { Write(frame, to, op(a.Read(frame), b.Read(frame))); };
}
template <typename Op>
Step Ternary(Form* form, const Type& type, const Type& type_c, const Op& op) {
  const std::uint32_t to = form->TakeRegister();
  const Value a = form->TakeValue(type);
  const Value b = form->TakeValue(type);
  const Value c = form->TakeValue(type_c);
  return [=](Frame& frame) { Write(frame, to, op(a.Read(frame), b.Read(frame), c.Read(frame))); };
}

template <typename Op>
Step IntegerBinary(Form* form, const Type& type, const Op& op) {
  const Bits mask = type.Mask();
  return Binary(form, type, [=](Bits a, Bits b) { return op(a, b) & mask; });
}
template <typename Op>
Step FloatBinary(Form* form, const Op& op) {
  return Binary(form, {"f32", 32},
                [=](Bits a, Bits b) { return FromFloat(op(ToFloat(a), ToFloat(b))); });
}
// Computes each half separately.
template <typename Op>
Step PairBinary(Form* form, const Op& op) {
  return Binary(form, {"f16x2", 32}, [=](Bits a, Bits b) {
    return ToF16(op(FromF16(a), FromF16(b))) | ToF16(op(FromF16(a >> 16), FromF16(b >> 16))) << 16;
  });
}

template <typename Op>
Step BF16PairBinary(Form* form, const Op& op) {
  return Binary(form, {"bf16x2", 32}, [=](Bits a, Bits b) {
    return ToBF16(op(FromBF16(a & 0xffffu), FromBF16(b & 0xffffu))) |
           ToBF16(op(FromBF16(a >> 16), FromBF16(b >> 16))) << 16;
  });
}

Step Unknown(Form* form, const Type& type) {
  form->Fail("type ." + std::string(type.name) + " is not known here");
  return [](Frame&) {};
}

template <typename Op>
Step AddOrSubtract(Form* form, const Op& op) {
  const bool rounds = form->Take("rn");
  const Type type = form->TakeType();
  if (type.name == "f32") return FloatBinary(form, op);
  if (type.name == "f16x2") return PairBinary(form, op);
  if (type.name == "bf16x2") return BF16PairBinary(form, op);
  if (rounds || !type.IsInteger()) return Unknown(form, type);
  return IntegerBinary(form, type, op);
}
Step DecodeAdd(Form* form) {
  return AddOrSubtract(form, [](auto a, auto b) { return a + b; });
}
Step DecodeSub(Form* form) {
  return AddOrSubtract(form, [](auto a, auto b) { return a - b; });
}

Bits Product(Bits a, Bits b, const Type& type) {
  if (!type.IsSigned()) return a * b;
  return static_cast<Bits>(Signed(a, type) * Signed(b, type));
}

Step DecodeMul(Form* form) {
  const bool rounds = form->Take("rn");
  const bool low = !rounds && form->Take("lo");
  const bool wide = !rounds && !low && form->Take("wide");
  const Type type = form->TakeType();
  if (low && type.IsInteger())
    return IntegerBinary(form, type, [](Bits a, Bits b) { return a * b; });
  if (wide && type.IsInteger() && type.bits <= 32) {
    const Bits mask = type.bits == 32 ? ~Bits{0} : 0xffffffffu;
    return Binary(form, type, [=](Bits a, Bits b) { return Product(a, b, type) & mask; });
  }
  const auto multiply = [](auto a, auto b) { return a * b; };
  if (!low && !wide && type.name == "f32") return FloatBinary(form, multiply);
  if (!low && !wide && type.name == "f16x2") return PairBinary(form, multiply);
  return Unknown(form, type);
}

Step DecodeMad(Form* form) {
  const bool wide = form->TakeOneOf({"lo", "wide"}) == 1;
  const Type type = form->TakeType();
  if (!type.IsInteger() || (wide && type.bits != 32)) return Unknown(form, type);
  const Type sum = wide ? Type{"u64", 64} : type;
  const Bits mask = sum.Mask();
  return Ternary(form, type, sum,
                 [=](Bits a, Bits b, Bits c) { return (Product(a, b, type) + c) & mask; });
}

Step DecodeFma(Form* form) {
  form->Expect("rn");
  const Type type = form->TakeType();
  if (type.name == "f32") {
    return Ternary(form, type, type, [](Bits a, Bits b, Bits c) {
      return FromFloat(std::fma(ToFloat(a), ToFloat(b), ToFloat(c)));
    });
  }
  if (type.name == "bf16x2") {
    return Ternary(form, type, type, [](Bits a, Bits b, Bits c) {
      const auto fma = [&](Bits shift) {
        return ToBF16(FromBF16(a >> shift) * FromBF16(b >> shift) + FromBF16(c >> shift)) << shift;
      };
      return fma(0) | fma(16);
    });
  }
  if (type.name != "f16x2") return Unknown(form, type);
  // The product has 22 bits. Where c extends below the precision of the sum in f64, it decides no
  // tie.
  return Ternary(form, type, type, [](Bits a, Bits b, Bits c) {
    return ToF16(FromF16(a) * FromF16(b) + FromF16(c)) |
           ToF16(FromF16(a >> 16) * FromF16(b >> 16) + FromF16(c >> 16)) << 16;
  });
}

Step DecodeMin(Form* form) {
  const Type type = form->TakeType();
  if (type.name == "f32")
    return FloatBinary(form, [](float a, float b) { return std::fmin(a, b); });
  if (!type.IsInteger()) return Unknown(form, type);
  return Binary(form, type, [=](Bits a, Bits b) {
    return (type.IsSigned() ? Signed(a, type) < Signed(b, type) : a < b) ? a : b;
  });
}
Step DecodeMax(Form* form) {
  const Type type = form->TakeType();
  if (type.name == "f32")
    return FloatBinary(form, [](float a, float b) { return std::fmax(a, b); });
  if (!type.IsInteger()) return Unknown(form, type);
  return Binary(form, type, [=](Bits a, Bits b) {
    return (type.IsSigned() ? Signed(a, type) < Signed(b, type) : a < b) ? b : a;
  });
}

Step DecodeDiv(Form* form) {
  form->Expect({"rn", "f32"});
  return FloatBinary(form, [](float a, float b) { return a / b; });
}
Step DecodeSqrt(Form* form) {
  form->Expect({"rn", "f32"});
  return Unary(form, {"f32", 32}, [](Bits a) { return FromFloat(std::sqrt(ToFloat(a))); });
}

// Subnormals are flushed to zeros of their sign.
double Flush(double x) {
  return std::fabs(x) < 0x1p-126 ? std::copysign(0.0, x) : x;
}
Step DecodeExp2(Form* form) {
  form->Expect({"approx", "ftz", "f32"});
  return Unary(form, {"f32", 32}, [](Bits a) {
    return FromFloat(static_cast<float>(Flush(std::exp2(Flush(double{ToFloat(a)})))));
  });
}
Step DecodeReciprocal(Form* form) {
  form->Expect({"approx", "ftz", "f32"});
  return Unary(form, {"f32", 32}, [](Bits a) {
    return FromFloat(static_cast<float>(Flush(1.0 / Flush(double{ToFloat(a)}))));
  });
}

template <typename Op>
Step Logical(Form* form, const Op& op) {
  const Type type = form->TakeType();
  if (type.name[0] != 'b' && type.name != "pred") return Unknown(form, type);
  return Binary(form, type, op);
}
Step DecodeAnd(Form* form) {
  return Logical(form, [](Bits a, Bits b) { return a & b; });
}
Step DecodeOr(Form* form) {
  return Logical(form, [](Bits a, Bits b) { return a | b; });
}
Step DecodeXor(Form* form) {
  return Logical(form, [](Bits a, Bits b) { return a ^ b; });
}
Step DecodeNot(Form* form) {
  const Type type = form->TakeType();
  const Bits mask = type.Mask();
  return Unary(form, type, [=](Bits a) { return ~a & mask; });
}
Step DecodeNeg(Form* form) {
  const Type type = form->TakeType();
  if (type.name == "f32") return Unary(form, type, [](Bits a) { return a ^ 0x80000000u; });
  if (!type.IsSigned()) return Unknown(form, type);
  const Bits mask = type.Mask();
  return Unary(form, type, [=](Bits a) { return (0 - a) & mask; });
}

// Shift amounts of the width and more shift out all bits.
template <typename Op>
Step Shift(Form* form, const Type& type, const Op& op) {
  const std::uint32_t to = form->TakeRegister();
  const Value a = form->TakeValue(type);
  const Value n = form->TakeU32();
  return [=](Frame& frame) {
    Write(frame, to, op(a.Read(frame), std::min(n.Read32(frame), type.bits)));
  };
}
Step DecodeShl(Form* form) {
  const Type type = form->TakeType();
  return Shift(form, type,
               [=](Bits a, std::uint32_t n) { return n >= type.bits ? 0 : a << n & type.Mask(); });
}
Step DecodeShr(Form* form) {
  const Type type = form->TakeType();
  return Shift(form, type, [=](Bits a, std::uint32_t n) -> Bits {
    if (!type.IsSigned()) return n >= type.bits ? 0 : a >> n;
    return static_cast<Bits>(Signed(a, type) >> std::min(n, type.bits - 1)) & type.Mask();
  });
}

// Bits [at, at + length) of b become the low bits of a.
Step DecodeInsert(Form* form) {
  const Type type = form->TakeType();
  const std::uint32_t to = form->TakeRegister();
  const Value a = form->TakeValue(type);
  const Value b = form->TakeValue(type);
  const Value at = form->TakeU32();
  const Value length = form->TakeU32();
  return [=](Frame& frame) {
    const std::uint32_t first = at.Read32(frame) & 0xffu;
    const std::uint32_t n = std::min(length.Read32(frame) & 0xffu, type.bits);
    const Bits ones = first >= type.bits ? 0 : Type{"", n}.Mask() << first & type.Mask();
    const Bits inserted = first >= type.bits ? 0 : a.Read(frame) << first;
    Write(frame, to, (inserted & ones) | (b.Read(frame) & ~ones));
  };
}
Step DecodeClz(Form* form) {
  form->Expect("b32");
  return Unary(form, {"b32", 32}, [](Bits a) {
    return static_cast<Bits>(std::countl_zero(static_cast<std::uint32_t>(a)));
  });
}
Step DecodePopc(Form* form) {
  form->Expect("b32");
  return Unary(form, {"b32", 32}, [](Bits a) { return static_cast<Bits>(std::popcount(a)); });
}
// Default mode: nibble i of c selects a byte of b:a, or its sign bit eight times.
Step DecodePermute(Form* form) {
  const Type type = form->TakeType();
  if (type.name != "b32") return Unknown(form, type);
  return Ternary(form, type, type, [](Bits a, Bits b, Bits c) {
    Bits result = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
      const Bits nibble = c >> 4 * i & 0xf;
      const Bits source = (nibble & 4) != 0 ? b : a;
      const Bits byte = source >> 8 * (nibble & 3) & 0xff;
      const Bits sign = (byte & 0x80) != 0 ? 0xff : 0;
      result |= ((nibble & 8) != 0 ? sign : byte) << 8 * i;
    }
    return result;
  });
}

template <typename T>
bool Compare(std::size_t how, T a, T b) {
  switch (how) {
    case 0:
      return a == b;
    case 1:
      return a != b;
    case 2:
      return a < b;
    case 3:
      return a <= b;
    case 4:
      return a > b;
    default:
      return a >= b;
  }
}
// Comparisons of floats with NaN are false, also for `ne` (`neu` would be true).
Step DecodeSetp(Form* form) {
  const std::size_t how = form->TakeOneOf({"eq", "ne", "lt", "le", "gt", "ge"});
  const Type type = form->TakeType();
  if (type.IsInteger()) {
    return Binary(form, type, [=](Bits a, Bits b) -> Bits {
      return type.IsSigned() ? Compare(how, Signed(a, type), Signed(b, type)) : Compare(how, a, b);
    });
  }
  if (type.name != "f32") return Unknown(form, type);
  return Binary(form, type, [=](Bits a, Bits b) -> Bits {
    const float x = ToFloat(a);
    const float y = ToFloat(b);
    return !std::isnan(x) && !std::isnan(y) && Compare(how, x, y);
  });
}
Step DecodeSelp(Form* form) {
  const Type type = form->TakeType();
  return Ternary(form, type, {"pred", 1}, [](Bits a, Bits b, Bits p) { return p != 0 ? a : b; });
}

// Also supports the parts of a register as a vector, low part first.
Step DecodeMov(Form* form) {
  const Type type = form->TakeType();
  const bool unpacks = form->Peek() != nullptr && form->Peek()->kind == Operand::Kind::kVector;
  if (unpacks) {
    const std::size_t n = form->Peek()->elements.size();
    const std::vector<std::uint32_t> to = form->TakeRegisters(n);
    const Value a = form->TakeValue(type);
    const Type part{"part", type.bits / static_cast<std::uint32_t>(n)};
    return [=](Frame& frame) {
      Bits rest = a.Read(frame);
      for (const std::uint32_t reg : to) {
        Write(frame, reg, rest & part.Mask());
        rest >>= part.bits;
      }
    };
  }
  const std::uint32_t to = form->TakeRegister();
  if (form->Peek() != nullptr && form->Peek()->kind == Operand::Kind::kVector) {
    const std::size_t n = form->Peek()->elements.size();
    const Type part{"part", type.bits / static_cast<std::uint32_t>(n)};
    const std::vector<Value> parts = form->TakeValues(part, n);
    return [=](Frame& frame) {
      Bits whole = 0;
      for (std::size_t i = 0; i < n; ++i) whole |= parts[i].Read(frame) << part.bits * i;
      Write(frame, to, whole);
    };
  }
  const Value a = form->TakeValue(type);
  return [=](Frame& frame) { Write(frame, to, a.Read(frame)); };
}

// cvt.TO.f32 d, a, b: b becomes the low half.
template <typename Op>
Step ConvertPair(Form* form, std::uint32_t bits, const Op& op) {
  form->Expect("f32");
  return Binary(form, {"f32", 32}, [=](Bits a, Bits b) {
    return op(double{ToFloat(a)}) << bits | op(double{ToFloat(b)});
  });
}
Step DecodeRoundingCvt(Form* form) {
  const bool saturates = form->Take("satfinite");
  const Type to = form->TakeType();
  if (saturates && to.name == "e4m3x2") return ConvertPair(form, 8, ToE4M3Saturating);
  if (!saturates && to.name == "bf16x2") return ConvertPair(form, 16, ToBF16);
  if (saturates || to.name != "f16x2") return Unknown(form, to);
  if (!form->Take("e4m3x2")) return ConvertPair(form, 16, ToF16);
  return Unary(form, {"e4m3x2", 16}, [](Bits a) {
    const auto half = [](Bits code) {
      return ToF16(double{F8E4M3{static_cast<std::uint8_t>(code)}.ToFloat()});
    };
    return half(a) | half(a >> 8) << 16;
  });
}
Step DecodeCvt(Form* form) {
  if (form->Take("rn")) return DecodeRoundingCvt(form);
  const Type to = form->TakeType();
  const Type from = form->TakeType();
  if (to.name == "f32" && from.name == "f16") {
    return Unary(form, from, [](Bits a) { return FromFloat(static_cast<float>(FromF16(a))); });
  }
  if (to.name == "f64" && from.name == "f32") {
    return Unary(form, from, [](Bits a) { return std::bit_cast<Bits>(double{ToFloat(a)}); });
  }
  if (!to.IsInteger() || !from.IsInteger()) return Unknown(form, from);
  return Unary(form, from, [=](Bits a) {
    return (from.IsSigned() ? static_cast<Bits>(Signed(a, from)) : a) & to.Mask();
  });
}

// Bit i of the table is the result if the bits of a, b and c form the number i.
Step DecodeLogic(Form* form) {
  const Type type = form->TakeType();
  const std::uint32_t to = form->TakeRegister();
  const Value a = form->TakeValue(type);
  const Value b = form->TakeValue(type);
  const Value c = form->TakeValue(type);
  const Value table = form->TakeU32();
  return [=](Frame& frame) {
    Bits result = 0;
    for (std::uint32_t bit = 0; bit < type.bits; ++bit) {
      const auto at = [&](const Value& value) { return value.Read(frame) >> bit & 1; };
      const Bits index = at(a) << 2 | at(b) << 1 | at(c);
      result |= (table.Read(frame) >> index & 1) << bit;
    }
    Write(frame, to, result);
  };
}

Step DecodeBra(Form* form) {
  form->Take("uni");
  const std::uint32_t target = form->TakeLabel();
  return [=](Frame& frame) { frame.next = target; };
}
Step DecodeRet(Form* form) {
  const auto end = static_cast<std::uint32_t>(form->kernel().instructions.size());
  return [=](Frame& frame) { frame.next = end; };
}

}  // namespace

Step DecodeArithmetic(Form* form) {
  static const auto& decoders = *new std::map<absl::string_view, Step (*)(Form*)>{
      {"add", DecodeAdd},   {"sub", DecodeSub},    {"mul", DecodeMul},        {"mad", DecodeMad},
      {"fma", DecodeFma},   {"min", DecodeMin},    {"max", DecodeMax},        {"div", DecodeDiv},
      {"sqrt", DecodeSqrt}, {"ex2", DecodeExp2},   {"rcp", DecodeReciprocal}, {"and", DecodeAnd},
      {"or", DecodeOr},     {"xor", DecodeXor},    {"not", DecodeNot},        {"neg", DecodeNeg},
      {"shl", DecodeShl},   {"shr", DecodeShr},    {"bfi", DecodeInsert},     {"clz", DecodeClz},
      {"popc", DecodePopc}, {"lop3", DecodeLogic}, {"prmt", DecodePermute},   {"setp", DecodeSetp},
      {"selp", DecodeSelp}, {"mov", DecodeMov},    {"cvt", DecodeCvt},        {"bra", DecodeBra},
      {"ret", DecodeRet}};
  const auto found = decoders.find(form->opcode());
  return found == decoders.end() ? Step() : found->second(form);
}

}  // namespace quire::cuda_emulator::ptx

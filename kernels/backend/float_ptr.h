#pragma once

// Pointers to activations with their element type. The type is f32 on the CPU, and f32 or bf16 on a
// GPU. The same params struct can therefore be used on both backends.

#include <cstdint>

#include "base/check.h"
#include "base/dtype.h"

namespace quire::kernels {

// Pointer to elements that an op only reads.
class ConstFloatPtr {
 public:
  constexpr ConstFloatPtr() = default;
  constexpr ConstFloatPtr(std::nullptr_t) {}
  constexpr ConstFloatPtr(const float* p) : data_(p), dtype_(DType::kF32) {}
  constexpr ConstFloatPtr(const BF16* p) : data_(p), dtype_(DType::kBF16) {}
  constexpr ConstFloatPtr(const F16* p) : data_(p), dtype_(DType::kF16) {}
  // REQUIRES: dtype is kF32, kBF16 or kF16.
  ConstFloatPtr(const void* data, DType dtype) : data_(data), dtype_(dtype) {}

  const void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  bool is_null() const { return data_ == nullptr; }
  bool is_f32() const { return dtype_ == DType::kF32; }
  // REQUIRES: is_f32() or is_null().
  const float* f32() const {
    QUIRE_DCHECK(is_null() || is_f32());
    return static_cast<const float*>(data_);
  }
  // REQUIRES: the dtype is that of T, or the pointer is null.
  template <typename T>
  const T* as() const {
    QUIRE_DCHECK(is_null() || dtype_ == kDTypeOf<T>);
    return static_cast<const T*>(data_);
  }
  // Returns the pointer advanced by `elements` elements.
  ConstFloatPtr operator+(std::int64_t elements) const {
    return {static_cast<const char*>(data_) + elements * DTypeSize(dtype_), dtype_};
  }
  friend bool operator==(const ConstFloatPtr&, const ConstFloatPtr&) = default;

 private:
  const void* data_ = nullptr;
  DType dtype_ = DType::kF32;
};

// Pointer to elements that an op writes, or reads and writes.
class FloatPtr {
 public:
  constexpr FloatPtr() = default;
  constexpr FloatPtr(std::nullptr_t) {}
  constexpr FloatPtr(float* p) : data_(p), dtype_(DType::kF32) {}
  constexpr FloatPtr(BF16* p) : data_(p), dtype_(DType::kBF16) {}
  constexpr FloatPtr(F16* p) : data_(p), dtype_(DType::kF16) {}
  // REQUIRES: dtype is kF32, kBF16 or kF16.
  FloatPtr(void* data, DType dtype) : data_(data), dtype_(dtype) {}

  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  bool is_null() const { return data_ == nullptr; }
  bool is_f32() const { return dtype_ == DType::kF32; }
  // REQUIRES: is_f32() or is_null().
  float* f32() const {
    QUIRE_DCHECK(is_null() || is_f32());
    return static_cast<float*>(data_);
  }
  // REQUIRES: the dtype is that of T, or the pointer is null.
  template <typename T>
  T* as() const {
    QUIRE_DCHECK(is_null() || dtype_ == kDTypeOf<T>);
    return static_cast<T*>(data_);
  }
  FloatPtr operator+(std::int64_t elements) const {
    return {static_cast<char*>(data_) + elements * DTypeSize(dtype_), dtype_};
  }
  operator ConstFloatPtr() const { return {data_, dtype_}; }

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
};

}  // namespace quire::kernels

#pragma once

// The host emulation of kernels/cuda/thread.cuh, with the same names and contracts.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "tests/cuda_emulator/access_check.h"
#include "tests/cuda_emulator/shared_memory.h"
#include "tests/cuda_emulator/simt.h"
#include "tests/cuda_emulator/warp.h"

// Definitions that the toolkit's headers lack, or that conflict with the host's library, when the
// host compiler reads them.
#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif
#undef __noinline__

namespace quire::kernels::cuda {

namespace emulator = quire::cuda_emulator;

inline constexpr std::uint32_t kWarpSize = 32;
inline constexpr std::uint32_t kFullMask = 0xffffffffu;

// Excludes the emulation's own accesses from the checks of kernel accesses.
#define QUIRE_NOT_CHECKED __attribute__((no_sanitize("thread")))

QUIRE_NOT_CHECKED inline std::uint32_t ThreadIndex() {
  return emulator::current_thread->index;
}
QUIRE_NOT_CHECKED inline std::uint32_t BlockThreads() {
  return emulator::CurrentLaunch().threads;
}
inline std::uint32_t BlockX() {
  return emulator::CurrentBlockX();
}
inline std::uint32_t BlockY() {
  return emulator::CurrentBlockY();
}
QUIRE_NOT_CHECKED inline std::uint32_t GridX() {
  return emulator::CurrentLaunch().blocks_x;
}
QUIRE_NOT_CHECKED inline std::uint32_t GridY() {
  return emulator::CurrentLaunch().blocks_y;
}
QUIRE_NOT_CHECKED inline std::uint32_t Lane() {
  return emulator::current_thread->lane;
}
QUIRE_NOT_CHECKED inline std::uint32_t Warp() {
  emulator::Ballot(true, kFullMask);
  return emulator::current_thread->warp;
}

inline constexpr std::uint32_t kSharedAlignment = 1024;
inline std::byte* SharedMemory() {
  return emulator::SharedStartAligned();
}
inline std::byte* SharedMemory16() {
  return emulator::SharedStart();
}

inline void SyncBlock() {
  emulator::SyncBlock();
}
inline void SyncWarp(std::uint32_t mask = kFullMask) {
  emulator::SyncWarp("SyncWarp", mask);
}
inline void NamedSync(std::uint32_t id, std::uint32_t threads) {
  emulator::NamedBarrier(id, threads, /*wait=*/true);
}
inline void NamedArrive(std::uint32_t id, std::uint32_t threads) {
  emulator::NamedBarrier(id, threads, /*wait=*/false);
}

template <typename T>
T ShuffleXor(T value, std::uint32_t lane_mask, std::uint32_t mask = kFullMask) {
  return emulator::Shuffle(value, emulator::ShuffleKind::kXor, lane_mask, mask);
}
template <typename T>
T Shuffle(T value, std::uint32_t lane, std::uint32_t mask = kFullMask) {
  return emulator::Shuffle(value, emulator::ShuffleKind::kLane, lane, mask);
}
template <typename T>
T ShuffleUp(T value, std::uint32_t delta, std::uint32_t mask = kFullMask) {
  return emulator::Shuffle(value, emulator::ShuffleKind::kUp, delta, mask);
}
inline std::uint32_t Ballot(bool value, std::uint32_t mask = kFullMask) {
  return emulator::Ballot(value, mask);
}
inline bool AnyLane(bool value) {
  return emulator::Ballot(value, kFullMask) != 0;
}

// `change` computes the new value from the old one, which is returned.
template <typename T, typename Change>
QUIRE_NOT_CHECKED __attribute__((always_inline)) inline T Atomic(T* p, Change change,
                                                                 const void* code) {
  emulator::CheckAtomic(p, sizeof(T), code);
  const T before = *p;
  *p = change(before);
  return before;
}
QUIRE_NOT_CHECKED inline std::uint32_t AtomicAdd(std::uint32_t* p, std::uint32_t x) {
  return Atomic(
      p, [x](std::uint32_t v) { return v + x; }, __builtin_return_address(0));
}
QUIRE_NOT_CHECKED inline std::uint64_t AtomicAdd(std::uint64_t* p, std::uint64_t x) {
  return Atomic(
      p, [x](std::uint64_t v) { return v + x; }, __builtin_return_address(0));
}
QUIRE_NOT_CHECKED inline std::uint32_t AtomicMax(std::uint32_t* p, std::uint32_t x) {
  return Atomic(
      p, [x](std::uint32_t v) { return v < x ? x : v; }, __builtin_return_address(0));
}
QUIRE_NOT_CHECKED inline std::uint64_t AtomicMax(std::uint64_t* p, std::uint64_t x) {
  return Atomic(
      p, [x](std::uint64_t v) { return v < x ? x : v; }, __builtin_return_address(0));
}
QUIRE_NOT_CHECKED inline std::uint64_t AtomicMin(std::uint64_t* p, std::uint64_t x) {
  return Atomic(
      p, [x](std::uint64_t v) { return x < v ? x : v; }, __builtin_return_address(0));
}
QUIRE_NOT_CHECKED inline std::uint32_t AtomicOr(std::uint32_t* p, std::uint32_t x) {
  return Atomic(
      p, [x](std::uint32_t v) { return v | x; }, __builtin_return_address(0));
}
inline void DeviceFence() {
  emulator::FenceDevice();
}

inline void DependencyWait() {
  emulator::WaitForKernelInFront();
}
inline void DependencyLaunch() {}

}  // namespace quire::kernels::cuda

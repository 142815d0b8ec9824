#include "base/keyed_hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire {
namespace {

using Lanes = std::array<std::uint64_t, 4>;

constexpr std::size_t kPacketBytes = 32;
using Packet = std::array<std::byte, kPacketBytes>;
constexpr int kFinalRounds = 6;

static_assert(std::endian::native == std::endian::little,
              "packets are read as little-endian words");

// The initial state: hexadecimal digits of pi (section 3 of the paper).
constexpr Lanes kInit0 = {0xdbe6d5d5fe4cce2f, 0xa4093822299f31d0, 0x13198a2e03707344,
                          0x243f6a8885a308d3};
constexpr Lanes kInit1 = {0x3bd39e10cb0ef593, 0xc0acf169b5f18a8c, 0xbe5466cf34e90c6c,
                          0x452821e638d01377};

constexpr std::uint64_t ByteOf(std::uint64_t word, int from, int to) {
  return ((word >> (8 * from)) & 0xff) << (8 * to);
}

// Interleaves the bytes of a pair of 64-bit products, so that each byte of the result depends on
// both and the well-mixed middle bytes reach the ends. Byte i of `lo_out` is byte 3 12 2 5 14 1 15
// 0 of the pair (0-7 the low word, 8-15 the high one), byte i of `hi_out` is byte 11 4 10 13 9 6
// 8 7.
constexpr std::uint64_t ZipLow(std::uint64_t lo, std::uint64_t hi) {
  return ByteOf(lo, 3, 0) | ByteOf(hi, 4, 1) | ByteOf(lo, 2, 2) | ByteOf(lo, 5, 3) |
         ByteOf(hi, 6, 4) | ByteOf(lo, 1, 5) | ByteOf(hi, 7, 6) | ByteOf(lo, 0, 7);
}

constexpr std::uint64_t ZipHigh(std::uint64_t lo, std::uint64_t hi) {
  return ByteOf(hi, 3, 0) | ByteOf(lo, 4, 1) | ByteOf(hi, 2, 2) | ByteOf(hi, 5, 3) |
         ByteOf(hi, 1, 4) | ByteOf(lo, 6, 5) | ByteOf(hi, 0, 6) | ByteOf(lo, 7, 7);
}

void AddZipped(const Lanes& from, Lanes& to) {
  for (std::size_t pair = 0; pair < 4; pair += 2) {
    to[pair] += ZipLow(from[pair], from[pair + 1]);
    to[pair + 1] += ZipHigh(from[pair], from[pair + 1]);
  }
}

constexpr std::uint64_t RotateHalves(std::uint64_t word, int by) {
  const auto low = static_cast<std::uint32_t>(word);
  const auto high = static_cast<std::uint32_t>(word >> 32);
  return std::rotl(low, by) | std::uint64_t{std::rotl(high, by)} << 32;
}

template <typename State>
void Mix(State& s, const Lanes& lanes) {
  for (std::size_t i = 0; i < 4; ++i) {
    s.v1[i] += s.mul0[i] + lanes[i];
    s.mul0[i] ^= (s.v1[i] & 0xffffffff) * (s.v0[i] >> 32);
    s.v0[i] += s.mul1[i];
    s.mul1[i] ^= (s.v0[i] & 0xffffffff) * (s.v1[i] >> 32);
  }
  AddZipped(s.v1, s.v0);
  AddZipped(s.v0, s.v1);
}

// Of the last 1 to 31 bytes: whole 4-byte words stay in place, the 0 to 3 bytes after them go to a
// fixed place.
Packet LastPacket(std::span<const std::byte> rest) {
  Packet packet{};
  const std::size_t size = rest.size();
  const std::size_t tail = size % 4;
  const std::size_t words = size - tail;
  std::copy_n(rest.begin(), words, packet.begin());
  if (size >= 16) {
    std::copy_n(rest.end() - 4, 4, packet.begin() + 28);
  } else if (tail != 0) {
    packet[16] = rest[words];
    packet[17] = rest[words + tail / 2];
    packet[18] = rest[size - 1];
  }
  return packet;
}

template <typename State>
void MixPacket(State& state, const std::byte* packet) {
  Lanes lanes;
  std::memcpy(lanes.data(), packet, sizeof(lanes));
  Mix(state, lanes);
}

#if defined(__x86_64__)

#define QUIRE_AVX2 __attribute__((target("avx2")))

// The state of KeyedHasher, a lane of each word in each quarter.
struct Vectors {
  __m256i v0, v1, mul0, mul1;
};

QUIRE_AVX2 inline __m256i Load(const void* words) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(words));
}

template <typename State>
QUIRE_AVX2 inline Vectors LoadState(const State& s) {
  return {Load(s.v0.data()), Load(s.v1.data()), Load(s.mul0.data()), Load(s.mul1.data())};
}

QUIRE_AVX2 inline void Store(__m256i value, Lanes& lanes) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes.data()), value);
}

template <typename State>
QUIRE_AVX2 inline void StoreState(const Vectors& v, State& s) {
  Store(v.v0, s.v0);
  Store(v.v1, s.v1);
  Store(v.mul0, s.mul0);
  Store(v.mul1, s.mul1);
}

// Mix of all lanes; the shuffle is ZipLow and ZipHigh of both pairs.
QUIRE_AVX2 inline void MixVectors(Vectors& v, __m256i lanes) {
  const __m256i zip = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(3, 12, 2, 5, 14, 1, 15, 0, 11, 4, 10, 13, 9, 6, 8, 7));
  v.v1 = _mm256_add_epi64(v.v1, _mm256_add_epi64(v.mul0, lanes));
  v.mul0 = _mm256_xor_si256(v.mul0, _mm256_mul_epu32(v.v1, _mm256_srli_epi64(v.v0, 32)));
  v.v0 = _mm256_add_epi64(v.v0, v.mul1);
  v.mul1 = _mm256_xor_si256(v.mul1, _mm256_mul_epu32(v.v0, _mm256_srli_epi64(v.v1, 32)));
  v.v0 = _mm256_add_epi64(v.v0, _mm256_shuffle_epi8(v.v1, zip));
  v.v1 = _mm256_add_epi64(v.v1, _mm256_shuffle_epi8(v.v0, zip));
}

template <typename State>
QUIRE_AVX2 void MixPacketsAvx2(State& state, const std::byte* packets, std::size_t count) {
  Vectors v = LoadState(state);
  for (; count > 0; --count, packets += kPacketBytes) MixVectors(v, Load(packets));
  StoreState(v, state);
}

// The packet of what is pending, if anything, and the final rounds.
template <typename State>
QUIRE_AVX2 Hash128 FinishAvx2(const State& state, std::size_t num_pending, const Packet& packet) {
  Vectors v = LoadState(state);
  if (num_pending > 0) {
    const auto size = static_cast<int>(num_pending);
    v.v0 = _mm256_add_epi64(v.v0, _mm256_set1_epi32(size));
    v.v1 = _mm256_or_si256(_mm256_sll_epi32(v.v1, _mm_cvtsi32_si128(size)),
                           _mm256_srl_epi32(v.v1, _mm_cvtsi32_si128(32 - size)));
    MixVectors(v, Load(packet.data()));
  }
  // Lanes 2 3 0 1, the halves of each exchanged.
  const __m256i order = _mm256_setr_epi32(5, 4, 7, 6, 1, 0, 3, 2);
  for (int round = 0; round < kFinalRounds; ++round) {
    MixVectors(v, _mm256_permutevar8x32_epi32(v.v0, order));
  }
  const __m128i sum = _mm_add_epi64(_mm256_castsi256_si128(_mm256_add_epi64(v.v0, v.mul0)),
                                    _mm256_extracti128_si256(_mm256_add_epi64(v.v1, v.mul1), 1));
  return {static_cast<std::uint64_t>(_mm_extract_epi64(sum, 0)),
          static_cast<std::uint64_t>(_mm_extract_epi64(sum, 1))};
}

#else

// Never called: HasVectors() is false.
template <typename State>
void MixPacketsAvx2(State&, const std::byte*, std::size_t) {}
template <typename State>
Hash128 FinishAvx2(const State&, std::size_t, const Packet&) {
  return {};
}

#endif

}  // namespace

bool KeyedHasher::HasVectors() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0;
#else
  return false;
#endif
}

KeyedHasher::KeyedHasher(const HashKey& key, bool vectors) : vectors_(vectors) {
  for (std::size_t i = 0; i < 4; ++i) {
    state_.mul0[i] = kInit0[i];
    state_.mul1[i] = kInit1[i];
    state_.v0[i] = kInit0[i] ^ key.words[i];
    state_.v1[i] = kInit1[i] ^ std::rotl(key.words[i], 32);
  }
}

void KeyedHasher::MixPackets(const std::byte* packets, std::size_t count) {
  if (vectors_) return MixPacketsAvx2(state_, packets, count);
  for (; count > 0; --count, packets += kPacketBytes) MixPacket(state_, packets);
}

KeyedHasher& KeyedHasher::Update(std::span<const std::byte> bytes) {
  if (num_pending_ > 0) {
    const std::size_t take = std::min(bytes.size(), pending_.size() - num_pending_);
    std::copy_n(bytes.begin(), take, pending_.begin() + static_cast<std::ptrdiff_t>(num_pending_));
    num_pending_ += take;
    bytes = bytes.subspan(take);
    if (num_pending_ < pending_.size()) return *this;
    MixPackets(pending_.data(), 1);
    num_pending_ = 0;
  }
  const std::size_t whole = bytes.size() / kPacketBytes;
  if (whole > 0) MixPackets(bytes.data(), whole);
  bytes = bytes.subspan(whole * kPacketBytes);
  std::copy(bytes.begin(), bytes.end(), pending_.begin());
  num_pending_ = bytes.size();
  return *this;
}

KeyedHasher& KeyedHasher::Update(absl::string_view text) {
  return Update(std::as_bytes(std::span<const char>(text.data(), text.size())));
}

// The length of what is pending enters the state, so that trailing zeros make a difference.
Hash128 KeyedHasher::Finish() const {
  Packet packet;
  if (num_pending_ > 0) packet = LastPacket(std::span(pending_).first(num_pending_));
  if (vectors_) return FinishAvx2(state_, num_pending_, packet);
  State s = state_;
  if (num_pending_ > 0) {
    for (std::size_t i = 0; i < 4; ++i) {
      s.v0[i] += (std::uint64_t{num_pending_} << 32) + num_pending_;
      s.v1[i] = RotateHalves(s.v1[i], static_cast<int>(num_pending_));
    }
    MixPacket(s, packet.data());
  }
  for (int round = 0; round < kFinalRounds; ++round) {
    Mix(s, {std::rotl(s.v0[2], 32), std::rotl(s.v0[3], 32), std::rotl(s.v0[0], 32),
            std::rotl(s.v0[1], 32)});
  }
  return {s.v0[0] + s.mul0[0] + s.v1[2] + s.mul1[2], s.v0[1] + s.mul0[1] + s.v1[3] + s.mul1[3]};
}

Hash128 KeyedHash(const HashKey& key, std::span<const std::byte> bytes) {
  return KeyedHasher(key).Update(bytes).Finish();
}

}  // namespace quire

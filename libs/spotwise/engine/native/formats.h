// The number formats of models, and how a tile multiplies in each.
//
// A matrix operand is read in steps of kPair consecutive values of the contracted dimension: one float, or two bfloat16. Sums are
// always float, and have one order on every processor:
//
// - float32: one fused multiply-add a step.
// - bfloat16, order "dot", that of VDPBF16PS: of each pair the odd product, then the even one.
// - bfloat16, order "amx", that of TDPBF16PS: over each block of 16 pairs the even products and the odd ones have sums of their
//   own, from zero; these are added, then added to the sum so far.
//
// Numbers that are not normal count as zero, as in those instructions (`flushing.h`).

#pragma once

#include <type_traits>

#include "amx.h"
#include "simd.h"

// The order of bfloat16 sums that a library is compiled for.
#if !defined(SPOTWISE_ORDER_AMX)
#define SPOTWISE_ORDER_AMX 0
#endif
#if SPOTWISE_HAS_TILES && !SPOTWISE_ORDER_AMX
#error "tiles add in the order amx"
#endif
#if defined(__AVX512BF16__) && !SPOTWISE_ORDER_AMX
#define SPOTWISE_HAS_DOT 1
#else
#define SPOTWISE_HAS_DOT 0
#endif

namespace spotwise {

inline float widen(uint16_t value) {
  const uint32_t bits = uint32_t(value) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// Rounds to nearest, ties to even; what is not normal becomes zero, as by the processor's own instruction.
inline uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
  if ((bits & 0x7f800000u) == 0) return uint16_t(bits >> 16 & 0x8000);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// The first and the second bfloat16 numbers of pairs.
SPOTWISE_INLINE inline Register even_of(BitRegister pairs) { return (Register)(pairs << 16); }
SPOTWISE_INLINE inline Register odd_of(BitRegister pairs) { return (Register)(pairs & 0xffff0000u); }

struct Float32 {
  typedef float Value;
  static constexpr int kPair = 1;
  static float get(const Value* from) { return *from; }
  static void put(Value* to, float value) { *to = value; }
  SPOTWISE_INLINE static Floats get16(const Value* from) { return load(from); }
  SPOTWISE_INLINE static void put16(Value* to, const Floats& value) { store(to, value); }

  typedef float Operand;  // an activation as a tile reads it
  SPOTWISE_INLINE static void put_operands(Operand* to, const Floats& value) { store(to, value); }
};

struct BFloat16 {
  typedef uint16_t Value;
  static constexpr int kPair = 2;
  static float get(const Value* from) { return widen(*from); }
  static void put(Value* to, float value) { *to = narrow(value); }

  SPOTWISE_INLINE static Floats get16(const Value* from) {
    typedef uint16_t Halves __attribute__((vector_size(2 * kWidth), aligned(2), may_alias));
    return floats([&](auto i) SPOTWISE_INLINE {
      return __builtin_convertvector(*(const Halves*)(from + i * kWidth), BitRegister) << 16;
    });
  }

  SPOTWISE_INLINE static void put16(Value* to, const Floats& value) {
#if defined(__AVX512BF16__)
    const __m256bh halves = _mm512_cvtneps_pbh((__m512)value.part[0]);
    std::memcpy(to, &halves, sizeof halves);
#else
    unrolled<kParts>([&](auto i) SPOTWISE_INLINE {
      typedef uint16_t Halves __attribute__((vector_size(2 * kWidth), aligned(2), may_alias));
      *(Halves*)(to + i * kWidth) = __builtin_convertvector(rounded(value.part[i]) >> 16, Halves);
    });
#endif
  }

  // `narrow`, as bits of floats.
  SPOTWISE_INLINE static BitRegister rounded(Register value) {
    const BitRegister bits = (BitRegister)value, size = bits & 0x7fffffffu;
    BitRegister out = (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
    out = size > 0x7f800000u ? (bits & 0xffff0000u) | 0x400000u : out;
    return size < 0x00800000u ? bits & 0x80000000u : out;
  }

#if SPOTWISE_HAS_DOT || SPOTWISE_HAS_TILES
  typedef Value Operand;
  SPOTWISE_INLINE static void put_operands(Operand* to, const Floats& value) { put16(to, value); }
#else
  typedef float Operand;  // widened once, and not in every tile
  SPOTWISE_INLINE static void put_operands(Operand* to, const Floats& value) {
    store(to, floats([&](auto i) SPOTWISE_INLINE { return rounded(value.part[i]); }));
  }
#endif
};

// Whether tiles read activations in another form than that in which they are kept.
template <class Format>
constexpr bool kWidens = !std::is_same_v<typename Format::Operand, typename Format::Value>;

// Whether the processor's tile unit multiplies it.
template <class Format>
constexpr bool kUsesTiles = SPOTWISE_HAS_TILES && Format::kPair == 2;
constexpr int kFewRows = 4;  // of which the tile unit multiplies no more: filling tiles would take longer

// Writes `steps` steps of a panel's pairs as floats, an input after the other; fetches what is `ahead` values further.
template <class Format>
inline void widen_pairs([[maybe_unused]] const typename Format::Value* panel, [[maybe_unused]] int steps,
                        [[maybe_unused]] long ahead, [[maybe_unused]] float* to) {
  if constexpr (kWidens<Format>) {
    for (int step = 0; step < steps; step++) {
      __builtin_prefetch(panel + step * 64L + ahead, 0, 2);
      __builtin_prefetch(panel + step * 64L + 32 + ahead, 0, 2);
      unrolled<2 * kParts>([&](auto part) SPOTWISE_INLINE {
        const BitRegister pairs = *(const BitsAt*)(panel + step * 64L + part * kWidth * 2);
        *(FloatsAt*)(to + step * 64L + part * kWidth) = even_of(pairs);
        *(FloatsAt*)(to + step * 64L + 32 + part * kWidth) = odd_of(pairs);
      });
    }
  }
}

// Writes values as operands.
template <class Format>
inline void widen_values(const typename Format::Value* from, int count, float* to) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, Format::get16(from + i));
  for (; i < count; i++) to[i] = Format::get(from + i);
}

}  // namespace spotwise

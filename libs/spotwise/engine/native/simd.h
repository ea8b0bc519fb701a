// Vectors of sixteen floats, and the two number formats of models.
//
// A matrix operand is read in steps of kPair consecutive values of the contracted dimension: one float, or two bfloat16, the
// operand of the processor's bfloat16 dot product. Sums are always float. Without AVX-512 the compiler lowers the same code to
// the vectors that the processor has, but keeps it in memory; tiles, where nearly all time goes, are written in such vectors.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace spotwise {

constexpr int kLanes = 16;
typedef float Floats __attribute__((vector_size(64), aligned(4)));
typedef int32_t Ints __attribute__((vector_size(64), aligned(4)));
typedef uint32_t Bits __attribute__((vector_size(64), aligned(4)));
typedef uint16_t Halves __attribute__((vector_size(32), aligned(2)));
typedef uint8_t Bytes __attribute__((vector_size(16), aligned(1)));
constexpr int kDoubles = 8;
typedef double Doubles __attribute__((vector_size(64), aligned(8)));
typedef int64_t Longs __attribute__((vector_size(64), aligned(8)));

#if defined(__AVX512F__)
constexpr int kTileRows = 12;  // 12 rows x 2 vectors of sums, 2 of weights: 26 of 32 registers
#else
constexpr int kTileRows = 3;  // 3 rows x 4 vectors of sums of 8 floats, one of weights, 3 of activations: 16 registers
#endif

// What fits into a register.
#if defined(__AVX__)
constexpr int kNativeLanes = 8;
#else
constexpr int kNativeLanes = 4;
#endif
typedef float NativeFloats __attribute__((vector_size(4 * kNativeLanes), aligned(4), may_alias));
typedef uint32_t NativeBits __attribute__((vector_size(4 * kNativeLanes), aligned(4), may_alias));

inline Floats splat(float value) { return value - Floats{}; }

inline Floats load(const float* from) {
  Floats out;
  std::memcpy(&out, from, sizeof out);
  return out;
}

inline void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

inline Floats maximum(Floats a, Floats b) { return a > b ? a : b; }

#if defined(__AVX512F__)
// Reduces halves, quarters, pairs and neighbours. (The unmasked intrinsics leave lanes undefined, about which gcc 12 warns.)
template <class Combine>
inline float fold(Floats v, const Combine& combine) {
  constexpr __mmask16 kAll = 0xffff;
  v = combine(v, (Floats)_mm512_maskz_shuffle_f32x4(kAll, (__m512)v, (__m512)v, 0x4e));
  v = combine(v, (Floats)_mm512_maskz_shuffle_f32x4(kAll, (__m512)v, (__m512)v, 0xb1));
  v = combine(v, (Floats)_mm512_maskz_permute_ps(kAll, (__m512)v, 0x4e));
  v = combine(v, (Floats)_mm512_maskz_permute_ps(kAll, (__m512)v, 0xb1));
  return v[0];
}

inline float sum(Floats v) { return fold(v, [](Floats a, Floats b) { return a + b; }); }
inline float largest(Floats v) { return fold(v, maximum); }
#else
inline float sum(Floats v) {
  float total = 0;
  for (int i = 0; i < kLanes; i++) total += v[i];
  return total;
}

inline float largest(Floats v) {
  float most = v[0];
  for (int i = 1; i < kLanes; i++) most = v[i] > most ? v[i] : most;
  return most;
}
#endif

inline float widen(uint16_t value) {
  uint32_t bits = uint32_t(value) << 16;
  float out;
  std::memcpy(&out, &bits, sizeof out);
  return out;
}

// Rounds to nearest, ties to even.
inline uint16_t narrow(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t((bits >> 16) | 0x40);
  return uint16_t((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

// 2^x for arguments up to 0: relative error below 2e-7 down to -125, and 0 below -150.
// 2^x = 2^n * 2^r, |r| <= 1/2, and 2^r by the polynomial with the least largest relative error.
inline Floats power_of_two(Floats x) {
  x = maximum(x, splat(-200.0f));
#if defined(__AVX512F__)
  const Floats n = (Floats)_mm512_maskz_roundscale_ps(0xffff, (__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  const Floats scaled = x + splat(12582912.0f);  // rounds to an integer in the low bits
  const Floats n = scaled - splat(12582912.0f);
#endif
  const Floats r = x - n;
  Floats poly = splat(1.326472615e-3f);
  poly = poly * r + splat(9.671512991e-3f);
  poly = poly * r + splat(5.550733581e-2f);
  poly = poly * r + splat(2.402224243e-1f);
  poly = poly * r + splat(6.931470037e-1f);
  poly = poly * r + splat(1.0f);
#if defined(__AVX512F__)
  return (Floats)_mm512_maskz_scalef_ps(0xffff, (__m512)poly, (__m512)n);
#else
  return n < splat(-125.0f) ? Floats{} : (Floats)((Ints)poly + ((Ints)scaled << 23));  // the low bits of `scaled` are n
#endif
}

// exp, clamped, for activations and sampling weights: relative error below 3e-7.
// Cephes' reduction: exp(x) = 2^n * exp(r), |r| <= ln(2) / 2.
inline Floats exponential(Floats x) {
  x = maximum(x, splat(-87.0f));
  x = x > splat(88.0f) ? splat(88.0f) : x;
  Floats scaled = x * splat(1.44269504088896341f) + splat(12582912.0f);  // rounds to an integer in the low bits
  Floats n = scaled - splat(12582912.0f);
  Floats r = x - n * splat(0.693359375f) + n * splat(2.12194440e-4f);
  Floats poly = splat(1.9875691500e-4f);
  poly = poly * r + splat(1.3981999507e-3f);
  poly = poly * r + splat(8.3334519073e-3f);
  poly = poly * r + splat(4.1665795894e-2f);
  poly = poly * r + splat(1.6666665459e-1f);
  poly = poly * r + splat(5.0000001201e-1f);
  poly = poly * r * r + r + splat(1.0f);
  Ints exponent = (Ints)scaled << 23;  // the low bits of `scaled` are n
  return (Floats)((Ints)poly + exponent);
}

inline Doubles load_doubles(const float* from) {
  typedef float Eight __attribute__((vector_size(32), aligned(4)));
  Eight floats;
  std::memcpy(&floats, from, sizeof floats);
  return __builtin_convertvector(floats, Doubles);
}

// exp for arguments up to 0, in double: the same reduction, and exp(r) by its series: relative error below 1e-15.
inline Doubles exponential(Doubles x) {
  const Doubles zero = {};
  const Doubles lowest = zero - 708.0;
  x = x > lowest ? x : lowest;
  const Doubles shift = zero + 6755399441055744.0;  // rounds to an integer in the low bits
  const Doubles scaled = x * 1.4426950408889634 + shift;
  const Doubles n = scaled - shift;
  const Doubles r = x - n * 6.93147180369123816490e-01 - n * 1.90821492927058770002e-10;
  Doubles series = zero + 1.0;
#pragma GCC unroll 13
  for (int term = 13; term >= 1; term--) series = series * r * (1.0 / term) + 1.0;
  return (Doubles)((Longs)series + ((Longs)scaled << 52));
}

struct Float32 {
  typedef float Value;
  typedef Floats Pairs;
  typedef float Splat;
  static constexpr int kPair = 1;
  static Pairs pairs(const Value* from) { return load(from); }
  static Splat splat_pair(const Value* from) { return *from; }
  static NativeFloats native_pairs(const Value* from) { return *(const NativeFloats*)from; }
  template <class Vector>
  static Vector dot(Vector sum, Vector b, Splat a) {
    return sum + b * a;
  }
  static float get(const Value* from) { return *from; }
  static void put(Value* to, float value) { *to = value; }
  static Floats get16(const Value* from) { return load(from); }
  static void put16(Value* to, Floats value) { store(to, value); }
};

struct BFloat16 {
  typedef uint16_t Value;
  static constexpr int kPair = 2;
  static float get(const Value* from) { return widen(*from); }
  static void put(Value* to, float value) { *to = narrow(value); }
  static Floats get16(const Value* from) {
    Halves halves;
    std::memcpy(&halves, from, sizeof halves);
    return (Floats)(__builtin_convertvector(halves, Bits) << 16);
  }
#if defined(__AVX512BF16__)
  typedef __m512bh Pairs;
  typedef __m512bh Splat;
  static Pairs pairs(const Value* from) { return (__m512bh)_mm512_loadu_si512(from); }
  static Splat splat_pair(const Value* from) {
    int32_t pair;
    std::memcpy(&pair, from, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
  }
  static Floats dot(Floats sum, Pairs b, Splat a) { return (Floats)_mm512_dpbf16_ps((__m512)sum, b, a); }
  static void put16(Value* to, Floats value) {
    __m256bh halves = _mm512_cvtneps_pbh((__m512)value);
    std::memcpy(to, &halves, sizeof halves);
  }
#else
  typedef Bits Pairs;
  struct Splat {
    float even, odd;
  };
  static Pairs pairs(const Value* from) {
    Bits out;
    std::memcpy(&out, from, sizeof out);
    return out;
  }
  static Splat splat_pair(const Value* from) { return {widen(from[0]), widen(from[1])}; }
  static NativeBits native_pairs(const Value* from) { return *(const NativeBits*)from; }
  template <class Vector, class Words>
  static Vector dot(Vector sum, Words b, Splat a) {
    return sum + (Vector)(b << 16) * a.even + (Vector)(b & 0xffff0000u) * a.odd;
  }
  static void put16(Value* to, Floats value) {
    for (int i = 0; i < kLanes; i++) to[i] = narrow(value[i]);
  }
#endif
};

#if defined(__AVX512F__)
// Otherwise the compiler reloads the weights for every row of a tile.
template <class Vector>
inline void keep_in_register(Vector& value) {
  asm("" : "+v"(value));
}
#endif

#define SPOTWISE_INLINE __attribute__((always_inline))

// Calls `body` with the constants 0..kCount-1. Arrays indexed only by constants in always-inlined code stay in registers; in a
// loop gcc keeps them in memory, which costs a tile of 32 steps a quarter of its time.
template <int kCount, class Body>
SPOTWISE_INLINE inline void unrolled(const Body& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) SPOTWISE_INLINE {
    (body(std::integral_constant<int, kIndex>{}), ...);
  }(std::make_integer_sequence<int, kCount>{});
}

// The sums of a tile: its rows times 2 x 16 columns.
template <int kRows>
using Sums = Floats[kRows][2];

template <int kRows>
SPOTWISE_INLINE inline void clear(Sums<kRows>& sums) {
  unrolled<kRows>([&](auto row) SPOTWISE_INLINE { sums[row][0] = sums[row][1] = Floats{}; });
}

// sums[r] += the dot products of row r of `a` with 2 x 16 columns: `steps` pairs of values, `b0` and `b1` the two vectors of
// a step, `stride` values between steps. With kFetch as many cache lines are prefetched at `next` as are read at `b0` and `b1`.
template <class Format, int kRows, bool kFetch = false>
SPOTWISE_INLINE inline void multiply_tile(const typename Format::Value* a, long row_stride, const typename Format::Value* b0,
                                          const typename Format::Value* b1, long stride, int steps, Sums<kRows>& sums,
                                          const typename Format::Value* next = nullptr) {
#if defined(__AVX512F__)
  for (int step = 0; step < steps; step++) {
    if constexpr (kFetch) {
      __builtin_prefetch(next + step * stride, 0, 2);
      __builtin_prefetch(next + step * stride + stride / 2, 0, 2);
    }
    auto first = Format::pairs(b0 + step * stride);
    auto second = Format::pairs(b1 + step * stride);
    keep_in_register(first);
    keep_in_register(second);
    unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
      const auto value = Format::splat_pair(a + row * row_stride + step * Format::kPair);
      sums[row][0] = Format::dot(sums[row][0], first, value);
      sums[row][1] = Format::dot(sums[row][1], second, value);
    });
  }
#else
  constexpr int kParts = kLanes / kNativeLanes;
  NativeFloats parts[kRows][2 * kParts];
  const auto at = [&](auto row, auto part) SPOTWISE_INLINE {
    return (NativeFloats*)&sums[row][part / kParts] + part % kParts;
  };
  unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
    unrolled<2 * kParts>([&](auto part) SPOTWISE_INLINE { parts[row][part] = *at(row, part); });
  });
  for (int step = 0; step < steps; step++) {
    if constexpr (kFetch) {
      __builtin_prefetch(next + step * stride, 0, 2);
      __builtin_prefetch(next + step * stride + stride / 2, 0, 2);
    }
    unrolled<2 * kParts>([&](auto part) SPOTWISE_INLINE {
      const auto* from = (part < kParts ? b0 : b1) + step * stride + part % kParts * kNativeLanes * Format::kPair;
      const auto weights = Format::native_pairs(from);
      unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
        const auto value = Format::splat_pair(a + row * row_stride + step * Format::kPair);
        parts[row][part] = Format::dot(parts[row][part], weights, value);
      });
    });
  }
  unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
    unrolled<2 * kParts>([&](auto part) SPOTWISE_INLINE { *at(row, part) = parts[row][part]; });
  });
#endif
}

// Calls `body` with `rows`, the rows of a tile (1 to kRows), as a constant.
template <int kRows, class Body>
inline void with_rows(int rows, const Body& body) {
  if constexpr (kRows == 1) {
    body(std::integral_constant<int, 1>{});
  } else {
    if (rows == kRows) {
      body(std::integral_constant<int, kRows>{});
    } else {
      with_rows<kRows - 1>(rows, body);
    }
  }
}

}  // namespace spotwise

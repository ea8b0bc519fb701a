// Vectors of sixteen floats, in as many registers as the processor needs for them, and functions of them.
//
// Every variant gives the same bits: what is fused is written as `fused` (the compiler contracts nothing), a vector is summed by one
// tree, and functions are computed here and not by the C library. Only `generic` has no fused multiply-adds.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace spotwise {

#define SPOTWISE_INLINE __attribute__((always_inline))

// Calls `body` with the constants 0..kCount-1. Arrays indexed only by constants in always-inlined code stay in registers; in a
// loop gcc keeps them in memory, which costs a tile of 32 steps a quarter of its time.
template <int kCount, class Body>
SPOTWISE_INLINE inline void unrolled(const Body& body) {
  [&]<int... kIndex>(std::integer_sequence<int, kIndex...>) SPOTWISE_INLINE {
    (body(std::integral_constant<int, kIndex>{}), ...);
  }(std::make_integer_sequence<int, kCount>{});
}

constexpr int kLanes = 16;
#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
constexpr int kParts = kLanes / kWidth;

// Registers of `kWidth` lanes, and such lanes anywhere in memory.
typedef float Register __attribute__((vector_size(4 * kWidth)));
typedef int32_t IntRegister __attribute__((vector_size(4 * kWidth)));
typedef uint32_t BitRegister __attribute__((vector_size(4 * kWidth)));
typedef float FloatsAt __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));
typedef uint32_t BitsAt __attribute__((vector_size(4 * kWidth), aligned(4), may_alias));

// a * b + c, rounded once.
SPOTWISE_INLINE inline Register fused(Register a, Register b, Register c) {
#if defined(__AVX512F__)
  return (Register)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
  return (Register)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return a * b + c;
#endif
}

inline float fused(float a, float b, float c) {
#if defined(__FMA__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

template <class Part>
struct Vector {
  Part part[kParts];

  // The vector of `body(part)`.
  template <class Body>
  SPOTWISE_INLINE static Vector of(const Body& body) {
    Vector out;
    unrolled<kParts>([&](auto i) SPOTWISE_INLINE { out.part[i] = (Part)body(i); });
    return out;
  }
};

struct Floats : Vector<Register> {};
struct Ints : Vector<IntRegister> {};  // of comparisons: all ones where true

template <class Body>
SPOTWISE_INLINE inline Floats floats(const Body& body) {
  return {Floats::of(body)};
}
template <class Body>
SPOTWISE_INLINE inline Ints ints(const Body& body) {
  return {Ints::of(body)};
}

#define SPOTWISE_OPERATOR(result, make, op)                                   \
  SPOTWISE_INLINE inline result operator op(const Floats& a, const Floats& b) { \
    return make([&](auto i) SPOTWISE_INLINE { return a.part[i] op b.part[i]; }); \
  }
SPOTWISE_OPERATOR(Floats, floats, +)
SPOTWISE_OPERATOR(Floats, floats, -)
SPOTWISE_OPERATOR(Floats, floats, *)
SPOTWISE_OPERATOR(Floats, floats, /)
SPOTWISE_OPERATOR(Ints, ints, <)
SPOTWISE_OPERATOR(Ints, ints, >)
SPOTWISE_OPERATOR(Ints, ints, !=)
#undef SPOTWISE_OPERATOR

SPOTWISE_INLINE inline Ints operator|(const Ints& a, const Ints& b) {
  return ints([&](auto i) SPOTWISE_INLINE { return a.part[i] | b.part[i]; });
}

inline bool any(const Ints& where) {
  int found = 0;
  for (int i = 0; i < kLanes; i++) found |= where.part[i / kWidth][i % kWidth];
  return found != 0;
}

SPOTWISE_INLINE inline Floats splat(float value) {
  return floats([&](auto) SPOTWISE_INLINE { return value - Register{}; });
}

SPOTWISE_INLINE inline Floats operator*(const Floats& a, float b) { return a * splat(b); }
SPOTWISE_INLINE inline Floats operator-(const Floats& a) {
  return floats([&](auto i) SPOTWISE_INLINE { return -a.part[i]; });
}
SPOTWISE_INLINE inline Floats& operator+=(Floats& a, const Floats& b) { return a = a + b; }

SPOTWISE_INLINE inline Floats fused(const Floats& a, const Floats& b, const Floats& c) {
  return floats([&](auto i) SPOTWISE_INLINE { return fused(a.part[i], b.part[i], c.part[i]); });
}

// `a` where the comparison holds, else `b`.
SPOTWISE_INLINE inline Floats select(const Ints& where, const Floats& a, const Floats& b) {
  return floats([&](auto i) SPOTWISE_INLINE { return where.part[i] ? a.part[i] : b.part[i]; });
}

SPOTWISE_INLINE inline Floats maximum(const Floats& a, const Floats& b) { return select(a > b, a, b); }

SPOTWISE_INLINE inline Floats load(const float* from) {
  return floats([&](auto i) SPOTWISE_INLINE { return *(const FloatsAt*)(from + i * kWidth); });
}

SPOTWISE_INLINE inline void store(float* to, const Floats& value) {
  unrolled<kParts>([&](auto i) SPOTWISE_INLINE { *(FloatsAt*)(to + i * kWidth) = value.part[i]; });
}

// Stores numbers from 0 to 255, cut to integers.
SPOTWISE_INLINE inline void store_bytes(uint8_t* to, const Floats& value) {
  typedef uint8_t Bytes __attribute__((vector_size(kWidth), aligned(1), may_alias));
  unrolled<kParts>([&](auto i) SPOTWISE_INLINE {
    *(Bytes*)(to + i * kWidth) = __builtin_convertvector(__builtin_convertvector(value.part[i], IntRegister), Bytes);
  });
}

inline float lane(const Floats& v, int index) { return v.part[index / kWidth][index % kWidth]; }

// Reduces lanes i and i + 8, then i + 4, i + 2, i + 1.
template <class Combine>
SPOTWISE_INLINE inline float fold(const Floats& v, const Combine& combine) {
  float lanes[kLanes];
#if defined(__AVX512F__)
  // The unmasked intrinsics leave lanes undefined, about which gcc 12 warns.
  const __m256 low = _mm512_maskz_extractf32x8_ps(0xff, (__m512)v.part[0], 0);
  const __m256 high = _mm512_maskz_extractf32x8_ps(0xff, (__m512)v.part[0], 1);
#elif defined(__AVX2__)
  const __m256 high = (__m256)v.part[1], low = (__m256)v.part[0];
#endif
#if defined(__AVX2__)
  const auto eight = combine(low, high);
  const auto four = combine(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  _mm_storeu_ps(lanes, four);
  return combine(combine(lanes[0], lanes[2]), combine(lanes[1], lanes[3]));
#else
  store(lanes, v);
  for (int half = kLanes / 2; half; half /= 2)
    for (int i = 0; i < half; i++) lanes[i] = combine(lanes[i], lanes[i + half]);
  return lanes[0];
#endif
}

inline float sum(const Floats& v) {
  return fold(v, [](auto a, auto b) SPOTWISE_INLINE { return decltype(a)(a + b); });
}
inline float largest(const Floats& v) {
  return fold(v, [](auto a, auto b) SPOTWISE_INLINE { return decltype(a)(a > b ? a : b); });
}

// Adds the integer in the low bits of `shifted` (a float beyond 2^23) to the exponents of `x`.
SPOTWISE_INLINE inline Floats scaled_by(const Floats& x, const Floats& shifted) {
  return floats([&](auto i) SPOTWISE_INLINE { return (IntRegister)x.part[i] + ((IntRegister)shifted.part[i] << 23); });
}

// To which an added number is rounded to an integer, in the low bits.
inline Floats rounding() { return splat(12582912.0f); }

// A polynomial by Horner's rule, highest power first.
template <int kTerms>
SPOTWISE_INLINE inline Floats polynomial(const Floats& x, const float (&terms)[kTerms]) {
  Floats out = splat(terms[0]);
  unrolled<kTerms - 1>([&](auto i) SPOTWISE_INLINE { out = fused(out, x, splat(terms[i + 1])); });
  return out;
}

// 2^x for arguments up to 0: relative error below 2e-7 down to -125, and 0 below.
// 2^x = 2^n * 2^r, |r| <= 1/2, and 2^r by the polynomial with the least largest relative error.
inline Floats power_of_two(Floats x) {
  constexpr float kTerms[] = {1.326472615e-3f, 9.671512991e-3f, 5.550733581e-2f, 2.402224243e-1f, 6.931470037e-1f, 1.0f};
  x = maximum(x, splat(-200.0f));
  const Floats shifted = x + rounding();
  const Floats n = shifted - rounding();
  return select(n < splat(-125.0f), Floats{}, scaled_by(polynomial(x - n, kTerms), shifted));
}

// exp, clamped, for activations and sampling weights: relative error below 3e-7.
// Cephes' reduction: exp(x) = 2^n * exp(r), |r| <= ln(2) / 2.
inline Floats exponential(Floats x) {
  constexpr float kTerms[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                              4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  x = maximum(x, splat(-87.0f));
  x = select(x > splat(88.0f), splat(88.0f), x);
  const Floats shifted = fused(x, splat(1.44269504088896341f), rounding());
  const Floats n = shifted - rounding();
  const Floats r = fused(n, splat(2.12194440e-4f), fused(n, splat(-0.693359375f), x));
  return scaled_by(fused(polynomial(r, kTerms) * r, r, r) + splat(1.0f), shifted);
}

// Not passed between compilation units: how the processor passes so many does not matter.
#pragma GCC diagnostic ignored "-Wpsabi"

constexpr int kDoubles = 8;
typedef double Doubles __attribute__((vector_size(64), aligned(8)));
typedef int64_t Longs __attribute__((vector_size(64), aligned(8)));

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

inline double exponential(double x) { return x < -708.0 ? 0.0 : exponential(Doubles{} + x)[0]; }

}  // namespace spotwise

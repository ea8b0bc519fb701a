// Panels of weights that stay quantised, as GGUF's Q8_0, Q4_0, Q4_1, Q4_K, Q5_K and Q6_K define them, and are widened before a
// tile multiplies them.
//
// A panel has 32 output columns, like any other. Each block of inputs is contiguous: scales (and minima) of the 32 columns in
// half precision, then parts of 32 inputs: their own scales in bytes where the kind has them, then the quantised numbers. Numbers
// of four bits share a byte with their neighbour, the even input in the low half: the two values of a pair are unpacked together.
// Further bits follow, 8 or 4 inputs to a byte.
//
// A weight is scale x integer (+ minimum). The product is exact in float32 for all kinds, so that one rounding remains, whether
// the sum is fused or not: the value is that of the `gguf` package, bit for bit. In bfloat16 it is that value, rounded.

#pragma once

#include <vector>

#include "tile.h"

namespace spotwise {

constexpr int kPartInputs = 32;  // inputs that are widened together
constexpr int kPieceParts = 4;   // parts that are widened, then multiplied, in the L1 cache

enum class Kind : int32_t { kPlain = 0, kQ8_0 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ4_K = 4, kQ5_K = 5, kQ6_K = 6 };

// What a kind's blocks have. `raw_bytes` are those of a block in a GGUF file.
struct KindShape {
  int block_parts, raw_bytes;
  bool has_minimum;   // in half precision, beside the scale
  int part_scales;    // bytes a part and column
  int number_bits, further_bits;

  constexpr int header_bytes() const { return kPanel * (has_minimum ? 4 : 2); }
  constexpr int part_bytes() const { return kPanel * (part_scales + kPartInputs * (number_bits + further_bits) / 8); }
  constexpr int block_bytes() const { return header_bytes() + block_parts * part_bytes(); }
};

constexpr KindShape shape_of(Kind kind) {
  switch (kind) {
    case Kind::kQ8_0: return {1, 34, false, 0, 8, 0};
    case Kind::kQ4_0: return {1, 18, false, 0, 4, 0};
    case Kind::kQ4_1: return {1, 20, true, 0, 4, 0};
    case Kind::kQ4_K: return {8, 144, true, 2, 4, 0};
    case Kind::kQ5_K: return {8, 176, true, 2, 4, 1};
    case Kind::kQ6_K: return {8, 210, false, 2, 4, 2};
    default: return {1, 0, false, 0, 0, 0};  // plain
  }
}

// Calls `body` with a quantised kind as a constant.
template <class Body>
inline void with_kind(Kind kind, const Body& body) {
  switch (kind) {
    case Kind::kQ8_0: return body(std::integral_constant<Kind, Kind::kQ8_0>{});
    case Kind::kQ4_0: return body(std::integral_constant<Kind, Kind::kQ4_0>{});
    case Kind::kQ4_1: return body(std::integral_constant<Kind, Kind::kQ4_1>{});
    case Kind::kQ4_K: return body(std::integral_constant<Kind, Kind::kQ4_K>{});
    case Kind::kQ5_K: return body(std::integral_constant<Kind, Kind::kQ5_K>{});
    case Kind::kQ6_K: return body(std::integral_constant<Kind, Kind::kQ6_K>{});
    default: return;
  }
}

// Bytes of a quantised panel; 0 for a plain one.
inline long panel_bytes(Kind kind, int inputs) {
  const KindShape shape = shape_of(kind);
  return kind == Kind::kPlain ? 0 : long(inputs / (shape.block_parts * kPartInputs)) * shape.block_bytes();
}

// As many bytes as a register has numbers, each widened. The compiler's own conversion takes several steps.
inline IntRegister wide_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
  return (IntRegister)_mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
  return (IntRegister)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  return IntRegister{from[0], from[1], from[2], from[3]};
#endif
}

inline IntRegister wide_signed_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
  return (IntRegister)_mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
  return (IntRegister)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  return IntRegister{int8_t(from[0]), int8_t(from[1]), int8_t(from[2]), int8_t(from[3])};
#endif
}

inline Register wide_floats(IntRegister integers) { return __builtin_convertvector(integers, Register); }

// Half precision to single, exactly; also where numbers that are not normal count as zero, since the result always is. What is no
// number becomes one of those that `wide_rounded` keeps.
inline Register wide_halves(const uint8_t* from) {
#if defined(__AVX512F__)
  __m256i halves;
  std::memcpy(&halves, from, sizeof halves);
  const Register found = (Register)_mm512_maskz_cvtph_ps(0xffff, halves);
#elif defined(__AVX2__)
  __m128i halves;
  std::memcpy(&halves, from, sizeof halves);
  const Register found = (Register)_mm256_cvtph_ps(halves);
#else
  typedef uint16_t Narrow __attribute__((vector_size(2 * kWidth)));
  Narrow halves;
  std::memcpy(&halves, from, sizeof halves);
  const BitRegister bits = __builtin_convertvector(halves, BitRegister);
  const BitRegister sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
  const BitRegister small = (BitRegister)(wide_floats((IntRegister)size) * 0x1p-24f);
  const BitRegister usual = (size << 13) + (112u << 23), endless = (size << 13) | 0x7f800000u;
  const Register found = (Register)((size < 0x400u ? small : size < 0x7c00u ? usual : endless) | sign);
#endif
  return found == found ? found : Register{} + __builtin_nanf("");
}

// A weight rounded to bfloat16, as bits of a float: `BFloat16::rounded` of what a weight can be.
SPOTWISE_INLINE inline BitRegister wide_rounded(Register value) {
  const BitRegister bits = (BitRegister)value;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
}

// Two registers of the even and the odd values of pairs, rounded to bfloat16, as a register of pairs.
inline BitRegister wide_pairs(Register even, Register odd) {
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
  static const struct Order {
    alignas(64) uint16_t place[32];
    Order() {
      for (int i = 0; i < 32; i++) place[i] = uint16_t(i / 2 + i % 2 * 16);
    }
  } order;
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
  return (BitRegister)_mm512_maskz_permutexvar_epi16(0xffffffffu, _mm512_load_si512(order.place), halves);
#else
  return wide_rounded(odd) | (wide_rounded(even) >> 16);
#endif
}

// Writes one register of columns of the inputs `input` and `input + 1` of a piece to `out`, which has the layout of a panel.
template <class Format>
inline void put_wide(typename Format::Value* out, int input, int column, Register even, Register odd) {
  if constexpr (Format::kPair == 1) {
    std::memcpy(out + input * kPanel + column, &even, sizeof even);
    std::memcpy(out + (input + 1) * kPanel + column, &odd, sizeof odd);
  } else {
    const BitRegister pairs = wide_pairs(even, odd);
    std::memcpy(out + input * kPanel + 2 * column, &pairs, sizeof pairs);
  }
}

// Widens part `part` of a block for the columns of two registers, from `column` on. `put(input, evens, odds)` receives the values of
// two inputs at a time, each two registers.
typedef Register WideTwo[2];

template <Kind kKind, class Put>
SPOTWISE_INLINE inline void widen_columns(const uint8_t* block, int part, int column, const Put& put) {
  constexpr KindShape kShape = shape_of(kKind);
  constexpr bool kHasMinimum = kShape.has_minimum;
  const uint8_t* own = block + kShape.header_bytes() + part * kShape.part_bytes();
  const uint8_t* numbers = own + kShape.part_scales * kPanel + column;
  const uint8_t* further = numbers + kPartInputs * kPanel * kShape.number_bits / 8;
  WideTwo scale, second = {}, minimum = {};
  unrolled<2>([&](auto r) SPOTWISE_INLINE {
    const int at = column + r * kWidth;
    scale[r] = wide_halves(block + 2 * at);
    if constexpr (kKind == Kind::kQ4_1) minimum[r] = wide_halves(block + 2 * (kPanel + at));
    if constexpr (kKind == Kind::kQ4_K || kKind == Kind::kQ5_K) {
      scale[r] *= wide_floats(wide_bytes(own + at));
      minimum[r] = -(wide_halves(block + 2 * (kPanel + at)) * wide_floats(wide_bytes(own + kPanel + at)));
    }
    if constexpr (kKind == Kind::kQ6_K) {
      second[r] = scale[r] * wide_floats(wide_signed_bytes(own + kPanel + at));
      scale[r] *= wide_floats(wide_signed_bytes(own + at));
    }
  });
  const auto value = [&](IntRegister integer, auto r) SPOTWISE_INLINE {
    if constexpr (kKind == Kind::kQ4_0) integer -= 8;
    if constexpr (kKind == Kind::kQ6_K) integer -= 32;
    if constexpr (kHasMinimum) return fused(wide_floats(integer), scale[r], minimum[r]);
    return wide_floats(integer) * scale[r];
  };
  for (int first = 0; first < kPartInputs; first += 8) {
    if constexpr (kKind == Kind::kQ6_K) {
      if (first == kPartInputs / 2) unrolled<2>([&](auto r) SPOTWISE_INLINE { scale[r] = second[r]; });
    }
    unrolled<4>([&](auto pair) SPOTWISE_INLINE {
      const int input = first + 2 * pair;
      WideTwo evens, odds;
      unrolled<2>([&](auto r) SPOTWISE_INLINE {
        IntRegister even, odd;
        if constexpr (kKind == Kind::kQ8_0) {
          even = wide_signed_bytes(numbers + input * kPanel + r * kWidth);
          odd = wide_signed_bytes(numbers + (input + 1) * kPanel + r * kWidth);
        } else {
          const IntRegister both = wide_bytes(numbers + input / 2 * kPanel + r * kWidth);
          even = both & 15;
          odd = (IntRegister)((BitRegister)both >> 4);
        }
        if constexpr (kShape.further_bits > 0) {
          constexpr int kBits = kShape.further_bits, kInputs = 8 / kBits, kMask = (1 << kBits) - 1;
          constexpr int kShift = 2 * std::remove_cvref_t<decltype(pair)>::value % kInputs * kBits;
          const IntRegister bits = wide_bytes(further + input / kInputs * kPanel + r * kWidth);
          even |= (kShift < 4 ? bits << (kShift < 4 ? 4 - kShift : 0) : bits >> (kShift < 4 ? 0 : kShift - 4)) & kMask << 4;
          constexpr int kNext = kShift + kBits;
          odd |= (kNext < 4 ? bits << (kNext < 4 ? 4 - kNext : 0) : bits >> (kNext < 4 ? 0 : kNext - 4)) & kMask << 4;
        }
        evens[r] = value(even, r);
        odds[r] = value(odd, r);
      });
      put(input, evens, odds);
    });
  }
}

// Widens parts first .. first + count - 1 of a panel to `out`, in the layout of a panel of the format.
template <Kind kKind, class Format>
__attribute__((noinline)) void widen_parts(const uint8_t* panel, int first, int count, typename Format::Value* out) {
  constexpr KindShape kShape = shape_of(kKind);
  for (int part = first; part < first + count; part++, out += kPartInputs * kPanel) {
    const uint8_t* block = panel + long(part / kShape.block_parts) * kShape.block_bytes();
    for (int column = 0; column < kPanel; column += 2 * kWidth) {
      widen_columns<kKind>(block, part % kShape.block_parts, column, [&](int input, const WideTwo& evens, const WideTwo& odds)
                           SPOTWISE_INLINE {
        unrolled<2>([&](auto r) SPOTWISE_INLINE {
          put_wide<Format>(out, input, column + r * kWidth, evens[r], odds[r]);
        });
      });
    }
  }
}

constexpr int kFusedRows = kTileRows < 4 ? kTileRows : 4;

// Whether weights are multiplied as they are widened. Sums that begin anew with each block of inputs take more registers.
template <class Format>
constexpr bool kFuses = kWidth > 4 && (Format::kPair == 1 || !SPOTWISE_ORDER_AMX);

// sums[row] += the products of two inputs' weights with the operands of each row, in the order of `add_products`.
template <class Format, int kRows>
SPOTWISE_INLINE inline void add_two(Register even, Register odd, const typename Format::Operand* a, long row_stride, int r,
                                    WideTwo (&sums)[kRows]) {
  if constexpr (Format::kPair == 1) {
    unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
      sums[row][r] = fused(even, a[row * row_stride] - Register{}, sums[row][r]);
      sums[row][r] = fused(odd, a[row * row_stride + 1] - Register{}, sums[row][r]);
    });
  } else {
#if SPOTWISE_HAS_DOT
    const __m512bh pairs = (__m512bh)wide_pairs(even, odd);
    unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
      int32_t pair;
      std::memcpy(&pair, a + row * row_stride, sizeof pair);
      sums[row][r] = (Register)_mm512_dpbf16_ps((__m512)sums[row][r], pairs, (__m512bh)_mm512_set1_epi32(pair));
    });
#else
    even = (Register)wide_rounded(even);
    odd = (Register)wide_rounded(odd);
    unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
      sums[row][r] = fused(odd, a[row * row_stride + 1] - Register{}, sums[row][r]);
      sums[row][r] = fused(even, a[row * row_stride] - Register{}, sums[row][r]);
    });
#endif
  }
}

// Multiplies rows of `a`, up to kFusedRows, by a panel whose weights are widened in registers; each sum has a plain panel's
// order. `out` has kPanel sums a row.
template <Kind kKind, class Format, int kRows>
__attribute__((noinline)) void multiply_widening(const typename Format::Operand* a, long row_stride, const uint8_t* panel,
                                                 int inputs, float* out) {
  constexpr KindShape kShape = shape_of(kKind);
  constexpr int kTwos = kPanel / (2 * kWidth), kBlock = kShape.block_parts;
  WideTwo totals[kTwos][kRows] = {};
  for (int part = 0; part < inputs / kPartInputs; part++) {
    const uint8_t* block = panel + long(part / kBlock) * kShape.block_bytes();
    const auto* values = a + part * kPartInputs;
    unrolled<kTwos>([&](auto two) SPOTWISE_INLINE {
      WideTwo sums[kRows];
      std::memcpy(sums, totals[two], sizeof sums);
      widen_columns<kKind>(block, part % kBlock, two * 2 * kWidth, [&](int input, const WideTwo& evens, const WideTwo& odds)
                           SPOTWISE_INLINE {
        unrolled<2>([&](auto r) SPOTWISE_INLINE {
          add_two<Format, kRows>(evens[r], odds[r], values + input, row_stride, r, sums);
        });
      });
      std::memcpy(totals[two], sums, sizeof sums);
    });
  }
  for (int two = 0; two < kTwos; two++) {
    for (int row = 0; row < kRows; row++) {
      std::memcpy(out + row * kPanel + two * 2 * kWidth, totals[two][row], sizeof totals[two][row]);
    }
  }
}

template <class Format>
using Widening = void (*)(const uint8_t* panel, int first, int count, typename Format::Value* out);

// `widen_parts` of a kind.
template <class Format>
inline Widening<Format> widening(Kind kind) {
  Widening<Format> found = nullptr;
  with_kind(kind, [&](auto constant) { found = widen_parts<decltype(constant)::value, Format>; });
  return found;
}

// A whole panel, widened, which this thread keeps until its next call.
template <class Format>
inline const typename Format::Value* widened(Kind kind, const uint8_t* panel, int inputs) {
  thread_local std::vector<typename Format::Value> values;
  values.resize(size_t(inputs) * kPanel);
  widening<Format>(kind)(panel, 0, inputs / kPartInputs, values.data());
  return values.data();
}

// Widens output column `column` of a matrix, all of whose panels have `bytes`, to a row of values.
template <class Format>
void widen_column(Kind kind, const uint8_t* panels, long bytes, int inputs, long column, typename Format::Value* row) {
  const uint8_t* panel = panels + column / kPanel * bytes;
  const int lane = int(column % kPanel);
  const auto widen = widening<Format>(kind);
  typename Format::Value part[kPartInputs * kPanel];
  for (int first = 0; first < inputs; first += kPartInputs) {
    widen(panel, first / kPartInputs, 1, part);
    for (int i = 0; i < kPartInputs; i++) {
      row[first + i] = part[(i / Format::kPair * kPanel + lane) * Format::kPair + i % Format::kPair];
    }
  }
}

}  // namespace spotwise

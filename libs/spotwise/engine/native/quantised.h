// Panels of weights that stay quantised, as GGUF's Q8_0, Q4_0, Q4_1, Q4_K, Q5_K and Q6_K define them, and are widened before a
// tile multiplies them.
//
// A panel has 32 output columns, like any other. Each block of inputs is contiguous: scales (and minima) of the 32 columns in
// half precision, then parts of 32 inputs: their own scales in bytes where the kind has them, then the quantised numbers. The 64
// numbers of two inputs are two halves of 32 lanes (`place_of`), so that registers of widened ones are what the format multiplies.
// Numbers of four bits share a byte with those of the other half. Further bits follow, 8 or 4 halves to a byte.
//
// A weight is scale x integer (+ minimum). The product is exact in float32 for all kinds, so that one rounding remains, whether
// the sum is fused or not: the value is that of the `gguf` package, bit for bit. In bfloat16 it is that value, rounded.

#pragma once

#include <algorithm>
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

// Where a number is among those of its pair of inputs: a lane of the first half or of the second.
struct LanePlace {
  int lane, half;
};

// In float32 the halves are the two inputs, each of 32 columns. In bfloat16 the two numbers of a column are neighbours, and of each
// sixteen columns the first eight are in the first half: their registers are rounded to one of pairs.
template <class Format>
constexpr LanePlace place_of(int column, int input) {
  if (Format::kPair == 1) return {column, input % 2};
  const int place = 2 * column + input % 2;
  return {place / 32 * kLanes + place % kLanes, place % 32 / kLanes};
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

// Sixteen bytes, each a number.
SPOTWISE_INLINE inline Ints load_bytes(const uint8_t* from) {
  return ints([&](auto i) SPOTWISE_INLINE { return wide_bytes(from + i * kWidth); });
}
SPOTWISE_INLINE inline Ints load_signed_bytes(const uint8_t* from) {
  return ints([&](auto i) SPOTWISE_INLINE { return wide_signed_bytes(from + i * kWidth); });
}
SPOTWISE_INLINE inline Floats converted(const Ints& integers) {
  return floats([&](auto i) SPOTWISE_INLINE { return __builtin_convertvector(integers.part[i], Register); });
}

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
  const BitRegister small = (BitRegister)(__builtin_convertvector((IntRegister)size, Register) * 0x1p-24f);
  const BitRegister usual = (size << 13) + (112u << 23), endless = (size << 13) | 0x7f800000u;
  const Register found = (Register)((size < 0x400u ? small : size < 0x7c00u ? usual : endless) | sign);
#endif
  return found == found ? found : Register{} + __builtin_nanf("");
}
SPOTWISE_INLINE inline Floats load_halves(const uint8_t* from) {
  return floats([&](auto i) SPOTWISE_INLINE { return wide_halves(from + 2 * i * kWidth); });
}

// A weight rounded to bfloat16, as bits of a float: `BFloat16::rounded` of what a weight can be.
SPOTWISE_INLINE inline BitRegister wide_rounded(Register value) {
  const BitRegister bits = (BitRegister)value;
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u;
}

// Sixteen lanes of both halves of a pair of inputs.
struct Halves {
  Floats half[2];

  // Register `i` of both halves' lanes, one after the other.
  SPOTWISE_INLINE Register at(int i) const { return half[i / kParts].part[i % kParts]; }
};

// What each of eight columns has, twice, for the lanes of one half.
SPOTWISE_INLINE inline Floats doubled(const Floats& v, int half) {
#if defined(__AVX512F__)
  const __m512i lanes = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return {{(Register)_mm512_maskz_permutexvar_ps(0xffff, _mm512_add_epi32(lanes, _mm512_set1_epi32(8 * half)), (__m512)v.part[0])}};
#elif defined(__AVX2__)
  const __m256 own = (__m256)v.part[half];
  return {{(Register)_mm256_permutevar8x32_ps(own, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
           (Register)_mm256_permutevar8x32_ps(own, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7))}};
#else
  return floats([&](auto i) SPOTWISE_INLINE {
    const Register& own = v.part[2 * half + i / 2];
    return i % 2 ? Register{own[2], own[2], own[3], own[3]} : Register{own[0], own[0], own[1], own[1]};
  });
#endif
}

template <class Format>
SPOTWISE_INLINE inline Halves for_lanes(const Floats& of_columns) {
  if constexpr (Format::kPair == 1) return {{of_columns, of_columns}};
  return {{doubled(of_columns, 0), doubled(of_columns, 1)}};
}

// The numbers of sixteen columns at even lanes, or at odd ones.
template <int kOdd>
SPOTWISE_INLINE inline Floats every_second(const Halves& both) {
  return floats([&](auto i) SPOTWISE_INLINE {
    const Register a = both.at(2 * i), b = both.at(2 * i + 1);
#if defined(__AVX512F__)
    const __m512i lanes = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return (Register)_mm512_permutex2var_ps((__m512)a, _mm512_add_epi32(lanes, _mm512_set1_epi32(kOdd)), (__m512)b);
#elif defined(__AVX2__)
    const __m256 found = _mm256_shuffle_ps((__m256)a, (__m256)b, kOdd ? 0xdd : 0x88);
    return (Register)_mm256_permute4x64_pd(_mm256_castps_pd(found), 0xd8);
#else
    return Register{a[kOdd], a[2 + kOdd], b[kOdd], b[2 + kOdd]};
#endif
  });
}

// Pairs of sixteen columns, rounded to bfloat16, as the format's panels have them.
struct WidePairs : Vector<BitRegister> {};

SPOTWISE_INLINE inline WidePairs rounded_pairs(const Halves& both) {
#if defined(__AVX512BF16__)
  return {{(BitRegister)_mm512_cvtne2ps_pbh((__m512)both.half[1].part[0], (__m512)both.half[0].part[0])}};
#else
  const Floats even = every_second<0>(both), odd = every_second<1>(both);
  return {WidePairs::of([&](auto i) SPOTWISE_INLINE { return wide_rounded(odd.part[i]) | (wide_rounded(even.part[i]) >> 16); })};
#endif
}

// Writes sixteen columns of the inputs `input` and `input + 1` of a piece to `out`, which has the layout of a panel.
template <class Format>
SPOTWISE_INLINE inline void put_wide(typename Format::Value* out, int input, int column, const Halves& both) {
  if constexpr (Format::kPair == 1) {
    store(out + input * kPanel + column, both.half[0]);
    store(out + (input + 1) * kPanel + column, both.half[1]);
  } else {
    const WidePairs pairs = rounded_pairs(both);
    unrolled<kParts>([&](auto i) SPOTWISE_INLINE {
      *(BitsAt*)(out + input * kPanel + 2 * (column + i * kWidth)) = pairs.part[i];
    });
  }
}

// Numbers of four bits, of both halves, from sixteen bytes; `kLeast` is that of zero bits.
template <int kLeast>
SPOTWISE_INLINE inline Halves nibbles(const Ints& both) {
#if defined(__AVX512F__)
  alignas(64) static constexpr float kNumbers[] = {kLeast + 0,  kLeast + 1,  kLeast + 2,  kLeast + 3, kLeast + 4,  kLeast + 5,
                                                   kLeast + 6,  kLeast + 7,  kLeast + 8,  kLeast + 9, kLeast + 10, kLeast + 11,
                                                   kLeast + 12, kLeast + 13, kLeast + 14, kLeast + 15};
  const __m512 numbers = _mm512_load_ps(kNumbers);  // looked up by the low four bits of a lane
  const __m512i low = (__m512i)both.part[0];
  return {{{{(Register)_mm512_maskz_permutexvar_ps(0xffff, low, numbers)}},
           {{(Register)_mm512_maskz_permutexvar_ps(0xffff, _mm512_maskz_srli_epi32(0xffff, low, 4), numbers)}}}};
#else
  return {{converted(ints([&](auto i) SPOTWISE_INLINE { return (both.part[i] & 15) + kLeast; })),
           converted(ints([&](auto i) SPOTWISE_INLINE { return (both.part[i] >> 4) + kLeast; }))}};
#endif
}

// The numbers of a pair of inputs, the `slot`-th and the next of a part, for sixteen lanes.
template <Kind kKind>
SPOTWISE_INLINE inline Halves numbers_at(const uint8_t* numbers, [[maybe_unused]] const uint8_t* further, int slot,
                                         [[maybe_unused]] auto shift) {
  constexpr KindShape kShape = shape_of(kKind);
  if constexpr (kShape.number_bits == 8) {
    return {{converted(load_signed_bytes(numbers + slot * kPanel)), converted(load_signed_bytes(numbers + (slot + 1) * kPanel))}};
  } else if constexpr (kShape.further_bits == 0) {
    return nibbles<kKind == Kind::kQ4_0 ? -8 : 0>(load_bytes(numbers + slot / 2 * kPanel));
  } else {
    constexpr int kBits = kShape.further_bits, kMask = ((1 << kBits) - 1) << 4, kLeast = kKind == Kind::kQ6_K ? -32 : 0;
    constexpr int kShift = decltype(shift)::value * kBits;
    const Ints low = load_bytes(numbers + slot / 2 * kPanel), bits = load_bytes(further + slot / (8 / kBits) * kPanel);
    const auto moved = [](IntRegister value, int by) SPOTWISE_INLINE { return by < 0 ? value >> -by : value << by; };
    return {{converted(ints([&](auto i) SPOTWISE_INLINE {
               return ((low.part[i] & 15) | (moved(bits.part[i], 4 - kShift) & kMask)) + kLeast;
             })),
             converted(ints([&](auto i) SPOTWISE_INLINE {
               return (low.part[i] >> 4 | (moved(bits.part[i], 4 - kShift - kBits) & kMask)) + kLeast;
             }))}};
  }
}

constexpr int kSixteens = kWidth == 16 ? 2 : 1;  // of columns, whose widened registers fit beside the sums
typedef Halves WideColumns[kSixteens];

// Widens part `part` of a block for some sixteens of columns, from `column` on. `put(input, values)` receives the values of two inputs
// at a time.
template <Kind kKind, class Format, class Put>
SPOTWISE_INLINE inline void widen_columns(const uint8_t* block, int part, int column, const Put& put) {
  constexpr KindShape kShape = shape_of(kKind);
  constexpr bool kHasMinimum = kShape.has_minimum;
  const uint8_t* own = block + kShape.header_bytes() + part * kShape.part_bytes();
  const uint8_t* numbers = own + kShape.part_scales * kPanel + column;
  const uint8_t* further = numbers + kPartInputs * kPanel * kShape.number_bits / 8;
  WideColumns scale, second = {}, minimum = {};
  unrolled<kSixteens>([&](auto s) SPOTWISE_INLINE {
    const int at = column + s * kLanes;
    Floats unit = load_halves(block + 2 * at);
    if constexpr (kKind == Kind::kQ4_1) minimum[s] = for_lanes<Format>(load_halves(block + 2 * (kPanel + at)));
    if constexpr (kKind == Kind::kQ4_K || kKind == Kind::kQ5_K) {
      unit = unit * converted(load_bytes(own + at));
      minimum[s] = for_lanes<Format>(-(load_halves(block + 2 * (kPanel + at)) * converted(load_bytes(own + kPanel + at))));
    }
    if constexpr (kKind == Kind::kQ6_K) {
      second[s] = for_lanes<Format>(unit * converted(load_signed_bytes(own + kPanel + at)));
      unit = unit * converted(load_signed_bytes(own + at));
    }
    scale[s] = for_lanes<Format>(unit);
  });
  for (int first = 0; first < kPartInputs; first += 8) {
    if constexpr (kKind == Kind::kQ6_K) {
      if (first == kPartInputs / 2) unrolled<kSixteens>([&](auto s) SPOTWISE_INLINE { scale[s] = second[s]; });
    }
    unrolled<4>([&](auto pair) SPOTWISE_INLINE {
      constexpr int kInputs = kShape.further_bits > 0 ? 8 / std::max(1, kShape.further_bits) : 8;  // of a byte of further bits
      constexpr std::integral_constant<int, 2 * decltype(pair)::value % kInputs> shift{};
      WideColumns values;
      unrolled<kSixteens>([&](auto s) SPOTWISE_INLINE {
        const Halves found = numbers_at<kKind>(numbers + s * kLanes, further + s * kLanes, first + 2 * pair, shift);
        unrolled<2>([&](auto half) SPOTWISE_INLINE {
          const Floats &number = found.half[half], &by = scale[s].half[half];
          values[s].half[half] = kHasMinimum ? fused(number, by, minimum[s].half[half]) : number * by;
        });
      });
      put(first + 2 * pair, values);
    });
  }
}

// Widens parts first .. first + count - 1 of a panel to `out`, in the layout of a panel of the format.
template <Kind kKind, class Format>
__attribute__((noinline)) void widen_parts(const uint8_t* panel, int first, int count, typename Format::Value* out) {
  constexpr KindShape kShape = shape_of(kKind);
  for (int part = first; part < first + count; part++, out += kPartInputs * kPanel) {
    const uint8_t* block = panel + long(part / kShape.block_parts) * kShape.block_bytes();
    for (int column = 0; column < kPanel; column += kSixteens * kLanes) {
      widen_columns<kKind, Format>(block, part % kShape.block_parts, column, [&](int input, const WideColumns& values)
                                   SPOTWISE_INLINE {
        unrolled<kSixteens>([&](auto s) SPOTWISE_INLINE { put_wide<Format>(out, input, column + s * kLanes, values[s]); });
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
SPOTWISE_INLINE inline void add_two(const Halves& both, const typename Format::Operand* a, long row_stride, int sixteen,
                                    Floats (&sums)[kRows][kSixteens]) {
  const auto each_row = [&](const auto& body) SPOTWISE_INLINE {
    unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
      sums[row][sixteen] = body(a + row * row_stride, sums[row][sixteen]);
    });
  };
  if constexpr (Format::kPair == 1) {
    each_row([&](const float* at, const Floats& sum) SPOTWISE_INLINE {
      return fused(both.half[1], splat(at[1]), fused(both.half[0], splat(at[0]), sum));
    });
  } else {
#if SPOTWISE_HAS_DOT
    const __m512bh pairs = (__m512bh)rounded_pairs(both).part[0];
    each_row([&](const uint16_t* at, const Floats& sum) SPOTWISE_INLINE {
      int32_t pair;
      std::memcpy(&pair, at, sizeof pair);
      return Floats{{(Register)_mm512_dpbf16_ps((__m512)sum.part[0], pairs, (__m512bh)_mm512_set1_epi32(pair))}};
    });
#elif !SPOTWISE_ORDER_AMX
    const auto rounded = [](const Floats& v) SPOTWISE_INLINE {
      return floats([&](auto i) SPOTWISE_INLINE { return (Register)wide_rounded(v.part[i]); });
    };
    const Floats even = rounded(every_second<0>(both)), odd = rounded(every_second<1>(both));
    each_row([&](const float* at, const Floats& sum) SPOTWISE_INLINE {
      return fused(even, splat(at[0]), fused(odd, splat(at[1]), sum));
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
  constexpr int kTurns = kPanel / (kSixteens * kLanes), kBlock = kShape.block_parts;
  Floats totals[kTurns][kRows][kSixteens] = {};
  for (int part = 0; part < inputs / kPartInputs; part++) {
    const uint8_t* block = panel + long(part / kBlock) * kShape.block_bytes();
    const auto* values = a + part * kPartInputs;
    unrolled<kTurns>([&](auto turn) SPOTWISE_INLINE {
      Floats sums[kRows][kSixteens];
      std::memcpy(sums, totals[turn], sizeof sums);
      widen_columns<kKind, Format>(block, part % kBlock, turn * kSixteens * kLanes, [&](int input, const WideColumns& weights)
                                   SPOTWISE_INLINE {
        unrolled<kSixteens>([&](auto s) SPOTWISE_INLINE {
          add_two<Format, kRows>(weights[s], values + input, row_stride, s, sums);
        });
      });
      std::memcpy(totals[turn], sums, sizeof sums);
    });
  }
  for (int turn = 0; turn < kTurns; turn++) {
    for (int row = 0; row < kRows; row++) {
      for (int s = 0; s < kSixteens; s++) store(out + row * kPanel + (turn * kSixteens + s) * kLanes, totals[turn][row][s]);
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

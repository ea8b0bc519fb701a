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

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "simd.h"

namespace spotwise {

constexpr int kPanelColumns = 2 * kLanes;
constexpr int kPartInputs = 32;  // inputs that are widened together
constexpr int kPieceParts = 4;   // parts that are widened, then multiplied, in the L1 cache

enum class Kind : int32_t { kPlain = 0, kQ8_0 = 1, kQ4_0 = 2, kQ4_1 = 3, kQ4_K = 4, kQ5_K = 5, kQ6_K = 6 };

// What a kind's blocks have. `raw_bytes` are those of a block in a GGUF file.
struct KindShape {
  int block_parts, raw_bytes;
  bool has_minimum;   // in half precision, beside the scale
  int part_scales;    // bytes a part and column
  int number_bits, further_bits;

  constexpr int header_bytes() const { return kPanelColumns * (has_minimum ? 4 : 2); }
  constexpr int part_bytes() const { return kPanelColumns * (part_scales + kPartInputs * (number_bits + further_bits) / 8); }
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

// A register of numbers, as wide as the processor's.
#if defined(__AVX512F__)
constexpr int kWide = 16;
#elif defined(__AVX2__)
constexpr int kWide = 8;
#else
constexpr int kWide = 4;
#endif
typedef float WideFloats __attribute__((vector_size(4 * kWide)));
typedef int32_t WideInts __attribute__((vector_size(4 * kWide)));
typedef uint32_t WideBits __attribute__((vector_size(4 * kWide)));

inline WideInts wide_bytes(const uint8_t* from) {
  typedef uint8_t Narrow __attribute__((vector_size(kWide)));
  Narrow bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(bytes, WideInts);
}

inline WideInts wide_signed_bytes(const uint8_t* from) {
  typedef int8_t Narrow __attribute__((vector_size(kWide)));
  Narrow bytes;
  std::memcpy(&bytes, from, sizeof bytes);
  return __builtin_convertvector(bytes, WideInts);
}

inline WideFloats wide_floats(WideInts integers) { return __builtin_convertvector(integers, WideFloats); }

// Half precision to single, exactly; also where numbers that are not normal count as zero, since the result always is.
inline WideFloats wide_halves(const uint8_t* from) {
#if defined(__AVX512F__)
  __m256i halves;
  std::memcpy(&halves, from, sizeof halves);
  return (WideFloats)_mm512_maskz_cvtph_ps(0xffff, halves);
#elif defined(__AVX2__)
  __m128i halves;
  std::memcpy(&halves, from, sizeof halves);
  return (WideFloats)_mm256_cvtph_ps(halves);
#else
  typedef uint16_t Narrow __attribute__((vector_size(2 * kWide)));
  Narrow halves;
  std::memcpy(&halves, from, sizeof halves);
  const WideBits bits = __builtin_convertvector(halves, WideBits);
  const WideBits sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
  const WideFloats small = wide_floats((WideInts)size) * 0x1p-24f;
  const WideBits usual = (size << 13) + (112u << 23), endless = (size << 13) | 0x7f800000u;
  const WideBits found = size < 0x400u ? (WideBits)small : size < 0x7c00u ? usual : endless;
  return (WideFloats)(found | sign);
#endif
}

// Two registers of the even and the odd values of pairs, rounded to bfloat16, as a register of pairs.
inline WideBits wide_pairs(WideFloats even, WideFloats odd) {
#if defined(__AVX512BF16__) && defined(__AVX512BW__)
  static const struct Order {
    alignas(64) uint16_t place[32];
    Order() {
      for (int i = 0; i < 32; i++) place[i] = uint16_t(i / 2 + i % 2 * 16);
    }
  } order;
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even);
  return (WideBits)_mm512_maskz_permutexvar_epi16(0xffffffffu, _mm512_load_si512(order.place), halves);
#else
  const auto rounded = [](WideFloats value) {  // in the upper half
    const WideBits bits = (WideBits)value;
    const WideBits nearest = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : nearest;
  };
  return (rounded(odd) & 0xffff0000u) | (rounded(even) >> 16);
#endif
}

// Writes one register of columns of the inputs `input` and `input + 1` of a piece to `out`, which has the layout of a panel.
template <class Format>
inline void put_wide(typename Format::Value* out, int input, int column, WideFloats even, WideFloats odd) {
  if constexpr (Format::kPair == 1) {
    std::memcpy(out + input * kPanelColumns + column, &even, sizeof even);
    std::memcpy(out + (input + 1) * kPanelColumns + column, &odd, sizeof odd);
  } else {
    const WideBits pairs = wide_pairs(even, odd);
    std::memcpy(out + input * kPanelColumns + 2 * column, &pairs, sizeof pairs);
  }
}

// Widens part `part` of a block for the columns from `column` on, as many as a register has. `put(input, even, odd)` receives the
// values of two inputs at a time.
template <Kind kKind, class Put>
__attribute__((always_inline)) inline void widen_columns(const uint8_t* block, int part, int column, const Put& put) {
  constexpr KindShape kShape = shape_of(kKind);
  const uint8_t* own = block + kShape.header_bytes() + part * kShape.part_bytes();
  const uint8_t* numbers = own + kShape.part_scales * kPanelColumns + column;
  const uint8_t* further = numbers + kPartInputs * kPanelColumns * kShape.number_bits / 8;
  WideFloats scale = wide_halves(block + 2 * column), second = scale, minimum = {};
  if constexpr (kKind == Kind::kQ4_1) minimum = wide_halves(block + 2 * kPanelColumns + 2 * column);
  if constexpr (kKind == Kind::kQ4_K || kKind == Kind::kQ5_K) {
    scale = second = scale * wide_floats(wide_bytes(own + column));
    minimum = -(wide_halves(block + 2 * kPanelColumns + 2 * column) * wide_floats(wide_bytes(own + kPanelColumns + column)));
  }
  if constexpr (kKind == Kind::kQ6_K) {
    second = scale * wide_floats(wide_signed_bytes(own + kPanelColumns + column));
    scale = scale * wide_floats(wide_signed_bytes(own + column));
  }
  const auto value = [&](WideInts integer, int input) __attribute__((always_inline)) {
    if constexpr (kKind == Kind::kQ4_0) integer -= 8;
    if constexpr (kKind == Kind::kQ6_K) integer -= 32;
    const WideFloats product = wide_floats(integer) * (input < kPartInputs / 2 ? scale : second);
    if constexpr (kShape.has_minimum) return product + minimum;
    return product;
  };
  for (int input = 0; input < kPartInputs; input += 2) {
    WideInts even, odd;
    if constexpr (kKind == Kind::kQ8_0) {
      even = wide_signed_bytes(numbers + input * kPanelColumns);
      odd = wide_signed_bytes(numbers + (input + 1) * kPanelColumns);
    } else {
      const WideInts both = wide_bytes(numbers + input / 2 * kPanelColumns);
      even = both & 15;
      odd = both >> 4;
    }
    if constexpr (kShape.further_bits > 0) {
      constexpr int kBits = kShape.further_bits, kInputs = 8 / kBits, kMask = (1 << kBits) - 1;
      const WideInts bits = wide_bytes(further + input / kInputs * kPanelColumns) >> input % kInputs * kBits;
      even |= (bits & kMask) << 4;
      odd |= (bits >> kBits & kMask) << 4;
    }
    put(input, value(even, input), value(odd, input));
  }
}

// Widens parts first .. first + count - 1 of a panel to `out`, in the layout of a panel of the format.
template <Kind kKind, class Format>
__attribute__((noinline)) void widen_parts(const uint8_t* panel, int first, int count, typename Format::Value* out) {
  constexpr KindShape kShape = shape_of(kKind);
  for (int part = first; part < first + count; part++, out += kPartInputs * kPanelColumns) {
    const uint8_t* block = panel + long(part / kShape.block_parts) * kShape.block_bytes();
    for (int column = 0; column < kPanelColumns; column += kWide) {
      widen_columns<kKind>(block, part % kShape.block_parts, column, [&](int input, WideFloats even, WideFloats odd) {
        put_wide<Format>(out, input, column, even, odd);
      });
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
  values.resize(size_t(inputs) * kPanelColumns);
  widening<Format>(kind)(panel, 0, inputs / kPartInputs, values.data());
  return values.data();
}

// Widens output column `column` of a matrix, all of whose panels have `bytes`, to a row of values.
template <class Format>
void widen_column(Kind kind, const uint8_t* panels, long bytes, int inputs, long column, typename Format::Value* row) {
  const uint8_t* panel = panels + column / kPanelColumns * bytes;
  const int lane = int(column % kPanelColumns);
  const auto widen = widening<Format>(kind);
  typename Format::Value part[kPartInputs * kPanelColumns];
  for (int first = 0; first < inputs; first += kPartInputs) {
    widen(panel, first / kPartInputs, 1, part);
    for (int i = 0; i < kPartInputs; i++) {
      row[first + i] = part[(i / Format::kPair * kPanelColumns + lane) * Format::kPair + i % Format::kPair];
    }
  }
}

// Scale and minimum of a part of Q4_K and Q5_K: 6 bits each, in 12 bytes for the 8 parts of a block.
inline void part_scale_and_minimum(const uint8_t* packed, int part, uint8_t* scale, uint8_t* minimum) {
  if (part < 4) {
    *scale = packed[part] & 63;
    *minimum = packed[part + 4] & 63;
  } else {
    *scale = uint8_t((packed[part + 4] & 15) | (packed[part - 4] >> 6) << 4);
    *minimum = uint8_t((packed[part + 4] >> 4) | (packed[part] >> 6) << 4);
  }
}

// The unsigned number of an input of a part, and the part's scales, as a GGUF block has them.
template <Kind kKind>
struct RawBlock {
  const uint8_t* raw;

  const uint8_t* scale() const { return kKind == Kind::kQ6_K ? raw + 208 : raw; }
  const uint8_t* minimum() const { return raw + 2; }

  void part_scales(int part, uint8_t (&scales)[2]) const {
    if constexpr (kKind == Kind::kQ6_K) {
      scales[0] = raw[192 + 2 * part];
      scales[1] = raw[192 + 2 * part + 1];
    } else {
      part_scale_and_minimum(raw + 4, part, &scales[0], &scales[1]);
    }
  }

  int number(int part, int input) const {
    if constexpr (kKind == Kind::kQ8_0) return raw[2 + input];
    if constexpr (kKind == Kind::kQ4_0) return raw[2 + input % 16] >> input / 16 * 4 & 15;
    if constexpr (kKind == Kind::kQ4_1) return raw[4 + input % 16] >> input / 16 * 4 & 15;
    if constexpr (kKind == Kind::kQ4_K) return raw[16 + part / 2 * 32 + input] >> part % 2 * 4 & 15;
    if constexpr (kKind == Kind::kQ5_K) {
      return (raw[48 + part / 2 * 32 + input] >> part % 2 * 4 & 15) | (raw[16 + input] >> part & 1) << 4;
    }
    const int low = raw[part / 4 * 64 + part % 2 * 32 + input] >> part % 4 / 2 * 4 & 15;
    return low | (raw[128 + part / 4 * 32 + input] >> part % 4 * 2 & 3) << 4;
  }
};

// Packs `outputs` rows of blocks into panels, of which one begins every `stride` bytes; `source_row(column)` returns the row of an
// output column. Columns beyond `outputs` are zero.
template <Kind kKind, class SourceRow>
void pack_blocks(const uint8_t* rows, int outputs, int inputs, uint8_t* packed, long stride, const SourceRow& source_row) {
  constexpr KindShape kShape = shape_of(kKind);
  const int blocks = inputs / (kShape.block_parts * kPartInputs);
  const int panels = (outputs + kPanelColumns - 1) / kPanelColumns;
  std::memset(packed, 0, size_t(panels) * stride);
  for (int column = 0; column < outputs; column++) {
    const uint8_t* row = rows + long(source_row(column)) * blocks * kShape.raw_bytes;
    const int lane = column % kPanelColumns;
    for (int index = 0; index < blocks; index++) {
      uint8_t* block = packed + column / kPanelColumns * stride + long(index) * kShape.block_bytes();
      const RawBlock<kKind> from{row + long(index) * kShape.raw_bytes};
      std::memcpy(block + 2 * lane, from.scale(), 2);
      if constexpr (kShape.has_minimum) std::memcpy(block + 2 * kPanelColumns + 2 * lane, from.minimum(), 2);
      for (int part = 0; part < kShape.block_parts; part++) {
        uint8_t* own = block + kShape.header_bytes() + part * kShape.part_bytes() + lane;
        if constexpr (kShape.part_scales > 0) {
          uint8_t scales[2];
          from.part_scales(part, scales);
          own[0] = scales[0];
          own[kPanelColumns] = scales[1];
        }
        uint8_t* numbers = own + kShape.part_scales * kPanelColumns;
        uint8_t* further = numbers + kPartInputs * kPanelColumns * kShape.number_bits / 8;
        for (int input = 0; input < kPartInputs; input++) {
          const int number = from.number(part, input);
          if constexpr (kShape.number_bits == 8) {
            numbers[input * kPanelColumns] = uint8_t(number);
          } else {
            numbers[input / 2 * kPanelColumns] |= uint8_t((number & 15) << input % 2 * 4);
          }
          if constexpr (kShape.further_bits > 0) {
            constexpr int kInputs = 8 / kShape.further_bits;
            further[input / kInputs * kPanelColumns] |= uint8_t(number >> 4 << input % kInputs * kShape.further_bits);
          }
        }
      }
    }
  }
}

}  // namespace spotwise

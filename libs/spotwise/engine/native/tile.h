// Products of a tile: a few rows times 2 x 16 columns, in registers. Nearly all time goes here.

#pragma once

#include "formats.h"

namespace spotwise {

#if defined(__AVX512F__)
constexpr int kTileRows = 12;  // 12 rows x 2 registers of sums, 2 of weights: 26 of 32 registers
#else
constexpr int kTileRows = 3;  // 3 rows x 4 registers of sums, one of weights, 3 of activations: 16 registers
#endif
constexpr int kTileParts = 2 * kParts;
constexpr int kPanel = 2 * kLanes;  // columns of a tile, and of a panel of weights

// The sums of a tile: its rows times 2 x 16 columns.
template <int kRows>
using Sums = Register[kRows][kTileParts];

template <int kRows>
SPOTWISE_INLINE inline void clear(Sums<kRows>& sums) {
  unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
    unrolled<kTileParts>([&](auto part) SPOTWISE_INLINE { sums[row][part] = Register{}; });
  });
}

// The sums of a row for the tile's columns 16 * half to 16 * half + 15.
template <int kRows>
SPOTWISE_INLINE inline Floats half_of(const Sums<kRows>& sums, int row, int half) {
  return floats([&](auto i) SPOTWISE_INLINE { return sums[row][half * kParts + i]; });
}

template <int kRows>
SPOTWISE_INLINE inline void set_half(Sums<kRows>& sums, int row, int half, const Floats& value) {
  unrolled<kParts>([&](auto i) SPOTWISE_INLINE { sums[row][half * kParts + i] = value.part[i]; });
}

// The weights of a tile's steps, in the three places where they are: `at(step, part)` is where a part's pairs begin; `even` and `odd`
// widen them, of bfloat16.
//
// In a panel of 32 columns; with kFetch what is `ahead` values further is fetched meanwhile.
template <class Format, bool kFetch>
struct PanelPairs {
  const typename Format::Value* panel;
  long ahead;

  SPOTWISE_INLINE const typename Format::Value* at(int step, int part) const {
    return panel + step * long(kPanel) * Format::kPair + part * kWidth * Format::kPair;
  }
  SPOTWISE_INLINE void fetch(int step) const {
    if constexpr (kFetch) {
      __builtin_prefetch(at(step, 0) + ahead, 0, 2);
      __builtin_prefetch(at(step, kParts) + ahead, 0, 2);
    }
  }
  SPOTWISE_INLINE Register even(int step, int part) const { return even_of(*(const BitsAt*)at(step, part)); }
  SPOTWISE_INLINE Register odd(int step, int part) const { return odd_of(*(const BitsAt*)at(step, part)); }
};

// In KV blocks, `stride` values from step to step.
template <class Format>
struct BlockPairs {
  const typename Format::Value *b0, *b1;  // columns 0 to 15 and 16 to 31 of the first step
  long stride;

  SPOTWISE_INLINE const typename Format::Value* at(int step, int part) const {
    return (part < kParts ? b0 : b1) + step * stride + part % kParts * kWidth * Format::kPair;
  }
  SPOTWISE_INLINE void fetch(int) const {}
  SPOTWISE_INLINE Register even(int step, int part) const { return even_of(*(const BitsAt*)at(step, part)); }
  SPOTWISE_INLINE Register odd(int step, int part) const { return odd_of(*(const BitsAt*)at(step, part)); }
};

// Widened: a row of 32 floats for each input.
struct WidenedPairs {
  const float* rows;

  SPOTWISE_INLINE void fetch(int) const {}

  SPOTWISE_INLINE Register even(int step, int part) const { return *(const FloatsAt*)(rows + step * 64L + part * kWidth); }
  SPOTWISE_INLINE Register odd(int step, int part) const { return *(const FloatsAt*)(rows + step * 64L + 32 + part * kWidth); }
};

// Calls `body(row, part, weights)` for all sums of one step, in the order that suits the registers.
template <int kRows, class WeightsOf, class Body>
SPOTWISE_INLINE inline void step_of(const WeightsOf& weights_of, const Body& body) {
#if defined(__AVX512F__)
  auto first = weights_of(std::integral_constant<int, 0>{});
  auto second = weights_of(std::integral_constant<int, 1>{});
  asm("" : "+v"(first), "+v"(second));  // otherwise the compiler reloads the weights for every row of a tile
  unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
    body(row, std::integral_constant<int, 0>{}, first);
    body(row, std::integral_constant<int, 1>{}, second);
  });
#else
  unrolled<kTileParts>([&](auto part) SPOTWISE_INLINE {
    const auto weights = weights_of(part);
    unrolled<kRows>([&](auto row) SPOTWISE_INLINE { body(row, part, weights); });
  });
#endif
}

template <int kRows, class Weights>
SPOTWISE_INLINE inline void add_floats(const float* a, long row_stride, const Weights& weights, int steps, Sums<kRows>& sums) {
  for (int step = 0; step < steps; step++) {
    weights.fetch(step);
    step_of<kRows>([&](auto part) SPOTWISE_INLINE { return Register(*(const FloatsAt*)weights.at(step, part)); },
                   [&](auto row, auto part, const Register& b) SPOTWISE_INLINE {
      sums[row][part] = fused(b, a[row * row_stride + step] - Register{}, sums[row][part]);
    });
  }
}

#if SPOTWISE_HAS_DOT
template <int kRows, class Weights>
SPOTWISE_INLINE inline void add_pairs(const uint16_t* a, long row_stride, const Weights& weights, int steps, Sums<kRows>& sums) {
  for (int step = 0; step < steps; step++) {
    weights.fetch(step);
    step_of<kRows>([&](auto part) SPOTWISE_INLINE { return (__m512bh)_mm512_loadu_si512(weights.at(step, part)); },
                   [&](auto row, auto part, const __m512bh& b) SPOTWISE_INLINE {
      int32_t pair;
      std::memcpy(&pair, a + row * row_stride + 2 * step, sizeof pair);
      sums[row][part] = (Register)_mm512_dpbf16_ps((__m512)sums[row][part], b, (__m512bh)_mm512_set1_epi32(pair));
    });
  }
}
#elif !SPOTWISE_ORDER_AMX
template <int kRows, class Weights>
SPOTWISE_INLINE inline void add_pairs(const float* a, long row_stride, const Weights& weights, int steps, Sums<kRows>& sums) {
  for (int step = 0; step < steps; step++) {
    weights.fetch(step);
    step_of<kRows>([&](auto part) SPOTWISE_INLINE { return weights.odd(step, part); },
                   [&](auto row, auto part, const Register& b) SPOTWISE_INLINE {
      sums[row][part] = fused(b, a[row * row_stride + 2 * step + 1] - Register{}, sums[row][part]);
    });
    step_of<kRows>([&](auto part) SPOTWISE_INLINE { return weights.even(step, part); },
                   [&](auto row, auto part, const Register& b) SPOTWISE_INLINE {
      sums[row][part] = fused(b, a[row * row_stride + 2 * step] - Register{}, sums[row][part]);
    });
  }
}
#else
constexpr int kBlockSteps = 16;  // pairs of a block

// A number of a pair in all lanes; both of a bfloat16 pair are read at once.
SPOTWISE_INLINE inline Register even_of(const float* pair) { return pair[0] - Register{}; }
SPOTWISE_INLINE inline Register odd_of(const float* pair) { return pair[1] - Register{}; }
SPOTWISE_INLINE inline BitRegister both_of(const uint16_t* pair) {
  uint32_t both;
  std::memcpy(&both, pair, sizeof both);
  return both + BitRegister{};
}
SPOTWISE_INLINE inline Register even_of(const uint16_t* pair) { return even_of(both_of(pair)); }
SPOTWISE_INLINE inline Register odd_of(const uint16_t* pair) { return odd_of(both_of(pair)); }

// The even products of a block, then the odd ones: each pass has half the sums, so that they stay in registers.
template <int kRows, class Operand, class Weights>
SPOTWISE_INLINE inline void add_pairs(const Operand* a, long row_stride, const Weights& weights, int steps, Sums<kRows>& sums) {
  alignas(64) Register total[kRows][kTileParts], evens[kRows][kTileParts];
  const auto every = [&](const auto& body) SPOTWISE_INLINE {
    unrolled<kRows>([&](auto row) SPOTWISE_INLINE { unrolled<kTileParts>([&](auto part) SPOTWISE_INLINE { body(row, part); }); });
  };
  every([&](auto row, auto part) SPOTWISE_INLINE { total[row][part] = sums[row][part]; });
  for (int first = 0; first < steps; first += kBlockSteps) {
    const int end = first + kBlockSteps < steps ? first + kBlockSteps : steps;
    Sums<kRows> own;
    clear<kRows>(own);
    for (int step = first; step < end; step++) {
      weights.fetch(step);
      step_of<kRows>([&](auto part) SPOTWISE_INLINE { return weights.even(step, part); },
                     [&](auto row, auto part, const Register& b) SPOTWISE_INLINE {
        own[row][part] = fused(b, even_of(a + row * row_stride + 2 * step), own[row][part]);
      });
    }
    every([&](auto row, auto part) SPOTWISE_INLINE { evens[row][part] = own[row][part]; });
    clear<kRows>(own);
    for (int step = first; step < end; step++) {
      step_of<kRows>([&](auto part) SPOTWISE_INLINE { return weights.odd(step, part); },
                     [&](auto row, auto part, const Register& b) SPOTWISE_INLINE {
        own[row][part] = fused(b, odd_of(a + row * row_stride + 2 * step), own[row][part]);
      });
    }
    every([&](auto row, auto part) SPOTWISE_INLINE { total[row][part] += evens[row][part] + own[row][part]; });
  }
  every([&](auto row, auto part) SPOTWISE_INLINE { sums[row][part] = total[row][part]; });
}
#endif

// sums[r] += the products of row r of `a` with `steps` steps of weights; rows of `a` are `row_stride` operands apart.
template <class Format, int kRows, class Weights>
SPOTWISE_INLINE inline void add_products(const typename Format::Operand* a, long row_stride, const Weights& weights, int steps,
                                         Sums<kRows>& sums) {
  if constexpr (std::is_same_v<Format, Float32>) {
    add_floats<kRows>(a, row_stride, weights, steps, sums);
  } else {
    add_pairs<kRows>(a, row_stride, weights, steps, sums);
  }
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

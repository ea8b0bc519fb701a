// Products of activations with packed weights.
//
// Weights are packed once into panels of 32 output columns, each a contiguous array [inputs / kPair][32][kPair], the order in
// which a tile reads them; activations stay row-major, [rows, inputs]. A panel is loaded into the cache once per block of rows.
// Epilogues (`epilogues.h`) run when a tile's sums are complete.

#pragma once

#include <algorithm>
#include <vector>

#include "quantised.h"
#include "team.h"

namespace spotwise {

constexpr long kBlockBytes = 384 * 1024;  // activations of a block, which stay in the L2 cache
constexpr long kFetchBytes = 64 * 1024;   // largest panel that is prefetched
constexpr int kBlockRows = 192;           // of a block, at most, that keeps sums from chunk to chunk: 24 KiB
// Low tiles of bfloat16 take weights that were widened for all of a block's tiles, in chunks that the L1 cache holds: a multiple of
// the steps of a block of sums. High ones widen as they go.
template <class Format>
constexpr bool kWidensPanels = kWidens<Format> && kTileRows <= 4;
constexpr int kChunkSteps = 64;
constexpr int kWidenedTiles = 4;  // of fewer each widens its own

// Panels of a whole matrix that are left out, before panel `before` of a shard's.
struct PanelGap {
  int before, panels;
};

// What the panels of a matrix are: those before the first gap, between the gaps, and after the second; without gaps the last
// counts. `bytes` are those from panel to panel, where they are not plain.
struct PanelKinds {
  Kind before = Kind::kPlain, between = Kind::kPlain, after = Kind::kPlain;
  long bytes = 0;
};

// One kind for a whole matrix.
inline PanelKinds all_of(Kind kind, int inputs) { return {kind, kind, kind, panel_bytes(kind, inputs)}; }

template <class Format>
struct Packed {
  const typename Format::Value* data;
  int outputs, inputs;
  PanelGap gaps[2];
  PanelKinds kinds = {};

  int panels() const { return (outputs + kPanel - 1) / kPanel; }
  const typename Format::Value* panel(int index) const { return data + place(index) * kPanel * inputs; }
  const uint8_t* quantised(int index) const { return (const uint8_t*)data + place(index) * kinds.bytes; }
  Kind kind(int index) const {
    return index >= gaps[1].before ? kinds.after : index >= gaps[0].before ? kinds.between : kinds.before;
  }

 private:
  long place(int index) const {
    for (const PanelGap& gap : {gaps[1], gaps[0]}) index += index >= gap.before ? gap.panels : 0;
    return index;
  }
};

// Packs row-major weights [outputs, inputs]; columns beyond `outputs` are zero. `source_row(column)` returns the source row of
// an output column, which interleaves gate and up rows.
template <class Format, class SourceRow>
void pack(const typename Format::Value* weights, int outputs, int inputs, typename Format::Value* packed,
          const SourceRow& source_row) {
  const int panels = (outputs + kPanel - 1) / kPanel;
  for (int panel = 0; panel < panels; panel++) {
    typename Format::Value* to = packed + long(panel) * kPanel * inputs;
    for (int lane = 0; lane < kPanel; lane++) {
      const int column = panel * kPanel + lane;
      const typename Format::Value* row = column < outputs ? weights + long(source_row(column)) * inputs : nullptr;
      for (int i = 0; i < inputs; i++) {
        const long place = (long(i / Format::kPair) * kPanel + lane) * Format::kPair + i % Format::kPair;
        to[place] = row ? row[i] : typename Format::Value(0);
      }
    }
  }
}

// Rows in which `multiply` divides a matrix: those of a tile, or of two tiles of the tile unit.
template <class Format>
constexpr int kRowUnit = kUsesTiles<Format> ? 2 * kMostTileRows : kTileRows;

// The sums of rows and a panel, one row after the other.
typedef float PanelSums[kPanel];

// Adds the products of rows [0, height) of `a` with `steps` steps of weights to `sums`, or overwrites them where this is the first
// chunk. Compiled once for all epilogues, since its tiles take most of the compile time.
template <class Format, class Weights>
__attribute__((noinline)) void multiply_panel(const typename Format::Operand* a, long row_stride, int height,
                                              const Weights& weights, int steps, bool is_first, PanelSums* out) {
  with_rows<kTileRows>(height, [&](auto constant) {
    constexpr int kRows = decltype(constant)::value;
    Sums<kRows> sums;
    if (is_first) {
      clear<kRows>(sums);
    } else {
      unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
        set_half<kRows>(sums, row, 0, load(out[row]));
        set_half<kRows>(sums, row, 1, load(out[row] + kLanes));
      });
    }
    add_products<Format, kRows>(a, row_stride, weights, steps, sums);
    unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
      store(out[row], half_of<kRows>(sums, row, 0));
      store(out[row] + kLanes, half_of<kRows>(sums, row, 1));
    });
  });
}

#if SPOTWISE_HAS_TILES
// Shapes tiles for rows times a panel: 0 to 3 are sums of (first, second) 16 columns of the upper, then of the lower rows; 4 and 5
// activations of these; 6 and 7 weights.
inline void shape_for_panels(int height) {
  shape_tiles(height, [&](TileShapes& shapes) {
    for (int tile = 0; tile < 6; tile++) shapes.set(tile, height, kTileBytes);
    for (int tile = 6; tile < 8; tile++) shapes.set(tile, kBlockSteps, kTileBytes);
  });
}

// sums = the products of one or two tiles' rows with `blocks` blocks of a panel; fetches what is `ahead` values further.
template <bool kTwo>
__attribute__((noinline)) void multiply_tiles(const uint16_t* upper, const uint16_t* lower, long row_stride,
                                              const uint16_t* panel, int blocks, long ahead, PanelSums* sums) {
  constexpr long kPairRow = kPanel * 2, kRowBytes = sizeof(PanelSums);
  zero_tile<0>();
  zero_tile<1>();
  if constexpr (kTwo) {
    zero_tile<2>();
    zero_tile<3>();
  }
  for (int block = 0; block < blocks; block++) {
    const uint16_t* weights = panel + block * kBlockSteps * kPairRow;
    if (ahead) {
      for (int line = 0; line < kBlockSteps * 2; line++) __builtin_prefetch(weights + ahead + line * 32, 0, 2);
    }
    load_tile<6>(weights, kPairRow * 2);
    load_tile<4>(upper + block * kBlockSteps * 2, row_stride * 2);
    add_tile_products<0, 4, 6>();
    load_tile<7>(weights + 2 * kLanes, kPairRow * 2);
    add_tile_products<1, 4, 7>();
    if constexpr (kTwo) {
      load_tile<5>(lower + block * kBlockSteps * 2, row_stride * 2);
      add_tile_products<2, 5, 6>();
      add_tile_products<3, 5, 7>();
    }
  }
  store_tile<0>(sums[0], kRowBytes);
  store_tile<1>(sums[0] + kLanes, kRowBytes);
  if constexpr (kTwo) {
    store_tile<2>(sums[kMostTileRows], kRowBytes);
    store_tile<3>(sums[kMostTileRows] + kLanes, kRowBytes);
  }
}

// `multiply_block` by tiles of equal height, of at least one whole block of steps: the last tile takes rows of the one before, too,
// so that no tile reads beyond the last row. What is left of the steps, less than a block, is added as for few rows.
template <class Format, class Finish>
void multiply_block_by_tiles(const uint16_t* a, long row_stride, int rows, const uint16_t* panel, int steps,
                             const uint16_t* next, const Finish& finish) {
  const int tiles = (rows + kMostTileRows - 1) / kMostTileRows, height = (rows + tiles - 1) / tiles;
  const int blocks = steps / kBlockSteps, left = steps % kBlockSteps;
  const PanelPairs<Format, false> last{panel + long(blocks) * kBlockSteps * kPanel * 2, 0};
  alignas(64) PanelSums sums[2 * kMostTileRows];
  shape_for_panels(height);
  int done = 0;
  for (int tile = 0; tile < tiles; tile += 2) {
    const bool two = tile + 1 < tiles;
    const int starts[2] = {std::min(tile * height, rows - height), std::min((tile + 1) * height, rows - height)};
    const long ahead = next && tile + 2 >= tiles ? next - panel : 0;
    const uint16_t *upper = a + starts[0] * row_stride, *lower = a + starts[1] * row_stride;
    two ? multiply_tiles<true>(upper, lower, row_stride, panel, blocks, ahead, sums)
        : multiply_tiles<false>(upper, lower, row_stride, panel, blocks, ahead, sums);
    for (int half = 0; half <= int(two); half++) {
      PanelSums* own = sums + half * kMostTileRows;
      for (int row = 0; left && row < height; row += kTileRows) {
        multiply_panel<Format>(a + (starts[half] + row) * row_stride + long(blocks) * kBlockSteps * 2, row_stride,
                               std::min(kTileRows, height - row), last, left, false, own + row);
      }
      for (; done < starts[half] + height; done++) {
        const float* found = own[done - starts[half]];
        finish(done, load(found), load(found + kLanes));
      }
    }
  }
}
#endif

// Multiplies rows [0, rows) of `a` by a whole panel; `next` is a panel to prefetch meanwhile, or null.
// `finish(row, low, high)` receives each row's sums.
template <class Format, class Finish>
void multiply_block(const typename Format::Operand* a, long row_stride, int rows, const typename Format::Value* panel, int steps,
                    const typename Format::Value* next, const Finish& finish) {
#if SPOTWISE_HAS_TILES
  if constexpr (kUsesTiles<Format>) {
    if (rows > kFewRows && steps >= kBlockSteps)
      return multiply_block_by_tiles<Format>(a, row_stride, rows, panel, steps, next, finish);
  }
#endif
  constexpr long kStep = kPanel * Format::kPair;
  alignas(64) PanelSums sums[kWidensPanels<Format> ? kBlockRows : kTileRows];
  // Tiles of nearly equal height: 16 rows are 8 + 8, not 12 + 4. One tile reads its panel once.
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  const bool widens = kWidensPanels<Format> && tiles >= kWidenedTiles;
  const int chunk = widens ? kChunkSteps : steps;
  alignas(64) float widened[kWidensPanels<Format> ? kChunkSteps : 1][kStep];
  const long ahead = next ? next - panel : 0;
  for (int first = 0; first < steps; first += chunk) {
    const int count = std::min(chunk, steps - first);
    const bool is_first = first == 0, is_last = first + count == steps;
    const typename Format::Value* at = panel + first * kStep;
    if (widens) widen_pairs<Format>(at, count, ahead, &widened[0][0]);
    for (int tile = 0, row = 0; tile < tiles; tile++) {
      const int height = (rows - row + tiles - tile - 1) / (tiles - tile);
      const auto* from = a + row * row_stride + long(first) * Format::kPair;
      PanelSums* own = widens ? sums + row : sums;
      const auto times = [&](const auto& weights) {
        multiply_panel<Format>(from, row_stride, height, weights, count, is_first, own);
      };
      const auto times_packed = [&] {
        ahead && tile == tiles - 1 ? times(PanelPairs<Format, true>{at, ahead}) : times(PanelPairs<Format, false>{at, 0});
      };
      if constexpr (kWidensPanels<Format>) {
        widens ? times(WidenedPairs{&widened[0][0]}) : times_packed();
      } else {
        times_packed();
      }
      for (int r = 0; is_last && r < height; r++) finish(row + r, load(own[r]), load(own[r] + kLanes));
      row += height;
    }
  }
}

// Rows of activations as tiles read them.
template <class Format>
struct Operands {
  const typename Format::Operand* data;
  long row_stride;
};

// Returns `rows` rows of `a` as operands, which are valid until the calling thread's next call.
template <class Format>
Operands<Format> operands_of(Team& team, const typename Format::Value* a, long row_stride, int rows, int inputs) {
  if constexpr (kWidens<Format>) {
    thread_local std::vector<float> widened;
    if (long(widened.size()) < long(rows) * inputs) widened.resize(long(rows) * inputs);
    float* to = widened.data();
    team.each((rows + 15) / 16, [=](int piece, int) {
      for (int row = piece * 16; row < std::min(rows, piece * 16 + 16); row++)
        widen_values<Format>(a + row * row_stride, inputs, to + long(row) * inputs);
    });
    return {to, inputs};
  } else {
    return {a, row_stride};
  }
}

// Multiplies rows [0, rows) of `a`, of one tile, by a quantised panel, which is widened piece by piece, or in registers; every sum has
// the order of a plain panel's.
template <class Format>
__attribute__((noinline)) void multiply_quantised(const typename Format::Operand* a, long row_stride, int rows, Kind kind,
                                                  const uint8_t* panel, int inputs, PanelSums* sums) {
  if constexpr (kFuses<Format>) {
    if (rows <= kFusedRows) {
      with_kind(kind, [&](auto known) {
        with_rows<kFusedRows>(rows, [&](auto constant) {
          multiply_widening<decltype(known)::value, Format, decltype(constant)::value>(a, row_stride, panel, inputs, sums[0]);
        });
      });
      return;
    }
  }
  alignas(64) typename Format::Value piece[kPieceParts * kPartInputs * kPanel];
  const auto widen = widening<Format>(kind);
  for (int part = 0; part < inputs / kPartInputs; part += kPieceParts) {
    const int count = std::min(kPieceParts, inputs / kPartInputs - part);
    widen(panel, part, count, piece);
    multiply_panel<Format>(a + part * kPartInputs, row_stride, rows, PanelPairs<Format, false>{piece, 0},
                           count * kPartInputs / Format::kPair, part == 0, sums);
  }
}

// Multiplies rows [0, rows) of `a` by all panels. `finish(row, panel, low, high)` receives the 32 sums of a row and a panel.
template <class Format, class Finish>
void multiply(Team& team, const typename Format::Value* a, long row_stride, int rows, const Packed<Format>& weights,
              const Finish& finish) {
  if (rows == 0) return;
  const Operands<Format> operands = operands_of<Format>(team, a, row_stride, rows, weights.inputs);
  const int steps = weights.inputs / Format::kPair;
  const long row_bytes = long(weights.inputs) * sizeof(typename Format::Operand);
  const long panel_bytes = long(weights.inputs) * kPanel * sizeof(typename Format::Value);
  constexpr int kUnit = kRowUnit<Format>;
  const int most = std::clamp(int(kBlockBytes / row_bytes / kUnit) * kUnit, kUnit, kWidensPanels<Format> ? kBlockRows : 1 << 20);
  const int blocks = (rows + most - 1) / most;
  const int block_rows = ((rows + blocks - 1) / blocks + kUnit - 1) / kUnit * kUnit;
  // With few rows the weights stream from memory, and longer pieces stream better.
  const int group = rows <= kUnit ? std::max(1, std::min(4, weights.panels() / (4 * team.size()))) : 1;
  const int groups = (weights.panels() + group - 1) / group;
  // Threads take panels in turn: while a panel's last tile is computed, the thread's next panel is prefetched, unless it is so
  // large that it would evict data in use.
  const bool fetch = group == 1 && panel_bytes <= kFetchBytes;
  team.each(int64_t(blocks) * groups, [&](int64_t piece, int) {
    const int first_row = int(piece / groups) * block_rows;
    const int height = std::min(rows - first_row, block_rows);
    const int first_panel = int(piece % groups) * group;
    const int last_panel = std::min(weights.panels(), first_panel + group);
    for (int panel = first_panel; panel < last_panel; panel++) {
      const Kind kind = weights.kind(panel);
      const auto* from = operands.data + first_row * operands.row_stride;
      const auto finish_row = [&](int row, const Floats& low, const Floats& high) { finish(first_row + row, panel, low, high); };
      if (kind != Kind::kPlain && height <= kTileRows) {
        alignas(64) PanelSums sums[kTileRows];
        multiply_quantised<Format>(from, operands.row_stride, height, kind, weights.quantised(panel), weights.inputs, sums);
        for (int row = 0; row < height; row++) finish_row(row, load(sums[row]), load(sums[row] + kLanes));
        continue;
      }
      const bool is_plain = kind == Kind::kPlain;
      const auto* own = is_plain ? weights.panel(panel) : widened<Format>(kind, weights.quantised(panel), weights.inputs);
      const auto* next = fetch && is_plain && panel + team.size() < weights.panels() ? weights.panel(panel + team.size()) : nullptr;
      multiply_block<Format>(from, operands.row_stride, height, own, steps, next, finish_row);
    }
  });
}

}  // namespace spotwise

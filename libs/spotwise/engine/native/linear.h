// Products of activations with packed weights.
//
// Weights are packed once into panels of 32 output columns, each a contiguous array [inputs / kPair][32][kPair], the order in
// which a tile reads them; activations stay row-major, [rows, inputs]. A panel is loaded into the cache once per block of rows.
// Epilogues (bias, residual, activation, narrowing) run while a sum is in a register.

#pragma once

#include <algorithm>

#include "quantised.h"
#include "simd.h"
#include "team.h"

namespace spotwise {

constexpr int kPanel = 2 * kLanes;
constexpr long kBlockBytes = 384 * 1024;  // activations of a block, which stay in the L2 cache
constexpr long kFetchBytes = 64 * 1024;   // largest panel that is prefetched

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

// The sums of a tile of rows and a panel.
typedef float PanelSums[kTileRows][kPanel];

// Multiplies rows [0, height) of `a` by a panel; `next` is a panel to prefetch meanwhile, or null. Compiled once for all
// epilogues, since its tiles take most of the compile time.
template <class Format>
__attribute__((noinline)) void multiply_panel(const typename Format::Value* a, long row_stride, int height,
                                              const typename Format::Value* panel, int steps,
                                              const typename Format::Value* next, PanelSums& out) {
  constexpr long kStep = kPanel * Format::kPair;
  with_rows<kTileRows>(height, [&](auto constant) {
    constexpr int kRows = decltype(constant)::value;
    Sums<kRows> sums;
    clear<kRows>(sums);
    if (next) {
      multiply_tile<Format, kRows, true>(a, row_stride, panel, panel + kStep / 2, kStep, steps, sums, next);
    } else {
      multiply_tile<Format, kRows>(a, row_stride, panel, panel + kStep / 2, kStep, steps, sums);
    }
    unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
      store(out[row], sums[row][0]);
      store(out[row] + kLanes, sums[row][1]);
    });
  });
}

// The same for a quantised panel, which is widened piece by piece; every sum has the order of a plain panel's.
template <class Format>
__attribute__((noinline)) void multiply_quantised(const typename Format::Value* a, long row_stride, int height, Kind kind,
                                                  const uint8_t* panel, int inputs, PanelSums& out) {
#if defined(__AVX2__)
  if (height <= kFusedRows) {
    with_kind(kind, [&](auto known) {
      with_rows<kFusedRows>(height, [&](auto rows) {
        multiply_widening<decltype(known)::value, Format, decltype(rows)::value>(a, row_stride, panel, inputs, out[0]);
      });
    });
    return;
  }
#endif
  constexpr long kStep = kPanel * Format::kPair;
  alignas(64) typename Format::Value piece[kPieceParts * kPartInputs * kPanel];
  const auto widen = widening<Format>(kind);
  with_rows<kTileRows>(height, [&](auto constant) {
    constexpr int kRows = decltype(constant)::value;
    Sums<kRows> sums;
    clear<kRows>(sums);
    for (int part = 0; part < inputs / kPartInputs; part += kPieceParts) {
      const int count = std::min(kPieceParts, inputs / kPartInputs - part);
      widen(panel, part, count, piece);
      multiply_tile<Format, kRows>(a + part * kPartInputs, row_stride, piece, piece + kStep / 2, kStep,
                                   count * kPartInputs / Format::kPair, sums);
    }
    unrolled<kRows>([&](auto row) SPOTWISE_INLINE {
      store(out[row], sums[row][0]);
      store(out[row] + kLanes, sums[row][1]);
    });
  });
}

// Multiplies rows [0, rows) of `a` by all panels. `finish(row, panel, low, high)` receives the 32 sums of a row and a panel.
template <class Format, class Finish>
void multiply(Team& team, const typename Format::Value* a, long row_stride, int rows, const Packed<Format>& weights,
              const Finish& finish) {
  if (rows == 0) return;
  const int steps = weights.inputs / Format::kPair;
  const long row_bytes = long(weights.inputs) * sizeof(typename Format::Value);
  const int most = std::max(1, int(kBlockBytes / row_bytes / kTileRows)) * kTileRows;
  const int blocks = (rows + most - 1) / most;
  const int block_rows = ((rows + blocks - 1) / blocks + kTileRows - 1) / kTileRows * kTileRows;
  // With few rows the weights stream from memory, and longer pieces stream better.
  const int group = rows <= kTileRows ? std::max(1, std::min(4, weights.panels() / (4 * team.size()))) : 1;
  const int groups = (weights.panels() + group - 1) / group;
  // Threads take panels in turn: while a panel's last tile is computed, the thread's next panel is prefetched, unless it is so
  // large that it would evict data in use.
  const bool fetch = group == 1 && row_bytes * kPanel <= kFetchBytes;
  team.each(int64_t(blocks) * groups, [&](int64_t piece, int) {
    const int first_row = int(piece / groups) * block_rows;
    const int last_row = std::min(rows, first_row + block_rows);
    const int first_panel = int(piece % groups) * group;
    const int last_panel = std::min(weights.panels(), first_panel + group);
    for (int panel = first_panel; panel < last_panel; panel++) {
      const Kind kind = weights.kind(panel);
      const bool is_plain = kind == Kind::kPlain, is_tile = last_row - first_row <= kTileRows;
      const auto* plain = is_plain ? weights.panel(panel) : is_tile ? nullptr : widened<Format>(kind, weights.quantised(panel), weights.inputs);
      const auto* next = fetch && is_plain && panel + team.size() < weights.panels() ? weights.panel(panel + team.size()) : nullptr;
      // Tiles of nearly equal height: 16 rows are 8 + 8, not 12 + 4.
      const int tiles = (last_row - first_row + kTileRows - 1) / kTileRows;
      for (int tile = 0, row = first_row; tile < tiles; tile++) {
        const int height = (last_row - row + tiles - tile - 1) / (tiles - tile);
        PanelSums sums;
        if (plain) {
          multiply_panel<Format>(a + row * row_stride, row_stride, height, plain, steps, tile == tiles - 1 ? next : nullptr, sums);
        } else {
          multiply_quantised<Format>(a + row * row_stride, row_stride, height, kind, weights.quantised(panel), weights.inputs, sums);
        }
        for (int r = 0; r < height; r++) finish(row + r, panel, load(sums[r]), load(sums[r] + kLanes));
        row += height;
      }
    }
  });
}

// An epilogue that writes sums, with bias and residual, to rows of `out`, `width` columns each.
template <class Format>
struct StoreRows {
  typename Format::Value* out;
  long row_stride;
  int width;
  const typename Format::Value* bias = nullptr;
  const typename Format::Value* residual = nullptr;  // [rows, row_stride] like `out`; may be `out` itself

  void operator()(int row, int panel, Floats low, Floats high) const {
    const int column = panel * kPanel;
    if (column + kPanel <= width) {
      vector(row, column, low);
      vector(row, column + kLanes, high);
    } else {
      for (int i = 0; i < kPanel && column + i < width; i++) scalar(row, column + i, i < kLanes ? low[i] : high[i - kLanes]);
    }
  }

 private:
  void vector(int row, int column, Floats value) const {
    if (bias) value += Format::get16(bias + column);
    const long place = row * row_stride + column;
    if (residual) value += Format::get16(residual + place);
    Format::put16(out + place, value);
  }

  void scalar(int row, int column, float value) const {
    if (bias) value += Format::get(bias + column);
    const long place = row * row_stride + column;
    if (residual) value += Format::get(residual + place);
    Format::put(out + place, value);
  }
};

// An epilogue that writes sums as float32 in any format, for logits.
struct StoreFloats {
  float* out;
  long row_stride;
  int width;

  void operator()(int row, int panel, Floats low, Floats high) const {
    for (int i = 0; i < kPanel; i += kLanes) {
      const int column = panel * kPanel + i;
      const Floats value = i ? high : low;
      if (column + kLanes <= width) {
        store(out + row * row_stride + column, value);
      } else {
        for (int j = 0; j < kLanes && column + j < width; j++) out[row * row_stride + column + j] = value[j];
      }
    }
  }
};

enum class Activation { kSilu = 0, kGeluTanh = 1 };

inline Floats activate(Activation activation, Floats x) {
  if (activation == Activation::kSilu) return x / (splat(1.0f) + exponential(-x));
  // gelu(x) ~ x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3)), equal to the tanh form
  const Floats inner = splat(1.5957691216057308f) * (x + splat(0.044715f) * x * x * x);
  return x / (splat(1.0f) + exponential(-inner));
}

// An epilogue for the gated activation: a panel holds 16 gate columns and the matching 16 up columns.
template <class Format>
struct StoreGated {
  typename Format::Value* out;
  long row_stride;
  int width;
  Activation activation;

  void operator()(int row, int panel, Floats gate, Floats up) const {
    const Floats value = activate(activation, gate) * up;
    const int column = panel * kLanes;
    typename Format::Value* to = out + row * row_stride + column;
    if (column + kLanes <= width) {
      Format::put16(to, value);
    } else {
      for (int i = 0; column + i < width; i++) Format::put(to + i, value[i]);
    }
  }
};

// Root-mean-square norm of one row (Zhang and Sennrich, 2019).
template <class Format>
inline void normalize(const typename Format::Value* x, const typename Format::Value* weight, int width, float epsilon,
                      typename Format::Value* out) {
  Floats squares = {};
  int i = 0;
  float tail = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Floats v = Format::get16(x + i);
    squares += v * v;
  }
  for (; i < width; i++) tail += Format::get(x + i) * Format::get(x + i);
  const float factor = 1.0f / std::sqrt((sum(squares) + tail) / float(width) + epsilon);
  for (i = 0; i + kLanes <= width; i += kLanes)
    Format::put16(out + i, Format::get16(x + i) * factor * Format::get16(weight + i));
  for (; i < width; i++) Format::put(out + i, Format::get(x + i) * factor * Format::get(weight + i));
}

}  // namespace spotwise

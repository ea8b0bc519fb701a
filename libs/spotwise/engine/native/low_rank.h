// What adapters add to the products of a layer, for the rows that chose one (LoRA, Hu et al., 2021): y += up * (down * x).
//
// Base weights stay as they are packed, and a row's sums do not depend on the rows beside it: rows without an adapter get what
// they get alone, and so do rows with one. The products of all adapters of a batch are one operation of the team.

#pragma once

#include <vector>

#include "epilogues.h"
#include "linear.h"

namespace spotwise {

constexpr int kMostParts = 3;
constexpr int kPieceRows = 4 * kTileRows;  // of an adapter's rows, which one thread multiplies by a panel
constexpr int kDeltaRows = 256;            // for which what is added before an activation is kept at a time

// One adapter's matrices for the parts of a product: of qkv three, of gate and up two. They share their input: `down` has the
// parts' rows one below the other.
struct LowRank {
  const void* down;            // packed [sum of ranks, inputs], or null where it adds to no part
  const void* up[kMostParts];  // packed [outputs of the part, rank] and scaled; null: nothing is added to this part
  int32_t ranks[kMostParts];   // 0 where nothing is added

  int width() const { return ranks[0] + ranks[1] + ranks[2]; }
};

struct AdaptedLayer {
  LowRank qkv, output, gate_up, down;
};

// The adapters of an iteration: adapter i has the rows from `first_row[i]` to `first_row[i + 1]`; rows before the first have none.
struct AdapterRows {
  int32_t count;
  const int32_t* first_row;
  const AdaptedLayer* const* layers;  // by adapter, its layers
};

// The rows [first, end) of a matrix, and what their adapter adds to its product.
struct Adapted {
  const LowRank* matrices;
  int first, end;
};

template <class Format, class Finish>
struct Product {
  const typename Format::Value* a;
  long row_stride;
  int rows;
  Packed<Format> weights;
  Finish finish;

  int pieces() const { return weights.panels() * ((rows + kPieceRows - 1) / kPieceRows); }
};

// Computes products, all in one operation of the team.
template <class Format, class Finish>
void multiply_all(Team& team, const std::vector<Product<Format, Finish>>& products) {
  int pieces = 0;
  for (const auto& product : products) pieces += product.pieces();
  if (pieces == 0) return;
  team.each(pieces, [&](int piece, int) {
    size_t index = 0;
    while (piece >= products[index].pieces()) piece -= products[index++].pieces();
    const auto& product = products[index];
    const int panel = piece % product.weights.panels(), start = piece / product.weights.panels() * kPieceRows;
    const int end = std::min(product.rows, start + kPieceRows), steps = product.weights.inputs / Format::kPair;
    const auto* rows = product.a + start * product.row_stride;
    const auto multiplied = [&](const auto* a, long row_stride) {
      multiply_block<Format>(a, row_stride, end - start, product.weights.panel(panel), steps, nullptr,
                             [&](int row, const Floats& low, const Floats& high) { product.finish(start + row, panel, low, high); });
    };
    if constexpr (kWidens<Format>) {
      thread_local std::vector<float> widened;
      const int inputs = product.weights.inputs;
      widened.resize(long(kPieceRows) * inputs);
      for (int row = 0; row < end - start; row++)
        widen_values<Format>(rows + row * product.row_stride, inputs, widened.data() + long(row) * inputs);
      multiplied(widened.data(), inputs);
    } else {
      multiplied(rows, product.row_stride);
    }
  });
}

template <class Format>
struct AdapterScratch {
  std::vector<typename Format::Value> narrowed;
  std::vector<float> deltas;
};

// Adds what adapters add to the products of one layer. Without adapters every call returns at once.
template <class Format>
class Adapting {
 public:
  typedef typename Format::Value Value;

  Adapting(Team& team, AdapterScratch<Format>& scratch, const AdapterRows* rows, int layer)
      : team_(team), scratch_(scratch), rows_(rows), layer_(layer) {}

  // The adapters' rows of a matrix; `first_token` (or null: a row is a token) is where each row of the iteration begins in it.
  void choose(LowRank AdaptedLayer::*product, const int32_t* first_token) {
    adapted_.clear();
    for (int i = 0; rows_ && i < rows_->count; i++) {
      const LowRank& matrices = rows_->layers[i][layer_].*product;
      const int first = rows_->first_row[i], end = rows_->first_row[i + 1];
      if (matrices.down) {
        adapted_.push_back({&matrices, first_token ? first_token[first] : first, first_token ? first_token[end] : end});
      }
    }
  }

  bool any() const { return !adapted_.empty(); }
  int first() const { return adapted_.front().first; }
  int end() const { return adapted_.back().end; }

  // Computes down * x for the chosen rows of `x`, [rows, row_stride] of `inputs` columns.
  void narrow(const Value* x, long row_stride, int inputs) {
    if (!any()) return;
    width_ = 0;
    for (const Adapted& each : adapted_) width_ = std::max<long>(width_, each.matrices->width());
    const long needed = width_ * (end() - first());
    if (long(scratch_.narrowed.size()) < needed) scratch_.narrowed.resize(needed);
    std::vector<Product<Format, StoreRows<Format>>> products;
    for (const Adapted& each : adapted_) {
      const int width = each.matrices->width();
      products.push_back({x + each.first * row_stride, row_stride, each.end - each.first,
                          {(const Value*)each.matrices->down, width, inputs, {}}, {narrowed(each.first), width_, width}});
    }
    multiply_all<Format>(team_, products);
  }

  // Adds up * (what `narrow` computed) to the chosen rows of `y`, whose parts have so many columns.
  void add(Value* y, long row_stride, const int (&outputs)[kMostParts]) {
    std::vector<Product<Format, StoreRows<Format>>> products;
    widened(first_of_all(), end_of_all(), outputs, [&](const Adapted& each, int, int column, int columns, auto product) {
      Value* at = y + each.first * row_stride + column;
      products.push_back({product.a, product.row_stride, product.rows, product.weights, {at, row_stride, columns, nullptr, at}});
    });
    multiply_all<Format>(team_, products);
  }

  // Returns up * (what `narrow` computed) for the rows [from, to), `columns` for each of two parts: [to - from, 2 * columns].
  const float* deltas(int from, int to, int columns) {
    const long row_stride = 2L * columns;
    scratch_.deltas.assign(row_stride * (to - from), 0.0f);  // rows between two adapters' may have none
    float* deltas = scratch_.deltas.data();
    std::vector<Product<Format, StoreFloats>> products;
    widened(from, to, {columns, columns, 0}, [&](const Adapted& each, int, int column, int width, auto product) {
      products.push_back({product.a, product.row_stride, product.rows, product.weights,
                          {deltas + (each.first - from) * row_stride + column, row_stride, width}});
    });
    multiply_all<Format>(team_, products);
    return deltas;
  }

 private:
  struct Widening {
    const Value* a;
    long row_stride;
    int rows;
    Packed<Format> weights;
  };

  int first_of_all() const { return any() ? first() : 0; }
  int end_of_all() const { return any() ? end() : 0; }
  Value* narrowed(int row) { return scratch_.narrowed.data() + (row - first()) * width_; }

  // Calls `take(rows of an adapter, part, first column, columns, product)` for each part that an adapter adds to, within rows
  // [from, to).
  template <class Take>
  void widened(int from, int to, const int (&outputs)[kMostParts], const Take& take) {
    for (Adapted each : adapted_) {
      each.first = std::max(each.first, from);
      each.end = std::min(each.end, to);
      if (each.first >= each.end) continue;
      int column = 0, place = 0;
      for (int part = 0; part < kMostParts; part++) {
        const int rank = each.matrices->ranks[part];
        if (rank) {
          const Packed<Format> weights{(const Value*)each.matrices->up[part], outputs[part], rank, {}};
          take(each, part, column, outputs[part], Widening{narrowed(each.first) + place, width_, each.end - each.first, weights});
        }
        column += outputs[part];
        place += rank;
      }
    }
  }

  Team& team_;
  AdapterScratch<Format>& scratch_;
  const AdapterRows* rows_;
  int layer_;
  std::vector<Adapted> adapted_;
  long width_ = 0;
};

// An epilogue for the gated activation of rows of which those from `first` on have something to add before it.
template <class Format>
struct StoreGatedAdapted {
  StoreGated<Format> store;
  const float* deltas;  // [rows from `first` on, 2 * width]
  int first;

  void operator()(int row, int panel, const Floats& gate, const Floats& up) const {
    if (row >= first) {
      const float* at = deltas + (row - first) * 2L * store.width + panel * kLanes;
      store(row, panel, gate + load(at), up + load(at + store.width));
    } else {
      store(row, panel, gate, up);
    }
  }
};

}  // namespace spotwise

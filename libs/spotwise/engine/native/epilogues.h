// What becomes of a row's sums once they are complete: bias, residual, activation, narrowing.

#pragma once

#include "tile.h"

namespace spotwise {

// An epilogue that writes sums, with bias and residual, to rows of `out`, `width` columns each.
template <class Format>
struct StoreRows {
  typename Format::Value* out;
  long row_stride;
  int width;
  const typename Format::Value* bias = nullptr;
  const typename Format::Value* residual = nullptr;  // [rows, row_stride] like `out`; may be `out` itself

  void operator()(int row, int panel, const Floats& low, const Floats& high) const {
    const int column = panel * kPanel;
    if (column + kPanel <= width) {
      vector(row, column, low);
      vector(row, column + kLanes, high);
    } else {
      for (int i = 0; i < kPanel && column + i < width; i++) scalar(row, column + i, lane(i < kLanes ? low : high, i % kLanes));
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

  void operator()(int row, int panel, const Floats& low, const Floats& high) const {
    for (int i = 0; i < kPanel; i += kLanes) {
      const int column = panel * kPanel + i;
      const Floats value = i ? high : low;
      if (column + kLanes <= width) {
        store(out + row * row_stride + column, value);
      } else {
        for (int j = 0; j < kLanes && column + j < width; j++) out[row * row_stride + column + j] = lane(value, j);
      }
    }
  }
};

enum class Activation { kSilu = 0, kGeluTanh = 1 };

inline Floats activate(Activation activation, Floats x) {
  if (activation == Activation::kSilu) return x / (splat(1.0f) + exponential(-x));
  // gelu(x) ~ x * sigmoid(2 * sqrt(2 / pi) * (x + 0.044715 x^3)), equal to the tanh form
  const Floats inner = splat(1.5957691216057308f) * fused(splat(0.044715f) * x * x, x, x);
  return x / (splat(1.0f) + exponential(-inner));
}

// An epilogue for the gated activation: a panel holds 16 gate columns and the matching 16 up columns.
template <class Format>
struct StoreGated {
  typename Format::Value* out;
  long row_stride;
  int width;
  Activation activation;

  void operator()(int row, int panel, const Floats& gate, const Floats& up) const {
    const Floats value = activate(activation, gate) * up;
    const int column = panel * kLanes;
    typename Format::Value* to = out + row * row_stride + column;
    if (column + kLanes <= width) {
      Format::put16(to, value);
    } else {
      for (int i = 0; column + i < width; i++) Format::put(to + i, lane(value, i));
    }
  }
};

}  // namespace spotwise

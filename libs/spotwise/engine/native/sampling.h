// The next token of a row of logits.
//
// Law: a draw is by inverse CDF over the vocabulary in its own order, of weights exp((logit - largest) / temperature). Sums are kept
// by stretches of the vocabulary, in float within one and in double over them, so that a row's token depends on nothing else.

#pragma once

#include "simd.h"

namespace spotwise {

constexpr int kStretch = 512;

// The first of the largest.
inline int likeliest(const float* logits, int count) {
  Floats most = splat(-std::numeric_limits<float>::infinity());
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) most = maximum(most, load(logits + i));
  float top = largest(most);
  for (; i < count; i++) top = logits[i] > top ? logits[i] : top;
  for (i = 0; i < count; i++)
    if (logits[i] == top) return i;
  return 0;
}

// The token whose stretch of the cumulative weights holds `uniform` (in [0, 1)) of their sum.
inline int draw(const float* logits, int count, float temperature, double uniform, std::vector<double>& sums) {
  const float top = logits[likeliest(logits, count)];
  const float scale = 1.0f / temperature;
  const auto weights = [&](int i) { return exponential((load(logits + i) - splat(top)) * scale); };
  const auto weight = [&](int i) { return exponential(splat((logits[i] - top) * scale))[0]; };
  const int stretches = (count + kStretch - 1) / kStretch;
  sums.assign(stretches, 0);
  double total = 0;
  for (int stretch = 0; stretch < stretches; stretch++) {
    const int end = std::min(count, (stretch + 1) * kStretch);
    Floats lanes = {};
    int i = stretch * kStretch;
    for (; i + kLanes <= end; i += kLanes) lanes += weights(i);
    float rest = 0;
    for (; i < end; i++) rest += weight(i);
    sums[stretch] = double(sum(lanes)) + rest;
    total += sums[stretch];
  }
  double left = uniform * total;
  int stretch = 0;
  while (stretch + 1 < stretches && left >= sums[stretch]) left -= sums[stretch++];
  // Within the stretch one by one; rounding may leave a crumb, which belongs to its last token that has any weight.
  int chosen = stretch * kStretch;
  for (int i = chosen; i < std::min(count, (stretch + 1) * kStretch); i++) {
    const float own = weight(i);
    if (own > 0) chosen = i;
    if (left < own) break;
    left -= own;
  }
  return chosen;
}

}  // namespace spotwise

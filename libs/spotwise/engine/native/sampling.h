// Samples the next token of a row of logits.
//
// A draw is by inverse CDF of weights exp((logit - largest) / temperature). Without filters it follows vocabulary order, with
// sums by stretches of tokens, in float within a stretch and in double over stretches. With min_p, top_k or top_p it follows
// descending probability, ties in vocabulary order, in double, as `sampler.py` computes it with torch. All three filters keep
// the most likely tokens, so only as many are sorted as decide. A row's token depends on the row alone.

#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "simd.h"

namespace spotwise {

constexpr int kStretch = 512;      // tokens
constexpr int kBuckets = 256;      // of logits by their distance from the largest; the last one is unbounded
constexpr float kPerNat = 8;       // buckets
constexpr int kFirstSorted = 256;  // tokens; eight times as many if they do not decide

// Sampling parameters of a row and its uniform number; top_k = 0, top_p = 1 and min_p = 0 exclude no token.
struct Draw {
  double temperature, top_p, min_p, uniform;
  int64_t top_k;
};

struct DrawScratch {
  std::vector<double> sums;  // by stretch, or cumulative over the sorted tokens
  std::vector<uint8_t> buckets;
  std::vector<uint64_t> sorted;
};

constexpr int kNoToken = -1;

// Returns the first token of the largest logit; kNoToken where a logit is NaN or the largest is infinite.
inline int likeliest(const float* logits, int count) {
  Floats most = splat(-std::numeric_limits<float>::infinity());
  Ints unordered = {};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats values = load(logits + i);
    most = maximum(most, values);
    unordered = unordered | (values != values);
  }
  float top = largest(most);
  bool has_nan = any(unordered);
  for (; i < count; i++) {
    top = logits[i] > top ? logits[i] : top;
    has_nan |= logits[i] != logits[i];
  }
  if (has_nan || !std::isfinite(top)) return kNoToken;
  for (i = 0; i < count; i++)
    if (logits[i] == top) return i;
  return kNoToken;
}

// Draws from the whole vocabulary: returns the token at which cumulative weights pass `uniform` (in [0, 1)) of their sum.
inline int draw_from_all(const float* logits, int count, float temperature, double uniform, std::vector<double>& sums) {
  const int most_likely = likeliest(logits, count);
  if (most_likely == kNoToken) return kNoToken;
  const float top = logits[most_likely];
  const float scale = 1.0f / temperature;
  const auto weights = [&](int i) { return exponential((load(logits + i) - splat(top)) * scale); };
  const auto weight = [&](int i) { return lane(exponential(splat((logits[i] - top) * scale)), 0); };
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
  // A linear scan within the stretch; if rounding leaves a rest, the last token with a positive weight is chosen.
  int chosen = stretch * kStretch;
  for (int i = chosen; i < std::min(count, (stretch + 1) * kStretch); i++) {
    const float own = weight(i);
    if (own > 0) chosen = i;
    if (left < own) break;
    left -= own;
  }
  return chosen;
}

// Returns the sum of all weights in double, to which top_p is relative.
inline double total_weight(const float* logits, int count, float top, double temperature) {
  double total = 0;
  int i = 0;
  Doubles lanes = {};
  const double scale = 1 / temperature;
  for (; i + kDoubles <= count; i += kDoubles) lanes += exponential((load_doubles(logits + i) - double(top)) * scale);
  for (int lane = 0; lane < kDoubles; lane++) total += lanes[lane];
  for (; i < count; i++) total += exponential((double(logits[i]) - top) / temperature);
  return total;
}

// Returns a key whose ascending order is by descending logit, then by token.
inline uint64_t sort_key(float logit, int token) {
  const float one_zero = logit + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &one_zero, sizeof bits);
  const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t(~ascending) << 32 | uint32_t(token);
}

// Stores each logit's bucket and returns the bucket sizes.
inline std::array<int, kBuckets> fill_buckets(const float* logits, int count, float top, double temperature,
                                              std::vector<uint8_t>& buckets) {
  const Floats last = splat(kBuckets - 1);
  const float scale = float(std::min(kPerNat / temperature, 1e30));  // finite, so that 0 times it is 0
  buckets.resize(count);
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats distance = (splat(top) - load(logits + i)) * scale;
    store_bytes(buckets.data() + i, select(distance < last, distance, last));
  }
  for (; i < count; i++) {
    const float distance = (top - logits[i]) * scale;
    buckets[i] = uint8_t(distance < kBuckets - 1 ? distance : kBuckets - 1);
  }
  // Most logits are in the last bucket: four counters for each bucket avoid dependent additions.
  std::array<std::array<int, kBuckets>, 4> counts{};
  for (i = 0; i + 4 <= count; i += 4)
    for (int j = 0; j < 4; j++) counts[j][buckets[i + j]]++;
  for (; i < count; i++) counts[0][buckets[i]]++;
  for (int bucket = 0; bucket < kBuckets; bucket++)
    for (int j = 1; j < 4; j++) counts[0][bucket] += counts[j][bucket];
  return counts[0];
}

// Appends the tokens of buckets [first, last] in sorted order.
inline void sort_buckets(const float* logits, int count, int first, int last, DrawScratch& scratch) {
  const size_t before = scratch.sorted.size();
  const uint8_t width = uint8_t(last - first);
  constexpr int kStep = 64;
  for (int i = 0; i < count; i += kStep) {
    const int end = std::min(count, i + kStep);
    int found = 0;
    for (int j = i; j < end; j++) found += uint8_t(scratch.buckets[j] - first) <= width;
    if (found == 0) continue;
    for (int j = i; j < end; j++)
      if (uint8_t(scratch.buckets[j] - first) <= width) scratch.sorted.push_back(sort_key(logits[j], j));
  }
  std::sort(scratch.sorted.begin() + before, scratch.sorted.end());
}

// Draws from the tokens that the filters keep, by descending probability.
inline int draw_from_kept(const float* logits, int count, const Draw& draw, DrawScratch& scratch) {
  const int most_likely = likeliest(logits, count);
  if (most_likely == kNoToken) return kNoToken;
  const float top = logits[most_likely];
  const auto counts = fill_buckets(logits, count, top, draw.temperature, scratch.buckets);
  const int64_t most = draw.top_k ? std::min<int64_t>(draw.top_k, count) : count;
  const bool leaves_all = draw.min_p == 0 && most == count;
  const double total = leaves_all ? total_weight(logits, count, top, draw.temperature) : 0;
  const double least = std::max(draw.min_p, std::numeric_limits<double>::denorm_min());  // tokens of weight 0 are excluded
  auto& sorted = scratch.sorted;
  auto& sums = scratch.sums;
  sorted.clear();
  sums.clear();
  size_t kept = 0;
  double sum = 0;
  int next = 0;
  for (int64_t wanted = kFirstSorted; next < kBuckets; wanted *= 8) {
    const int first = next;
    int64_t held = int64_t(sorted.size());
    do held += counts[next++];
    while (next < kBuckets && held < wanted);
    sort_buckets(logits, count, first, next - 1, scratch);
    for (size_t i = sums.size(); i < sorted.size(); i++) {
      const double weight = exponential((double(logits[uint32_t(sorted[i])]) - top) / draw.temperature);
      if (kept == i && weight >= least && int64_t(i) < most) kept = i + 1;
      sums.push_back(sum += weight);
    }
    const bool ends_here = kept < sorted.size() || int64_t(kept) == most || int(sorted.size()) == count;
    if (kept == 0 || (!ends_here && !leaves_all)) continue;
    double mass = ends_here ? sums[kept - 1] : total;
    const auto upto = [&](double wanted_sum, bool beyond) {
      const auto place = beyond ? std::upper_bound(sums.begin(), sums.end(), wanted_sum)
                                : std::lower_bound(sums.begin(), sums.end(), wanted_sum);
      return size_t(place - sums.begin());
    };
    const size_t nucleus = upto(draw.top_p * mass, false) + 1;  // the token that crosses top_p is kept
    const bool narrows = draw.top_p < 1 && nucleus <= kept;
    if (!ends_here && !narrows) continue;
    const size_t last = narrows ? nucleus : kept;
    const size_t choice = upto(draw.uniform * sums[last - 1], true);
    return int(uint32_t(sorted[std::min(choice, last - 1)]));
  }
  return most_likely;  // not reached: the most likely token is kept
}

inline int pick(const float* logits, int count, const Draw& draw, DrawScratch& scratch) {
  if (draw.temperature == 0) return likeliest(logits, count);
  if (draw.top_k == 0 && draw.top_p >= 1 && draw.min_p == 0)
    return draw_from_all(logits, count, float(draw.temperature), draw.uniform, scratch.sums);
  return draw_from_kept(logits, count, draw, scratch);
}

}  // namespace spotwise

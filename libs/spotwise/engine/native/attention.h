// Attention over paged keys and values.
//
// A block keeps 16 positions in the order in which tiles read them: keys [dim / kPair][16][kPair], so that the scores of 16
// positions are one vector, and values [16 / kPair][dim][kPair]. The queries of all heads that share a KV head are rows of
// one matrix. Prefill and decode share the code: a tile of queries iterates over its context in chunks of blocks and keeps a
// running maximum and sum (FlashAttention: Dao et al., 2022; online softmax: Milakov and Gimelshein, 2018).

#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "attention_tiles.h"

namespace spotwise {

constexpr int kBlock = 16;          // positions of a KV block
constexpr int kChunkBlocks = 16;    // blocks whose scores are kept at once
constexpr int kChunk = kBlock * kChunkBlocks;
// Stride between rows of scores and weights: a power of two would map all rows to one cache set.
constexpr int kStride = kChunk + 2 * kBlock;
constexpr float kLog2E = 1.44269504088896341f;
constexpr int kQueryRows = 96;      // rows (queries x heads) of a tile, which has one query at least
// Rows whose scores are kept at once.
template <class Format>
constexpr int kScoredRows = kUsesTiles<Format> ? kMostTileRows : kTileRows;
// Tiles of the tile unit have equal heights, so the last may have rows that no query has.
template <class Format>
constexpr int kSpareRows = kUsesTiles<Format> ? kMostTileRows : 0;

// Attention parameters of a layer.
struct AttentionShape {
  int heads, kv_heads, key_dim, value_dim;
  float scale;
  int window;          // a query attends to the last `window` positions, its own included; 0: all
  float softcap;       // scores s become softcap * tanh(s / softcap); 0: unchanged
  const float* slopes;  // [heads]: slope * (key position - query position) is added to scores (ALiBi); null: no ALiBi
  const float* sinks;   // [heads]: exp(sink) is added to the softmax divisor; null: no sinks

  int group() const { return heads / kv_heads; }  // heads that share a KV head
};

// The rows of an iteration: row r computes tokens [first_token[r], first_token[r + 1]) of the flat batch, at positions from
// first_position[r], in blocks tables[table_start[r]...].
struct Rows {
  int rows, tokens;
  const int32_t* first_token;
  const int32_t* first_position;
  const int64_t* table_start;
  const int32_t* tables;
  const int32_t* row_of_token;
};

template <class Format>
struct KvLayer {
  typename Format::Value* keys;
  typename Format::Value* values;
  long head_stride_keys, head_stride_values;  // values from one KV head to the next
};

// A strided operand [tokens, heads, dim].
template <class Format>
struct Heads {
  const typename Format::Value* data;
  long token_stride, head_stride;

  const typename Format::Value* at(long token, long head) const { return data + token * token_stride + head * head_stride; }
};

template <class Format>
inline void write_kv(const AttentionShape& shape, const Rows& rows, const KvLayer<Format>& layer, int token,
                     const Heads<Format>& keys, const Heads<Format>& values) {
  typedef typename Format::Value Value;
  constexpr int kPair = Format::kPair;
  const int row = rows.row_of_token[token];
  const int position = rows.first_position[row] + token - rows.first_token[row];
  const long block = rows.tables[rows.table_start[row] + position / kBlock];
  const int place = position % kBlock;
  for (int head = 0; head < shape.kv_heads; head++) {
    const Value* key = keys.at(token, head);
    Value* to = layer.keys + head * layer.head_stride_keys + block * kBlock * shape.key_dim + place * kPair;
    for (int i = 0; i < shape.key_dim; i += kPair) std::memcpy(to + i * kBlock, key + i, kPair * sizeof(Value));
    const Value* value = values.at(token, head);
    to = layer.values + head * layer.head_stride_values + block * kBlock * shape.value_dim +
         place / kPair * shape.value_dim * kPair + place % kPair;
    for (int i = 0; i < shape.value_dim; i++) to[i * kPair] = value[i];
  }
}

// Working memory of one thread.
template <class Format>
struct AttentionScratch {
  std::vector<typename Format::Operand> queries, weights;
  std::vector<float> scores, sums, largest_score, total;

  void fit(const AttentionShape& shape) {
    const int rows = std::max(kQueryRows, shape.group());
    queries.resize((rows + kSpareRows<Format>) * shape.key_dim);
    weights.resize(kScoredRows<Format> * kStride);
    scores.resize(kScoredRows<Format> * kStride);
    sums.resize((rows + kSpareRows<Format>) * shape.value_dim);
    largest_score.resize(rows);
    total.resize(rows);
  }
};

template <class Format>
class AttentionTile {
 public:
  typedef typename Format::Value Value;

  AttentionTile(const AttentionShape& shape, const KvLayer<Format>& layer, const Rows& rows, AttentionScratch<Format>& scratch)
      : shape_(shape), layer_(layer), rows_(rows), s_(scratch), group_(shape.group()) {}

  // Computes queries [first, last) of a row, relative to its first token, for one KV head; `out` is [tokens, heads, value_dim],
  // with `out_stride` values from one token to the next.
  void compute(int batch_row, int kv_head, int first, int last, const Heads<Format>& queries, Value* out, long out_stride) {
    const int token = rows_.first_token[batch_row] + first;
    const int count = (last - first) * group_;
    first_position_ = rows_.first_position[batch_row] + first;
    kv_head_ = kv_head;
    tables_ = rows_.tables + rows_.table_start[batch_row];
    for (int r = 0; r < count; r++) {
      const Value* from = queries.at(token + r / group_, kv_head * group_ + r % group_);
      if constexpr (kWidens<Format>) {
        widen_values<Format>(from, shape_.key_dim, &s_.queries[r * shape_.key_dim]);
      } else {
        std::memcpy(&s_.queries[r * shape_.key_dim], from, shape_.key_dim * sizeof(Value));
      }
      const float* sink = shape_.sinks ? &shape_.sinks[kv_head * group_ + r % group_] : nullptr;
      s_.largest_score[r] = sink ? *sink * kLog2E : -std::numeric_limits<float>::infinity();
      s_.total[r] = sink ? 1 : 0;
    }
    std::fill_n(s_.sums.begin(), count * shape_.value_dim, 0.0f);
    // Few enough rows at once for their scores to stay in the L1 cache.
    const bool by_tiles = kUsesTiles<Format> && count > kFewRows;
    const int passes = (count + kScoredRows<Format> - 1) / kScoredRows<Format>;
    const int step = by_tiles ? (count + passes - 1) / passes : kTileRows;
    const int end = first_position_ + last - first;
    // Chunks begin at multiples of their length, so that a token's sums are added in the same order in any tile.
    const int begin = shape_.window ? std::max(0, first_position_ - shape_.window + 1) / kChunk * kChunk : 0;
    for (int chunk = begin; chunk < end; chunk += kChunk) {
      const int blocks = (std::min(chunk + kChunk, end) - chunk + kBlock - 1) / kBlock;
      for (int row = 0; row < count; row += step) {
        const int own = std::min(step, count - row), height = by_tiles ? step : own;
        score(row, height, chunk, blocks, count <= step, by_tiles);
        for (int r = 0; r < own; r++) weigh(row + r, r, chunk, blocks);
        add_values(row, height, chunk, blocks, by_tiles);
      }
    }
    for (int r = 0; r < count; r++) {
      const float factor = 1.0f / s_.total[r];
      Value* to = out + (token + r / group_) * out_stride + (kv_head * group_ + r % group_) * shape_.value_dim;
      for (int i = 0; i < shape_.value_dim; i += kLanes)
        Format::put16(to + i, load(&s_.sums[r * shape_.value_dim + i]) * factor);
    }
  }

 private:
  const Value* key_block(int index) const {
    return layer_.keys + kv_head_ * layer_.head_stride_keys + long(tables_[index]) * kBlock * shape_.key_dim;
  }

  const Value* value_block(int index) const {
    return layer_.values + kv_head_ * layer_.head_stride_values + long(tables_[index]) * kBlock * shape_.value_dim;
  }

  static void prefetch(const Value* from, int values) {
    for (int i = 0; i < values; i += 64 / sizeof(Value)) __builtin_prefetch(from + i);
  }

  // Prefetches the next `count` blocks' keys and these ones' values.
  void prefetch_around(int chunk, int block, int count, int blocks) const {
    for (int ahead = block + count; ahead < std::min(block + 2 * count, blocks); ahead++)
      prefetch(key_block(chunk / kBlock + ahead), kBlock * shape_.key_dim);
    for (int now = block; now < std::min(block + count, blocks); now++)
      prefetch(value_block(chunk / kBlock + now), kBlock * shape_.value_dim);
  }

  // Computes scores of a chunk, times log2(e), so that weights are powers of two. Prefetches in decodes: blocks are scattered.
  void score(int row, int height, int chunk, int blocks, bool from_memory, [[maybe_unused]] bool by_tiles) {
    const int steps = shape_.key_dim / Format::kPair;
    const float unit = shape_.softcap != 0 ? shape_.scale : shape_.scale * kLog2E;
#if SPOTWISE_HAS_TILES
    if constexpr (kUsesTiles<Format>) {
      for (int block = 0; by_tiles && block < blocks; block += kAtOnce) {
        const int count = std::min(kAtOnce, blocks - block);
        const Value* keys[kAtOnce] = {};
        for (int i = 0; i < count; i++) keys[i] = key_block(chunk / kBlock + block + i);
        if (from_memory) prefetch_around(chunk, block, kAtOnce, blocks);
        score_blocks(&s_.queries[row * shape_.key_dim], shape_.key_dim, height, keys, count, unit, &s_.scores[block * kBlock],
                     kStride);
      }
      if (by_tiles) return;
    }
#endif
    for (int block = 0; block < blocks; block += 2) {
      const Value* even = key_block(chunk / kBlock + block);
      const Value* odd = block + 1 < blocks ? key_block(chunk / kBlock + block + 1) : even;
      if (from_memory) prefetch_around(chunk, block, 2, blocks);
      with_rows<kTileRows>(height, [&](auto constant) {
        constexpr int kRows = decltype(constant)::value;
        Sums<kRows> sums;
        clear<kRows>(sums);
        add_products<Format, kRows>(&s_.queries[row * shape_.key_dim], shape_.key_dim,
                            BlockPairs<Format>{even, odd, kBlock * Format::kPair}, steps, sums);
        unrolled<kRows>([&](auto r) SPOTWISE_INLINE {
          float* to = &s_.scores[r * kStride + block * kBlock];
          store(to, half_of<kRows>(sums, r, 0) * unit);
          if (block + 1 < blocks) store(to + kBlock, half_of<kRows>(sums, r, 1) * unit);
        });
      });
    }
  }

  // Turns the chunk's scores into softmax weights and rescales earlier sums to the new maximum.
  void weigh(int row, int r, int chunk, int blocks) {
    float* scores = &s_.scores[r * kStride];
    const int width = blocks * kBlock;
    const Floats most = adjust(row, scores, chunk, width);
    const float before = s_.largest_score[row];
    const float now = std::max(before, largest(most));
    typename Format::Operand* weights = &s_.weights[r * kStride];
    if (now == -std::numeric_limits<float>::infinity()) {  // the window begins beyond this chunk
      std::fill_n(weights, width, typename Format::Operand(0));
      return;
    }
    Floats total = {};
    for (int i = 0; i < width; i += kLanes) {
      const Floats weight = power_of_two(load(scores + i) - splat(now));
      total += weight;
      Format::put_operands(weights + i, weight);
    }
    const float shrink = before == now ? 1.0f : lane(power_of_two(splat(before - now)), 0);
    s_.total[row] = fused(s_.total[row], shrink, sum(total));
    s_.largest_score[row] = now;
    if (shrink != 1.0f) {
      float* sums = &s_.sums[row * shape_.value_dim];
      for (int i = 0; i < shape_.value_dim; i += kLanes) store(sums + i, load(sums + i) * shrink);
    }
  }

  // Applies soft cap, ALiBi and mask to the scores of a row; returns the largest score of each lane.
  Floats adjust(int row, float* scores, int chunk, int width) const {
    const int position = first_position_ + row / group_;
    const int first_seen = shape_.window ? position - shape_.window + 1 : 0;
    constexpr float kPlaces[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const Floats lanes = load(kPlaces);
    const Floats hidden = splat(-std::numeric_limits<float>::infinity());
    Floats most = hidden;
    for (int i = 0; i < width; i += kLanes) {
      Floats v = load(scores + i);
      const int at = chunk + i;
      const bool all_seen = first_seen <= at && at + kLanes - 1 <= position;
      if (!all_seen || shape_.slopes || shape_.softcap != 0) {
        const Floats distance = lanes + splat(float(at - position));
        if (shape_.softcap != 0) v = capped(v);
        if (shape_.slopes) v = fused(distance, splat(shape_.slopes[kv_head_ * group_ + row % group_] * kLog2E), v);
        v = select(distance > Floats{}, hidden, v);
        v = select(distance < splat(float(first_seen - position)), hidden, v);
        store(scores + i, v);
      }
      most = maximum(most, v);
    }
    return most;
  }

  Floats capped(Floats v) const {
    // tanh(x) = 1 - 2 / (exp(2 x) + 1)
    const Floats x = v * splat(1.0f / shape_.softcap);
    return splat(shape_.softcap * kLog2E) * (splat(1.0f) - splat(2.0f) / (exponential(x + x) + splat(1.0f)));
  }

  void add_values(int row, int height, int chunk, int blocks, [[maybe_unused]] bool by_tiles) {
    const int columns = shape_.value_dim;
#if SPOTWISE_HAS_TILES
    if constexpr (kUsesTiles<Format>) {
      const auto block_of = [&](int block) { return value_block(chunk / kBlock + block); };
      if (by_tiles) return add_blocks(s_.weights.data(), kStride, height, block_of, blocks, columns, &s_.sums[row * columns]);
    }
#endif
    with_rows<kTileRows>(height, [&](auto constant) {
      constexpr int kRows = decltype(constant)::value;
      for (int column = 0; column < columns; column += kPanel) {
        const bool both = column + kPanel <= columns;
        Sums<kRows> sums;
        unrolled<kRows>([&](auto r) SPOTWISE_INLINE {
          const float* from = &s_.sums[(row + r) * columns + column];
          set_half<kRows>(sums, r, 0, load(from));
          set_half<kRows>(sums, r, 1, both ? load(from + kLanes) : Floats{});
        });
        for (int block = 0; block < blocks; block++) {
          const Value* values = value_block(chunk / kBlock + block) + column * Format::kPair;
          const Value* second = both ? values + kLanes * Format::kPair : values;
          add_products<Format, kRows>(&s_.weights[block * kBlock], kStride,
                              BlockPairs<Format>{values, second, columns * Format::kPair}, kBlock / Format::kPair, sums);
        }
        unrolled<kRows>([&](auto r) SPOTWISE_INLINE {
          float* to = &s_.sums[(row + r) * columns + column];
          store(to, half_of<kRows>(sums, r, 0));
          if (both) store(to + kLanes, half_of<kRows>(sums, r, 1));
        });
      }
    });
  }

  const AttentionShape& shape_;
  const KvLayer<Format>& layer_;
  const Rows& rows_;
  AttentionScratch<Format>& s_;
  const int group_;
  int first_position_ = 0, kv_head_ = 0;
  const int32_t* tables_ = nullptr;
};

// Attends for all rows, or only the last token of each. Pieces are ordered by row, then tile, a row's last (longest) first.
template <class Format>
void attend(Team& team, const AttentionShape& shape, const Rows& rows, const KvLayer<Format>& layer,
            const Heads<Format>& queries, typename Format::Value* out, long out_stride,
            std::vector<AttentionScratch<Format>>& scratch, bool last_only) {
  if (int(scratch.size()) < team.size()) scratch.resize(team.size());
  for (auto& own : scratch) own.fit(shape);
  const int per_tile = std::max(1, kQueryRows / shape.group());
  const auto tiles_of = [&](int row) {
    const int tokens = rows.first_token[row + 1] - rows.first_token[row];
    return last_only ? 1 : (tokens + per_tile - 1) / per_tile;
  };
  std::vector<int> ends(rows.rows);  // one past the last piece of each row
  for (int row = 0, pieces = 0; row < rows.rows; row++) ends[row] = pieces += tiles_of(row) * shape.kv_heads;
  team.each(ends.empty() ? 0 : ends.back(), [&](int piece, int thread) {
    const int row = int(std::upper_bound(ends.begin(), ends.end(), piece) - ends.begin());
    const int tokens = rows.first_token[row + 1] - rows.first_token[row];
    const int left = ends[row] - 1 - piece;  // in this row, after this one
    const int index = left / shape.kv_heads, head = left % shape.kv_heads;
    const int first = last_only ? tokens - 1 : index * per_tile;
    AttentionTile<Format> tile(shape, layer, rows, scratch[thread]);
    tile.compute(row, head, first, last_only ? tokens : std::min(tokens, first + per_tile), queries, out, out_stride);
  });
}

}  // namespace spotwise

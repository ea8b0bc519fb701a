// Attention's products by the tile unit: the scores of some blocks' keys, and the weighted sums of their values.
//
// A block of 16 positions keeps keys [dim / 2][16][2] and values [8][dim][2] as such tiles are laid out. Tiles have `height` rows,
// of which the last may belong to no query: what is computed for these is never read.

#pragma once

#include <algorithm>

#include "linear.h"

namespace spotwise {

#if SPOTWISE_HAS_TILES
constexpr int kAtOnce = 4;  // blocks of keys, or 16 columns of values, whose sums are tiles at the same time

// Shapes tiles: 0 to 3 are sums; 4 and 6 queries and keys, 5 and 7 weights and values, of which a block has half as many pairs.
inline void shape_for_blocks(int height) {
  shape_tiles(-height, [&](TileShapes& shapes) {
    for (int tile = 0; tile < 5; tile++) shapes.set(tile, height, kTileBytes);
    shapes.set(5, height, kTileBytes / 2);
    shapes.set(6, kBlockSteps, kTileBytes);
    shapes.set(7, kBlockSteps / 2, kTileBytes);
  });
}

// Calls `body(i)` for the constants i below `count`.
template <class Body>
SPOTWISE_INLINE inline void up_to(int count, const Body& body) {
  unrolled<kAtOnce>([&](auto i) SPOTWISE_INLINE {
    if (i < count) body(i);
  });
}

// Adds the products of rows of queries with `steps` steps of a block's keys to scores, as for few rows.
inline void add_scores(const uint16_t* queries, int key_dim, int height, const uint16_t* keys, int steps, float* scores,
                       long score_stride) {
  with_rows<kTileRows>(height, [&](auto constant) {
    constexpr int kRows = decltype(constant)::value;
    Sums<kRows> sums;
    clear<kRows>(sums);
    unrolled<kRows>([&](auto r) SPOTWISE_INLINE { set_half<kRows>(sums, r, 0, load(scores + r * score_stride)); });
    add_products<BFloat16, kRows>(queries, key_dim, BlockPairs<BFloat16>{keys, keys, 2 * kLanes}, steps, sums);
    unrolled<kRows>([&](auto r) SPOTWISE_INLINE { store(scores + r * score_stride, half_of<kRows>(sums, r, 0)); });
  });
}

// scores [height, 16 * count] = unit * (queries [height, key_dim] times the keys of `count` blocks).
inline void score_blocks(const uint16_t* queries, int key_dim, int height, const uint16_t* const (&keys)[kAtOnce], int count,
                         float unit, float* scores, long score_stride) {
  constexpr int kInputs = 2 * kBlockSteps;
  const int whole = key_dim / kInputs, left = key_dim % kInputs / 2;
  const long score_bytes = score_stride * sizeof(float);
  shape_for_blocks(height);
  up_to(count, [&](auto i) SPOTWISE_INLINE { zero_tile<i>(); });
  for (int k = 0; k < whole; k++) {
    load_tile<4>(queries + k * kInputs, key_dim * 2L);
    up_to(count, [&](auto i) SPOTWISE_INLINE {
      load_tile<6>(keys[i] + k * kInputs * kLanes, kTileBytes);
      add_tile_products<i, 4, 6>();
    });
  }
  up_to(count, [&](auto i) SPOTWISE_INLINE { store_tile<i>(scores + i * kLanes, score_bytes); });
  for (int row = 0; left && row < height; row += kTileRows) {
    for (int i = 0; i < count; i++) {
      add_scores(queries + row * key_dim + whole * kInputs, key_dim, std::min(kTileRows, height - row),
                 keys[i] + whole * kInputs * kLanes, left, scores + row * score_stride + i * kLanes, score_stride);
    }
  }
  for (int row = 0; row < height; row++) {
    for (int i = 0; i < count; i++) {
      float* at = scores + row * score_stride + i * kLanes;
      store(at, load(at) * unit);
    }
  }
}

// sums [height, columns] += weights [height, 16 * blocks] times values; `block_of(index)` is where those of a block begin.
template <class BlockOf>
inline void add_blocks(const uint16_t* weights, long weight_stride, int height, const BlockOf& block_of, int blocks, int columns,
                       float* sums) {
  const long sum_bytes = columns * sizeof(float), pair_bytes = columns * 4L;
  shape_for_blocks(height);
  for (int column = 0; column < columns; column += kAtOnce * kLanes) {
    const int count = std::min(kAtOnce, (columns - column) / kLanes);
    up_to(count, [&](auto i) SPOTWISE_INLINE { load_tile<i>(sums + column + i * kLanes, sum_bytes); });
    for (int block = 0; block < blocks; block++) {
      const uint16_t* values = block_of(block) + column * 2;
      load_tile<5>(weights + block * kLanes, weight_stride * 2);
      up_to(count, [&](auto i) SPOTWISE_INLINE {
        load_tile<7>(values + i * kLanes * 2, pair_bytes);
        add_tile_products<i, 5, 7>();
      });
    }
    up_to(count, [&](auto i) SPOTWISE_INLINE { store_tile<i>(sums + column + i * kLanes, sum_bytes); });
  }
}
#endif

}  // namespace spotwise

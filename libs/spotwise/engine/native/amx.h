// The processor's tile unit (AMX): eight tiles of up to 16 rows of 64 bytes, and products of two bfloat16 ones.
//
// Tiles are named by numbers, as instructions name them, so the compiler never keeps them in memory. Where
// SPOTWISE_EMULATED_AMX is set the same functions compute in memory, number by number, what the processor's manual says of each
// instruction: what needs tiles is so tested without such a processor.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "flushing.h"

#if !defined(SPOTWISE_EMULATED_AMX)
#define SPOTWISE_EMULATED_AMX 0
#endif
#if SPOTWISE_EMULATED_AMX || (defined(__AMX_TILE__) && defined(__AMX_BF16__))
#define SPOTWISE_HAS_TILES 1
#else
#define SPOTWISE_HAS_TILES 0
#endif

namespace spotwise {

constexpr int kMostTileRows = 16;

#if SPOTWISE_HAS_TILES
constexpr int kTiles = 8;
constexpr int kTileBytes = 64;  // of a row: 16 floats, or 16 pairs of bfloat16

// Rows and bytes of a row of each tile, as LDTILECFG reads them.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int tile_rows, int row_bytes) {
    rows[tile] = uint8_t(tile_rows);
    bytes[tile] = uint16_t(row_bytes);
  }
};
static_assert(sizeof(TileShapes) == 64);
#endif

#if SPOTWISE_HAS_TILES && !SPOTWISE_EMULATED_AMX
// The compiler's own functions do not tell it that tiles read memory (gcc 12), and it moves the writes behind them.
inline void load_shapes(const TileShapes& shapes) { asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory"); }
inline void drop_shapes() { asm volatile("tilerelease" : : : "memory"); }

template <int kTile>
inline void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// `stride` is the number of bytes from row to row.
template <int kTile>
inline void load_tile(const void* from, long stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
inline void store_tile(void* to, long stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}

// Adds to floats [rows][columns] the products of pairs [rows][pairs] and [pairs][columns].
template <int kSums, int kA, int kB>
inline void add_tile_products() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}
#elif SPOTWISE_HAS_TILES
// A thread's tiles; rows and columns beyond a tile's shape are zero.
struct EmulatedTiles {
  TileShapes shapes{};
  uint32_t data[kTiles][kMostTileRows][kTileBytes / 4] = {};

  // Ends the process where the processor would: a tile has no such shape.
  void require(bool is_valid) const {
    if (!is_valid) std::abort();
  }
  void require_shape(int tile) const { require(shapes.rows[tile] != 0 && shapes.bytes[tile] != 0); }
};

// Static, like `tiles_use`: all libraries of a process would share an inline variable.
static thread_local EmulatedTiles emulated;

inline void load_shapes(const TileShapes& shapes) {
  EmulatedTiles& tiles = emulated;
  for (int tile = 0; tile < kTiles; tile++)
    tiles.require(shapes.rows[tile] <= kMostTileRows && shapes.bytes[tile] <= kTileBytes && shapes.bytes[tile] % 4 == 0);
  tiles = EmulatedTiles{};
  tiles.shapes = shapes;
}

inline void drop_shapes() { emulated = EmulatedTiles{}; }

template <int kTile>
inline void zero_tile() {
  emulated.require_shape(kTile);
  std::memset(emulated.data[kTile], 0, sizeof emulated.data[kTile]);
}

template <int kTile>
inline void load_tile(const void* from, long stride) {
  EmulatedTiles& tiles = emulated;
  zero_tile<kTile>();
  for (int row = 0; row < tiles.shapes.rows[kTile]; row++)
    std::memcpy(tiles.data[kTile][row], (const char*)from + row * stride, tiles.shapes.bytes[kTile]);
}

template <int kTile>
inline void store_tile(void* to, long stride) {
  EmulatedTiles& tiles = emulated;
  tiles.require_shape(kTile);
  for (int row = 0; row < tiles.shapes.rows[kTile]; row++)
    std::memcpy((char*)to + row * stride, tiles.data[kTile][row], tiles.shapes.bytes[kTile]);
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Rounds to nearest and flushes, whatever the thread has set, as the instruction does.
template <int kSums, int kA, int kB>
inline void add_tile_products() {
  EmulatedTiles& tiles = emulated;
  const TileShapes& shapes = tiles.shapes;
  for (const int tile : {kSums, kA, kB}) tiles.require_shape(tile);
  tiles.require(shapes.rows[kA] == shapes.rows[kSums] && shapes.bytes[kB] == shapes.bytes[kSums] &&
                shapes.bytes[kA] / 4 == shapes.rows[kB]);
  const Flushing flushing;
  const int columns = shapes.bytes[kSums] / 4;
  for (int m = 0; m < shapes.rows[kSums]; m++) {
    float evens[kTileBytes / 4] = {}, odds[kTileBytes / 4] = {};
    for (int k = 0; k < shapes.rows[kB]; k++) {
      const uint32_t a = tiles.data[kA][m][k];
      for (int n = 0; n < columns; n++) {
        const uint32_t b = tiles.data[kB][k][n];
        evens[n] = __builtin_fmaf(float_of(a << 16), float_of(b << 16), evens[n]);
        odds[n] = __builtin_fmaf(float_of(a & 0xffff0000u), float_of(b & 0xffff0000u), odds[n]);
      }
    }
    for (int n = 0; n < columns; n++) {
      const float sum = float_of(tiles.data[kSums][m][n]) + (evens[n] + odds[n]);
      std::memcpy(&tiles.data[kSums][m][n], &sum, sizeof sum);
    }
  }
}
#endif

#if SPOTWISE_HAS_TILES
// What a thread's tiles are shaped for; 0: they have no shape.
static thread_local int tiles_use = 0;

// Shapes the calling thread's tiles for a use, by `shape(shapes)`, unless they are so shaped already. `use` is not 0.
template <class Shape>
inline void shape_tiles(int use, const Shape& shape) {
  if (tiles_use == use) return;
  TileShapes shapes;
  shape(shapes);
  load_shapes(shapes);
  tiles_use = use;
}

// Frees the calling thread's tiles, which the system would otherwise keep whenever it switches threads: 8 KiB.
inline void release_tiles() {
  if (tiles_use == 0) return;
  drop_shapes();
  tiles_use = 0;
}
#else
inline void release_tiles() {}
#endif

// While it lives the calling thread may compute with tiles; at the end it has none.
class TileUse {
 public:
  TileUse() = default;
  ~TileUse() { release_tiles(); }
  TileUse(const TileUse&) = delete;
  TileUse& operator=(const TileUse&) = delete;
};

}  // namespace spotwise

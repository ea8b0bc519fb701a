// Makes quantised panels (`quantised.h`) of rows of blocks as a GGUF file has them.

#pragma once

#include "quantised.h"

namespace spotwise {

// Scale and minimum of a part of Q4_K and Q5_K: 6 bits each, in 12 bytes for the 8 parts of a block.
inline void part_scale_and_minimum(const uint8_t* packed, int part, uint8_t* scale, uint8_t* minimum) {
  if (part < 4) {
    *scale = packed[part] & 63;
    *minimum = packed[part + 4] & 63;
  } else {
    *scale = uint8_t((packed[part + 4] & 15) | (packed[part - 4] >> 6) << 4);
    *minimum = uint8_t((packed[part + 4] >> 4) | (packed[part] >> 6) << 4);
  }
}

// The unsigned number of an input of a part, and the part's scales, as a GGUF block has them.
template <Kind kKind>
struct RawBlock {
  const uint8_t* raw;

  const uint8_t* scale() const { return kKind == Kind::kQ6_K ? raw + 208 : raw; }
  const uint8_t* minimum() const { return raw + 2; }

  void part_scales(int part, uint8_t (&scales)[2]) const {
    if constexpr (kKind == Kind::kQ6_K) {
      scales[0] = raw[192 + 2 * part];
      scales[1] = raw[192 + 2 * part + 1];
    } else {
      part_scale_and_minimum(raw + 4, part, &scales[0], &scales[1]);
    }
  }

  int number(int part, int input) const {
    if constexpr (kKind == Kind::kQ8_0) return raw[2 + input];
    if constexpr (kKind == Kind::kQ4_0) return raw[2 + input % 16] >> input / 16 * 4 & 15;
    if constexpr (kKind == Kind::kQ4_1) return raw[4 + input % 16] >> input / 16 * 4 & 15;
    if constexpr (kKind == Kind::kQ4_K) return raw[16 + part / 2 * 32 + input] >> part % 2 * 4 & 15;
    if constexpr (kKind == Kind::kQ5_K) {
      return (raw[48 + part / 2 * 32 + input] >> part % 2 * 4 & 15) | (raw[16 + input] >> part & 1) << 4;
    }
    const int low = raw[part / 4 * 64 + part % 2 * 32 + input] >> part % 4 / 2 * 4 & 15;
    return low | (raw[128 + part / 4 * 32 + input] >> part % 4 * 2 & 3) << 4;
  }
};

// Packs `outputs` rows of blocks into panels, of which one begins every `stride` bytes; `source_row(column)` returns the row of an
// output column. Columns beyond `outputs` are zero.
template <Kind kKind, class Format, class SourceRow>
void pack_blocks(const uint8_t* rows, int outputs, int inputs, uint8_t* packed, long stride, const SourceRow& source_row) {
  constexpr KindShape kShape = shape_of(kKind);
  const int blocks = inputs / (kShape.block_parts * kPartInputs);
  const int panels = (outputs + kPanel - 1) / kPanel;
  std::memset(packed, 0, size_t(panels) * stride);
  for (int column = 0; column < outputs; column++) {
    const uint8_t* row = rows + long(source_row(column)) * blocks * kShape.raw_bytes;
    const int lane = column % kPanel;
    for (int index = 0; index < blocks; index++) {
      uint8_t* block = packed + column / kPanel * stride + long(index) * kShape.block_bytes();
      const RawBlock<kKind> from{row + long(index) * kShape.raw_bytes};
      std::memcpy(block + 2 * lane, from.scale(), 2);
      if constexpr (kShape.has_minimum) std::memcpy(block + 2 * kPanel + 2 * lane, from.minimum(), 2);
      for (int part = 0; part < kShape.block_parts; part++) {
        uint8_t* own = block + kShape.header_bytes() + part * kShape.part_bytes();
        if constexpr (kShape.part_scales > 0) {
          uint8_t scales[2];
          from.part_scales(part, scales);
          own[lane] = scales[0];
          own[kPanel + lane] = scales[1];
        }
        uint8_t* numbers = own + kShape.part_scales * kPanel;
        uint8_t* further = numbers + kPartInputs * kPanel * kShape.number_bits / 8;
        for (int input = 0; input < kPartInputs; input++) {
          const int number = from.number(part, input);
          const LanePlace place = place_of<Format>(lane, input);
          const int slot = input / 2 * 2 + place.half;
          if constexpr (kShape.number_bits == 8) {
            numbers[slot * kPanel + place.lane] = uint8_t(number);
          } else {
            numbers[slot / 2 * kPanel + place.lane] |= uint8_t((number & 15) << place.half * 4);
          }
          if constexpr (kShape.further_bits > 0) {
            constexpr int kInputs = 8 / kShape.further_bits;
            further[slot / kInputs * kPanel + place.lane] |= uint8_t(number >> 4 << slot % kInputs * kShape.further_bits);
          }
        }
      }
    }
  }
}

}  // namespace spotwise

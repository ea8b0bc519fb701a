// A fused decoder layer of the common form: norm, attention with rotary positions, norm, gated MLP, two residuals.
//
// One call computes the layer for all tokens of an iteration; its steps are operations of the team. Intermediate results are
// kept in the workspace, which grows to the largest iteration and is reused.
//
// In a group, a shard has some heads, and some columns of each other matrix: it computes these, and gathers the others' before
// a product reads them. Every sum is that of the whole layer, in the same order.

#pragma once

#include "attention.h"
#include "epilogues.h"
#include "exchange.h"
#include "low_rank.h"

namespace spotwise {

// Root-mean-square norm of one row (Zhang and Sennrich, 2019).
template <class Format>
inline void normalize(const typename Format::Value* x, const typename Format::Value* weight, int width, float epsilon,
                      typename Format::Value* out) {
  Floats squares = {};
  int i = 0;
  float tail = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Floats v = Format::get16(x + i);
    squares = fused(v, v, squares);
  }
  for (; i < width; i++) tail = fused(Format::get(x + i), Format::get(x + i), tail);
  const float factor = 1.0f / std::sqrt((sum(squares) + tail) / float(width) + epsilon);
  for (i = 0; i + kLanes <= width; i += kLanes)
    Format::put16(out + i, Format::get16(x + i) * factor * Format::get16(weight + i));
  for (; i < width; i++) Format::put(out + i, Format::get(x + i) * factor * Format::get(weight + i));
}

// How the shards of a layer complete a matrix, of which each has written its columns. `bounds` say at which byte of a row each
// shard's columns begin, and last the row's length; `root` is the only shard that needs the others', or `kNobody`.
struct Gathering {
  int (*gather)(void* context, void* matrix, int64_t rows, int64_t row_bytes, const int64_t* bounds, int root);
  void* context;
  const int64_t *attended, *hidden, *inner;  // bounds
};

template <class Format>
struct Layer {
  typedef typename Format::Value Value;
  AttentionShape attention;
  int hidden, intermediate, rotary_dim;
  Activation activation;
  float epsilon;
  const Value *input_norm, *post_norm;  // [hidden]
  const Value *query_norm, *key_norm;   // [key_dim], or null
  const Value *qkv_bias, *output_bias;  // or null
  Packed<Format> qkv, output, gate_up, down;
  KvLayer<Format> kv;
  int attended_width, inner_width;                     // columns of the whole attention output and gated activation
  int attended_column, hidden_column, inner_column;    // this shard's first in each gathered matrix
  const Gathering* gathering;  // null: there is one shard
  int index;                   // of the layer in the model
};

template <class Format>
struct Workspace {
  typedef typename Format::Value Value;
  std::vector<Value> normed, qkv, attended, activated;
  std::vector<AttentionScratch<Format>> scratch;
  AdapterScratch<Format> adapting;

  void fit(const Layer<Format>& layer, int tokens) {
    grow(normed, long(tokens) * layer.hidden);
    grow(qkv, long(tokens) * std::max(layer.qkv.outputs, layer.hidden));
    grow(attended, long(tokens) * layer.attended_width);
    grow(activated, long(tokens) * layer.inner_width);
  }

 private:
  static void grow(std::vector<Value>& values, long size) {
    if (long(values.size()) < size) values.resize(size);
  }
};

// Rotates the first `rotary_dim` values of a head in place, paired by halves (the layout of transformers' Llama).
template <class Format>
inline void rotate(typename Format::Value* head, const typename Format::Value* cosine, const typename Format::Value* sine,
                   int rotary_dim) {
  const int half = rotary_dim / 2;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats a = Format::get16(head + i), b = Format::get16(head + half + i);
    Format::put16(head + i, fused(a, Format::get16(cosine + i), -(b * Format::get16(sine + i))));
    Format::put16(head + half + i, fused(b, Format::get16(cosine + half + i), a * Format::get16(sine + half + i)));
  }
  for (; i < half; i++) {
    const float a = Format::get(head + i), b = Format::get(head + half + i);
    Format::put(head + i, fused(a, Format::get(cosine + i), -(b * Format::get(sine + i))));
    Format::put(head + half + i, fused(b, Format::get(cosine + half + i), a * Format::get(sine + half + i)));
  }
}

// Computes the layer in place on `x` [tokens, hidden]; `cosine` and `sine` are [tokens, rotary_dim]. With `last_only` only keys
// and values are computed for tokens other than each row's last; these tokens stay unchanged in `x`. `adapters` is null where no
// row has one. Returns false, and leaves `x` undefined, where the group is broken.
template <class Format>
bool compute_layer(Team& team, Workspace<Format>& work, const Layer<Format>& layer, const Rows& rows,
                   typename Format::Value* x, const typename Format::Value* cosine, const typename Format::Value* sine,
                   bool last_only, const AdapterRows* adapters) {
  typedef typename Format::Value Value;
  const AttentionShape& shape = layer.attention;
  const int hidden = layer.hidden, tokens = rows.tokens, width = layer.qkv.outputs;
  const long attended_width = layer.attended_width, inner_width = layer.inner_width;
  work.fit(layer, tokens);
  Value *normed = work.normed.data(), *qkv = work.qkv.data(), *attended = work.attended.data();
  const auto in_pieces = [&](int count, const auto& body) {  // of 16 tokens
    team.each((count + 15) / 16, [&](int piece, int) {
      for (int i = piece * 16; i < std::min(count, piece * 16 + 16); i++) body(i);
    });
  };
  const auto gathered = [&](Value* matrix, int count, long row_values, const int64_t* Gathering::*bounds) {
    const Gathering* g = layer.gathering;
    return !g || g->gather(g->context, matrix, count, row_values * sizeof(Value), g->*bounds, kNobody);
  };
  in_pieces(tokens, [&](int token) {
    normalize<Format>(x + long(token) * hidden, layer.input_norm, hidden, layer.epsilon, normed + long(token) * hidden);
  });
  multiply<Format>(team, normed, hidden, tokens, layer.qkv, StoreRows<Format>{qkv, width, width, layer.qkv_bias});
  const int key_start = shape.heads * shape.key_dim, value_start = key_start + shape.kv_heads * shape.key_dim;
  Adapting<Format> adapting(team, work.adapting, adapters, layer.index);
  const auto adapt = [&](LowRank AdaptedLayer::*product, const int32_t* first_token, const Value* a, long a_stride, Value* y,
                         long y_stride, const int(&outputs)[kMostParts]) {
    adapting.choose(product, first_token);
    if (!adapting.any()) return;
    adapting.narrow(a, a_stride, int(a_stride));
    adapting.add(y, y_stride, outputs);
  };
  adapt(&AdaptedLayer::qkv, rows.first_token, normed, hidden, qkv, width,
        {key_start, value_start - key_start, width - value_start});

  const Heads<Format> queries{qkv, width, shape.key_dim};
  const Heads<Format> keys{qkv + key_start, width, shape.key_dim};
  const Heads<Format> values{qkv + value_start, width, shape.value_dim};
  in_pieces(tokens, [&](int token) {
    for (int head = 0; head < shape.heads + shape.kv_heads; head++) {
      Value* at = qkv + long(token) * width + head * shape.key_dim;
      const Value* norm = head < shape.heads ? layer.query_norm : layer.key_norm;
      if (norm) normalize<Format>(at, norm, shape.key_dim, layer.epsilon, at);
      rotate<Format>(at, cosine + long(token) * layer.rotary_dim, sine + long(token) * layer.rotary_dim, layer.rotary_dim);
    }
    write_kv<Format>(shape, rows, layer.kv, token, keys, values);
  });
  attend<Format>(team, shape, rows, layer.kv, queries, attended + layer.attended_column, attended_width, work.scratch,
                 last_only);

  // From here on tokens are independent: those to compute are moved to the front of the buffers.
  const int wanted = last_only ? rows.rows : tokens;
  Value* residual = x;
  if (last_only) {
    residual = qkv;  // [rows, hidden]: attention has finished reading it
    for (int row = 0; row < rows.rows; row++) {
      const long token = rows.first_token[row + 1] - 1;
      std::memmove(attended + row * attended_width, attended + token * attended_width, attended_width * sizeof(Value));
      std::memcpy(residual + row * long(hidden), x + token * hidden, hidden * sizeof(Value));
    }
  }
  if (!gathered(attended, wanted, attended_width, &Gathering::attended)) return false;
  Value* own = residual + layer.hidden_column;
  multiply<Format>(team, attended, attended_width, wanted, layer.output,
                   StoreRows<Format>{own, hidden, layer.output.outputs, layer.output_bias, own});
  const int32_t* first_token = last_only ? nullptr : rows.first_token;
  adapt(&AdaptedLayer::output, first_token, attended, attended_width, own, hidden, {layer.output.outputs, 0, 0});
  if (!gathered(residual, wanted, hidden, &Gathering::hidden)) return false;
  in_pieces(wanted, [&](int i) {
    normalize<Format>(residual + long(i) * hidden, layer.post_norm, hidden, layer.epsilon, normed + long(i) * hidden);
  });
  Value* activated = work.activated.data();
  const StoreGated<Format> store_gated{activated + layer.inner_column, inner_width, layer.gate_up.outputs / 2, layer.activation};
  adapting.choose(&AdaptedLayer::gate_up, first_token);
  if (!adapting.any()) {
    multiply<Format>(team, normed, hidden, wanted, layer.gate_up, store_gated);
  } else {
    adapting.narrow(normed, hidden, hidden);
    for (int row = 0, next; row < wanted; row = next) {  // weights are read once, unless many rows have adapters
      const int first = std::max(row, adapting.first());
      next = std::min(wanted, first + kDeltaRows);
      const StoreGated<Format> store{store_gated.out + row * inner_width, inner_width, store_gated.width, layer.activation};
      multiply<Format>(team, normed + long(row) * hidden, hidden, next - row, layer.gate_up,
                       StoreGatedAdapted<Format>{store, adapting.deltas(first, next, store.width), first - row});
    }
  }
  if (!gathered(activated, wanted, inner_width, &Gathering::inner)) return false;
  multiply<Format>(team, activated, inner_width, wanted, layer.down,
                   StoreRows<Format>{own, hidden, layer.down.outputs, nullptr, own});
  adapt(&AdaptedLayer::down, first_token, activated, inner_width, own, hidden, {layer.down.outputs, 0, 0});
  if (!gathered(residual, wanted, hidden, &Gathering::hidden)) return false;
  if (last_only) {
    for (int row = 0; row < rows.rows; row++)
      std::memcpy(x + (rows.first_token[row + 1] - 1) * long(hidden), residual + row * long(hidden), hidden * sizeof(Value));
  }
  return true;
}

}  // namespace spotwise

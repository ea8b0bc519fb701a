// A fused decoder layer of the common form: norm, attention with rotary positions, norm, gated MLP, two residuals.
//
// One call computes the layer for all tokens of an iteration; its steps are operations of the team. Intermediate results are
// kept in the workspace, which grows to the largest iteration and is reused.

#pragma once

#include "attention.h"

namespace spotwise {

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
};

template <class Format>
struct Workspace {
  typedef typename Format::Value Value;
  std::vector<Value> normed, qkv, attended, activated;
  std::vector<AttentionScratch<Format>> scratch;

  void fit(const Layer<Format>& layer, int tokens) {
    grow(normed, long(tokens) * layer.hidden);
    grow(qkv, long(tokens) * layer.qkv.outputs);
    grow(attended, long(tokens) * layer.output.inputs);
    grow(activated, long(tokens) * layer.down.inputs);
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
    Format::put16(head + i, a * Format::get16(cosine + i) - b * Format::get16(sine + i));
    Format::put16(head + half + i, b * Format::get16(cosine + half + i) + a * Format::get16(sine + half + i));
  }
  for (; i < half; i++) {
    const float a = Format::get(head + i), b = Format::get(head + half + i);
    Format::put(head + i, a * Format::get(cosine + i) - b * Format::get(sine + i));
    Format::put(head + half + i, b * Format::get(cosine + half + i) + a * Format::get(sine + half + i));
  }
}

// Computes the layer in place on `x` [tokens, hidden]; `cosine` and `sine` are [tokens, rotary_dim]. With `last_only` only keys
// and values are computed for tokens other than each row's last; these tokens stay unchanged in `x`.
template <class Format>
void compute_layer(Team& team, Workspace<Format>& work, const Layer<Format>& layer, const Rows& rows,
                   typename Format::Value* x, const typename Format::Value* cosine, const typename Format::Value* sine,
                   bool last_only) {
  typedef typename Format::Value Value;
  const AttentionShape& shape = layer.attention;
  const int hidden = layer.hidden, tokens = rows.tokens, width = layer.qkv.outputs;
  const int attended_width = layer.output.inputs, inner = layer.down.inputs;
  work.fit(layer, tokens);
  Value *normed = work.normed.data(), *qkv = work.qkv.data(), *attended = work.attended.data();
  const auto in_pieces = [&](int count, const auto& body) {  // of 16 tokens
    team.each((count + 15) / 16, [&](int piece, int) {
      for (int i = piece * 16; i < std::min(count, piece * 16 + 16); i++) body(i);
    });
  };
  in_pieces(tokens, [&](int token) {
    normalize<Format>(x + long(token) * hidden, layer.input_norm, hidden, layer.epsilon, normed + long(token) * hidden);
  });
  multiply<Format>(team, normed, hidden, tokens, layer.qkv, StoreRows<Format>{qkv, width, width, layer.qkv_bias});

  const int key_start = shape.heads * shape.key_dim, value_start = key_start + shape.kv_heads * shape.key_dim;
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
  attend<Format>(team, shape, rows, layer.kv, queries, attended, work.scratch, last_only);

  // From here on tokens are independent: those to compute are moved to the front of the buffers.
  const int wanted = last_only ? rows.rows : tokens;
  Value* residual = x;
  if (last_only) {
    residual = qkv;  // [rows, hidden]: attention has finished reading it
    for (int row = 0; row < rows.rows; row++) {
      const long token = rows.first_token[row + 1] - 1;
      std::memmove(attended + row * long(attended_width), attended + token * attended_width, attended_width * sizeof(Value));
      std::memcpy(residual + row * long(hidden), x + token * hidden, hidden * sizeof(Value));
    }
  }
  multiply<Format>(team, attended, attended_width, wanted, layer.output,
                   StoreRows<Format>{residual, hidden, hidden, layer.output_bias, residual});
  in_pieces(wanted, [&](int i) {
    normalize<Format>(residual + long(i) * hidden, layer.post_norm, hidden, layer.epsilon, normed + long(i) * hidden);
  });
  Value* activated = work.activated.data();
  multiply<Format>(team, normed, hidden, wanted, layer.gate_up, StoreGated<Format>{activated, inner, inner, layer.activation});
  multiply<Format>(team, activated, inner, wanted, layer.down, StoreRows<Format>{residual, hidden, hidden, nullptr, residual});
  if (last_only) {
    for (int row = 0; row < rows.rows; row++)
      std::memcpy(x + (rows.first_token[row + 1] - 1) * long(hidden), residual + row * long(hidden), hidden * sizeof(Value));
  }
}

}  // namespace spotwise

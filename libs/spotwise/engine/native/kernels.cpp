// The C interface, which the engine calls through ctypes. Functions take a number format (0: float32, 1: bfloat16), arrays and
// sizes. The caller has checked shapes. Each calling thread has a team and workspaces of its own, so that several engines of one
// process compute at the same time, without locks: a layer waits in its gathers for other processes.

#include <atomic>
#include <memory>

#include "flushing.h"
#include "layer.h"
#include "packing.h"
#include "ring_exchange.h"
#include "sampling.h"
#include "socket_exchange.h"

using namespace spotwise;

namespace {

// What a thread gets that has not set its number of threads: an engine may be loaded by one thread and run by another.
std::atomic<int> latest_threads{1};
thread_local std::unique_ptr<Team> own_team;

// The calling thread's team. Pieces of an operation, which helpers compute, must not ask for it.
Team& team() {
  if (!own_team) own_team = std::make_unique<Team>(latest_threads.load(std::memory_order_relaxed));
  return *own_team;
}

template <class Format>
Workspace<Format>& workspace() {
  thread_local Workspace<Format> instance;
  return instance;
}

// While it lives, the calling thread computes: it flushes, and may have tiles.
struct Computing {
  const Flushing flushing;
  const TileUse tiles;
};

template <class Body>
void with_format(int format, const Body& body) {
  if (format == 0) {
    body(Float32{});
  } else {
    body(BFloat16{});
  }
}

}  // namespace

extern "C" {

// A fused decoder layer, or one shard of it; untyped pointers refer to values of its format. Heads are the shard's, `hidden` and
// `intermediate` the whole layer's; of the columns of the attention output, the residual stream and the gated activation the
// shard has `own_*`, from `first_*` on. `qkv` points into the whole layer's panels, of which the shard's queries, keys and values are
// three ranges: the gaps are the panels between them.
struct LayerFields {
  int32_t format, heads, kv_heads, key_dim, value_dim, window, hidden, intermediate, rotary_dim, activation;
  int32_t attended, first_attended, own_hidden, first_hidden, own_inner, first_inner, key_gap, value_gap, index;
  float scale, softcap, epsilon;
  const float *slopes, *sinks;
  const void *input_norm, *post_norm, *query_norm, *key_norm, *qkv_bias, *output_bias;
  const void *qkv, *output, *gate_up, *down;  // packed
  int32_t query_kind, key_kind, value_kind, output_kind, gate_up_kind, down_kind;  // `Kind`
  void *keys, *values;                        // of this layer and the shard's KV heads
  int64_t kv_blocks;                          // blocks of a KV head
  const Gathering* gathering;                 // null: there is one shard
};

// The attention of a layer that is not fused.
struct AttentionFields {
  int32_t format, heads, kv_heads, key_dim, value_dim, window;
  float scale, softcap;
  const float *slopes, *sinks;
  void *keys, *values;
  int64_t kv_blocks;
};

struct RowFields {
  int32_t rows, tokens;
  const int32_t *first_token, *first_position;
  const int64_t* table_start;
  const int32_t *tables, *row_of_token;
};

// Sets the number of threads that compute what the calling thread asks for, itself included. Helpers inherit its priority and
// cores, and end with it.
void sw_set_threads(int threads) {
  latest_threads.store(threads, std::memory_order_relaxed);
  if (!own_team || own_team->size() != threads) own_team = std::make_unique<Team>(threads);
}

// Packs weights [outputs, inputs]; `rows[column]` is the source row of an output column.
void sw_pack(int format, const void* weights, int outputs, int inputs, const int32_t* rows, void* packed) {
  with_format(format, [&](auto f) {
    typedef decltype(f) Format;
    typedef typename Format::Value Value;
    pack<Format>((const Value*)weights, outputs, inputs, (Value*)packed, [&](int column) { return rows[column]; });
  });
}

// Packs rows of a GGUF file's blocks, of a quantised kind, into panels of a format; one begins every `stride` bytes.
void sw_pack_blocks(int format, int kind, const void* blocks, int outputs, int inputs, const int32_t* rows, void* packed,
                    int64_t stride) {
  with_format(format, [&](auto f) {
    with_kind(Kind(kind), [&](auto constant) {
      pack_blocks<decltype(constant)::value, decltype(f)>((const uint8_t*)blocks, outputs, inputs, (uint8_t*)packed, stride,
                                                          [&](int column) { return rows[column]; });
    });
  });
}

// out [count, inputs] = the weights of these output columns, widened from quantised panels without gaps.
void sw_widen_columns(int format, int kind, const void* packed, int inputs, const int64_t* columns, int count, void* out) {
  with_format(format, [&](auto f) {
    typedef decltype(f) Format;
    const long bytes = panel_bytes(Kind(kind), inputs);
    team().each(count, [&](int i, int) {
      widen_column<Format>(Kind(kind), (const uint8_t*)packed, bytes, inputs, columns[i],
                           (typename Format::Value*)out + long(i) * inputs);
    });
  });
}

// out [rows, outputs] = a [rows, inputs] * packed (+ bias), with `out_stride` values from row to row of `out`; with `as_floats`,
// `out` is float32 in any format, without bias.
void sw_linear(int format, const void* a, int64_t row_stride, int rows, int kind, const void* packed, int outputs, int inputs,
               const void* bias, void* out, int64_t out_stride, int as_floats) {
  const Computing computing;
  with_format(format, [&](auto f) {
    typedef decltype(f) Format;
    typedef typename Format::Value Value;
    const Packed<Format> weights{(const Value*)packed, outputs, inputs, {}, all_of(Kind(kind), inputs)};
    if (as_floats) {
      multiply<Format>(team(), (const Value*)a, row_stride, rows, weights, StoreFloats{(float*)out, out_stride, outputs});
    } else {
      multiply<Format>(team(), (const Value*)a, row_stride, rows, weights,
                       StoreRows<Format>{(Value*)out, out_stride, outputs, (const Value*)bias});
    }
  });
}

// out = the root-mean-square norm of rows of x [rows, width], times the weight [width].
void sw_normalize(int format, const void* x, int rows, int width, const void* weight, float epsilon, void* out) {
  const Computing computing;
  with_format(format, [&](auto f) {
    typedef decltype(f) Format;
    typedef typename Format::Value Value;
    team().each(rows, [&](int row, int) {
      normalize<Format>((const Value*)x + int64_t(row) * width, (const Value*)weight, width, epsilon,
                        (Value*)out + int64_t(row) * width);
    });
  });
}

// Computes one decoder layer, as `sw_layers`.
static bool compute_fields(const LayerFields& l, const RowFields& r, void* x, const void* cosine, const void* sine, bool last_only,
                           const AdapterRows* adapters) {
  bool is_whole = false;
  with_format(l.format, [&](auto f) {
    typedef decltype(f) Format;
    typedef typename Format::Value Value;
    const long key_stride = l.kv_blocks * kBlock * l.key_dim, value_stride = l.kv_blocks * kBlock * l.value_dim;
    const int key_column = l.heads * l.key_dim, value_column = key_column + l.kv_heads * l.key_dim;
    const int qkv_width = value_column + l.kv_heads * l.value_dim;
    PanelKinds kinds{Kind(l.query_kind), Kind(l.key_kind), Kind(l.value_kind)};
    for (Kind kind : {kinds.before, kinds.between, kinds.after}) kinds.bytes = std::max(kinds.bytes, panel_bytes(kind, l.hidden));
    const Layer<Format> layer{
        {l.heads, l.kv_heads, l.key_dim, l.value_dim, l.scale, l.window, l.softcap, l.slopes, l.sinks},
        l.hidden,
        l.intermediate,
        l.rotary_dim,
        Activation(l.activation),
        l.epsilon,
        (const Value*)l.input_norm,
        (const Value*)l.post_norm,
        (const Value*)l.query_norm,
        (const Value*)l.key_norm,
        (const Value*)l.qkv_bias,
        (const Value*)l.output_bias,
        {(const Value*)l.qkv, qkv_width, l.hidden, {{key_column / kPanel, l.key_gap}, {value_column / kPanel, l.value_gap}},
         kinds},
        {(const Value*)l.output, l.own_hidden, l.attended, {}, all_of(Kind(l.output_kind), l.attended)},
        {(const Value*)l.gate_up, 2 * l.own_inner, l.hidden, {}, all_of(Kind(l.gate_up_kind), l.hidden)},
        {(const Value*)l.down, l.own_hidden, l.intermediate, {}, all_of(Kind(l.down_kind), l.intermediate)},
        {(Value*)l.keys, (Value*)l.values, key_stride, value_stride},
        l.attended,
        l.intermediate,
        l.first_attended,
        l.first_hidden,
        l.first_inner,
        l.gathering,
        l.index,
    };
    const Rows rows{r.rows, r.tokens, r.first_token, r.first_position, r.table_start, r.tables, r.row_of_token};
    is_whole = compute_layer<Format>(team(), workspace<Format>(), layer, rows, (Value*)x, (const Value*)cosine,
                                     (const Value*)sine, last_only, adapters);
  });
  return is_whole;
}

// Computes decoder layers that follow each other in place on x [tokens, hidden]; `last_only` counts for the last of them,
// `adapters` is null where no row has one. Returns 0 where the group is broken.
int sw_layers(const LayerFields* const* fields, int count, const RowFields* row_fields, void* x, const void* cosine,
              const void* sine, int last_only, const AdapterRows* adapters) {
  const Computing computing;
  for (int i = 0; i < count; i++) {
    if (!compute_fields(*fields[i], *row_fields, x, cosine, sine, last_only && i == count - 1, adapters)) return 0;
  }
  return 1;
}

// Writes new keys and values, then attends. Strides count values, between tokens and heads; out is [tokens, heads, value_dim].
void sw_attend(const AttentionFields* fields, const RowFields* row_fields, const void* queries, int64_t query_token_stride,
               int64_t query_head_stride, const void* keys, int64_t key_token_stride, int64_t key_head_stride,
               const void* values, int64_t value_token_stride, int64_t value_head_stride, void* out) {
  const Computing computing;
  with_format(fields->format, [&](auto f) {
    typedef decltype(f) Format;
    typedef typename Format::Value Value;
    const AttentionFields& a = *fields;
    const AttentionShape shape{a.heads, a.kv_heads, a.key_dim, a.value_dim, a.scale, a.window, a.softcap, a.slopes, a.sinks};
    const KvLayer<Format> layer{(Value*)a.keys, (Value*)a.values, a.kv_blocks * kBlock * a.key_dim,
                                a.kv_blocks * kBlock * a.value_dim};
    const Rows rows{row_fields->rows,        row_fields->tokens, row_fields->first_token, row_fields->first_position,
                    row_fields->table_start, row_fields->tables, row_fields->row_of_token};
    const Heads<Format> q{(const Value*)queries, query_token_stride, query_head_stride};
    const Heads<Format> k{(const Value*)keys, key_token_stride, key_head_stride};
    const Heads<Format> v{(const Value*)values, value_token_stride, value_head_stride};
    team().each((rows.tokens + 15) / 16, [&](int piece, int) {
      for (int token = piece * 16; token < std::min(rows.tokens, piece * 16 + 16); token++)
        write_kv<Format>(shape, rows, layer, token, k, v);
    });
    attend<Format>(team(), shape, rows, layer, q, (Value*)out, long(a.heads) * a.value_dim, workspace<Format>().scratch, false);
  });
}

// Picks a token for each row of float32 logits [rows, vocabulary]: the most likely one at temperature 0, else a drawn one.
void sw_pick(const float* logits, int rows, int vocabulary, const Draw* draws, int64_t* tokens) {
  team().each(rows, [&](int row, int) {
    thread_local DrawScratch scratch;
    tokens[row] = pick(logits + int64_t(row) * vocabulary, vocabulary, draws[row], scratch);
  });
}

// Bytes of memory, zero at first, through which `size` members of a group exchange; rings have `capacity` bytes.
int64_t sw_exchange_bytes(int size, int64_t capacity) { return RingExchange::bytes(size, capacity); }

// Joins an exchange as member `rank`; members that are silent for `patience_ms` break it.
Exchange* sw_exchange_join(void* memory, int rank, int size, int64_t capacity, int64_t patience_ms) {
  return new RingExchange(memory, rank, size, capacity, patience_ms);
}

// The same through connections, which `sw_exchange_connect` hands over.
Exchange* sw_socket_exchange_join(int rank, int size, int64_t patience_ms) {
  return new SocketExchange(rank, size, patience_ms);
}

// Takes a socket exchange's connections with a member, once, for data and signs of life.
void sw_exchange_connect(Exchange* exchange, int member, int data, int pulse) {
  static_cast<SocketExchange*>(exchange)->connect(member, data, pulse);
}

// Leaves; no thread may be inside a call, which `sw_exchange_fail` ends.
void sw_exchange_leave(Exchange* exchange) { delete exchange; }

// 0 while all members are there; else why not: 1 + the rank of the first that is gone, or -1 after `sw_exchange_fail`.
int sw_exchange_broken(const Exchange* exchange) { return exchange->broken(); }

// Whether every member has shown life.
int sw_exchange_complete(const Exchange* exchange) { return exchange->complete(); }

// Breaks the exchange for all members; `by` as `sw_exchange_broken` returns it.
void sw_exchange_fail(Exchange* exchange, int by) { exchange->fail(by); }

// The following return 0 where the exchange is broken.
int sw_exchange_send(Exchange* exchange, int to, const void* data, int64_t bytes) {
  return exchange->waiting([&] { return exchange->send(to, (const char*)data, bytes); });
}

int sw_exchange_receive(Exchange* exchange, int from, void* data, int64_t bytes) {
  return exchange->timed(exchange->times.receive_ns, [&] { return exchange->receive(from, (char*)data, bytes); });
}

// Whether this member's thread waits for another one.
int sw_exchange_waits(const Exchange* exchange) { return exchange->waits.load(std::memory_order_relaxed); }

// Writes the numbers of `Exchange::Times`.
void sw_exchange_times(Exchange* exchange, int64_t* numbers) {
  numbers[0] = exchange->times.gathers.load(std::memory_order_relaxed);
  numbers[1] = exchange->times.gather_ns.load(std::memory_order_relaxed);
  numbers[2] = exchange->times.receive_ns.load(std::memory_order_relaxed);
}

// The shards of one stage: members first .. first + count - 1 of an exchange, which is null between two groups.
struct StageFields {
  Exchange* exchange;
  int32_t first, count;
};

// A `Gathering::gather`, of a stage's shards.
int sw_exchange_gather(void* stage, void* matrix, int64_t rows, int64_t row_bytes, const int64_t* bounds, int root) {
  const StageFields& s = *(const StageFields*)stage;
  if (!s.exchange) return false;
  s.exchange->times.gathers.fetch_add(1, std::memory_order_relaxed);
  return s.exchange->timed(s.exchange->times.gather_ns, [&] {
    return s.exchange->gather((char*)matrix, rows, row_bytes, bounds, s.first, s.count, root);
  });
}

}  // extern "C"

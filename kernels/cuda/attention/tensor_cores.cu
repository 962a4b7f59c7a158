// Attention of bf16 queries over bf16 pages on the tensor cores, for decode and prefill.
//
// A tile is up to 16 queries of one sequence and kv head: its query heads, of one row or of a few rows. A warp runs
// over keys in steps of 16. With few tiles the four warps of a block share one tile, every fourth step each, and their
// results are merged in order; with many, every warp has a tile of its own.
//
// Operands come straight from memory, 16 bytes a lane. Q Kᵀ sums over head dimensions in an order in which a lane's
// eight neighbours are the operands of two products. For P V a lane pairs the same dimension of neighbouring keys;
// column n of product j is dimension 8 n + j of a 64-wide chunk.
#include "pages.cuh"

namespace tensor_cores {

constexpr int WARPS = 4;
constexpr int QUERIES = 16;
constexpr int STEP = 16;

struct Arguments {
    KvShape shape;
    int num_sequences, single_rows, num_heads, keys_per_split, fewest_keys, window, causal, warps_per_tile;
    float scale, softcap;
};

__device__ inline void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                uint32_t b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline uint32_t pack(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&pair);
}

// Copies 16 bytes to shared memory while the thread goes on.
__device__ inline void copy_async(uint4* to, const uint4* from) {
    uint32_t address = __cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

__device__ inline uint4 load_or_zero(const bf16* from, bool exists) {
    return exists ? *reinterpret_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
}

__device__ inline float guarded_exp(float x, float max) { return x == -INFINITE ? 0.0f : __expf(x - max); }

// Maximum or sum over the four lanes that hold a row.
__device__ inline float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ inline float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// The queries of a tile, and which keys they see.
struct Tile {
    int sequence, context, num_tokens;
    // Rows within the sequence, and the first row of the sequence in the batch.
    int first, rows;
    size_t start;

    __device__ int end(int row, const Arguments& args) const {
        return args.causal ? context - num_tokens + row + 1 : context;
    }
    __device__ int begin(int row, const Arguments& args) const {
        return args.window > 0 ? max(0, end(row, args) - args.window) : 0;
    }
};

// Finds tile `index` of the batch; sequences have ceil(rows / rows_per_tile) tiles each.
__device__ inline bool find(const uint32_t* starts, const uint32_t* contexts, const Arguments& args, int rows_per_tile,
                            int index, Tile& tile) {
    if (args.single_rows) {
        if (index >= args.num_sequences) return false;
        tile = {index, int(contexts[index]), 1, 0, 1, size_t(index)};
        return true;
    }
    for (int s = 0; s < args.num_sequences; s++) {
        int tokens = starts[s + 1] - starts[s], tiles = (tokens + rows_per_tile - 1) / rows_per_tile;
        if (index < tiles) {
            int first = index * rows_per_tile;
            tile = {s, int(contexts[s]), tokens, first, min(rows_per_tile, tokens - first), starts[s]};
            return true;
        }
        index -= tiles;
    }
    return false;
}

// Where the keys and values of a sequence lie, in units of eight elements.
struct Place {
    const uint32_t* table;
    int block_size, shift;
    uint32_t page_vectors, head_vectors, to_values, key_vectors, value_vectors;

    __device__ Place(const KvShape& shape, int kv_head, const uint32_t* table) : table(table) {
        block_size = shape.block_size;
        // Divisions by powers of two are shifts.
        shift = (block_size & (block_size - 1)) == 0 ? 31 - __clz(block_size) : -1;
        key_vectors = shape.head_dim / VECTOR, value_vectors = shape.value_dim / VECTOR;
        to_values = block_size * key_vectors;
        uint32_t per_head = to_values + block_size * value_vectors;
        page_vectors = shape.num_kv_heads * per_head, head_vectors = kv_head * per_head;
    }
    __device__ uint32_t block(int key) const { return shift >= 0 ? key >> shift : key / block_size; }
    __device__ uint32_t page(int key) const { return table[block(key)] * page_vectors + head_vectors; }
    __device__ uint32_t key(uint32_t page, int key) const {
        return page + (key - block(key) * block_size) * key_vectors;
    }
    __device__ uint32_t value(uint32_t page, int key) const {
        return page + to_values + (key - block(key) * block_size) * value_vectors;
    }
};

// Running results of a warp: lane (g, q) = (lane / 4, lane % 4) holds queries g and g + 8, and of each chunk of 64
// dimensions those from 16 q on.
template <int D>
struct State {
    float max[2], sum[2], values[D / 64][8][4];

    __device__ void scale(float low, float high) {
#pragma unroll
        for (int c = 0; c < D / 64; c++)
#pragma unroll
            for (int j = 0; j < 8; j++) {
                values[c][j][0] *= low, values[c][j][1] *= low;
                values[c][j][2] *= high, values[c][j][3] *= high;
            }
    }
};

// Results of two warps on their way to two others.
template <int D>
struct Exchange {
    float max[2][2][32], sum[2][2][32], values[2][D / 64][8][4][32];

    __device__ void put(int slot, int lane, const State<D>& state) {
#pragma unroll
        for (int h = 0; h < 2; h++) max[slot][h][lane] = state.max[h], sum[slot][h][lane] = state.sum[h];
#pragma unroll
        for (int c = 0; c < D / 64; c++)
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) values[slot][c][j][i][lane] = state.values[c][j][i];
    }

    __device__ void merge(int slot, int lane, State<D>& state) {
        float mine[2], other[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float largest = fmaxf(state.max[h], max[slot][h][lane]);
            mine[h] = guarded_exp(state.max[h], largest), other[h] = guarded_exp(max[slot][h][lane], largest);
            state.max[h] = largest;
            state.sum[h] = state.sum[h] * mine[h] + sum[slot][h][lane] * other[h];
        }
#pragma unroll
        for (int c = 0; c < D / 64; c++)
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float& value = state.values[c][j][i];
                    value = value * mine[i / 2] + values[slot][c][j][i][lane] * other[i / 2];
                }
    }
};

template <int D, int STAGES>
__device__ void attend(const bf16* q, const bf16* pages, const uint32_t* starts, const uint32_t* contexts,
                       const uint32_t* table_starts, const uint32_t* tables, bf16* out, float* partial,
                       Arguments args) {
    wait_for_inputs();
    constexpr int BLOCKS = D / 32, CHUNKS = D / 64;
    // 16-byte operands of a lane in a step.
    constexpr int PER_STEP = 2 * BLOCKS + 4 * CHUNKS;
    // Steps in flight; afterwards the results of warps meet in the same memory.
    extern __shared__ __align__(16) unsigned char shared[];
    static_assert(sizeof(Exchange<D>) <= WARPS * STAGES * PER_STEP * 32 * sizeof(uint4), "shared memory");
    Exchange<D>& exchange = *reinterpret_cast<Exchange<D>*>(shared);
    const KvShape shape = args.shape;
    const int hd = shape.head_dim, vd = shape.value_dim;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, l4 = lane % 4;
    const int group = args.num_heads / shape.num_kv_heads, passes = (group + QUERIES - 1) / QUERIES;
    const int kv_head = blockIdx.y / passes, first_head = blockIdx.y % passes * QUERIES;
    const int heads = min(QUERIES, group - first_head), rows_per_tile = max(1, QUERIES / group);
    const int tiles_per_block = WARPS / args.warps_per_tile, phase = warp % args.warps_per_tile;

    Tile tile;
    if (!find(starts, contexts, args, rows_per_tile,
              blockIdx.z * tiles_per_block + warp / args.warps_per_tile, tile)) {
        // All warps of a shared tile leave together.
        return;
    }
    // Of queries g and g + 8: place in q and out in heads, and visible keys.
    size_t place[2];
    int begin[2], end[2];
    bool exists[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = g + 8 * h, row = i / heads;
        exists[h] = row < tile.rows;
        row = tile.first + (exists[h] ? row : 0);
        place[h] = (tile.start + row) * args.num_heads + kv_head * group + first_head + i % heads;
        begin[h] = tile.begin(row, args), end[h] = exists[h] ? tile.end(row, args) : 0;
    }
    const Span span = Span::of(tile.begin(tile.first, args), tile.end(tile.first + tile.rows - 1, args),
                               args.keys_per_split, args.fewest_keys);
    const int low = span.low, high = span.high;

    uint4 queries[BLOCKS][2];
#pragma unroll
    for (int b = 0; b < BLOCKS; b++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int d = b * 32 + l4 * 8;
            queries[b][h] = load_or_zero(q + place[h] * hd + d, exists[h] && d < hd);
        }

    State<D> state = {{-INFINITE, -INFINITE}, {0.0f, 0.0f}, {}};
    const uint4* vectors = reinterpret_cast<const uint4*>(pages);
    const Place place_of(shape, kv_head, tables + table_starts[tile.sequence]);
    const int stride = args.warps_per_tile * STEP, first_key = low + phase * STEP;
    uint4* const staged = reinterpret_cast<uint4*>(shared) + warp * STAGES * PER_STEP * 32 + lane;
    // Lane i knows where key i of a step lies. Steps at the end repeat the last key, with weight zero.
    uint32_t page = first_key < high ? place_of.page(min(first_key + lane % STEP, high - 1)) : 0;
    // Puts the operands of a step on their way, and looks up the page of the step after it.
    auto fetch = [&](int base, int stage) {
        if (base < high) {
            const int own = min(base + lane % STEP, high - 1);
            const uint32_t own_key = place_of.key(page, own), own_value = place_of.value(page, own);
            uint4* to = staged + stage * PER_STEP * 32;
            // Lanes beyond the width of a head read its start: their queries are zero, their results are not stored.
#pragma unroll
            for (int t = 0; t < 2; t++) {
                uint32_t key = __shfl_sync(~0u, own_key, t * 8 + g);
#pragma unroll
                for (int b = 0; b < BLOCKS; b++) {
                    int d = b * 4 + l4;
                    copy_async(to + (t * BLOCKS + b) * 32, vectors + key + (d * VECTOR < hd ? d : 0));
                }
            }
#pragma unroll
            for (int t = 0; t < 4; t++) {
                uint32_t value = __shfl_sync(~0u, own_value, 2 * l4 + t % 2 + t / 2 * 8);
#pragma unroll
                for (int c = 0; c < CHUNKS; c++) {
                    int d = c * 8 + g;
                    copy_async(to + (2 * BLOCKS + t * CHUNKS + c) * 32, vectors + value + (d * VECTOR < vd ? d : 0));
                }
            }
            page = place_of.page(min(base + stride + lane % STEP, high - 1));
        }
        asm volatile("cp.async.commit_group;");
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(first_key + s * stride, s);

    int stage = 0;
    for (int base = first_key; base < high; base += stride) {
        // A lane reads only what it copied itself, so that its own wait is enough.
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        fetch(base + (STAGES - 1) * stride, stage == 0 ? STAGES - 1 : stage - 1);
        const uint4* step = staged + stage * PER_STEP * 32;
        stage = stage + 1 == STAGES ? 0 : stage + 1;

        float scores[2][4] = {};
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int t = 0; t < 2; t++) {
                uint4 x = queries[b][0], y = queries[b][1], k = step[(t * BLOCKS + b) * 32];
                multiply(scores[t], x.x, y.x, x.y, y.y, k.x, k.y);
                multiply(scores[t], x.z, y.z, x.w, y.w, k.z, k.w);
            }
        float largest[2] = {state.max[0], state.max[1]};
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int at = base + t * 8 + 2 * l4 + i % 2, h = i / 2;
                float s = scores[t][i] * args.scale;
                if (args.softcap > 0.0f) s = args.softcap * tanhf(s / args.softcap);
                s = at >= begin[h] && at < end[h] && at < high ? s : -INFINITE;
                scores[t][i] = s;
                largest[h] = fmaxf(largest[h], s);
            }
        float keep[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            largest[h] = quad_max(largest[h]);
            keep[h] = guarded_exp(state.max[h], largest[h]);
            state.max[h] = largest[h];
            state.sum[h] *= keep[h];
        }
        state.scale(keep[0], keep[1]);
#pragma unroll
        for (int t = 0; t < 2; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                scores[t][i] = guarded_exp(scores[t][i], largest[i / 2]);
                state.sum[i / 2] += scores[t][i];
            }
        uint32_t p0 = pack(scores[0][0], scores[0][1]), p1 = pack(scores[0][2], scores[0][3]);
        uint32_t p2 = pack(scores[1][0], scores[1][1]), p3 = pack(scores[1][2], scores[1][3]);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            uint4 values[4];
#pragma unroll
            for (int t = 0; t < 4; t++) values[t] = step[(2 * BLOCKS + t * CHUNKS + c) * 32];
            const uint32_t* a = reinterpret_cast<const uint32_t*>(&values[0]);
            const uint32_t* b = reinterpret_cast<const uint32_t*>(&values[1]);
            const uint32_t* d = reinterpret_cast<const uint32_t*>(&values[2]);
            const uint32_t* e = reinterpret_cast<const uint32_t*>(&values[3]);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                uint32_t half = j % 2 ? 0x7632 : 0x5410;
                multiply(state.values[c][j], p0, p1, p2, p3, __byte_perm(a[j / 2], b[j / 2], half),
                         __byte_perm(d[j / 2], e[j / 2], half));
            }
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) state.sum[h] = quad_sum(state.sum[h]);

    if (args.warps_per_tile == WARPS) {
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
        if (warp >= 2) exchange.put(warp - 2, lane, state);
        __syncthreads();
        if (warp < 2) exchange.merge(warp, lane, state);
        __syncthreads();
        if (warp == 1) exchange.put(0, lane, state);
        __syncthreads();
        if (warp > 0) return;
        exchange.merge(0, lane, state);
    }
    const int num_splits = gridDim.x;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        if (!exists[h]) continue;
        float* result = partial + (place[h] * num_splits + blockIdx.x) * (vd + 2);
        float factor = num_splits > 1 ? 1.0f : state.sum[h] == 0.0f ? 0.0f : 1.0f / state.sum[h];
        if (num_splits > 1 && l4 == 0) result[0] = state.max[h], result[1] = state.sum[h];
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int n = 0; n < 2; n++) {
                int d = c * 64 + l4 * 16 + n * 8;
                if (d >= vd) continue;
                float run[VECTOR];
#pragma unroll
                for (int j = 0; j < 8; j++) run[j] = state.values[c][j][2 * h + n] * factor;
                if (num_splits == 1) {
                    store8(out + place[h] * vd + d, run);
                } else {
#pragma unroll
                    for (int j = 0; j < 8; j++) result[2 + d + j] = run[j];
                }
            }
    }
}

}  // namespace tensor_cores

// STAGES: steps of keys in shared memory, as in kernels/src/cuda/attention/mod.rs. BLOCKS: blocks that a multiprocessor holds
// at once, which limits registers.
#define KERNEL(D, STAGES, BLOCKS)                                                                                      \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS) attention_tensor_cores_##D(                              \
        const bf16* q, const bf16* pages, const uint32_t* starts, const uint32_t* contexts,                            \
        const uint32_t* table_starts, const uint32_t* tables, bf16* out, float* partial, int block_size,               \
        int num_kv_heads, int head_dim, int value_dim, int num_sequences, int single_rows, int num_heads,              \
        int keys_per_split, int fewest_keys, int window, int causal, int warps_per_tile, float scale, float softcap) {                                      \
        KvShape shape = {block_size, num_kv_heads, head_dim, value_dim};                                               \
        tensor_cores::Arguments args = {shape,  num_sequences, single_rows,    num_heads, keys_per_split, fewest_keys, \
                                        window, causal,        warps_per_tile, scale,     softcap};                    \
        tensor_cores::attend<D, STAGES>(q, pages, starts, contexts, table_starts, tables, out, partial, args);                 \
    }
KERNEL(64, 2, 4)
KERNEL(128, 2, 3)
KERNEL(256, 2, 1)
#undef KERNEL

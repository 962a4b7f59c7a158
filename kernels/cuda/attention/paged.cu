// Attention of single f32 query rows over paged keys and values; tensor_cores.cu does bf16.
//
// A block takes one row, up to G query heads of one kv head and one split of the row's context. Eight lanes share a
// key, so that a block of four warps works on 16 keys at a time and on 64 per iteration; every lane holds eight-element
// chunks lane, lane + 8, ... of its keys and values. Running maxima and sums are kept per key slot and merged at the end.
#include "pages.cuh"

namespace paged {

constexpr int WARPS = 4;
constexpr int SLOTS = 4 * WARPS;
constexpr int UNROLL = 4;

struct Arguments {
    KvShape shape;
    int num_heads, keys_per_split, fewest_keys, window;
    float scale, softcap;
};

__device__ inline float guarded_exp(float x, float max) { return x == -INFINITE ? 0.0f : expf(x - max); }

// Shared memory of a block: queries, and the results of the warps.
template <int CHUNKS, int G>
struct Shared {
    float q[G][CHUNKS * 64];
    float acc[WARPS][G][CHUNKS * 64];
    float max[WARPS][G], sum[WARPS][G];
};

template <class T, class C, int CHUNKS, int G>
__device__ void split(const T* q, const C* pages, const uint32_t* row_sequences, const uint32_t* row_ends,
                      const uint32_t* table_starts, const uint32_t* tables, T* out, float* partial, Arguments args) {
    __shared__ Shared<CHUNKS, G> shared;
    const KvShape shape = args.shape;
    const int hd = shape.head_dim, vd = shape.value_dim;
    const int group = args.num_heads / shape.num_kv_heads, passes = (group + G - 1) / G;
    const int kv_head = blockIdx.y / passes, first = blockIdx.y % passes * G;
    const int heads = min(G, group - first), head = kv_head * group + first;
    const size_t row = blockIdx.z;
    const int end = row_ends[row], start = args.window > 0 ? max(0, end - args.window) : 0;
    const Span span = Span::of(start, end, args.keys_per_split, args.fewest_keys);
    const int low = span.low, high = span.high;

    for (int i = threadIdx.x; i < G * CHUNKS * 64; i += blockDim.x) {
        int g = i / (CHUNKS * 64), d = i % (CHUNKS * 64);
        shared.q[g][d] = g < heads && d < hd ? to_f32(q[(row * args.num_heads + head + g) * hd + d]) : 0.0f;
    }
    __syncthreads();

    const int lane = threadIdx.x % 8, slot = threadIdx.x / 8, warp = threadIdx.x / 32;
    const uint32_t* table = tables + table_starts[row_sequences[row]];
    float running_max[G], running_sum[G], acc[G][CHUNKS][VECTOR];
#pragma unroll
    for (int g = 0; g < G; g++) {
        running_max[g] = -INFINITE, running_sum[g] = 0.0f;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int j = 0; j < VECTOR; j++) acc[g][c][j] = 0.0f;
    }

    for (int base = low; base < high; base += SLOTS * UNROLL) {
        float scores[UNROLL][G];
        size_t values[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int key = base + u * SLOTS + slot;
            bool valid = key < high;
            key = valid ? key : high - 1;
            uint32_t page = table[key / shape.block_size];
            const C* k = pages + shape.keys_at(page, kv_head) + size_t(key % shape.block_size) * hd;
            values[u] = shape.values_at(page, kv_head) + size_t(key % shape.block_size) * vd;
            float dot[G] = {};
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                int d = (c * 8 + lane) * VECTOR;
                float x[VECTOR] = {};
                if (d < hd) load8(k + d, x);
#pragma unroll
                for (int g = 0; g < G; g++)
#pragma unroll
                    for (int j = 0; j < VECTOR; j++) dot[g] += shared.q[g][d + j] * x[j];
            }
#pragma unroll
            for (int g = 0; g < G; g++) {
                float s = dot[g];
                s += __shfl_xor_sync(~0u, s, 4);
                s += __shfl_xor_sync(~0u, s, 2);
                s += __shfl_xor_sync(~0u, s, 1);
                s *= args.scale;
                if (args.softcap > 0.0f) s = args.softcap * tanhf(s / args.softcap);
                scores[u][g] = valid ? s : -INFINITE;
            }
        }
#pragma unroll
        for (int g = 0; g < G; g++) {
            float largest = running_max[g];
#pragma unroll
            for (int u = 0; u < UNROLL; u++) largest = fmaxf(largest, scores[u][g]);
            float keep = guarded_exp(running_max[g], largest);
            running_max[g] = largest;
            running_sum[g] *= keep;
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                scores[u][g] = guarded_exp(scores[u][g], largest);
                running_sum[g] += scores[u][g];
            }
#pragma unroll
            for (int c = 0; c < CHUNKS; c++)
#pragma unroll
                for (int j = 0; j < VECTOR; j++) acc[g][c][j] *= keep;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            // A masked slot must not multiply a foreign non-finite value by zero.
            if (base + u * SLOTS + slot >= high) continue;
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                int d = (c * 8 + lane) * VECTOR;
                if (d >= vd) continue;
                float x[VECTOR];
                load8(pages + values[u] + d, x);
#pragma unroll
                for (int g = 0; g < G; g++)
#pragma unroll
                    for (int j = 0; j < VECTOR; j++) acc[g][c][j] += scores[u][g] * x[j];
            }
        }
    }

    // Merges the four slots of a warp, then the warps.
#pragma unroll
    for (int g = 0; g < G; g++) {
        float largest = fmaxf(running_max[g], __shfl_xor_sync(~0u, running_max[g], 8));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 16));
        float factor = guarded_exp(running_max[g], largest), sum = running_sum[g] * factor;
        sum += __shfl_xor_sync(~0u, sum, 8);
        sum += __shfl_xor_sync(~0u, sum, 16);
        if (threadIdx.x % 32 == 0) shared.max[warp][g] = largest, shared.sum[warp][g] = sum;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int j = 0; j < VECTOR; j++) {
                float x = acc[g][c][j] * factor;
                x += __shfl_xor_sync(~0u, x, 8);
                x += __shfl_xor_sync(~0u, x, 16);
                if (threadIdx.x % 32 < 8) shared.acc[warp][g][(c * 8 + lane) * VECTOR + j] = x;
            }
    }
    __syncthreads();
    const int num_splits = gridDim.x;
    for (int i = threadIdx.x; i < heads * vd; i += blockDim.x) {
        int g = i / vd, d = i % vd;
        float largest = -INFINITE, sum = 0.0f, value = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, shared.max[w][g]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float factor = guarded_exp(shared.max[w][g], largest);
            sum += shared.sum[w][g] * factor;
            value += shared.acc[w][g][d] * factor;
        }
        size_t at = row * args.num_heads + head + g;
        if (num_splits == 1) {
            out[at * vd + d] = from_f32<T>(sum == 0.0f ? 0.0f : value / sum);
        } else {
            float* result = partial + (at * num_splits + blockIdx.x) * (vd + 2);
            result[2 + d] = value;
            if (d == 0) result[0] = largest, result[1] = sum;
        }
    }
}

}  // namespace paged

#define SPLIT(T, C, CHUNKS, G)                                                                                     \
    extern "C" __global__ void __launch_bounds__(128) attention_##T##_##C##_##CHUNKS##_##G(                        \
        const T* q, const C* pages, const uint32_t* row_sequences, const uint32_t* row_ends,                       \
        const uint32_t* table_starts, const uint32_t* tables, T* out, float* partial, int block_size,              \
        int num_kv_heads, int head_dim, int value_dim, int num_heads, int keys_per_split, int fewest_keys,         \
        int window, float scale, float softcap) {                                                                  \
        paged::split<T, C, CHUNKS, G>(q, pages, row_sequences, row_ends, table_starts, tables, out, partial,       \
                                      {{block_size, num_kv_heads, head_dim, value_dim},                            \
                                       num_heads,                                                                  \
                                       keys_per_split,                                                             \
                                       fewest_keys,                                                                \
                                       window,                                                                     \
                                       scale,                                                                      \
                                       softcap});                                                                  \
    }
#define SPLITS(T, C) \
    SPLIT(T, C, 1, 1) SPLIT(T, C, 1, 4) SPLIT(T, C, 2, 1) SPLIT(T, C, 2, 4) SPLIT(T, C, 4, 1) SPLIT(T, C, 4, 4)
SPLITS(f32, f32)
SPLITS(f32, bf16)
#undef SPLITS
#undef SPLIT

// The gated delta rule in recurrent form. A block takes 32 value columns of one (sequence, value head): lanes are
// columns, each of the eight warps keeps every eighth row of the state [dk, 32] in registers over all tokens.
#include "../common.cuh"

namespace delta_rule {

constexpr int WARPS = 8;

// Sum over the warps, for every lane. Two calls with the same buffer need a barrier in between.
__device__ inline float column_sum(float x, float (&buffer)[WARPS][32]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    buffer[warp][lane] = x;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += buffer[w][lane];
    return sum;
}

template <class T, int ROWS>
__device__ void run(const T* q, const T* k, const T* v, const float* g, const float* beta, const uint32_t* starts,
                    const uint32_t* slots, float* state, T* out, int hk, int hv, int dk, int dv, int tiled,
                    int per_channel) {
    // Those of a warp's rows follow each other.
    __shared__ __align__(16) float keys[WARPS][ROWS], queries[WARPS][ROWS], decays[WARPS][ROWS];
    __shared__ float sums[2][WARPS][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int column = blockIdx.x * 32 + lane, head = blockIdx.y, sequence = blockIdx.z;
    const int key_head = tiled ? head % hk : head / (hv / hk);
    const bool inside = column < dv;
    if (starts[sequence] == starts[sequence + 1]) return;
    state += (size_t(slots[sequence]) * hv + head) * dk * dv + column;
    float s[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int row = i * WARPS + warp;
        s[i] = inside && row < dk ? state[size_t(row) * dv] : 0.0f;
    }
    // Inputs of the next row are on their way while a row is computed.
    const size_t end = starts[sequence + 1];
    float next_key = 0.0f, next_query = 0.0f, next_decay = 0.0f, next_value = 0.0f, next_beta = 0.0f;
    auto fetch = [&](size_t t) {
        const int i = threadIdx.x;
        const size_t at = t * hv + head, key = (t * hk + key_head) * dk + i;
        if (i < dk) {
            next_key = to_f32(k[key]), next_query = to_f32(q[key]);
            next_decay = g[per_channel ? at * dk + i : at];
        }
        next_value = inside ? to_f32(v[at * dv + column]) : 0.0f;
        next_beta = beta[at];
    };
    if (starts[sequence] < end) fetch(starts[sequence]);
    for (size_t t = starts[sequence]; t < end; t++) {
        const size_t at = t * hv + head;
        __syncthreads();
        if (threadIdx.x < ROWS * WARPS) {
            int w = threadIdx.x % WARPS, i = threadIdx.x / WARPS;
            keys[w][i] = next_key, queries[w][i] = next_query;
            decays[w][i] = threadIdx.x < dk ? expf(next_decay) : 0.0f;
        }
        const float value = next_value, row_beta = next_beta;
        __syncthreads();
        if (t + 1 < end) fetch(t + 1);
        float m = 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            s[i] *= decays[warp][i];
            m += s[i] * keys[warp][i];
        }
        m = column_sum(m, sums[0]);
        float delta = row_beta * (value - m), y = 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            s[i] += keys[warp][i] * delta;
            y += s[i] * queries[warp][i];
        }
        y = column_sum(y, sums[1]);
        if (warp == 0 && inside) out[at * dv + column] = from_f32<T>(y);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int row = i * WARPS + warp;
        if (inside && row < dk) state[size_t(row) * dv] = s[i];
    }
}

}  // namespace delta_rule

// BLOCKS: blocks that a multiprocessor holds at once, which limits registers.
#define KERNEL(T, ROWS, BLOCKS)                                                                                           \
    extern "C" __global__ void __launch_bounds__(256, BLOCKS) gated_delta_rule_##T##_##ROWS(                               \
        const T* q, const T* k, const T* v, const float* g, const float* beta, const uint32_t* starts,             \
        const uint32_t* slots, float* state, T* out, int hk, int hv, int dk, int dv, int tiled, int per_channel) { \
        delta_rule::run<T, ROWS>(q, k, v, g, beta, starts, slots, state, out, hk, hv, dk, dv, tiled, per_channel); \
    }
KERNEL(f32, 8, 4)
KERNEL(f32, 16, 3)
KERNEL(f32, 32, 2)
KERNEL(bf16, 8, 4)
KERNEL(bf16, 16, 3)
KERNEL(bf16, 32, 2)
#undef KERNEL

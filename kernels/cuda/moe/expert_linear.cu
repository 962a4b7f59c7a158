// Projections per pair (token, pick): one warp per output element, which reads the row of the pair's expert.
#include "../quantized/blocks.cuh"

namespace moe {

constexpr int WARPS = 4;

// Expert e has rows e * stride + start .. + n of the weight. Row pair / sharing of x belongs to a pair.
struct Stack {
    int stride, start, n, sharing;
};

template <class W, class X>
__device__ void product(const W* weight, const X* x, const uint32_t* experts, X* out, int k, Stack stack) {
    int column = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, pair = blockIdx.y;
    if (column >= stack.n) return;
    const W* w = weight + (size_t(experts[pair]) * stack.stride + stack.start + column) * k;
    x += size_t(pair / stack.sharing) * k;
    float sum = 0.0f;
    if (k % VECTOR == 0 && aligned(weight) && aligned(x)) {
#pragma unroll 4
        for (int at = lane * VECTOR; at < k; at += 32 * VECTOR) {
            float a[VECTOR], b[VECTOR];
            load8(w + at, a);
            load8(x + at, b);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) sum += a[j] * b[j];
        }
    } else {
        for (int at = lane; at < k; at += 32) sum += to_f32(w[at]) * to_f32(x[at]);
    }
    sum = warp_sum(sum);
    if (lane == 0) out[size_t(pair) * stack.n + column] = from_f32<X>(sum);
}

// x is rounded to int8 as in quantized.cu.
template <class L, class O>
__device__ void product(Planes planes, const int8_t* x, const float2* x_scales, const uint32_t* experts, O* out,
                        int num_blocks, Stack stack) {
    int column = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, pair = blockIdx.y;
    if (column >= stack.n) return;
    size_t row = size_t(experts[pair]) * stack.stride + stack.start + column;
    float sum = 0.0f;
    for (int b = lane; b < num_blocks; b += 32) {
        sum += block_product<L>(read_block<L>(planes, row * num_blocks + b), x, x_scales,
                                size_t(pair / stack.sharing) * num_blocks + b);
    }
    sum = warp_sum(sum);
    if (lane == 0) out[size_t(pair) * stack.n + column] = from_f32<O>(sum);
}

// out[t] = sum over picks of weights * y, in the order of the picks.
template <class T>
__device__ void combine(const T* y, const float* weights, T* out, size_t num_tokens, int top_k, int width,
                        int accumulate) {
    for (size_t i = global_thread(); i < num_tokens * width; i += num_threads()) {
        size_t t = i / width, column = i % width;
        float sum = accumulate ? to_f32(out[i]) : 0.0f;
        for (int j = 0; j < top_k; j++) sum += weights[t * top_k + j] * to_f32(y[(t * top_k + j) * width + column]);
        out[i] = from_f32<T>(sum);
    }
}

}  // namespace moe

#define FLOAT(W, X)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(128) expert_##W##_##X(const W* weight, const X* x,                   \
                                                                      const uint32_t* experts, X* out, int k,         \
                                                                      int stride, int start, int n, int sharing) {    \
        moe::product<W, X>(weight, x, experts, out, k, {stride, start, n, sharing});                                  \
    }
FLOAT(f32, f32)
FLOAT(bf16, f32)
FLOAT(f16, f32)
FLOAT(f32, bf16)
FLOAT(bf16, bf16)
FLOAT(f16, bf16)
#undef FLOAT

#define QUANTIZED(L, O)                                                                                               \
    extern "C" __global__ void __launch_bounds__(128) expert_##L##_##O(                                               \
        const uint8_t* quants, const uint8_t* high, const uint8_t* scales, const uint8_t* supers, const int8_t* x,    \
        const float2* x_scales, const uint32_t* experts, O* out, int num_blocks, int stride, int start, int n,        \
        int sharing) {                                                                                                \
        moe::product<L, O>({quants, high, scales, supers}, x, x_scales, experts, out, num_blocks,                     \
                           {stride, start, n, sharing});                                                              \
    }
#define LAYOUT(L) QUANTIZED(L, f32) QUANTIZED(L, bf16)
LAYOUT(q4_0)
LAYOUT(q4_1)
LAYOUT(q5_0)
LAYOUT(q5_1)
LAYOUT(q8_0)
LAYOUT(q4_k)
LAYOUT(q5_k)
LAYOUT(q6_k)
#undef LAYOUT
#undef QUANTIZED

#define COMBINE(T)                                                                                                    \
    extern "C" __global__ void expert_combine_##T(const T* y, const float* weights, T* out, size_t num_tokens,        \
                                                  int top_k, int width, int accumulate) {                             \
        moe::combine<T>(y, weights, out, num_tokens, top_k, width, accumulate);                                       \
    }
COMBINE(f32)
COMBINE(bf16)
#undef COMBINE

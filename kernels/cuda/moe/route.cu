// Picks experts. One block per token, one thread per expert.
#include "../math.cuh"

namespace moe {

constexpr int MAX_EXPERTS = 1024;

// Order of a value as an integer: NaN is smallest and never taken before a number.
__device__ inline uint32_t order(float x) {
    if (x != x) return 1;
    uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Index of the largest value that is not taken, the lowest on ties; marks it as taken.
__device__ inline int take_best(float value, bool& taken, int index, bool exists) {
    __shared__ uint64_t best[32];
    uint64_t key = exists && !taken ? uint64_t(order(value)) << 32 | ~uint32_t(index) : 0;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) key = max(key, __shfl_xor_sync(~0u, key, offset));
    if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = key;
    __syncthreads();
    key = threadIdx.x % 32 < blockDim.x / 32 ? best[threadIdx.x % 32] : 0;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) key = max(key, __shfl_xor_sync(~0u, key, offset));
    __syncthreads();
    int winner = ~uint32_t(key);
    if (winner == index) taken = true;
    return winner;
}

__device__ inline float block_max(float x) {
    __shared__ float best[32];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
    if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < blockDim.x / 32 ? best[threadIdx.x % 32] : -INFINITE;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, offset));
    __syncthreads();
    return x;
}

}  // namespace moe

// sigmoid: 0 softmax over all experts, 1 sigmoid of each. bias may be null. num_groups is 0 without a group limit; a group
// counts with the sum of its two best experts. renormalize is negative for no renormalisation.
extern "C" __global__ void __launch_bounds__(1024) route(const float* logits, const float* bias, uint32_t* experts,
                                                         float* weights, int num_experts, int top_k, int sigmoid_scores,
                                                         int num_groups, int top_groups, float renormalize,
                                                         float scaling_factor) {
    __shared__ float scores[moe::MAX_EXPERTS], choices[moe::MAX_EXPERTS], picked[moe::MAX_EXPERTS];
    __shared__ uint8_t keep[moe::MAX_EXPERTS];
    const int e = threadIdx.x;
    const bool exists = e < num_experts;
    logits += size_t(blockIdx.x) * num_experts;
    experts += size_t(blockIdx.x) * top_k, weights += size_t(blockIdx.x) * top_k;
    float score = exists ? logits[e] : -INFINITE;
    if (sigmoid_scores) {
        score = sigmoid(score);
    } else {
        float largest = moe::block_max(score);
        float exponential = exists ? expf(score - largest) : 0.0f;
        score = exponential / row_sum(exponential);
    }
    float choice = score + (bias && exists ? bias[e] : 0.0f);
    if (exists) scores[e] = score, choices[e] = choice;
    __syncthreads();
    if (num_groups > 0) {
        const int size = num_experts / num_groups;
        float total = 0.0f;
        if (e < num_groups) {
            float first = -INFINITE, second = -INFINITE;
            for (int i = e * size; i < (e + 1) * size; i++) {
                float v = choices[i];
                if (v > first) {
                    second = first, first = v;
                } else if (v > second) {
                    second = v;
                }
            }
            total = size > 1 ? first + second : first;
            keep[e] = 0;
        }
        bool taken = false;
        for (int i = 0; i < top_groups; i++) {
            int group = moe::take_best(total, taken, e, e < num_groups);
            if (e == group) keep[e] = 1;
        }
        __syncthreads();
        if (exists && !keep[e / size]) choice = -INFINITE;
    }
    bool taken = false;
    for (int i = 0; i < top_k; i++) {
        int expert = moe::take_best(choice, taken, e, exists);
        if (e == 0) experts[i] = expert, picked[i] = scores[expert];
    }
    if (e == 0) {
        float sum = 1.0f;
        if (renormalize >= 0.0f) {
            sum = 0.0f;
            for (int i = 0; i < top_k; i++) sum += picked[i];
            sum += renormalize;
        }
        for (int i = 0; i < top_k; i++) weights[i] = picked[i] / sum * scaling_factor;
    }
}

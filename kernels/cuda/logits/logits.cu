// Reductions over the vocabulary; one block of 1024 threads per row of f32 logits.
#include "../common.cuh"

namespace logits {

constexpr int THREADS = 1024;

// Order of logits as integers: NaN is smallest, zeros of both signs are equal.
__device__ inline uint32_t order(float x) {
    if (x != x) return 0;
    uint32_t bits = __float_as_uint(x + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Of two with the same logit, the lower index is larger.
__device__ inline uint64_t key(float x, uint32_t index) { return uint64_t(order(x)) << 32 | ~index; }

__device__ inline uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

__device__ inline uint64_t block_max(uint64_t x) {
    __shared__ uint64_t best[32];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = larger(x, __shfl_xor_sync(~0u, x, offset));
    if (threadIdx.x % 32 == 0) best[threadIdx.x / 32] = x;
    __syncthreads();
    x = best[threadIdx.x % 32];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = larger(x, __shfl_xor_sync(~0u, x, offset));
    __syncthreads();
    return x;
}

}  // namespace logits

extern "C" __global__ void __launch_bounds__(1024) argmax(const float* x, uint32_t* out, int width) {
    x += size_t(blockIdx.x) * width;
    uint64_t best = 0;
    int vectors = aligned(x) ? width / 4 : 0;
#pragma unroll 4
    for (int v = threadIdx.x; v < vectors; v += logits::THREADS) {
        float4 values = reinterpret_cast<const float4*>(x)[v];
        uint64_t low = logits::larger(logits::key(values.x, 4 * v), logits::key(values.y, 4 * v + 1));
        uint64_t high = logits::larger(logits::key(values.z, 4 * v + 2), logits::key(values.w, 4 * v + 3));
        best = logits::larger(best, logits::larger(low, high));
    }
    for (int i = vectors * 4 + threadIdx.x; i < width; i += logits::THREADS) {
        best = logits::larger(best, logits::key(x[i], i));
    }
    best = logits::block_max(best);
    // A row without a number above -infinity gives index 0.
    if (threadIdx.x == 0) out[blockIdx.x] = best >> 32 > logits::order(-INFINITE) ? ~uint32_t(best) : 0;
}

// log(softmax(x[row]))[id] for pairs (row, id); one block per pair.
extern "C" __global__ void __launch_bounds__(1024) log_softmax_at(const float* x, const uint32_t* rows,
                                                                  const uint32_t* ids, float* out, int width) {
    x += size_t(rows[blockIdx.x]) * width;
    uint64_t best = 0;
    for (int i = threadIdx.x; i < width; i += logits::THREADS) best = logits::larger(best, logits::key(x[i], i));
    float max = x[~uint32_t(logits::block_max(best))];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < width; i += logits::THREADS) sum += expf(x[i] - max);
    sum = row_sum(sum);
    if (threadIdx.x == 0) out[blockIdx.x] = x[ids[blockIdx.x]] - (max + logf(sum));
}

// The k largest logits of every row, largest first, ties in the order of the ids, NaN last. 1 <= k <= min(width, 1024).
// The k-th largest key is found digit by digit; keys are distinct, so exactly k are at least as large.
extern "C" __global__ void __launch_bounds__(1024) top_k(const float* x, uint32_t* ids, float* values, int width,
                                                         int k) {
    __shared__ uint32_t histogram[256];
    __shared__ uint64_t keys[1024];
    __shared__ uint64_t prefix;
    __shared__ uint32_t rank, count;
    x += size_t(blockIdx.x) * width;
    if (threadIdx.x == 0) prefix = 0, rank = k, count = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < width; i += logits::THREADS) {
            uint64_t key = logits::key(x[i], i);
            if (shift == 56 || key >> (shift + 8) == prefix >> (shift + 8)) {
                atomicAdd(&histogram[key >> shift & 255], 1);
            }
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 255;
            while (histogram[digit] < rank) rank -= histogram[digit--];
            prefix |= uint64_t(digit) << shift;
        }
        __syncthreads();
    }
    keys[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < width; i += logits::THREADS) {
        uint64_t key = logits::key(x[i], i);
        if (key >= prefix) keys[atomicAdd(&count, 1)] = key;
    }
    // Bitonic sort, largest first; a real key is never zero, because an index is below 2^32 - 1.
    for (int size = 2; size <= 1024; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) {
            __syncthreads();
            int other = threadIdx.x ^ stride;
            if (other > threadIdx.x) {
                uint64_t a = keys[threadIdx.x], b = keys[other];
                bool descending = (threadIdx.x & size) == 0;
                if (descending ? a < b : a > b) keys[threadIdx.x] = b, keys[other] = a;
            }
        }
    }
    __syncthreads();
    if (threadIdx.x < k) {
        uint32_t id = ~uint32_t(keys[threadIdx.x]);
        ids[size_t(blockIdx.x) * k + threadIdx.x] = id;
        values[size_t(blockIdx.x) * k + threadIdx.x] = x[id] + 0.0f;
    }
}

// Reductions over the vocabulary. Rows of f32 logits are cut into parts, so that a few rows use the whole device.
#include "../common.cuh"

namespace logits {

constexpr int THREADS = 1024;
// Columns of a part of a row; as in kernels/src/cuda/logits.rs.
constexpr int PART = 8192;

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

// The largest key of part blockIdx.x of row blockIdx.y; parts have PART columns.
extern "C" __global__ void __launch_bounds__(1024) argmax_parts(const float* x, uint64_t* best, int width) {
    x += size_t(blockIdx.y) * width;
    int end = min(width, int(blockIdx.x + 1) * logits::PART);
    uint64_t largest = 0;
#pragma unroll
    for (int i = 0; i < logits::PART / logits::THREADS; i++) {
        int at = blockIdx.x * logits::PART + i * logits::THREADS + threadIdx.x;
        if (at < end) largest = logits::larger(largest, logits::key(x[at], at));
    }
    largest = logits::block_max(largest);
    if (threadIdx.x == 0) best[size_t(blockIdx.y) * gridDim.x + blockIdx.x] = largest;
}

// The best of the parts of a row; one block of 1024 threads per row.
extern "C" __global__ void __launch_bounds__(1024) argmax(const uint64_t* best, uint32_t* out, int num_parts) {
    best += size_t(blockIdx.x) * num_parts;
    uint64_t largest = 0;
    for (int i = threadIdx.x; i < num_parts; i += logits::THREADS) largest = logits::larger(largest, best[i]);
    largest = logits::block_max(largest);
    // A row without a number above -infinity gives index 0.
    if (threadIdx.x == 0) out[blockIdx.x] = largest >> 32 > logits::order(-INFINITE) ? ~uint32_t(largest) : 0;
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

namespace logits {

// The k largest of `count` distinct keys, largest first; 1 <= k <= min(count, 1024). The k-th largest is found digit by
// digit from the top; then exactly k keys are at least as large. `read(i)` is key i and never zero.
template <class Read, class Write>
__device__ void select(int count, int k, Read read, Write write) {
    __shared__ uint32_t histogram[256];
    __shared__ uint64_t keys[THREADS];
    __shared__ uint64_t prefix;
    __shared__ uint32_t rank, found;
    if (threadIdx.x == 0) prefix = 0, rank = k, found = 0;
    for (int shift = 56; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256) histogram[threadIdx.x] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += THREADS) {
            uint64_t key = read(i);
            if (shift == 56 || key >> (shift + 8) == prefix >> (shift + 8)) {
                atomicAdd(&histogram[key >> shift & 255], 1);
            }
        }
        __syncthreads();
        // Lane i of the first warp looks at digits 255 - 8 i and the seven below; one of them has the rank.
        if (threadIdx.x < 32) {
            uint32_t own = 0;
            for (int j = 0; j < 8; j++) own += histogram[255 - 8 * threadIdx.x - j];
            uint32_t before = own;
            for (int offset = 1; offset < 32; offset *= 2) {
                uint32_t other = __shfl_up_sync(~0u, before, offset);
                if (threadIdx.x >= offset) before += other;
            }
            before -= own;
            const uint32_t wanted = rank;
            __syncwarp();
            uint32_t left = wanted - before;
            if (before < wanted && left <= own) {
                int digit = 255 - 8 * threadIdx.x;
                while (histogram[digit] < left) left -= histogram[digit--];
                prefix |= uint64_t(digit) << shift;
                rank = left;
            }
        }
        __syncthreads();
    }
    keys[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += THREADS) {
        uint64_t key = read(i);
        if (key >= prefix) keys[atomicAdd(&found, 1)] = key;
    }
    // Bitonic sort.
    for (int size = 2; size <= THREADS; size *= 2) {
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
    if (threadIdx.x < k) write(threadIdx.x, keys[threadIdx.x]);
}

}  // namespace logits

// Candidates of part blockIdx.x of row blockIdx.y: its k largest keys, or all if it has fewer. `best` has room for k of
// each part; candidates of a row follow each other, since only the last part can have fewer.
extern "C" __global__ void __launch_bounds__(1024) top_k_parts(const float* x, uint64_t* best, int width, int k) {
    x += size_t(blockIdx.y) * width;
    int start = blockIdx.x * logits::PART, count = min(logits::PART, width - start);
    best += (size_t(blockIdx.y) * gridDim.x + blockIdx.x) * k;
    logits::select(
        count, min(k, count), [=](int i) { return logits::key(x[start + i], start + i); },
        [=](int i, uint64_t key) { best[i] = key; });
}

// The k largest logits of every row among `count` candidates, of which a row has `stride`; ties in the order of the
// ids, NaN last.
extern "C" __global__ void __launch_bounds__(1024) top_k(const float* x, const uint64_t* best, uint32_t* ids,
                                                         float* values, int width, int stride, int count, int k) {
    x += size_t(blockIdx.x) * width, best += size_t(blockIdx.x) * stride;
    ids += size_t(blockIdx.x) * k, values += size_t(blockIdx.x) * k;
    logits::select(
        count, k, [=](int i) { return best[i]; },
        [=](int i, uint64_t key) {
            ids[i] = ~uint32_t(key);
            values[i] = x[~uint32_t(key)] + 0.0f;
        });
}

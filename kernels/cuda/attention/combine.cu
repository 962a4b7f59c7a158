// Adds up the splits of a (row, head); one block each, one thread per value.
#include "../common.cuh"

namespace combine {

// As in kernels/src/cuda/attention/mod.rs.
constexpr int MAX_SPLITS = 512;

// A split is (max, sum, values). The values of one without keys, whose sum is zero, are not looked at.
template <class T>
__device__ void splits(const float* partial, T* out, int num_splits, int vd) {
    wait_for_inputs();
    __shared__ float factors[MAX_SPLITS], sums[MAX_SPLITS];
    const size_t at = blockIdx.x, stride = vd + 2;
    partial += at * num_splits * stride;
    for (int s = threadIdx.x; s < num_splits; s += blockDim.x) {
        factors[s] = partial[s * stride], sums[s] = partial[s * stride + 1];
    }
    __syncthreads();
    float largest = -INFINITE, sum = 0.0f;
    int last = 0;
    for (int s = 0; s < num_splits; s++) {
        if (sums[s] == 0.0f) continue;
        largest = fmaxf(largest, factors[s]), last = s + 1;
    }
    __syncthreads();
    for (int s = threadIdx.x; s < last; s += blockDim.x) {
        factors[s] = sums[s] == 0.0f ? 0.0f : expf(factors[s] - largest);
    }
    __syncthreads();
    const int d = threadIdx.x;
    if (d >= vd) return;
    float value = 0.0f;
#pragma unroll 8
    for (int s = 0; s < last; s++) {
        float factor = factors[s];
        sum += sums[s] * factor;
        value += factor == 0.0f ? 0.0f : partial[s * stride + 2 + d] * factor;
    }
    out[at * vd + d] = from_f32<T>(sum == 0.0f ? 0.0f : value / sum);
}

}  // namespace combine

#define KERNEL(T)                                                                                                   \
    extern "C" __global__ void attention_combine_##T(const float* partial, T* out, int num_splits, int value_dim) { \
        combine::splits<T>(partial, out, num_splits, value_dim);                                                    \
    }
KERNEL(f32)
KERNEL(bf16)
#undef KERNEL

// Products with quantised weights. Activations are rounded to int8 with one scale per 32 columns; sums within a block
// (or half a block) are exact integers, which enter f32 sums.
#include "blocks.cuh"

namespace quantized {

constexpr int WARPS = 4;
// A block whose largest magnitude is below this is zero: its scale would not be a normal number.
constexpr float SMALLEST = 1e-35f;

// x = scale * quants per block of 32; scales holds (scale, scale * sum of quants). A warp per block; a block with an
// element that is not finite gets a NaN scale.
template <class T>
__device__ void quantize(const T* x, int8_t* quants, float2* scales, size_t num_blocks) {
    size_t block = (size_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x % 32;
    if (block >= num_blocks) return;
    float value = to_f32(x[block * 32 + lane]), largest = fabsf(value), poison = value * 0.0f;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, offset));
        poison += __shfl_xor_sync(~0u, poison, offset);
    }
    bool small = largest < SMALLEST;
    float inverse = small ? 0.0f : 127.0f / largest, scale = small ? 0.0f : largest / 127.0f;
    int rounded = max(-127, min(127, __float2int_rn(value * inverse))), sum = rounded;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(~0u, sum, offset);
    quants[block * 32 + lane] = rounded;
    if (lane == 0) scales[block] = make_float2(scale + poison, (scale + poison) * sum);
}

// A warp per row of the weight and T rows of x; a lane per block. Bias and residual may be null; out may be the
// residual.
template <class L, class O, int T>
__device__ void rows(Planes planes, const int8_t* x, const float2* x_scales, const float* bias, const O* residual,
                     O* out, int n, int num_blocks) {
    int row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    float sums[T] = {};
#pragma unroll 2
    for (int b = lane; b < num_blocks; b += 32) {
        Block block = read_block<L>(planes, size_t(row) * num_blocks + b);
#pragma unroll
        for (int t = 0; t < T; t++) {
            sums[t] += block_product<L>(block, x, x_scales, size_t(t) * num_blocks + b);
        }
    }
#pragma unroll
    for (int t = 0; t < T; t++) {
        float y = warp_sum(sums[t]);
        if (lane == 0) {
            size_t i = size_t(t) * n + row;
            if (bias) y += bias[row];
            if (residual) y += to_f32(residual[i]);
            out[i] = from_f32<O>(y);
        }
    }
}

// Rows of the weight as elements: row ids[blockIdx.y] goes to row first + blockIdx.y of out, which is the row itself
// without ids. One thread per block.
template <class L, class T>
__device__ void dequantize(Planes planes, const uint32_t* ids, T* out, size_t first, int num_blocks) {
    size_t to = first + blockIdx.y, row = ids ? ids[blockIdx.y] : to;
    int b = blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= num_blocks) return;
    Block block = read_block<L>(planes, row * num_blocks + b);
    out += (to * num_blocks + b) * 32;
#pragma unroll
    for (int s = 0; s < 8; s += 2) {
        float run[VECTOR];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            int quant = int8_t(block.quants[s + j / 4] >> (8 * (j % 4)));
            run[j] = block.scale[s / 4] * quant - block.min;
        }
        store8(out + 4 * s, run);
    }
}

}  // namespace quantized

#define QUANTIZE(T)                                                                                                \
    extern "C" __global__ void quantize_##T(const T* x, int8_t* quants, float2* scales, size_t num_blocks) {       \
        quantized::quantize<T>(x, quants, scales, num_blocks);                                                     \
    }
QUANTIZE(f32)
QUANTIZE(bf16)
#undef QUANTIZE

#define ROWS(L, O, T)                                                                                              \
    extern "C" __global__ void __launch_bounds__(128) gemv_##L##_##O##_##T(                                        \
        const uint8_t* quants, const uint8_t* high, const uint8_t* scales, const uint8_t* supers, const int8_t* x, \
        const float2* x_scales, const float* bias, const O* residual, O* out, int n, int num_blocks) {             \
        quantized::rows<L, O, T>({quants, high, scales, supers}, x, x_scales, bias, residual, out, n, num_blocks); \
    }
#define DEQUANTIZE(L, T)                                                                                           \
    extern "C" __global__ void dequantize_##L##_##T(const uint8_t* quants, const uint8_t* high,                    \
                                                    const uint8_t* scales, const uint8_t* supers,                  \
                                                    const uint32_t* ids, T* out, size_t first, int num_blocks) {   \
        quantized::dequantize<L, T>({quants, high, scales, supers}, ids, out, first, num_blocks);                  \
    }
#define LAYOUT(L)                                                                                                  \
    ROWS(L, f32, 1) ROWS(L, f32, 2) ROWS(L, f32, 4) ROWS(L, bf16, 1) ROWS(L, bf16, 2) ROWS(L, bf16, 4)             \
    DEQUANTIZE(L, f32) DEQUANTIZE(L, bf16)
LAYOUT(q4_0)
LAYOUT(q4_1)
LAYOUT(q5_0)
LAYOUT(q5_1)
LAYOUT(q8_0)
LAYOUT(q4_k)
LAYOUT(q5_k)
LAYOUT(q6_k)
#undef LAYOUT
#undef DEQUANTIZE
#undef ROWS

// y = x Wᵀ in bf16 on the tensor cores for a few rows of x, where the weight's memory traffic decides.
//
// A block of 16 warps takes 16 rows of W; its warps share the columns in turns of 32. A lane reads 16 bytes of two
// rows of W and of one row of x per tile, which are the operands of two m16n8k16 products over a permuted order of the
// 32 columns. The sums of the warps are added in order, so an output does not depend on the number of rows of x.
#include "../common.cuh"

namespace mma {

constexpr int WARPS = 16;
constexpr int COLUMNS = 32;

__device__ inline void multiply(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                uint32_t b1) {
    asm(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// TILES * 8 rows of x from `first` on; k is a multiple of 32. Bias and residual may be null; out may be the residual.
template <class O, int TILES>
__device__ void rows(const bf16* weight, const bf16* x, const float* bias, const O* residual, O* out, int n, int k,
                     int num_tokens) {
    __shared__ float sums[WARPS][TILES * 8][17];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const int row = blockIdx.x * 16, first = blockIdx.y * TILES * 8;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const bool low = row + g < n, high = row + g + 8 < n;
    const bf16* w0 = weight + size_t(low ? row + g : 0) * k + q * 8;
    const bf16* w1 = weight + size_t(high ? row + g + 8 : 0) * k + q * 8;
    float c[TILES][4] = {};
    constexpr int STEP = WARPS * COLUMNS, AHEAD = 2;
    uint4 low_next[AHEAD], high_next[AHEAD];
    auto load = [&](int p, int at) {
        low_next[p] = low ? *reinterpret_cast<const uint4*>(w0 + at) : zero;
        high_next[p] = high ? *reinterpret_cast<const uint4*>(w1 + at) : zero;
    };
    // Weights do not depend on the kernels before.
    const int begin = warp * COLUMNS;
#pragma unroll
    for (int p = 0; p < AHEAD; p++) {
        if (begin + p * STEP < k) load(p, begin + p * STEP);
    }
    wait_for_inputs();
    for (int base = begin; base < k; base += AHEAD * STEP) {
#pragma unroll
        for (int p = 0; p < AHEAD; p++) {
            const int at = base + p * STEP;
            if (at >= k) break;
            const uint4 a = low_next[p], b = high_next[p];
            if (at + AHEAD * STEP < k) load(p, at + AHEAD * STEP);
#pragma unroll
            for (int tile = 0; tile < TILES; tile++) {
                int t = first + tile * 8 + g;
                uint4 v = t < num_tokens ? *reinterpret_cast<const uint4*>(x + size_t(t) * k + at + q * 8) : zero;
                multiply(c[tile], a.x, b.x, a.y, b.y, v.x, v.y);
                multiply(c[tile], a.z, b.z, a.w, b.w, v.z, v.w);
            }
        }
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        sums[warp][tile * 8 + 2 * q][g] = c[tile][0];
        sums[warp][tile * 8 + 2 * q + 1][g] = c[tile][1];
        sums[warp][tile * 8 + 2 * q][g + 8] = c[tile][2];
        sums[warp][tile * 8 + 2 * q + 1][g + 8] = c[tile][3];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILES * 8 * 16; i += blockDim.x) {
        int t = i / 16, r = i % 16;
        if (first + t >= num_tokens || row + r >= n) continue;
        float y = 0.0f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) y += sums[w][t][r];
        size_t to = size_t(first + t) * n + row + r;
        if (bias) y += bias[row + r];
        if (residual) y += to_f32(residual[to]);
        out[to] = from_f32<O>(y);
    }
}

}  // namespace mma

#define KERNEL(O, TILES)                                                                                          \
    extern "C" __global__ void __launch_bounds__(512) mma_bf16_##O##_##TILES(                                     \
        const bf16* weight, const bf16* x, const float* bias, const O* residual, O* out, int n, int k,            \
        int num_tokens) {                                                                                         \
        mma::rows<O, TILES>(weight, x, bias, residual, out, n, k, num_tokens);                                    \
    }
KERNEL(f32, 1)
KERNEL(f32, 2)
KERNEL(f32, 4)
KERNEL(bf16, 1)
KERNEL(bf16, 2)
KERNEL(bf16, 4)
#undef KERNEL

// y = x Wᵀ for a few rows of x: one warp per row of W, which is read once, 16 bytes per lane.
#include "../common.cuh"

namespace gemv {

constexpr int WARPS = 4;
// Elements of a cache line, for 16-bit types.
constexpr int LINE = 64;

// Bias and residual may be null; out may be the residual.
template <class W, class X, class O, int T>
__device__ void rows(const W* weight, const X* x, const float* bias, const O* residual, O* out, int n, int k) {
    int row = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= n) return;
    const W* w = weight + size_t(row) * k;
    // Weights do not depend on the kernels before.
    for (int line = lane; line * LINE < k && line < 64; line += 32) prefetch(w + line * LINE);
    wait_for_inputs();
    float sums[T] = {};
    int at = 0;
    if (k % VECTOR == 0 && aligned(weight) && aligned(x)) {
#pragma unroll 4
        for (at = lane * VECTOR; at < k; at += 32 * VECTOR) {
            float a[VECTOR], b[VECTOR];
            load8(w + at, a);
#pragma unroll
            for (int t = 0; t < T; t++) {
                load8(x + size_t(t) * k + at, b);
#pragma unroll
                for (int j = 0; j < VECTOR; j++) sums[t] += a[j] * b[j];
            }
        }
    } else {
        for (at = lane; at < k; at += 32) {
            float a = to_f32(w[at]);
#pragma unroll
            for (int t = 0; t < T; t++) sums[t] += a * to_f32(x[size_t(t) * k + at]);
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

}  // namespace gemv

#define KERNEL(W, X, O, T)                                                                                      \
    extern "C" __global__ void __launch_bounds__(128) gemv_##W##_##X##_##O##_##T(                               \
        const W* weight, const X* x, const float* bias, const O* residual, O* out, int n, int k) {              \
        gemv::rows<W, X, O, T>(weight, x, bias, residual, out, n, k);                                           \
    }
#define KERNELS(W, X, O) KERNEL(W, X, O, 1) KERNEL(W, X, O, 2) KERNEL(W, X, O, 3) KERNEL(W, X, O, 4)
KERNELS(f32, f32, f32)
KERNELS(bf16, f32, f32)
KERNELS(f16, f32, f32)
KERNELS(bf16, bf16, bf16)
KERNELS(bf16, bf16, f32)
KERNELS(f16, bf16, bf16)
KERNELS(f16, bf16, f32)
KERNELS(f32, bf16, bf16)
KERNELS(f32, bf16, f32)
#undef KERNELS
#undef KERNEL

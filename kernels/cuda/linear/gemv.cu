// y = x Wᵀ for a few rows of x: one block per row of W, which is read once, 16 bytes per lane. The first columns are on
// their way before the inputs are there.
#include "../common.cuh"

namespace gemv {

constexpr int THREADS = 256;
// Columns that a block reads at once, and how many times before it uses the first.
constexpr int STEP = THREADS * VECTOR;
constexpr int AHEAD = 2;

// Eight elements as they are stored.
template <class W>
struct Raw {
    uint4 parts[sizeof(W) * VECTOR / sizeof(uint4)];

    __device__ void load(const W* from) {
#pragma unroll
        for (int i = 0; i < int(sizeof(W) * VECTOR / sizeof(uint4)); i++) {
            parts[i] = reinterpret_cast<const uint4*>(from)[i];
        }
    }
    __device__ void values(float (&out)[VECTOR]) const {
        if constexpr (sizeof(W) == 4) {
            const uint4 a = parts[0], b = parts[1];
            const uint32_t words[VECTOR] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
            for (int j = 0; j < VECTOR; j++) out[j] = __uint_as_float(words[j]);
        } else {
            unpack(parts[0].x, out, W());
            unpack(parts[0].y, out + 2, W());
            unpack(parts[0].z, out + 4, W());
            unpack(parts[0].w, out + 6, W());
        }
    }
};

// Bias and residual may be null; out may be the residual.
template <class W, class X, class O, int T>
__device__ void rows(const W* weight, const X* x, const float* bias, const O* residual, O* out, int n, int k) {
    __shared__ float partial[THREADS / 32][T];
    const int row = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const W* w = weight + size_t(row) * k;
    float sums[T] = {}, added = 0.0f;
    // What thread t adds to the product of row t of x; loaded before it is needed.
    const int t = threadIdx.x;
    const size_t to = size_t(t) * n + row;
    auto load_added = [&] {
        if (t < T && bias) added += bias[row];
        if (t < T && residual) added += to_f32(residual[to]);
    };
    if (k % VECTOR == 0 && aligned(weight) && aligned(x)) {
        const int first = threadIdx.x * VECTOR;
        Raw<W> next[AHEAD];
        // Weights do not depend on the kernels before.
#pragma unroll
        for (int p = 0; p < AHEAD; p++) {
            if (first + p * STEP < k) next[p].load(w + first + p * STEP);
        }
        wait_for_inputs();
        load_added();
        for (int base = first; base < k; base += AHEAD * STEP) {
#pragma unroll
            for (int p = 0; p < AHEAD; p++) {
                const int at = base + p * STEP;
                if (at >= k) break;
                float a[VECTOR], b[VECTOR];
                next[p].values(a);
                if (at + AHEAD * STEP < k) next[p].load(w + at + AHEAD * STEP);
#pragma unroll
                for (int i = 0; i < T; i++) {
                    load8(x + size_t(i) * k + at, b);
#pragma unroll
                    for (int j = 0; j < VECTOR; j++) sums[i] += a[j] * b[j];
                }
            }
        }
    } else {
        wait_for_inputs();
        load_added();
        for (int at = threadIdx.x; at < k; at += THREADS) {
            float a = to_f32(w[at]);
#pragma unroll
            for (int i = 0; i < T; i++) sums[i] += a * to_f32(x[size_t(i) * k + at]);
        }
    }
#pragma unroll
    for (int i = 0; i < T; i++) {
        float y = warp_sum(sums[i]);
        if (lane == 0) partial[warp][i] = y;
    }
    __syncthreads();
    if (t >= T) return;
    float y = 0.0f;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) y += partial[i][t];
    out[to] = from_f32<O>(y + added);
}

}  // namespace gemv

#define KERNEL(W, X, O, T)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) gemv_##W##_##X##_##O##_##T(                               \
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

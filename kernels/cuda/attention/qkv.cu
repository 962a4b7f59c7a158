// Between the merged projections and attention: norms and rotates the heads of queries and keys, and writes keys and
// values to their pages. One warp per head of a row.
#include "pages.cuh"

namespace qkv {

constexpr int WARPS = 4;

// mode 0: no norm, 1: weight w, 2: 1 + w.
struct Norm {
    const float* weight;
    int mode;
    float eps;
};

struct Rope {
    // Of this row, or null.
    const float *cos, *sin;
    int half, interleaved;
};

// Calls put(i, value) for every element of a head. A lane takes both elements of a pair.
template <class T, class Put>
__device__ inline void head(const T* x, int dim, Norm norm, Rope rope, int lane, Put put) {
    float factor = 1.0f;
    if (norm.mode) {
        float sum = 0.0f;
        for (int i = lane; i < dim; i += 32) sum += to_f32(x[i]) * to_f32(x[i]);
        factor = 1.0f / sqrtf(warp_sum(sum) / dim + norm.eps);
    }
    auto normed = [&](int i) {
        float v = to_f32(x[i]);
        if (!norm.mode) return v;
        return v * factor * (norm.mode == 1 ? norm.weight[i] : 1.0f + norm.weight[i]);
    };
    const int half = rope.cos ? rope.half : 0;
    for (int j = lane; j < half; j += 32) {
        int a = rope.interleaved ? 2 * j : j, b = rope.interleaved ? a + 1 : j + half;
        float c = rope.cos[j], s = rope.sin[j], u = normed(a), v = normed(b);
        put(a, u * c - v * s);
        put(b, v * c + u * s);
    }
    for (int i = 2 * half + lane; i < dim; i += 32) put(i, normed(i));
}

template <class T, class C>
__device__ void write(const T* x, Norm q_norm, Norm k_norm, Rope rope, const uint32_t* slots, T* q, C* pages,
                      KvShape shape, int num_heads) {
    wait_for_inputs();
    const int h = blockIdx.y * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, kv_heads = shape.num_kv_heads;
    if (h >= num_heads + 2 * kv_heads) return;
    const size_t row = blockIdx.x;
    const int hd = shape.head_dim, vd = shape.value_dim;
    x += row * (size_t(num_heads + kv_heads) * hd + size_t(kv_heads) * vd);
    if (rope.cos) rope.cos += row * rope.half, rope.sin += row * rope.half;
    if (h < num_heads) {
        T* out = q + (row * num_heads + h) * hd;
        head(x + size_t(h) * hd, hd, q_norm, rope, lane, [&](int i, float v) { out[i] = from_f32<T>(v); });
        return;
    }
    const uint32_t slot = slots[row], block = slot / shape.block_size, position = slot % shape.block_size;
    const int kv = (h - num_heads) % kv_heads;
    if (h < num_heads + kv_heads) {
        C* out = pages + shape.keys_at(block, kv) + size_t(position) * hd;
        head(x + size_t(h) * hd, hd, k_norm, rope, lane, [&](int i, float v) { out[i] = from_f32<C>(v); });
    } else {
        C* out = pages + shape.values_at(block, kv) + size_t(position) * vd;
        x += size_t(num_heads + kv_heads) * hd + size_t(kv) * vd;
        head(x, vd, {nullptr, 0, 0.0f}, {nullptr, nullptr, 0, 0}, lane, [&](int i, float v) { out[i] = from_f32<C>(v); });
    }
}

}  // namespace qkv

// Norm weights and tables may be null.
#define KERNEL(T, C)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(128) qkv_write_##T##_##C(                                            \
        const T* x, const float* q_weight, const float* k_weight, const float* cos, const float* sin,                 \
        const uint32_t* slots, T* q, C* pages, int q_mode, int k_mode, float q_eps, float k_eps, int half,            \
        int interleaved, int block_size, int num_kv_heads, int head_dim, int value_dim, int num_heads) {              \
        qkv::write<T, C>(x, {q_weight, q_mode, q_eps}, {k_weight, k_mode, k_eps}, {cos, sin, half, interleaved},      \
                         slots, q, pages, {block_size, num_kv_heads, head_dim, value_dim}, num_heads);                \
    }
KERNEL(f32, f32)
KERNEL(f32, bf16)
KERNEL(bf16, bf16)
#undef KERNEL

// Rotary position embedding. Tables are f32 [T, R/2].
#include "../common.cuh"

// Frequency j of row t takes its position from stream 1 for j = 1, 4, 7, ... below `height`, from stream 2 for
// j = 2, 5, 8, ... below `width`, else from stream 0. positions: [streams, T].
extern "C" __global__ void rope_tables(const float* inv_freq, const uint32_t* positions, float* cos, float* sin,
                                       int num_tokens, int half, int height, int width, float attention_factor) {
    for (size_t i = global_thread(); i < size_t(num_tokens) * half; i += num_threads()) {
        int t = i / half, j = i % half;
        int stream = j % 3 == 1 && j < height ? 1 : j % 3 == 2 && j < width ? 2 : 0;
        float angle = float(positions[size_t(stream) * num_tokens + t]) * inv_freq[j];
        cos[i] = cosf(angle) * attention_factor;
        sin[i] = sinf(angle) * attention_factor;
    }
}

namespace rope {

// One thread per pair of x [T, heads, head_dim].
template <class T>
__device__ void rotate(T* x, const float* cos, const float* sin, size_t pairs, int heads, int head_dim, int half,
                       int interleaved) {
    size_t i = global_thread();
    if (i >= pairs) return;
    int j = i % half;
    size_t head = i / half, t = head / heads;
    T* a = x + head * head_dim + (interleaved ? 2 * j : j);
    T* b = a + (interleaved ? 1 : half);
    float c = cos[t * half + j], s = sin[t * half + j], u = to_f32(*a), v = to_f32(*b);
    *a = from_f32<T>(u * c - v * s);
    *b = from_f32<T>(v * c + u * s);
}

}  // namespace rope

#define KERNEL(T)                                                                                                  \
    extern "C" __global__ void rotate_##T(T* x, const float* cos, const float* sin, size_t pairs, int heads,       \
                                          int head_dim, int half, int interleaved) {                               \
        rope::rotate<T>(x, cos, sin, pairs, heads, head_dim, half, interleaved);                                   \
    }
KERNEL(f32)
KERNEL(bf16)
#undef KERNEL

// Causal depthwise convolution over time with per-slot state; one thread per channel and run of rows of a sequence.
#include "../math.cuh"

namespace conv {

constexpr int MAX_PAST = 7;
// Rows of a run, more than MAX_PAST; as in kernels/src/cuda/conv.rs.
constexpr int RUN = 32;

template <class T>
__device__ void run(const T* x, const float* weight, const float* bias, const uint32_t* starts, const uint32_t* slots,
                    float* state, T* out, int channels, int kernel, int f) {
    int channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    const int past = kernel - 1;
    const size_t first = starts[blockIdx.y], last = starts[blockIdx.y + 1];
    const size_t begin = first + size_t(blockIdx.z) * RUN, end = min(begin + RUN, last);
    if (begin >= last) return;
    state += size_t(slots[blockIdx.y]) * past * channels + channel;
    // The last inputs, oldest first, at the end of the window.
    float window[MAX_PAST], taps[MAX_PAST + 1];
#pragma unroll
    for (int i = 0; i < MAX_PAST; i++) window[i] = 0.0f;
    if (blockIdx.z == 0) {
#pragma unroll
        for (int i = 0; i < MAX_PAST; i++) {
            int at = i - (MAX_PAST - past);
            if (at >= 0) window[i] = state[size_t(at) * channels];
        }
    } else {
#pragma unroll
        for (int i = 0; i < MAX_PAST; i++) {
            int at = i - (MAX_PAST - past);
            if (at >= 0) window[i] = to_f32(x[(begin - past + at) * channels + channel]);
        }
    }
#pragma unroll
    for (int i = 0; i <= MAX_PAST; i++) {
        int at = i - (MAX_PAST - past);
        taps[i] = at >= 0 ? weight[size_t(channel) * kernel + at] : 0.0f;
    }
    for (size_t t = begin; t < end; t++) {
        float input = to_f32(x[t * channels + channel]), y = bias ? bias[channel] : 0.0f;
#pragma unroll
        for (int i = 0; i < MAX_PAST; i++) {
            if (i >= MAX_PAST - past) y += taps[i] * window[i];
        }
        y += taps[MAX_PAST] * input;
        out[t * channels + channel] = from_f32<T>(unary(f, y));
#pragma unroll
        for (int i = 0; i + 1 < MAX_PAST; i++) window[i] = window[i + 1];
        window[MAX_PAST - 1] = input;
    }
    // The first run reads the state, so it writes it, too. Of several runs the last inputs are rows of x.
    if (blockIdx.z > 0) return;
#pragma unroll
    for (int i = 0; i < MAX_PAST; i++) {
        int at = i - (MAX_PAST - past);
        if (at < 0) continue;
        state[size_t(at) * channels] = end == last ? window[i] : to_f32(x[(last - past + at) * channels + channel]);
    }
}

}  // namespace conv

#define KERNEL(T)                                                                                                  \
    extern "C" __global__ void causal_conv1d_##T(const T* x, const float* weight, const float* bias,               \
                                                 const uint32_t* starts, const uint32_t* slots, float* state,      \
                                                 T* out, int channels, int kernel, int f) {                        \
        conv::run<T>(x, weight, bias, starts, slots, state, out, channels, kernel, f);                             \
    }
KERNEL(f32)
KERNEL(bf16)
#undef KERNEL

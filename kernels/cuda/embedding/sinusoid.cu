// Fixed position vectors: sines, then cosines. Angles are f64: at large positions an f32 one would be off by thousandths.
#include "../common.cuh"

#define KERNEL(T)                                                                                                   \
    extern "C" __global__ void sinusoid_##T(const uint32_t* positions, T* out, int num_tokens, int half, int offset, \
                                            double step) {                                                          \
        for (size_t i = global_thread(); i < size_t(num_tokens) * half; i += num_threads()) {                       \
            size_t t = i / half, j = i % half;                                                                      \
            double angle = (double(positions[t]) + offset) * exp(-double(j) * step), sine, cosine;                  \
            sincos(angle, &sine, &cosine);                                                                          \
            out[t * 2 * half + j] = from_f32<T>(float(sine));                                                       \
            out[t * 2 * half + half + j] = from_f32<T>(float(cosine));                                              \
        }                                                                                                           \
    }
KERNEL(f32)
KERNEL(bf16)
#undef KERNEL

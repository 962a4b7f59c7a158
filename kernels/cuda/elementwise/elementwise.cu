// Elementwise operations. out may be the same array as an input.
#include "../math.cuh"

namespace elementwise {

// out[i] = f(a[i], b[i mod period]) for i < len; b may be null.
template <class T, class F>
__device__ void map(const T* a, const T* b, T* out, size_t len, size_t period, F f) {
    if (!b) b = a, period = len;
    // A division for every element would cost more than its memory.
    const bool whole = period == len;
    size_t vectors = 0;
    if (aligned(a) && aligned(b) && aligned(out) && period % VECTOR == 0) vectors = len / VECTOR;
    for (size_t v = global_thread(); v < vectors; v += num_threads()) {
        float x[VECTOR], y[VECTOR];
        load8(a + v * VECTOR, x);
        load8(b + (whole ? v * VECTOR : v * VECTOR % period), y);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) x[j] = f(x[j], y[j]);
        store8(out + v * VECTOR, x);
    }
    for (size_t i = vectors * VECTOR + global_thread(); i < len; i += num_threads()) {
        out[i] = from_f32<T>(f(to_f32(a[i]), to_f32(b[whole ? i : i % period])));
    }
}

// Rows of 2 * width: the gate, then the up half.
template <class T>
__device__ void halves(const T* x, T* out, size_t rows, int width, int f) {
    if (width % VECTOR == 0 && aligned(x) && aligned(out)) {
        const int vectors = width / VECTOR;
        for (size_t v = global_thread(); v < rows * vectors; v += num_threads()) {
            const T* row = x + (v / vectors * 2 * vectors + v % vectors) * VECTOR;
            float gate[VECTOR], up[VECTOR];
            load8(row, gate);
            load8(row + width, up);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) gate[j] = unary(f, gate[j]) * up[j];
            store8(out + v * VECTOR, gate);
        }
        return;
    }
    for (size_t i = global_thread(); i < rows * width; i += num_threads()) {
        const T* row = x + i / width * width * 2 + i % width;
        out[i] = from_f32<T>(unary(f, to_f32(row[0])) * to_f32(row[width]));
    }
}

}  // namespace elementwise

#define KERNELS(T)                                                                                                   \
    extern "C" __global__ void unary_##T(const T* x, T* out, size_t len, int f) {                                    \
        elementwise::map<T>(x, nullptr, out, len, len, [=](float a, float) { return unary(f, a); });                 \
    }                                                                                                                \
    extern "C" __global__ void binary_##T(const T* a, const T* b, T* out, size_t len, size_t period, int f) {        \
        elementwise::map<T>(a, b, out, len, period, [=](float a, float b) { return binary(f, a, b); });              \
    }                                                                                                                \
    extern "C" __global__ void scale_##T(const T* x, T* out, size_t len, float factor, float offset) {               \
        elementwise::map<T>(x, nullptr, out, len, len, [=](float a, float) { return a * factor + offset; });         \
    }                                                                                                                \
    extern "C" __global__ void clamp_##T(T* x, size_t len, float low, float high) {                                  \
        elementwise::map<T>(x, nullptr, x, len, len, [=](float a, float) {                                           \
            float raised = a < low ? low : a;                                                                        \
            return raised > high ? high : raised;                                                                    \
        });                                                                                                          \
    }                                                                                                                \
    extern "C" __global__ void gated_##T(const T* gate, const T* up, T* out, size_t len, int f) {                    \
        elementwise::map<T>(gate, up, out, len, len, [=](float g, float u) { return unary(f, g) * u; });             \
    }                                                                                                                \
    /* Rows of 2 * width: the gate, then the up half. */                                                             \
    extern "C" __global__ void gated_halves_##T(const T* x, T* out, size_t rows, int width, int f) {                 \
        wait_for_inputs();                                                                                           \
        elementwise::halves<T>(x, out, rows, width, f);                                                              \
    }                                                                                                                \
    extern "C" __global__ void mul_rows_##T(T* x, const float* factors, size_t rows, int width) {                    \
        for (size_t i = global_thread(); i < rows * width; i += num_threads()) {                                     \
            x[i] = from_f32<T>(to_f32(x[i]) * factors[i / width]);                                                   \
        }                                                                                                            \
    }                                                                                                                \
    extern "C" __global__ void add_bias_##T(T* x, const float* bias, size_t rows, int width) {                       \
        for (size_t i = global_thread(); i < rows * width; i += num_threads()) {                                     \
            x[i] = from_f32<T>(to_f32(x[i]) + bias[i % width]);                                                      \
        }                                                                                                            \
    }                                                                                                                \
    extern "C" __global__ void copy_columns_##T(const T* x, T* out, size_t rows, int count, int from_width,          \
                                                int from, int to_width, int to) {                                    \
        for (size_t i = global_thread(); i < rows * count; i += num_threads()) {                                     \
            size_t row = i / count, column = i % count;                                                              \
            out[row * to_width + to + column] = x[row * from_width + from + column];                                 \
        }                                                                                                            \
    }
KERNELS(f32)
KERNELS(bf16)
#undef KERNELS

extern "C" __global__ void convert_f32_bf16(const float* x, bf16* out, size_t len) {
    for (size_t i = global_thread(); i < len; i += num_threads()) out[i] = from_f32<bf16>(x[i]);
}
extern "C" __global__ void convert_bf16_f32(const bf16* x, float* out, size_t len) {
    for (size_t i = global_thread(); i < len; i += num_threads()) out[i] = to_f32(x[i]);
}

// Normalisation of rows. A row belongs to the threads with one threadIdx.y: a warp, or a whole block for wide rows.
#include "../common.cuh"

namespace row_norm {

struct Row {
    int width;
    // Whether the row can be read eight elements at a time.
    bool vectors;
};

template <class F>
__device__ inline void each(Row row, F f) {
    for (int i = threadIdx.x; i < row.width; i += blockDim.x) f(i);
}

// Sum of f over the row, in an order that depends on the width only.
template <class T, class F>
__device__ inline float sum(Row row, const T* x, F f) {
    float total = 0.0f;
    if (row.vectors) {
#pragma unroll 4
        for (int i = threadIdx.x * VECTOR; i < row.width; i += blockDim.x * VECTOR) {
            float v[VECTOR];
            load8(x + i, v);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) total += f(v[j]);
        }
    } else {
        each(row, [&](int i) { total += f(to_f32(x[i])); });
    }
    return row_sum(total);
}

// out[i] = f(x[i], i).
template <class T, class F>
__device__ inline void map(Row row, const T* x, T* out, F f) {
    if (row.vectors) {
#pragma unroll 4
        for (int i = threadIdx.x * VECTOR; i < row.width; i += blockDim.x * VECTOR) {
            float v[VECTOR];
            load8(x + i, v);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) v[j] = f(v[j], i + j);
            store8(out + i, v);
        }
    } else {
        each(row, [&](int i) { out[i] = from_f32<T>(f(to_f32(x[i]), i)); });
    }
}

// mode 0: no weight, 1: w, 2: 1 + w.
__device__ inline float weigh(int mode, const float* weight, int i) {
    return mode == 0 ? 1.0f : mode == 1 ? weight[i] : 1.0f + weight[i];
}

template <class T>
__device__ void rms(const T* x, const float* weight, T* out, int rows, int width, int mode, float eps) {
    int r = blockIdx.x * blockDim.y + threadIdx.y;
    if (r >= rows) return;
    x += size_t(r) * width, out += size_t(r) * width;
    Row row = {width, width % VECTOR == 0 && aligned(x) && aligned(out)};
    float factor = 1.0f / sqrtf(sum(row, x, [](float v) { return v * v; }) / width + eps);
    map(row, x, out, [&](float v, int i) { return v * factor * weigh(mode, weight, i); });
}

template <class T>
__device__ void add_rms(const T* x, T* residual, const float* weight, T* out, int rows, int width, int mode,
                        float eps) {
    int r = blockIdx.x * blockDim.y + threadIdx.y;
    if (r >= rows) return;
    x += size_t(r) * width, residual += size_t(r) * width, out += size_t(r) * width;
    Row row = {width, width % VECTOR == 0 && aligned(x) && aligned(residual) && aligned(out)};
    // A thread reads back only what it wrote itself.
    if (row.vectors) {
#pragma unroll 4
        for (int i = threadIdx.x * VECTOR; i < width; i += blockDim.x * VECTOR) {
            float a[VECTOR], b[VECTOR];
            load8(residual + i, a);
            load8(x + i, b);
#pragma unroll
            for (int j = 0; j < VECTOR; j++) a[j] += b[j];
            store8(residual + i, a);
        }
    } else {
        each(row, [&](int i) { residual[i] = from_f32<T>(to_f32(residual[i]) + to_f32(x[i])); });
    }
    float factor = 1.0f / sqrtf(sum(row, residual, [](float v) { return v * v; }) / width + eps);
    map(row, residual, out, [&](float v, int i) { return v * factor * weigh(mode, weight, i); });
}

// weight and bias may be null.
template <class T>
__device__ void layer(const T* x, const float* weight, const float* bias, T* out, int rows, int width, float eps) {
    int r = blockIdx.x * blockDim.y + threadIdx.y;
    if (r >= rows) return;
    x += size_t(r) * width, out += size_t(r) * width;
    Row row = {width, width % VECTOR == 0 && aligned(x) && aligned(out)};
    float mean = sum(row, x, [](float v) { return v; }) / width;
    float variance = sum(row, x, [=](float v) { return (v - mean) * (v - mean); }) / width;
    float factor = 1.0f / sqrtf(variance + eps);
    map(row, x, out, [&](float v, int i) {
        float y = (v - mean) * factor;
        if (weight) y *= weight[i];
        return bias ? y + bias[i] : y;
    });
}

template <class T>
__device__ void l2(T* x, int rows, int width, float eps, float factor) {
    int r = blockIdx.x * blockDim.y + threadIdx.y;
    if (r >= rows) return;
    x += size_t(r) * width;
    Row row = {width, width % VECTOR == 0 && aligned(x)};
    float by = factor / sqrtf(sum(row, x, [](float v) { return v * v; }) + eps);
    map(row, x, x, [=](float v, int) { return v * by; });
}

}  // namespace row_norm

#define KERNELS(T)                                                                                                  \
    extern "C" __global__ void rms_norm_##T(const T* x, const float* weight, T* out, int rows, int width, int mode, \
                                            float eps) {                                                            \
        wait_for_inputs();                                                                                               \
        row_norm::rms<T>(x, weight, out, rows, width, mode, eps);                                                       \
    }                                                                                                               \
    extern "C" __global__ void add_rms_norm_##T(const T* x, T* residual, const float* weight, T* out, int rows,     \
                                                int width, int mode, float eps) {                                   \
        wait_for_inputs();                                                                                               \
        row_norm::add_rms<T>(x, residual, weight, out, rows, width, mode, eps);                                         \
    }                                                                                                               \
    extern "C" __global__ void layer_norm_##T(const T* x, const float* weight, const float* bias, T* out, int rows, \
                                              int width, float eps) {                                               \
        wait_for_inputs();                                                                                               \
        row_norm::layer<T>(x, weight, bias, out, rows, width, eps);                                                     \
    }                                                                                                               \
    extern "C" __global__ void l2_norm_##T(T* x, int rows, int width, float eps, float factor) {                    \
        wait_for_inputs();                                                                                               \
        row_norm::l2<T>(x, rows, width, eps, factor);                                                                   \
    }
KERNELS(f32)
KERNELS(bf16)
#undef KERNELS

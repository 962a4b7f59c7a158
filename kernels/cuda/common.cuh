// Element types, 16-byte vectors and reductions that the kernels share.
//
// Activations are f32 or bf16; arithmetic is f32. Kernels are `extern "C"`, named after the operation and the element
// types, and take raw pointers; the launchers in kernels/src/cuda check every shape.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

using f32 = float;
using f16 = __half;
using bf16 = __nv_bfloat16;

constexpr float INFINITE = __builtin_huge_valf();

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(bf16 x) { return __bfloat162float(x); }
__device__ inline float to_f32(f16 x) { return __half2float(x); }

template <class T>
__device__ inline T from_f32(float x);
template <>
__device__ inline float from_f32<float>(float x) {
    return x;
}
template <>
__device__ inline bf16 from_f32<bf16>(float x) {
    return __float2bfloat16_rn(x);
}

// Eight elements, loaded and stored 16 bytes at a time. The address is a multiple of 16 bytes.
constexpr int VECTOR = 8;

__device__ inline void unpack(uint32_t pair, float* out, bf16) {
    out[0] = __uint_as_float(pair << 16);
    out[1] = __uint_as_float(pair & 0xffff0000u);
}
__device__ inline void unpack(uint32_t pair, float* out, f16) {
    float2 values = __half22float2(*reinterpret_cast<__half2*>(&pair));
    out[0] = values.x;
    out[1] = values.y;
}

template <class T>
__device__ inline void load8(const T* from, float (&out)[VECTOR]) {
    uint4 raw = *reinterpret_cast<const uint4*>(from);
    unpack(raw.x, out, T());
    unpack(raw.y, out + 2, T());
    unpack(raw.z, out + 4, T());
    unpack(raw.w, out + 6, T());
}
template <>
__device__ inline void load8<float>(const float* from, float (&out)[VECTOR]) {
    float4 low = reinterpret_cast<const float4*>(from)[0], high = reinterpret_cast<const float4*>(from)[1];
    out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
    out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
}

template <class T>
__device__ inline void store8(T* to, const float (&x)[VECTOR]);
template <>
__device__ inline void store8<float>(float* to, const float (&x)[VECTOR]) {
    reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}
template <>
__device__ inline void store8<bf16>(bf16* to, const float (&x)[VECTOR]) {
    __nv_bfloat162 pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<uint4*>(pairs);
}

__device__ inline bool aligned(const void* p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }

__device__ inline float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
    return x;
}

// Sum over the threads with this threadIdx.y; blockDim.x is a multiple of 32, and 32 if blockDim.y > 1.
__device__ inline float row_sum(float x) {
    x = warp_sum(x);
    if (blockDim.x == 32) return x;
    __shared__ float sums[32];
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
    __syncthreads();
    x = warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? sums[threadIdx.x % 32] : 0.0f);
    __syncthreads();
    return x;
}

__device__ inline size_t global_thread() { return size_t(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline size_t num_threads() { return size_t(gridDim.x) * blockDim.x; }

// Lets the kernel after this one start, then waits until those before it are done. A kernel that is launched as
// `Grid::overlapping` calls this before it reads or writes anything that another kernel writes or reads.
__device__ inline void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

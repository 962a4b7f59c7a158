// Functions of one and two elements, numbered as in kernels/src/cuda/elementwise.rs.
#pragma once

#include "common.cuh"

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

__device__ inline float unary(int f, float x) {
    switch (f) {
        case 1: return silu(x);
        case 2: return sigmoid(x);
        case 3: return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
        case 4: return 0.5f * x * erfcf(-x * 0.7071067812f);
        case 5: return x < 0.0f ? 0.0f : x;
        case 6: return x > 20.0f ? x : log1pf(expf(x));
        case 7: return tanhf(x);
        case 8: return expf(x);
        case 9: return -x;
        case 10: return fabsf(x);
        case 11: return sqrtf(x);
        case 12: return 1.0f / sqrtf(x);
        case 13: return 1.0f / x;
        case 14: return x * x;
        case 15: return logf(x);
        case 16: return cosf(x);
        case 17: return sinf(x);
        default: return x;
    }
}

__device__ inline float binary(int f, float a, float b) {
    switch (f) {
        case 0: return a + b;
        case 1: return a - b;
        case 2: return a * b;
        case 3: return a / b;
        // Comparisons that keep a NaN of either side.
        case 4: return a < b || a != a ? a : b;
        case 5: return a > b || a != a ? a : b;
        case 6: return a * sigmoid(b);
        default: return silu(a) * b;
    }
}

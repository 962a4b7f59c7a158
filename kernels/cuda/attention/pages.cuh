// Where keys and values lie: kernels/src/cuda/kv_cache.rs describes the layout.
#pragma once

#include "../common.cuh"

struct KvShape {
    int block_size, num_kv_heads, head_dim, value_dim;

    __device__ size_t keys_at(uint32_t block, int head) const {
        return (size_t(block) * num_kv_heads + head) * block_size * (head_dim + value_dim);
    }
    __device__ size_t values_at(uint32_t block, int head) const {
        return keys_at(block, head) + size_t(block_size) * head_dim;
    }
};

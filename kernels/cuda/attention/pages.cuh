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

// Keys of one split, blockIdx.x of gridDim.x, of those from begin to end.
struct Span {
    int low, high;

    // Splits of a fixed length count from the first key of the context; otherwise the visible keys are cut into equal
    // parts of no fewer than `fewest`, so that splits without keys are the last ones.
    __device__ static Span of(int begin, int end, int keys_per_split, int fewest) {
        const int index = blockIdx.x;
        if (keys_per_split > 0) {
            int64_t high = int64_t(index + 1) * keys_per_split;
            return {max(begin, index * keys_per_split), int(min(high, int64_t(end)))};
        }
        const int count = gridDim.x, keys = max(fewest, ((end - begin + count - 1) / count + 15) & ~15);
        const int64_t low = begin + int64_t(index) * keys;
        return {int(min(low, int64_t(end))), int(min(low + keys, int64_t(end)))};
    }
};

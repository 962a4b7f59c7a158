// Writes keys and values of this step to their slots. One block per row.
#include "pages.cuh"

namespace kv_write {

template <class T, class C>
__device__ void write(const T* k, const T* v, const uint32_t* slots, C* pages, KvShape shape) {
    size_t t = blockIdx.x;
    uint32_t slot = slots[t];
    uint32_t block = slot / shape.block_size, position = slot % shape.block_size;
    int hd = shape.head_dim, vd = shape.value_dim, heads = shape.num_kv_heads;
    for (int i = threadIdx.x; i < heads * hd; i += blockDim.x) {
        float x = to_f32(k[t * heads * hd + i]);
        pages[shape.keys_at(block, i / hd) + size_t(position) * hd + i % hd] = from_f32<C>(x);
    }
    for (int i = threadIdx.x; i < heads * vd; i += blockDim.x) {
        float x = to_f32(v[t * heads * vd + i]);
        pages[shape.values_at(block, i / vd) + size_t(position) * vd + i % vd] = from_f32<C>(x);
    }
}

}  // namespace kv_write

#define KERNEL(T, C)                                                                                                 \
    extern "C" __global__ void kv_write_##T##_##C(const T* k, const T* v, const uint32_t* slots, C* pages,           \
                                                  int block_size, int num_kv_heads, int head_dim, int value_dim) {   \
        kv_write::write<T, C>(k, v, slots, pages, {block_size, num_kv_heads, head_dim, value_dim});                  \
    }
KERNEL(f32, f32)
KERNEL(f32, bf16)
KERNEL(bf16, bf16)
KERNEL(bf16, f32)
#undef KERNEL

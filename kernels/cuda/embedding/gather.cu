// Rows of a table by id. One block per row.
#include "../common.cuh"

namespace embedding {

template <class W, class T>
__device__ void gather(const W* table, const uint32_t* ids, T* out, int width) {
    table += size_t(ids[blockIdx.x]) * width, out += size_t(blockIdx.x) * width;
    if (width % VECTOR == 0 && aligned(table) && aligned(out)) {
        for (int i = threadIdx.x * VECTOR; i < width; i += blockDim.x * VECTOR) {
            float v[VECTOR];
            load8(table + i, v);
            store8(out + i, v);
        }
    } else {
        for (int i = threadIdx.x; i < width; i += blockDim.x) out[i] = from_f32<T>(to_f32(table[i]));
    }
}

}  // namespace embedding

#define KERNEL(W, T)                                                                                             \
    extern "C" __global__ void gather_##W##_##T(const W* table, const uint32_t* ids, T* out, int width) {        \
        embedding::gather<W, T>(table, ids, out, width);                                                         \
    }
KERNEL(f32, f32)
KERNEL(bf16, f32)
KERNEL(f16, f32)
KERNEL(f32, bf16)
KERNEL(bf16, bf16)
KERNEL(f16, bf16)
#undef KERNEL

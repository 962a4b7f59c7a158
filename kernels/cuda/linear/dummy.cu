// Weights for runs without a checkpoint.
#include "../common.cuh"

// Numbers between -scale and scale from a counter (the finalizer of MurmurHash3, by A. Appleby).
extern "C" __global__ void fill_dummy(bf16* out, size_t len, float scale, int seed) {
    for (size_t i = global_thread(); i < len; i += num_threads()) {
        uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull ^ uint64_t(uint32_t(seed)) << 17;
        z = (z ^ z >> 33) * 0xff51afd7ed558ccdull;
        z = (z ^ z >> 33) * 0xc4ceb9fe1a85ec53ull;
        z ^= z >> 33;
        out[i] = from_f32<bf16>(scale * (float(z >> 40) / 8388608.0f - 1.0f));
    }
}

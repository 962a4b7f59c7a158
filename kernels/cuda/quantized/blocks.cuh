// Quantised weights: blocks of 32 columns, cut up into planes so that neighbouring lanes read neighbouring bytes.
// kernels/src/cuda/planes.rs makes them.
//
//   quants  16 bytes a block: byte i holds element i in its low nibble and element i + 16 in its high one;
//           for 8 bits 32 bytes, one a signed element
//   high    5 bits: bit s of byte j is the fifth bit of element 4 s + j;
//           6 bits: bits 2 (s mod 4) of byte j of word s / 4 are the upper bits of element 4 s + j
//   scales  per block: f16 d; f16 d and m; u8 sc and m; or two i8 scales of 16 elements
//   supers  per 8 blocks: f16 d and dmin; or f16 d
#pragma once

#include "../common.cuh"

enum Scales { PLAIN, WITH_MIN, SUPER, SUPER16 };

template <int BITS_, int OFFSET_, Scales SCALES_>
struct Layout {
    static constexpr int BITS = BITS_, OFFSET = OFFSET_;
    static constexpr Scales SCALES = SCALES_;
};
using q4_0 = Layout<4, 8, PLAIN>;
using q4_1 = Layout<4, 0, WITH_MIN>;
using q5_0 = Layout<5, 16, PLAIN>;
using q5_1 = Layout<5, 0, WITH_MIN>;
using q8_0 = Layout<8, 0, PLAIN>;
using q4_k = Layout<4, 0, SUPER>;
using q5_k = Layout<5, 0, SUPER>;
using q6_k = Layout<6, 32, SUPER16>;

struct Planes {
    const uint8_t *quants, *high, *scales, *supers;
};

// A block: value of element i is scale[i / 16] * quants[i] - min.
struct Block {
    // Signed bytes, element 4 s + j in byte j of word s.
    uint32_t quants[8];
    float scale[2], min;
};

template <class L>
__device__ inline Block read_block(const Planes& planes, size_t index) {
    Block block;
    if (L::BITS == 8) {
        const uint4* from = reinterpret_cast<const uint4*>(planes.quants) + 2 * index;
        uint4 low = from[0], high = from[1];
        block.quants[0] = low.x, block.quants[1] = low.y, block.quants[2] = low.z, block.quants[3] = low.w;
        block.quants[4] = high.x, block.quants[5] = high.y, block.quants[6] = high.z, block.quants[7] = high.w;
    } else {
        uint4 packed = reinterpret_cast<const uint4*>(planes.quants)[index];
        const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
        for (int s = 0; s < 8; s++) block.quants[s] = words[s % 4] >> (4 * (s / 4)) & 0x0f0f0f0fu;
    }
    if (L::BITS == 5) {
        uint32_t high = reinterpret_cast<const uint32_t*>(planes.high)[index];
#pragma unroll
        for (int s = 0; s < 8; s++) block.quants[s] |= (high >> s & 0x01010101u) << 4;
    }
    if (L::BITS == 6) {
        uint2 high = reinterpret_cast<const uint2*>(planes.high)[index];
#pragma unroll
        for (int s = 0; s < 8; s++) {
            block.quants[s] |= ((s < 4 ? high.x : high.y) >> (2 * (s % 4)) & 0x03030303u) << 4;
        }
    }
    if (L::OFFSET > 0) {
#pragma unroll
        for (int s = 0; s < 8; s++) block.quants[s] = __vsub4(block.quants[s], L::OFFSET * 0x01010101u);
    }
    block.min = 0.0f;
    if (L::SCALES == PLAIN) {
        block.scale[0] = __half2float(reinterpret_cast<const f16*>(planes.scales)[index]);
    } else if (L::SCALES == WITH_MIN) {
        float2 pair = __half22float2(reinterpret_cast<const __half2*>(planes.scales)[index]);
        block.scale[0] = pair.x, block.min = -pair.y;
    } else if (L::SCALES == SUPER) {
        float2 pair = __half22float2(reinterpret_cast<const __half2*>(planes.supers)[index / 8]);
        uchar2 small = reinterpret_cast<const uchar2*>(planes.scales)[index];
        block.scale[0] = pair.x * small.x, block.min = pair.y * small.y;
    } else {
        float d = __half2float(reinterpret_cast<const f16*>(planes.supers)[index / 8]);
        char2 small = reinterpret_cast<const char2*>(planes.scales)[index];
        block.scale[0] = d * small.x, block.scale[1] = d * small.y;
    }
    if (L::SCALES != SUPER16) block.scale[1] = block.scale[0];
    return block;
}

// Product of a block with block `at` of x in int8, whose scales are (scale, scale * sum of quants). Sums of 16 columns
// are exact.
template <class L>
__device__ inline float block_product(const Block& block, const int8_t* x, const float2* x_scales, size_t at) {
    uint4 low = reinterpret_cast<const uint4*>(x)[2 * at], high = reinterpret_cast<const uint4*>(x)[2 * at + 1];
    float2 scale = x_scales[at];
    int first = __dp4a(int(block.quants[0]), int(low.x), 0);
    first = __dp4a(int(block.quants[1]), int(low.y), first);
    first = __dp4a(int(block.quants[2]), int(low.z), first);
    first = __dp4a(int(block.quants[3]), int(low.w), first);
    int second = __dp4a(int(block.quants[4]), int(high.x), 0);
    second = __dp4a(int(block.quants[5]), int(high.y), second);
    second = __dp4a(int(block.quants[6]), int(high.z), second);
    second = __dp4a(int(block.quants[7]), int(high.w), second);
    float product = L::SCALES == SUPER16 ? scale.x * (block.scale[0] * first + block.scale[1] * second)
                                         : scale.x * block.scale[0] * (first + second);
    bool has_min = L::SCALES == WITH_MIN || L::SCALES == SUPER;
    return has_min ? product - block.min * scale.y : product;
}

"""Writes the fixtures beside this file: random blocks of every GGUF type with the f32 values that gguf-py gives them, the 256
values of both FP8 types as ml_dtypes gives them, and a small GGUF file written by gguf-py.

Needs gguf 0.19, numpy and ml_dtypes. The output is the same on every run.
"""

import pathlib

import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize

HERE = pathlib.Path(__file__).parent
# Byte offsets of the f16 scales of a block: random bits there would be NaN or huge.
SCALES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208],
}


def blocks(rng, kind):
    size, block_bytes = GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (max(4, 512 // size), block_bytes), dtype=np.uint8)
    for at in SCALES[kind]:
        scale = rng.normal(0, 0.02, len(data)).astype("<f2")
        data[:, at:at + 2] = scale.view(np.uint8).reshape(-1, 2)
    return data


def main():
    rng = np.random.default_rng(0)
    for kind in SCALES:
        data = blocks(rng, kind)
        name = kind.name.lower()
        (HERE / f"{name}.blocks").write_bytes(data.tobytes())
        (HERE / f"{name}.f32").write_bytes(dequantize(data.reshape(1, -1), kind).astype("<f4").tobytes())
    every_byte = np.arange(256, dtype=np.uint8)
    for name in ["float8_e4m3fn", "float8_e5m2"]:
        values = every_byte.view(getattr(ml_dtypes, name)).astype("<f4")
        (HERE / f"{name}.f32").write_bytes(values.tobytes())

    writer = GGUFWriter(HERE / "sample.gguf", "llama")
    writer.add_uint8("t.u8", 200)
    writer.add_int8("t.i8", -100)
    writer.add_uint16("t.u16", 60000)
    writer.add_int16("t.i16", -30000)
    writer.add_uint32("llama.block_count", 2)
    writer.add_int32("t.i32", -5)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_bool("t.bool", True)
    writer.add_uint64("t.u64", 2**63 + 1)
    writer.add_int64("t.i64", -(2**62))
    writer.add_float64("t.f64", 0.1)
    writer.add_array("tokenizer.ggml.tokens", ["<unk>", "▁the", "naïve"])
    writer.add_array("llama.attention.head_count_kv", [2, 4])
    writer.add_tensor("output_norm.weight", np.arange(8, dtype=np.float32))
    writer.add_tensor("token_embd.weight", np.arange(24, dtype=np.float16).reshape(3, 8))
    q8 = blocks(rng, T.Q8_0)[:6].reshape(3, 2 * 34)
    writer.add_tensor("blk.0.attn_q.weight", q8, raw_dtype=T.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()

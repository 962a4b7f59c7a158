#!/usr/bin/env python3
"""Turns a GGUF file of architecture llama, qwen2 or qwen3 into a Hugging Face directory with F32 weights.

    python3 gguf_to_hf.py .models/SmolLM2-135M-Instruct.Q4_1.gguf .models/smollm2-f32

Writes model.safetensors (weights dequantised, published names), config.json, tokenizer.json, tokenizer_config.json and
generation_config.json. The directory holds exactly the numbers of the GGUF file, so any engine that reads both must agree
with itself up to rounding. Needs numpy, gguf and safetensors.
"""
import argparse
import json
from pathlib import Path

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file

import gguf_tokenizer

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
# GGUF stores the rotary halves of these architectures interleaved.
INTERLEAVED_ROPE = {"llama"}
TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class Metadata:
    """The key-value section; `arch(key)` reads under the architecture's prefix."""

    def __init__(self, reader: GGUFReader):
        self.fields = reader.fields
        self.architecture = self["general.architecture"]

    def __getitem__(self, key):
        if key not in self.fields:
            raise SystemExit(f"the GGUF file has no {key}")
        return self.fields[key].contents()

    def get(self, key, default=None):
        return self[key] if key in self.fields else default

    def arch(self, key, default=None):
        return self.get(f"{self.architecture}.{key}", default)


def published_name(name: str) -> str:
    """The checkpoint's name for a GGUF tensor."""
    if name in TOP_LEVEL:
        return TOP_LEVEL[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in PER_LAYER:
        return f"model.layers.{parts[1]}.{PER_LAYER[parts[2]]}.{parts[3]}"
    raise SystemExit(f"unknown GGUF tensor {name}")


def split_rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from pair order (0a 0b 1a 1b ...) to half order (0a 1a ... 0b 1b ...)."""
    pairs = weight.reshape(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weight.shape)


def weights(reader: GGUFReader, meta: Metadata) -> dict:
    heads = {"attn_q": meta.arch("attention.head_count"), "attn_k": meta.arch("attention.head_count_kv")}
    out = {}
    for tensor in reader.tensors:
        if tensor.name == "rope_freqs.weight":
            raise SystemExit("scaled rotary frequencies (rope_freqs) have no counterpart here")
        # ne[0], the contiguous dimension, comes first in GGUF: the numpy shape is reversed.
        value = dequantize(tensor.data, tensor.tensor_type).reshape([int(n) for n in reversed(tensor.shape)])
        kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if meta.architecture in INTERLEAVED_ROPE and kind in heads:
            value = split_rotary_halves(value, heads[kind])
        out[published_name(tensor.name)] = np.ascontiguousarray(value, dtype=np.float32)
    return out


def config(meta: Metadata, tensors: dict) -> dict:
    hidden, heads = meta.arch("embedding_length"), meta.arch("attention.head_count")
    out = {
        "architectures": [ARCHITECTURES[meta.architecture]],
        "model_type": meta.architecture,
        "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": meta.arch("feed_forward_length"),
        "num_hidden_layers": meta.arch("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.arch("attention.head_count_kv", heads),
        "hidden_act": "silu",
        "max_position_embeddings": meta.arch("context_length"),
        "rms_norm_eps": float(np.float32(meta.arch("attention.layer_norm_rms_epsilon"))),
        "rope_theta": float(meta.arch("rope.freq_base", 10000.0)),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "torch_dtype": "float32",
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
    }
    if meta.architecture != "qwen2":
        out["head_dim"] = meta.arch("attention.key_length", hidden // heads)
        out["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in tensors
    if meta.architecture == "llama":
        out["mlp_bias"] = False
    else:
        out["use_sliding_window"] = False
    return out


def generation_config(model_config: dict) -> dict:
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {"do_sample": False, **{key: model_config[key] for key in keys if model_config[key] is not None}}


def write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert(gguf: Path, out: Path) -> None:
    reader = GGUFReader(gguf)
    meta = Metadata(reader)
    if meta.architecture not in ARCHITECTURES:
        raise SystemExit(f"{gguf.name}: architecture {meta.architecture}; known: {', '.join(ARCHITECTURES)}")
    if meta.arch("rope.scaling.type", "none") != "none":
        raise SystemExit(f"{gguf.name}: rope scaling {meta.arch('rope.scaling.type')} is not supported")
    out.mkdir(parents=True, exist_ok=True)
    tensors = weights(reader, meta)
    model_config = config(meta, tensors)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    write_json(out / "config.json", model_config)
    write_json(out / "generation_config.json", generation_config(model_config))
    write_json(out / "tokenizer.json", gguf_tokenizer.tokenizer(meta))
    write_json(out / "tokenizer_config.json", gguf_tokenizer.tokenizer_config(meta))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("gguf", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    convert(args.gguf, args.out)
    print(args.out)


if __name__ == "__main__":
    main()

"""Random weights for a transformers model, and the checkpoint written from them."""
import copy
import json
import re
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

# Tensors that checkpoints keep in F32 beside BF16 weights.
KEEP_F32 = ("A_log", "e_score_correction_bias", "weights_proj")
# Buffers that checkpoints hold like parameters.
STORED_BUFFERS = ("e_score_correction_bias",)
# Model types whose published checkpoints keep all experts of a layer in two tensors; save_pretrained splits them.
FUSED_EXPERTS = "qwen3_5_moe"
EXPERT = re.compile(r"(.*\.experts\.)(\d+)\.(gate_proj|up_proj|down_proj)\.weight")


def build(config: dict, seed: int):
    """(model, generator): the architecture in float32 with eager attention and reproducible weights."""
    values = {key: value for key, value in config.items() if key != "picture"}
    model_config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    architecture = getattr(transformers, config["architectures"][0])
    model = architecture._from_config(model_config, dtype=torch.float32, attn_implementation="eager").eval()
    randomize(model, generator)
    return model, generator


def randomize(model, generator: torch.Generator) -> None:
    """Fills every parameter, rounded to bfloat16.

    Matrices and the filters of patches N(0, 1/fan_in); embeddings N(0, 1), or N(0, 1/hidden) when tied to the head; vectors
    that start at one 1 + N(0, 0.1) and at zero N(0, 0.1), router biases among them; convolutions N(0, 0.16); A_log log U(0.01, 16).
    """
    embeddings = {id(m.weight): m for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    head = getattr(model, "lm_head", None)
    tied = id(head.weight) if head is not None and id(head.weight) in embeddings else None
    buffers = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith(STORED_BUFFERS)]
    for name, parameter in [*model.named_parameters(), *buffers]:
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
        if name.endswith("A_log"):
            value = torch.log(torch.rand(parameter.shape, generator=generator) * 15.99 + 0.01)
        elif id(parameter) in embeddings:
            value = noise * (parameter.shape[1] ** -0.5 if id(parameter) == tied else 1.0)
            padding = embeddings[id(parameter)].padding_idx
            if padding is not None:
                value[padding] = 0
        elif parameter.dim() <= 1:
            value = (1.0 if torch.all(parameter == 1) else 0.0) + 0.1 * noise
        elif "conv1d" in name:
            value = 0.4 * noise
        else:
            fan_in = parameter[0].numel() if parameter.dim() == 5 else parameter.shape[-1]
            value = noise * fan_in ** -0.5
        parameter.data.copy_(value.to(torch.bfloat16).to(parameter.dtype))


def save(model, config: dict, out: Path, extra: dict) -> dict:
    """Writes bf16/model.safetensors with published names and config.json; returns {tensor name: shape}."""
    scratch = out / "_scratch"
    model.save_pretrained(scratch, safe_serialization=True, save_original_format=True)
    tensors = {}
    for file in sorted(scratch.glob("*.safetensors")):
        tensors |= load_file(file)
    saved_config = json.loads((scratch / "config.json").read_text())
    shutil.rmtree(scratch)
    if config["model_type"] == "minimax_m3_vl_text":
        tensors = published_minimax_m3(tensors)
    if config["model_type"].startswith(FUSED_EXPERTS):
        tensors = fuse_experts(tensors)
    tensors |= extra
    save_file({name: stored(name, value) for name, value in tensors.items()}, out / "bf16" / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps({**config, **saved_config}, indent=2))
    return {name: list(value.shape) for name, value in tensors.items()}


def published_minimax_m3(tensors: dict) -> dict:
    """The text class has no rule for its published names: those of the whole model, with MiniMax-M2's for experts."""
    published = {}
    for name, value in tensors.items():
        name = "language_model." + re.sub(r"\.indexer\.([qk])_", r".index_\1_", name)
        name = re.sub(r"\.mlp\.(experts|gate\.weight|shared_experts)", r".block_sparse_moe.\1", name)
        name = name.replace(".mlp.gate.e_score_correction_bias", ".block_sparse_moe.e_score_correction_bias")
        if name.endswith("experts.gate_up_proj"):
            for expert, (gate, up) in enumerate(matrix.chunk(2, 0) for matrix in value):
                published[name.replace("gate_up_proj", f"{expert}.w1.weight")] = gate.clone()
                published[name.replace("gate_up_proj", f"{expert}.w3.weight")] = up.clone()
        elif name.endswith("experts.down_proj"):
            for expert, matrix in enumerate(value):
                published[name.replace("down_proj", f"{expert}.w2.weight")] = matrix.clone()
        elif name.endswith(".gate_up_proj.weight"):
            gate, up = value.chunk(2, 0)
            published[name.replace("gate_up_proj", "gate_proj")] = gate.clone()
            published[name.replace("gate_up_proj", "up_proj")] = up.clone()
        else:
            published[name] = value
    return published


def fuse_experts(tensors: dict) -> dict:
    """`gate_up_proj` [E, 2I, H], gate rows first, and `down_proj` [E, H, I] per layer instead of three matrices per expert."""
    found = {name: EXPERT.fullmatch(name) for name in tensors}
    others = {name: value for name, value in tensors.items() if not found[name]}
    for prefix in sorted({match[1] for match in found.values() if match}):
        numbers = range(1 + max(int(match[2]) for match in found.values() if match and match[1] == prefix))
        matrix = lambda expert, kind: tensors[f"{prefix}{expert}.{kind}.weight"]
        others[f"{prefix}gate_up_proj"] = torch.stack([torch.cat([matrix(e, "gate_proj"), matrix(e, "up_proj")]) for e in numbers])
        others[f"{prefix}down_proj"] = torch.stack([matrix(e, "down_proj") for e in numbers])
    return others


def stored(name: str, value: torch.Tensor) -> torch.Tensor:
    """A tensor as the checkpoint holds it."""
    keep = not value.is_floating_point() or any(part in name for part in KEEP_F32)
    return (value if keep else value.to(torch.bfloat16)).contiguous()


def in_bfloat16(model):
    """A copy of the model that computes in bfloat16, with the parameters that stay F32 left alone."""


    clone = copy.deepcopy(model)
    keep = KEEP_F32 + tuple(getattr(clone, "_keep_in_fp32_modules_strict", None) or ()) + tuple(getattr(clone, "_keep_in_fp32_modules", None) or ())
    for name, parameter in clone.named_parameters():
        if not any(part in name for part in keep):
            parameter.data = parameter.data.to(torch.bfloat16)
    for name, buffer in clone.named_buffers():
        if buffer.is_floating_point() and "inv_freq" not in name and not any(part in name for part in keep):
            buffer.data = buffer.data.to(torch.bfloat16)
    return clone

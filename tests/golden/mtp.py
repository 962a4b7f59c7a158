"""Multi-token-prediction heads, which transformers does not load with the model."""
import copy

import torch
from transformers.modeling_layers import MtpLayer

import checkpoint
from summary import summarize

# Families that keep the head as layers after the last one of the trunk.
AS_LAYER = {"glm4_moe", "glm4_moe_lite"}
FAMILIES = {"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"} | AS_LAYER
PUBLISHED = {
    "enorm.weight": "mtp.pre_fc_norm_embedding.weight",
    "hnorm.weight": "mtp.pre_fc_norm_hidden.weight",
    "eh_proj.weight": "mtp.fc.weight",
    "post_norm.weight": "mtp.norm.weight",
}
NOTE = (
    "slot i: hidden_i after the final norm and the embedding of token i+1 predict token i+2; mtp_hidden is after the MTP "
    "norm and is what a chained step feeds back"
)


def run(model, ids: torch.Tensor, hidden: torch.Tensor, generator: torch.Generator):
    """(tensors by published name, arrays, golden entry) of one MTP layer run over the whole sequence."""
    layer = build(model, generator)
    output, logits = forward(layer, model, ids, hidden[None])
    logits = logits[0].float().numpy()
    tensors = published(layer, model.config)
    arrays = {"mtp_logits_f32": logits, "mtp_hidden_f32": output[0].float().numpy()}
    shapes = {name: list(value.shape) for name, value in tensors.items()}
    return tensors, arrays, {"note": NOTE, "tensors": shapes, "summary": summarize(logits)}


def build(model, generator: torch.Generator):
    """One layer made of the model's own decoder layer class, with full attention and experts."""
    config = copy.deepcopy(model.config.get_text_config())
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = ["full_attention"]
    if getattr(config, "mlp_layer_types", None) is not None:
        config.mlp_layer_types = ["sparse"]
    if hasattr(config, "first_k_dense_replace"):
        config.first_k_dense_replace = 0
    config._attn_implementation = "eager"
    decoder = model.get_decoder()
    layer = MtpLayer(config, type(decoder.layers[-1]), type(decoder.norm), 0, True).eval()
    for module in layer.modules():
        if hasattr(module, "config"):
            module.config = config
    checkpoint.randomize(layer, generator)
    return layer


def forward(layer, model, ids: torch.Tensor, hidden: torch.Tensor):
    """(normed hidden [1, T-1, H], logits [1, T-1, V]); slot i is rotated as position i, since only distances matter."""
    decoder = model.get_decoder()
    embedded = model.get_input_embeddings()(ids[:, 1:])
    previous = hidden[:, :-1]
    length = previous.shape[1]
    positions = torch.arange(length)[None]
    streams = positions[None].expand(3, 1, length) if hasattr(decoder.rotary_emb, "mrope_section") else positions
    rotary = decoder.rotary_emb(embedded, streams)
    mask = torch.full((length, length), torch.finfo(torch.float32).min).triu(1)[None, None]
    output = layer(embedded, previous, position_embeddings=rotary, attention_mask=mask, position_ids=positions, cache=None)
    return output, model.lm_head(output)


def published(layer, config) -> dict:
    """The layer's tensors under their checkpoint names; experts one by one."""
    tensors = {}
    for name, value in layer.state_dict().items():
        block = name.removeprefix("mtp_block.")
        if config.model_type in AS_LAYER:
            name = block.replace("post_norm.", "shared_head.norm.")
            tensors[f"model.layers.{config.num_hidden_layers}.{name}"] = value
        else:
            tensors[f"mtp.layers.0.{block}" if block != name else PUBLISHED[name]] = value
    for name in [name for name in tensors if name.endswith("mlp.experts.gate_up_proj")]:
        base = name.removesuffix("gate_up_proj")
        fused, down = tensors.pop(name), tensors.pop(base + "down_proj")
        for expert in range(fused.shape[0]):
            gate, up = fused[expert].chunk(2, 0)
            tensors[f"{base}{expert}.gate_proj.weight"] = gate.clone()
            tensors[f"{base}{expert}.up_proj.weight"] = up.clone()
            tensors[f"{base}{expert}.down_proj.weight"] = down[expert].clone()
    return tensors

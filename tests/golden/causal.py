"""Records a decoder-only model: greedy generation, logits with and without a cache, hidden states, MTP logits."""
import numpy as np
import torch

import checkpoint
import images
import mtp
from summary import summarize


def run(config: dict, args) -> dict:
    """Writes the arrays and the checkpoint into `args.out`; returns the entries of golden.json."""
    model, generator = checkpoint.build(config, args.seed)
    text = model.config.get_text_config()
    # Ids below 240 leave room for the special ids that some configurations put at the end of the vocabulary.
    prompt = np.random.default_rng(args.seed).integers(3, min(text.vocab_size, 240), size=args.prompt_len).tolist()
    seen = images.place(model, config, prompt, generator, args.out)
    prompt = seen.prompt
    sequence, cached = generate(model, prompt, args.steps, seen)
    ids = torch.tensor([sequence[: len(cached)]])
    output = model(ids, use_cache=False, output_hidden_states=True, **seen.inputs(model, ids))
    uncached = output.logits[0].float().numpy()
    hidden = [state[0].float() for state in output.hidden_states]
    clone = checkpoint.in_bfloat16(model)
    in_bf16 = clone(ids, use_cache=False, **seen.inputs(clone, ids)).logits[0].float().numpy()

    arrays = {
        "logits_f32": cached,
        "logits_f32_nocache": uncached,
        "logits_bf16": in_bf16,
        "hidden_f32": hidden[-1].numpy(),
        # Where the residual is wider than the final hidden state, the latter is only in hidden_f32.
        "layer_hidden_f32": torch.stack([state for state in hidden if state.shape == hidden[0].shape]).numpy(),
    }
    golden = {
        "prompt_len": len(prompt),
        "input_ids": prompt,
        "generated": sequence[len(prompt) :],
        "num_positions": len(cached),
        "max_abs_cached_vs_nocache": float(np.abs(cached - uncached).max()),
        "argmax_equal_cached_nocache": bool((cached.argmax(1) == uncached.argmax(1)).all()),
        "max_abs_bf16_vs_f32": float(np.abs(in_bf16 - uncached).max()),
        "argmax_agree_bf16": float((in_bf16.argmax(1) == uncached.argmax(1)).mean()),
        "summary": summarize(cached),
    }
    golden |= seen.facts
    golden["min_margin"] = min(entry["margin"] for entry in golden["summary"])
    extra = {}
    if text.model_type in mtp.FAMILIES:
        extra, mtp_arrays, golden["mtp"] = mtp.run(model, ids, hidden[-1], generator)
        arrays |= mtp_arrays
    for name, value in arrays.items():
        np.save(args.out / f"{name}.npy", value)
    golden["tensors"] = checkpoint.save(model, config, args.out, extra)
    return golden


def generate(model, prompt: list, steps: int, seen: images.Text):
    """(ids, logits [T, vocab]): prefill, then one greedy token at a time through the cache. The last id has no logits."""
    ids = torch.tensor([prompt])
    output = model(ids, use_cache=True, **seen.inputs(model, ids))
    rows, ids = [output.logits[0].float()], list(prompt)
    for _ in range(steps - 1):
        ids.append(int(rows[-1][-1].argmax()))
        output = model(torch.tensor([[ids[-1]]]), use_cache=True, cache=output.cache)
        rows.append(output.logits[0].float())
    ids.append(int(rows[-1][-1].argmax()))
    return ids, torch.cat(rows).numpy()

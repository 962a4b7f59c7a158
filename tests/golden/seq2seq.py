"""Records an encoder-decoder model: teacher-forced logits of a padded batch of two, and beam search."""
from collections import Counter

import numpy as np
import torch
from transformers.modeling_outputs import BaseModelOutput

import checkpoint
import nllb_moe
from summary import summarize

SOURCE_LANGUAGE, TARGET_LANGUAGE, EOS, PAD = 240, 241, 2, 1
MAX_LENGTH, NUM_BEAMS = 20, 4
# (beams, length penalty, early stopping)
SEARCHES = (
    (1, 1.0, False),
    (NUM_BEAMS, 1.0, False),
    (NUM_BEAMS, 1.0, True),
    (NUM_BEAMS, 0.6, False),
    (NUM_BEAMS, 1.0, "never"),
    (NUM_BEAMS, 0.6, True),
    (NUM_BEAMS, 0.0, True),
    (NUM_BEAMS, 0.0, "never"),
    (NUM_BEAMS, 0.0, False),
)


def run(config: dict, args) -> dict:
    """Writes the arrays and the checkpoint into `args.out`; returns the entries of golden.json."""
    if config["model_type"] == "nllb-moe":
        nllb_moe.repair()
    model, _ = checkpoint.build(config, args.seed)
    ids = source_batch(args.seed, args.prompt_len)
    mask = (ids != PAD).long()
    encoded = model.get_encoder()(input_ids=ids, attention_mask=mask, return_dict=True)
    decoded, logits = decode_greedily(model, encoded, mask, args.steps)
    np.save(args.out / "logits_f32.npy", logits)
    np.save(args.out / "encoder_hidden_f32.npy", encoded.last_hidden_state.numpy())
    beam_eos = frequent_token(model, ids, mask)
    return {
        "src_lang_id": SOURCE_LANGUAGE,
        "tgt_lang_id": TARGET_LANGUAGE,
        "input_ids": ids.tolist(),
        "attention_mask": mask.tolist(),
        "decoder_ids": decoded,
        "tensors": checkpoint.save(model, config, args.out, {}),
        "max_abs_cached_vs_nocache": cached_difference(model, encoded, mask, decoded[0], logits[0]),
        "beam_eos_token_id": beam_eos,
        "beam_max_length": MAX_LENGTH,
        "summary": [summarize(rows) for rows in logits],
        "beam": {name: result for name, result in beam_searches(model, ids, mask, beam_eos)},
    }


def source_batch(seed: int, length: int) -> torch.Tensor:
    """Two sources, the second five tokens shorter and padded."""
    rng = np.random.default_rng(seed)
    first = rng.integers(4, 230, size=length - 2).tolist()
    second = rng.integers(4, 230, size=length - 7).tolist()
    return torch.tensor([[SOURCE_LANGUAGE, *first, EOS], [SOURCE_LANGUAGE, *second, EOS, *[PAD] * 5]])


def decode_greedily(model, encoded, mask, steps: int):
    """(decoder ids per row, logits [2, steps + 1, V]), the decoder run anew over the whole prefix at each step."""
    decoded = [[EOS, TARGET_LANGUAGE] for _ in range(2)]
    for _ in range(steps):
        output = model(attention_mask=mask, encoder_outputs=encoded, decoder_input_ids=torch.tensor(decoded), use_cache=False)
        for row, ids in enumerate(decoded):
            ids.append(int(output.logits[row, -1].argmax()))
    return decoded, output.logits.float().numpy()


def cached_difference(model, encoded, mask, ids: list, logits: np.ndarray) -> float:
    """The largest difference when row 0 is decoded one token at a time through the cache."""
    first = BaseModelOutput(last_hidden_state=encoded.last_hidden_state[:1])
    cache, worst = None, 0.0
    for position, row in enumerate(logits):
        past = {} if cache is None else {"cache": cache}
        token = torch.tensor([[ids[position]]])
        output = model(attention_mask=mask[:1], encoder_outputs=first, decoder_input_ids=token, use_cache=True, **past)
        cache = output.cache
        worst = max(worst, float(np.abs(output.logits[0, -1].float().numpy() - row).max()))
    return worst


def frequent_token(model, ids, mask) -> int:
    """A random model almost never emits </s>: a token that occurs about twice in its beams plays that part instead, so
    that beams do finish."""
    beams = model.generate(
        input_ids=ids,
        attention_mask=mask,
        num_beams=NUM_BEAMS,
        max_length=MAX_LENGTH,
        forced_bos_token_id=TARGET_LANGUAGE,
        eos_token_id=None,
        num_return_sequences=NUM_BEAMS,
    )
    counts = Counter(token for beam in beams[:NUM_BEAMS].tolist() for token in beam[4:12])
    return min(counts, key=lambda token: (abs(counts[token] - 2), token))


def beam_searches(model, ids, mask, eos: int):
    """(name, sequences and scores) of each search."""
    for beams, penalty, early_stopping in SEARCHES:
        output = model.generate(
            input_ids=ids,
            attention_mask=mask,
            num_beams=beams,
            max_length=MAX_LENGTH,
            length_penalty=penalty,
            early_stopping=early_stopping,
            do_sample=False,
            forced_bos_token_id=TARGET_LANGUAGE,
            eos_token_id=eos,
            num_return_sequences=beams,
            return_dict_in_generate=True,
            output_scores=True,
        )
        scores = getattr(output, "sequences_scores", None)
        yield f"beams{beams}_lp{penalty}_es{early_stopping}", {
            "sequences": output.sequences.tolist(),
            "scores": None if scores is None else [float(score) for score in scores],
        }

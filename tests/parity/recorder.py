"""Records a reference run through any engine that returns logits. Needs numpy."""
import numpy as np

import reference


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Row-wise, in float64."""
    x = logits.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def margins(logits: np.ndarray) -> np.ndarray:
    """Largest minus second largest logit of each row."""
    top = np.partition(logits, -2, axis=-1)[..., -2:]
    return top[..., 1] - top[..., 0]


def record(engine, model: str) -> dict:
    """`engine` has `name`, `tokenize(text) -> ids`, `prefill(ids) -> logits [n, vocab]` (fresh context each time) and
    `step(id) -> logits [vocab]` (continues it)."""
    token_ids = engine.tokenize(reference.passage())[: reference.NUM_TOKENS]
    if len(token_ids) < reference.NUM_TOKENS:
        raise SystemExit(f"the passage has {len(token_ids)} tokens under this tokenizer, {reference.NUM_TOKENS} are needed")
    return {
        "model": model,
        "engine": engine.name,
        "window": reference.WINDOW,
        "token_ids": token_ids,
        "windows": [teacher_force(engine, start, ids) for start, ids in reference.windows(token_ids)],
        "prompts": [continue_greedily(engine, text) for text in reference.prompts()],
    }


def teacher_force(engine, start: int, ids: list) -> dict:
    logits = engine.prefill(ids)[:-1]
    following = np.asarray(ids[1:])
    return {
        "start": start,
        "logprobs": log_softmax(logits)[np.arange(len(following)), following].tolist(),
        "argmax": logits.argmax(axis=-1).tolist(),
        "margins": margins(logits).tolist(),
    }


def continue_greedily(engine, text: str) -> dict:
    ids = engine.tokenize(text)
    generated, distances = [], []
    logits = engine.prefill(ids)[-1]
    for _ in range(reference.STEPS):
        generated.append(int(logits.argmax()))
        distances.append(float(margins(logits)))
        logits = engine.step(generated[-1])
    return {"text": text, "token_ids": ids, "generated": generated, "margins": distances}

"""What a reference run records, and the text it is recorded on.

A recording holds, for one model and one engine: the log-probabilities of a fixed passage, teacher-forced in windows that
each start with an empty context, and greedy continuations of 20 prompts. Token ids are stored, so that engines are
compared without their tokenizers. All values are natural-log probabilities or logits in float32.

    {"model", "engine", "window", "token_ids": [N],
     "windows": [{"start", "logprobs": [n-1], "argmax": [n-1], "margins": [n-1]}],   entry i predicts token start+i+1
     "prompts": [{"text", "token_ids", "generated": [STEPS], "margins": [STEPS]}]}

A margin is the distance in logits (equally, in log-probability) between the two most likely tokens.
"""
import gzip
import json
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"
NUM_TOKENS = 2000
WINDOW = 1000
STEPS = 48


def passage() -> str:
    return (DATA / "passage.txt").read_text(encoding="utf-8")


def prompts() -> list:
    return json.loads((DATA / "prompts.json").read_text(encoding="utf-8"))


def windows(token_ids: list, window: int = WINDOW):
    """(start, ids) of each window of the passage."""
    for start in range(0, len(token_ids), window):
        yield start, token_ids[start : start + window]


def save(recording: dict, path: Path) -> None:
    """Writes a recording; equal recordings give equal bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rounded(recording), separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), compresslevel=9, mtime=0))


def load(path: Path) -> dict:
    return json.loads(gzip.decompress(path.read_bytes()))


def rounded(value):
    """The same structure with floats at five decimals."""
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, list):
        return [rounded(item) for item in value]
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return value

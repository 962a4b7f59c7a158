"""The per-position summary of logits in golden.json."""
import hashlib

import numpy as np


def summarize(logits: np.ndarray) -> list:
    """For each row: argmax, the five largest, the margin of the first over the second, and a hash of the row rounded to
    two decimals (as little-endian int32)."""
    return [summarize_row(row) for row in logits]


def summarize_row(row: np.ndarray) -> dict:
    top = np.argsort(-row, kind="stable")[:5]
    hundredths = np.round(row.astype(np.float64) * 100).astype("<i4")
    return {
        "argmax": int(top[0]),
        "top5_ids": [int(index) for index in top],
        "top5": [round(float(row[index]), 6) for index in top],
        "margin": round(float(row[top[0]] - row[top[1]]), 6),
        "sha256_round2": hashlib.sha256(hundredths.tobytes()).hexdigest(),
    }

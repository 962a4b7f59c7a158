#!/usr/bin/env python3
"""Serves golden directories in float32 and compares every position's log-softmax over HTTP with the recorded logits.

    python3 golden_http.py [--tolerance 1e-3] DIRECTORY... [-- FLAGS OF metrale serve]

DIRECTORY is one golden model (tests/golden/README.md) or a folder of them. Encoder-decoder models have no echo and are
left out, by name. Exit status 1 if a model exceeds the tolerance. Standard library only.
"""
import argparse
import json
import math
import os
import sys
import tempfile
from pathlib import Path

import npy
from metrale_server import Server, ServerError, main_with_errors


def golden_directories(paths: list) -> list:
    """The golden models at or directly below each path."""
    found = []
    for path in paths:
        here = [path] if (path / "golden.json").exists() else sorted(p.parent for p in path.glob("*/golden.json"))
        if not here:
            raise SystemExit(f"{path}: no golden.json there or one level below")
        found += here
    return found


def log_softmax(row: list) -> list:
    top = max(row)
    total = math.log(sum(math.exp(value - top) for value in row)) + top
    return [value - total for value in row]


def served_model(golden: Path, folder: Path) -> Path:
    """A model directory of config and weights only, so that nothing else in the golden directory is picked up."""
    weights = golden / "bf16" / "model.safetensors"
    if not weights.exists():
        weights = golden / "f32" / "model.safetensors"
    model = folder / golden.name
    model.mkdir()
    os.symlink((golden / "config.json").resolve(), model / "config.json")
    os.symlink(weights.resolve(), model / "model.safetensors")
    return model


def uses_dynamic_rope(config: dict) -> bool:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    return rope.get("rope_type", rope.get("type")) == "dynamic"


def largest_difference(golden: Path, flags: list) -> float:
    """max |log-softmax over HTTP - log-softmax of the recorded logits| over all positions and the whole vocabulary."""
    record = json.loads((golden / "golden.json").read_text())
    config = json.loads((golden / "config.json").read_text())
    rows = npy.load_rows(golden / "logits_f32_nocache.npy")
    ids = (record["input_ids"] + record["generated"])[: len(rows)]
    vocab = len(rows[0])
    own = ["--dtype", "float32", "--max-logprobs", vocab]
    if uses_dynamic_rope(config):
        # The rotary base follows the maximum length: it must be the recorded length, which leaves one token to generate.
        own += ["--max-model-len", len(ids)]
        ids = ids[:-1]
    with tempfile.TemporaryDirectory() as folder:
        with Server(served_model(golden, Path(folder)), *own, *flags) as server:
            _, tops = server.echo(ids, vocab)
    worst = 0.0
    for position, top in enumerate(tops[1:]):
        if len(top) != vocab:
            raise ServerError(f"{golden.name}: position {position + 1} has {len(top)} log-probabilities, expected {vocab}")
        expected = log_softmax(rows[position])
        worst = max(worst, *(abs(value - expected[token]) for token, value in top.items()))
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tolerance", type=float, default=1e-3)
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser.add_argument("directories", nargs="+", type=Path)
    args = parser.parse_args(sys.argv[1:split])
    flags = sys.argv[split + 1 :] or ["--threads", "2"]
    failed = 0
    for golden in golden_directories(args.directories):
        if json.loads((golden / "config.json").read_text()).get("is_encoder_decoder"):
            print(f"SKIP  {golden.name}: encoder-decoder, compared by `cargo test`")
            continue
        if (golden / "pixel_values.npy").exists():
            print(f"SKIP  {golden.name}: its prompt has images, compared by `cargo test`")
            continue
        try:
            worst = largest_difference(golden, flags)
            verdict = "ok   " if worst <= args.tolerance else "FAIL "
            print(f"{verdict} {golden.name}: max difference {worst:.2e}", flush=True)
            failed += worst > args.tolerance
        except ServerError as error:
            failed += 1
            print(f"FAIL  {golden.name}: {error}", flush=True)
    print(f"{failed} failed, tolerance {args.tolerance:g}")
    return 1 if failed else 0


if __name__ == "__main__":
    main_with_errors(main)

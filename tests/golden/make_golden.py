#!/usr/bin/env python3
"""Builds a tiny random model with transformers and records what it computes.

    python3 make_golden.py CONFIG.json --seed 0 --out DIR [--steps 32] [--prompt-len 24]

README.md describes the files. Every weight is rounded to bfloat16 before anything is recorded, so the F32 logits hold for
the BF16 weights too. The same configuration, seed and library versions give the same files.
"""
import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

import causal
import seq2seq


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=32, help="greedy tokens to generate")
    parser.add_argument("--prompt-len", type=int, default=24)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(2)
    (args.out / "bf16").mkdir(parents=True, exist_ok=True)
    config = json.loads(args.config.read_text())
    run = seq2seq.run if config.get("is_encoder_decoder") else causal.run
    golden = {
        "transformers": transformers.__version__,
        "torch": torch.__version__,
        "architecture": config["architectures"][0],
        "seed": args.seed,
        "prompt_len": args.prompt_len,
        "steps": args.steps,
    }
    golden |= run(config, args)
    (args.out / "golden.json").write_text(json.dumps(golden, indent=1))
    print(args.out, {key: golden[key] for key in ("max_abs_cached_vs_nocache", "min_margin") if key in golden})


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Records the reference log-probabilities and greedy continuations of a Hugging Face directory with transformers in F32.

    python3 transformers_logprobs.py --name smollm2 .models/smollm2-f32 data/smollm2.transformers.json.gz

Needs torch, transformers and numpy.
"""
import argparse
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import recorder
import reference


class Transformers:
    """A causal language model on the CPU with its cache."""

    name = f"transformers {transformers.__version__}, torch {torch.__version__}, float32"

    def __init__(self, directory: Path, threads: int):
        torch.set_grad_enabled(False)
        torch.set_num_threads(threads)
        self.tokenizer = AutoTokenizer.from_pretrained(directory)
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        self.cache = None

    def tokenize(self, text: str) -> list:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def prefill(self, ids: list) -> np.ndarray:
        self.cache = None
        return self.forward(ids)

    def step(self, token: int) -> np.ndarray:
        return self.forward([token])[-1]

    def forward(self, ids: list) -> np.ndarray:
        output = self.model(torch.tensor([ids]), cache=self.cache, use_cache=True)
        self.cache = output.cache
        return output.logits[0].float().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", required=True, help="name stored in the recording")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    reference.save(recorder.record(Transformers(args.model, args.threads), args.name), args.out)
    print(args.out)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Records the reference log-probabilities and greedy continuations of a GGUF model with llama.cpp.

    python3 llamacpp_logprobs.py --name smollm2 .models/SmolLM2-135M-Instruct.Q4_1.gguf data/smollm2.llamacpp.json.gz

Needs llama-cpp-python (see README.md for the native build) and numpy.
"""
import argparse
from pathlib import Path

import recorder
import reference
from llamacpp import LlamaCpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--name", required=True, help="name stored in the recording")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    engine = LlamaCpp(args.model, args.threads)
    reference.save(recorder.record(engine, args.name), args.out)
    print(args.out)


if __name__ == "__main__":
    main()

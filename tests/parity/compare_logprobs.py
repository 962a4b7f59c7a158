#!/usr/bin/env python3
"""Compares a served model with a recorded reference run: log-probabilities of a passage and greedy continuations.

    python3 compare_logprobs.py MODEL REFERENCE.json.gz [--max-mean 0.05] [--min-equal 18] [-- FLAGS OF metrale serve]

Greedy continuations follow the margin rule: the first difference of a prompt counts only if the reference's two most likely
tokens lay further apart than --margin logits there. Exit status 1 if a bound is broken. Standard library only.
"""
import argparse
import json
from pathlib import Path

import reference
from metrale_server import Server, main_with_errors


def compare_passage(server: Server, recording: dict) -> dict:
    """Statistics over all teacher-forced positions."""
    differences, agree, clear, agree_clear = [], 0, 0, 0
    pairs = zip(recording["windows"], reference.windows(recording["token_ids"], recording["window"]))
    for expected, (_, ids) in pairs:
        logprobs, tops = server.echo(ids, 1)
        for index, value in enumerate(expected["logprobs"]):
            differences.append(abs(logprobs[index + 1] - value))
            equal = max(tops[index + 1], key=tops[index + 1].get) == expected["argmax"][index]
            agree += equal
            if expected["margins"][index] > 0.1:
                clear += 1
                agree_clear += equal
    differences.sort()
    count = len(differences)
    return {
        "positions": count,
        "mean": sum(differences) / count,
        "median": differences[count // 2],
        "p99": differences[count * 99 // 100],
        "max": differences[-1],
        "argmax_agreement": agree / count,
        "argmax_agreement_clear": agree_clear / max(clear, 1),
    }


def compare_prompt(generated: list, expected: dict, margin: float) -> dict:
    """Where a continuation first differs, and whether that counts."""
    pairs = zip(generated, expected["generated"], expected["margins"])
    for step, (ours, theirs, distance) in enumerate(pairs):
        if ours != theirs:
            return {"text": expected["text"], "step": step, "margin": distance, "equal": distance <= margin}
    return {"text": expected["text"], "step": None, "margin": None, "equal": True}


def compare(model: Path, recording: dict, flags: list, margin: float = 0.1) -> tuple:
    """(passage statistics, one result per prompt) of a served model."""
    with Server(model, *flags) as server:
        passage = compare_passage(server, recording)
        continuations = [server.greedy(prompt["token_ids"], reference.STEPS) for prompt in recording["prompts"]]
    return passage, [compare_prompt(*pair, margin) for pair in zip(continuations, recording["prompts"])]


def report(passage: dict, prompts: list, engine: str) -> None:
    print(f"reference: {engine}")
    print(
        f"passage: {passage['positions']} positions, |dlogprob| mean {passage['mean']:.5f} median {passage['median']:.5f} "
        f"p99 {passage['p99']:.4f} max {passage['max']:.4f}; argmax equal {passage['argmax_agreement']:.2%}, "
        f"{passage['argmax_agreement_clear']:.2%} where the margin exceeds 0.1"
    )
    for prompt in prompts:
        if prompt["step"] is not None:
            verdict = "excused" if prompt["equal"] else "DIFFERENT"
            print(f"  {verdict} at step {prompt['step']}, margin {prompt['margin']:.4f}: {prompt['text'][:50]!r}")
    equal = sum(prompt["equal"] for prompt in prompts)
    print(f"prompts: {equal} of {len(prompts)} equal over {reference.STEPS} tokens", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("--max-mean", type=float, default=0.05, help="bound on mean |dlogprob|")
    parser.add_argument("--min-equal", type=int, default=18, help="prompts that must be equal, of 20")
    parser.add_argument("--margin", type=float, default=0.1, help="logits below which a difference is excused")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("flags", nargs="*", help="flags of `metrale serve`, after --; default: --threads 2")
    args = parser.parse_args()
    recording = reference.load(args.reference)
    passage, prompts = compare(args.model, recording, args.flags or ["--threads", "2"], args.margin)
    report(passage, prompts, recording["engine"])
    equal = sum(prompt["equal"] for prompt in prompts)
    passed = passage["mean"] < args.max_mean and equal >= args.min_equal
    print(f"{'PASS' if passed else 'FAIL'}: {args.model.name} (bounds: mean < {args.max_mean}, equal >= {args.min_equal})")
    if args.json:
        args.json.write_text(json.dumps({"model": args.model.name, "passage": passage, "prompts": prompts, "passed": passed}, indent=1))
    return 0 if passed else 1


if __name__ == "__main__":
    main_with_errors(main)

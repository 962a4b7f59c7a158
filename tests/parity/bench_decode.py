#!/usr/bin/env python3
"""Measures decode and prefill speed of metrale beside llama.cpp, interleaved, on the same file and thread count.

    python3 bench_decode.py [--runs 5] [--threads 2] [--engines metrale,llamacpp,xllamacpp] [--json OUT] MODEL.gguf...

Each round runs every engine once, in turn; all engines but the one being measured are stopped (SIGSTOP). Decode: tokens per
second from the first to the last of 128 tokens after a 16-token prompt. Prefill: 512 prompt tokens divided by the time until
the first token. Figures are medians. metrale is measured over HTTP as a client sees it, the peers in process, which favours
them. llama.cpp runs in the interpreter given by --peer-python (README.md says how to set it up).

Run it on an idle machine: the load average is printed, and a figure taken under load says nothing.
"""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from metrale_server import ROOT, Server, ServerError, main_with_errors

HERE = Path(__file__).resolve().parent
DECODE_PROMPT, DECODE_TOKENS, PREFILL_TOKENS = 16, 128, 512
PEERS = ("llamacpp", "xllamacpp")


class Metrale:
    """Our server, measured by streaming."""

    def __init__(self, model: Path, threads: int, flags: list):
        self.server = Server(model, "--threads", threads, *flags).__enter__()
        self.pid = self.server.process.pid
        self.description = f"metrale {' '.join(flags)}".strip()

    def run(self, prompt: list, tokens: int) -> dict:
        start = time.perf_counter()
        events = self.server.stream(
            "/v1/completions", prompt=prompt, max_tokens=tokens, temperature=0, ignore_eos=True, return_token_ids=True
        )
        arrivals = []  # (time, tokens so far)
        count = 0
        for event in events:
            new = sum(len(choice.get("token_ids") or ()) for choice in event["choices"])
            if new:
                count += new
                arrivals.append((time.perf_counter(), count))
        if count != tokens:
            raise ServerError(f"asked for {tokens} tokens, {count} came back")
        (first, in_first), (last, _) = arrivals[0], arrivals[-1]
        # Scaled to `tokens - 1` steps, should the first event carry more than one token.
        decode = (last - first) * (tokens - 1) / max(tokens - in_first, 1)
        return {"prefill_seconds": first - start, "decode_seconds": decode}

    def close(self) -> None:
        self.server.stop()


class Peer:
    """A bench_peer.py process."""

    def __init__(self, kind: str, model: Path, threads: int, python: str):
        command = [python, str(HERE / "bench_peer.py"), kind, str(model), str(threads)]
        self.errors = (ROOT / "target" / f"bench-{kind}.log").open("w")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.pid = self.process.pid
        self.description = self.answer()["description"]

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise ServerError(f"a peer failed: see {self.errors.name}")
        return json.loads(line)

    def run(self, prompt: list, tokens: int) -> dict:
        print(json.dumps({"prompt": prompt, "tokens": tokens}), file=self.process.stdin, flush=True)
        return self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(engine, seed: int) -> dict:
    """One round of one engine; the prompt differs per seed, so that no prefix cache can help."""
    rng = random.Random(seed)
    prompt = [rng.randrange(1000, 40000) for _ in range(PREFILL_TOKENS)]
    os.kill(engine.pid, signal.SIGCONT)
    try:
        decode = engine.run(prompt[:DECODE_PROMPT], DECODE_TOKENS)["decode_seconds"]
        prefill = engine.run(prompt[::-1], 1)["prefill_seconds"]
    finally:
        os.kill(engine.pid, signal.SIGSTOP)
    return {"decode": (DECODE_TOKENS - 1) / decode, "prefill": PREFILL_TOKENS / prefill}


def start(kind: str, model: Path, args):
    engine = Metrale(model, args.threads, args.flags) if kind == "metrale" else Peer(kind, model, args.threads, args.peer_python)
    engine.run([1000 + i for i in range(DECODE_PROMPT)], 8)  # warm up: page in the weights
    os.kill(engine.pid, signal.SIGSTOP)
    return engine


def bench(model: Path, args) -> dict:
    """All engines on one model: {kind: {description, decode: [..], prefill: [..]}}."""
    engines = {}
    results = {}
    try:
        for kind in args.engines:
            engines[kind] = start(kind, model, args)
            results[kind] = {"description": engines[kind].description, "decode": [], "prefill": []}
        for round_number in range(args.runs):
            for kind, engine in engines.items():
                for what, value in measure(engine, round_number).items():
                    results[kind][what].append(round(value, 2))
    finally:
        for engine in engines.values():
            os.kill(engine.pid, signal.SIGCONT)
            engine.close()
    return results


def table(model: Path, results: dict) -> str:
    lines = [f"\n{model.name}", f"{'engine':<12}{'decode tok/s':>14}{'min..max':>18}{'prefill tok/s':>15}{'min..max':>18}"]
    for kind, result in results.items():
        cells = []
        for what, width in (("decode", 14), ("prefill", 15)):
            values = result[what]
            cells.append(f"{statistics.median(values):>{width}.1f}{f'{min(values):.1f}..{max(values):.1f}':>18}")
        lines.append(f"{kind:<12}{''.join(cells)}   {result['description']}")
    if "metrale" in results:
        for kind in results:
            if kind != "metrale":
                ratios = [statistics.median(results["metrale"][w]) / statistics.median(results[kind][w]) for w in ("decode", "prefill")]
                lines.append(f"metrale / {kind}: decode {ratios[0]:.2f}, prefill {ratios[1]:.2f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engines", type=lambda text: text.split(","), default=["metrale", *PEERS])
    parser.add_argument("--peer-python", default=str(ROOT / ".venv" / "bin" / "python"), help="interpreter that has the peers")
    parser.add_argument("--json", type=Path, help="write all runs here")
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:split])
    args.flags = sys.argv[split + 1 :]
    (ROOT / "target").mkdir(exist_ok=True)
    load = os.getloadavg()
    print(f"{os.cpu_count()} cores, {args.threads} threads, load average {load[0]:.2f} at the start, {args.runs} runs")
    report = {"threads": args.threads, "load_average_before": load, "models": {}}
    for model in args.models:
        report["models"][model.name] = bench(model, args)
        print(table(model, report["models"][model.name]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    main_with_errors(main)

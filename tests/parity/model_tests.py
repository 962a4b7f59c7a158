#!/usr/bin/env python3
"""The tests on real models behind `make test-models`: tokenizers and chat templates beside other implementations, then each
model served as GGUF and as an F32 directory made from it, compared with the recordings in data/.

    python3 model_tests.py [--threads 2] [--only NAME]

What cannot be downloaded is skipped, with a banner. Exit status 1 if a comparison exceeds its bounds or a checksum is wrong.
"""
import argparse
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import fetch
import reference
from compare_logprobs import compare, report
from metrale_server import ROOT, ServerError, main_with_errors

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Check:
    """One served form of a model against one recording."""

    asset: str
    form: str  # "gguf" or "f32"
    flags: tuple
    recording: str  # "llamacpp" or "transformers"
    max_mean: float  # of |dlogprob| over the passage
    min_equal: int  # prompts, of 20, under the margin rule


EXACT = ("--dtype", "float32")
# README.md, "What the bounds mean", says where those against llama.cpp come from.
CHECKS = (
    Check("smollm2", "gguf", EXACT, "transformers", 0.001, 20),
    Check("smollm2", "f32", EXACT, "transformers", 0.001, 20),
    Check("smollm2", "gguf", (), "transformers", 0.06, 11),
    Check("smollm2", "gguf", (), "llamacpp", 0.07, 9),
    Check("qwen2.5-coder-0.5b", "gguf", EXACT, "transformers", 0.001, 20),
    Check("qwen2.5-coder-0.5b", "f32", EXACT, "transformers", 0.001, 20),
    Check("qwen2.5-coder-0.5b", "gguf", (), "llamacpp", 0.05, 14),
)


def banner(text: str) -> None:
    print(f"\n{'!' * 100}\n!! SKIPPED: {text}\n{'!' * 100}", file=sys.stderr, flush=True)


def converter_python() -> str:
    """An interpreter that has what gguf_to_hf.py needs."""
    venv = ROOT / ".venv"
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(HERE / "requirements.txt")], check=True)
    return str(python)


def served_path(check: Check) -> Path:
    """The file or directory to serve, fetched or made if need be."""
    gguf = fetch.fetch(check.asset)
    if check.form == "gguf":
        return gguf
    directory = fetch.MODELS / f"{check.asset}-f32"
    if not (directory / "tokenizer_config.json").exists():  # the file that the converter writes last
        subprocess.run([converter_python(), str(HERE / "gguf_to_hf.py"), str(gguf), str(directory)], check=True)
    return directory


def passes(check: Check, path: Path, threads: int) -> bool:
    """Runs one comparison and prints it."""
    print(f"\n{check.asset} as {check.form} {' '.join(check.flags)} against {check.recording}", flush=True)
    recording = reference.load(reference.DATA / f"{check.asset}.{check.recording}.json.gz")
    passage, prompts = compare(path, recording, ["--threads", threads, *check.flags])
    report(passage, prompts, recording["engine"])
    equal = sum(prompt["equal"] for prompt in prompts)
    passed = passage["mean"] <= check.max_mean and equal >= check.min_equal
    print(f"{'ok' if passed else 'FAIL'}: mean {passage['mean']:.5f} (at most {check.max_mean}), {equal} equal (at least {check.min_equal})")
    return passed


def text_passes() -> bool:
    """Runs the tests of core that want downloaded vocabularies and templates."""
    for asset in ("vocab-suites", "tokenizers"):
        fetch.fetch(asset)
    tests = [("--test", "text"), ("--lib", "chat_template")]
    commands = [["cargo", "test", "-p", "metrale-core", *test, "--", "--ignored"] for test in tests]
    return all(subprocess.run(command, cwd=ROOT).returncode == 0 for command in commands)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", metavar="NAME", help="an asset name, or `text`")
    args = parser.parse_args()
    failed = skipped = 0
    checks = [check for check in CHECKS if args.only in (None, check.asset)]
    if args.only in (None, "text"):
        try:
            failed += not text_passes()
        except fetch.FetchError as error:
            skipped += 1
            banner(f"tokenizers and chat templates: {error}")
    for check in checks:
        try:
            failed += not passes(check, served_path(check), args.threads)
        except (fetch.FetchError, subprocess.CalledProcessError) as error:
            skipped += 1
            banner(f"{check.asset} as {check.form}: {error}")
        except (fetch.ChecksumError, ServerError) as error:
            failed += 1
            print(f"FAIL: {error}", flush=True)
    checks_run = len(checks) + (args.only in (None, "text"))
    print(f"\n{checks_run - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    main_with_errors(main)

#!/usr/bin/env python3
"""The demo of `make demo`: fetches SmolLM2-135M-Instruct, serves it, asks it two questions, says how to go on.

Standard library only. Exit status 0 only if the model was verified, served, and gave the expected answer.
"""
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "parity"))

import fetch  # noqa: E402
from metrale_server import BINARY, Server, ServerError  # noqa: E402

PROMPT, EXPECTED = "The capital of France is", "Paris"
QUESTION = "Write two sentences about the sea."


def complete(server: Server) -> str:
    """A raw completion, printed as it arrives."""
    print(f"\nPOST /v1/completions, greedy\n> {PROMPT}", end="", flush=True)
    events = server.stream("/v1/completions", prompt=PROMPT, max_tokens=16, temperature=0)
    return show(choice["text"] for event in events for choice in event["choices"])


def chat(server: Server) -> str:
    """A chat answer, printed as it arrives."""
    print(f"\nPOST /v1/chat/completions\n> {QUESTION}\n", end="", flush=True)
    messages = [{"role": "user", "content": QUESTION}]
    events = server.stream("/v1/chat/completions", messages=messages, max_tokens=80, temperature=0)
    return show(choice["delta"].get("content") for event in events for choice in event["choices"])


def show(pieces) -> str:
    """Prints the pieces of a streamed text; returns the whole."""
    text = ""
    for piece in filter(None, pieces):
        print(piece, end="", flush=True)
        text += piece
    print(flush=True)
    return text


def print_next_steps(model: Path) -> None:
    binary, shown = os.path.relpath(BINARY), os.path.relpath(model)
    print(
        f"""
Go on:
  {binary} run {shown} --plugins plugins/
  {binary} serve {shown} --plugins plugins/ --port 8000
  curl -N http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "Hello!"}}], "stream": true}}'"""
    )


def main() -> int:
    try:
        model = fetch.fetch("smollm2")
        print(f"{os.path.relpath(model)}: sha256 verified")
        with Server(model) as server:
            print(f"serving at {server.url}")
            answer = complete(server)
            reply = chat(server)
    except (fetch.FetchError, fetch.ChecksumError, ServerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if EXPECTED not in answer or not reply.strip():
        print(f"error: expected {EXPECTED!r} in the completion and a non-empty chat answer", file=sys.stderr)
        return 1
    print_next_steps(model)
    return 0


if __name__ == "__main__":
    sys.exit(main())

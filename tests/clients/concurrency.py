#!/usr/bin/env python3
"""Many clients at once: 64 streams give what each gives alone, and 1,000 aborted requests leave nothing behind.

    python3 concurrency.py MODEL [--streams 64] [--aborts 1000] [--seed 0] [-- FLAGS...]

Standard library only. FLAGS go to `metrale serve`; `--dtype float32` is always set.
"""
import argparse
import http.client
import json
import random
import socket
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "parity"))

from metrale_server import Server, ServerError, main_with_errors  # noqa: E402

IDLE = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def completion(server: Server, request: dict) -> list:
    """The token ids of a streamed completion."""
    ids = []
    for event in server.stream("/v1/completions", temperature=0, ignore_eos=True, return_token_ids=True, **request):
        for choice in event["choices"]:
            ids += choice.get("token_ids") or []
    return ids


def gauges(server: Server) -> dict:
    with urllib.request.urlopen(server.url + "/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    return {name: float(line.rsplit(" ", 1)[1]) for line in lines for name in IDLE if line.split("{")[0].split(" ")[0] == name}


def wait_until_idle(server: Server) -> None:
    deadline = time.monotonic() + 60
    while True:
        values = gauges(server)
        if len(values) == len(IDLE) and not any(values.values()):
            return
        if time.monotonic() > deadline:
            raise ServerError(f"the server is not idle after 60 s: {values}")
        time.sleep(0.1)


def same_alone_and_together(server: Server, streams: int, rng: random.Random) -> None:
    requests = [
        {"prompt": [rng.randrange(10, 250) for _ in range(rng.randrange(1, 40))], "max_tokens": rng.randrange(2, 24)}
        for _ in range(streams)
    ]
    alone = [completion(server, request) for request in requests]
    with ThreadPoolExecutor(streams) as pool:
        together = list(pool.map(lambda request: completion(server, request), requests))
    wrong = [i for i in range(streams) if alone[i] != together[i]]
    short = [i for i in range(streams) if len(alone[i]) != requests[i]["max_tokens"]]
    if wrong or short:
        raise ServerError(f"streams {wrong} differ from the same requests alone; streams {short} are too short")
    print(f"{streams} streams at once: each as alone")


def abort(server: Server, prompt: list, tokens: int, seconds: float) -> bool:
    """Starts a long stream and closes the connection after a number of tokens, or after a time if that comes first. Whether tokens
    had arrived."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = json.dumps({"prompt": prompt, "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True})
    arrived = 0
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        if tokens == 0:
            time.sleep(seconds)
        else:
            response = connection.getresponse()
            while arrived < tokens:
                arrived += response.readline().startswith(b"data:")
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
    finally:
        connection.close()
    return arrived > 0


def aborts_leave_nothing(server: Server, aborts: int, rng: random.Random) -> None:
    """Half of the requests are aborted at a random moment, half in the middle of their stream."""
    wait_until_idle(server)

    def job() -> tuple:
        prompt = [rng.randrange(10, 250) for _ in range(rng.randrange(1, 120))]
        return prompt, rng.choice((0, rng.randrange(1, 40))), rng.uniform(0, 0.25)

    with ThreadPoolExecutor(32) as pool:
        streaming = sum(pool.map(lambda job: abort(server, *job), [job() for _ in range(aborts)]))
    if streaming < aborts // 3:
        raise ServerError(f"only {streaming} of {aborts} requests were aborted after their first token")
    wait_until_idle(server)
    if len(completion(server, {"prompt": [11, 12, 13], "max_tokens": 4})) != 4:
        raise ServerError("the server no longer answers")
    wait_until_idle(server)
    print(f"{aborts} requests aborted, {streaming} of them in mid-stream: idle afterwards, no page in use")


def main() -> int:
    own, flags = sys.argv[1:], []
    if "--" in own:
        split = own.index("--")
        own, flags = own[:split], own[split + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--aborts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(own)
    rng = random.Random(args.seed)
    with Server(args.model, "--dtype", "float32", "--max-model-len", 512, *flags) as server:
        same_alone_and_together(server, args.streams, rng)
        aborts_leave_nothing(server, args.aborts, rng)
    return 0


if __name__ == "__main__":
    main_with_errors(main)

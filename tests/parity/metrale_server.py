"""Starts `metrale serve` and talks to it. Needs only the standard library."""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("METRALE_BIN", ROOT / "target" / "release" / "metrale"))
PLUGINS = ROOT / "plugins"


class ServerError(Exception):
    """The server could not be started, or answered with an error."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """A running server; use as a context manager. `flags` go to `metrale serve` as they are."""

    def __init__(self, model, *flags, port: int = 0, startup_seconds: float = 300.0):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.startup_seconds = startup_seconds
        self.command = [str(BINARY), "serve", str(model), "--plugins", str(PLUGINS), "--port", str(self.port), *map(str, flags)]
        self.log = tempfile.TemporaryFile()
        self.process = None

    def __enter__(self):
        if not BINARY.exists():
            raise ServerError(f"{BINARY} does not exist: run `make build`")
        environment = {**os.environ, "NO_COLOR": "1"}
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=subprocess.STDOUT, env=environment)
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.startup_seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ServerError(f"{' '.join(self.command)}: exit status {self.process.returncode}\n{self.log_tail()}")
            try:
                with urllib.request.urlopen(self.url + "/health", timeout=5):
                    return
            except OSError:
                time.sleep(0.1)
        raise ServerError(f"{self.url}/health was not ready after {self.startup_seconds:.0f} s\n{self.log_tail()}")

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def log_tail(self, size: int = 1500) -> str:
        self.log.seek(0)
        return self.log.read()[-size:].decode(errors="replace")

    def open(self, path: str, body: dict):
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, headers={"Content-Type": "application/json"})
        try:
            return urllib.request.urlopen(request, timeout=1800)
        except urllib.error.HTTPError as error:
            raise ServerError(f"POST {path}: HTTP {error.code}: {error.read().decode(errors='replace')}") from error
        except OSError as error:
            raise ServerError(f"POST {path}: {error}\n{self.log_tail()}") from error

    def post(self, path: str, **body) -> dict:
        with self.open(path, body) as response:
            return json.load(response)

    def stream(self, path: str, **body):
        """The JSON of each server-sent event, up to [DONE]."""
        with self.open(path, {**body, "stream": True}) as response:
            for line in response:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise ServerError(f"POST {path}: {event['error']}")
                yield event
        raise ServerError(f"POST {path}: the stream ended without [DONE]\n{self.log_tail()}")

    def model_name(self) -> str:
        with urllib.request.urlopen(self.url + "/v1/models", timeout=30) as response:
            return json.load(response)["data"][0]["id"]

    def greedy(self, ids: list, steps: int) -> list:
        """The token ids of a greedy continuation of exactly `steps` tokens."""
        answer = self.post(
            "/v1/completions", prompt=ids, max_tokens=steps, temperature=0, ignore_eos=True, return_token_ids=True
        )
        generated = answer["choices"][0]["token_ids"]
        if len(generated) != steps:
            raise ServerError(f"asked for {steps} tokens, {len(generated)} came back")
        return generated

    def echo(self, ids: list, num_logprobs: int):
        """Teacher-forced log-probabilities of a prompt of token ids, with one greedy token after it.

        Returns (token_logprobs, top_logprobs), each of length len(ids) + 1: entry i belongs to the token at position i,
        entry 0 is None. An item of top_logprobs maps token ids to log-probabilities.
        """
        answer = self.post(
            "/v1/completions",
            prompt=ids,
            max_tokens=1,
            temperature=0,
            ignore_eos=True,
            echo=True,
            logprobs=num_logprobs,
            return_tokens_as_token_ids=True,
        )
        logprobs = answer["choices"][0]["logprobs"]
        tops = [top and {token_id(text): value for text, value in top.items()} for top in logprobs["top_logprobs"]]
        if len(tops) != len(ids) + 1:
            raise ServerError(f"echo of {len(ids)} tokens and one more gave {len(tops)} positions")
        return logprobs["token_logprobs"], tops


def token_id(text: str) -> int:
    """The id in `token_id:42`, the form that return_tokens_as_token_ids asks for."""
    prefix, _, number = text.partition(":")
    if prefix != "token_id" or not number.isdigit():
        raise ServerError(f"expected token_id:N, found {text!r}: the server ignored return_tokens_as_token_ids")
    return int(number)


def main_with_errors(main) -> None:
    """Runs a script's `main`; a server error becomes a message and exit status 1, and SIGTERM still stops the server."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    except ServerError as error:
        sys.exit(f"error: {error}")

#!/usr/bin/env python3
"""Bad files and bad requests against the real binary.

Every bad model must end `metrale serve` with a message that says what is wrong, exit status not 0, and neither a panic nor a
signal; every bad request must be a 4xx with a message, after which the server still answers. Standard library only.

    python3 sweep.py
"""
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "parity"))

from metrale_server import BINARY, PLUGINS, Server, main_with_errors  # noqa: E402

SECONDS = 60
MEMORY = 8 << 30
failures = []


def check(name: str, problem: str) -> None:
    if problem:
        failures.append(name)
    print(f"{'FAIL' if problem else 'ok  '}  {name}{': ' + problem if problem else ''}", flush=True)


def golden(into: Path) -> Path:
    """The committed golden llama model as a directory that can be served."""
    with tarfile.open(ROOT / "tests" / "golden" / "seed0.tar.gz") as archive:
        members = [m for m in archive.getmembers() if Path(m.name).parts and "llama" in Path(m.name).parts]
        archive.extractall(into, members)
    source = next(into.rglob("llama/config.json")).parent
    model = into / "model"
    model.mkdir()
    (model / "config.json").write_bytes((source / "config.json").read_bytes())
    weights = next(source.rglob("model.safetensors"))
    (model / "model.safetensors").write_bytes(weights.read_bytes())
    return model


def panicked(log: str) -> bool:
    return "panicked at" in log or "RUST_BACKTRACE" in log


def said_twice(text: str) -> str:
    """A part of the error that comes again behind a colon."""
    error = text[text.rfind("error") :]
    parts = error.split(": ")
    for length in range(1, len(parts) // 2 + 1):
        for start in range(len(parts) - 2 * length + 1):
            first, second = parts[start : start + length], parts[start + length : start + 2 * length]
            if [part.strip() for part in first] == [part.strip() for part in second] and len(first[0]) > 3:
                return ": ".join(first)
    return ""


def refused(name: str, model: Path, words: list, *flags: str) -> None:
    """`metrale serve` must refuse the model in words."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    port = () if "--port" in flags else ("--port", "0")
    command = [str(BINARY), "serve", str(model), "--plugins", str(PLUGINS), *port, *flags]
    try:
        run = subprocess.run(command, capture_output=True, timeout=SECONDS, preexec_fn=limit, env={**os.environ, "NO_COLOR": "1"})
    except subprocess.TimeoutExpired:
        check(name, f"still running after {SECONDS} s")
        return
    text = (run.stdout + run.stderr).decode(errors="replace")
    tail = text[-400:].replace("\n", " | ")
    missing = [word for word in words if word.lower() not in text.lower()]
    if run.returncode <= 0:
        check(name, f"exit status {run.returncode}: {tail}")
    elif panicked(text):
        check(name, f"a panic: {tail}")
    elif twice := said_twice(text):
        check(name, f"the message says {twice!r} twice")
    else:
        check(name, f"the message lacks {missing}: {tail}" if missing else "")


def variant(base: Path, folder: Path, **files) -> Path:
    """The golden model with some files replaced: bytes, or None to leave it out."""
    folder.mkdir()
    for file in base.iterdir():
        if file.name.replace(".", "_") not in files:
            (folder / file.name).write_bytes(file.read_bytes())
    for key, content in files.items():
        if content is not None:
            (folder / key.replace("_", ".", 1)).write_bytes(content)
    return folder


def safetensors(header, data: bytes = b"", length=None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def bad_safetensors(base: Path, work: Path) -> None:
    good = (base / "model.safetensors").read_bytes()
    size = struct.unpack("<Q", good[:8])[0]
    header = json.loads(good[8 : 8 + size])
    names = [n for n in header if n != "__metadata__"]
    first, second = names[0], names[1]

    def with_header(change) -> bytes:
        copy = json.loads(json.dumps(header))
        change(copy)
        return safetensors(copy, good[8 + size :])

    def overlap(h):
        h[second]["data_offsets"] = h[first]["data_offsets"]
        h[second]["shape"], h[second]["dtype"] = h[first]["shape"], h[first]["dtype"]

    def beyond(h):
        h[first]["data_offsets"] = [0, 1 << 60]

    def missing(h):
        h["strange.weight"] = h.pop("model.layers.0.self_attn.q_proj.weight")

    def transposed(h):
        entry = h["model.layers.0.mlp.gate_proj.weight"]
        entry["shape"] = entry["shape"][::-1]

    nan = bytearray(good)
    begin, end = header[first]["data_offsets"]
    nan[8 + size + begin : 8 + size + end] = b"\xff" * (end - begin)
    cases = {
        "empty": (b"", ["model.safetensors"]),
        "seven bytes": (b"\0" * 7, ["model.safetensors"]),
        "truncated header": (good[: 8 + size // 2], ["model.safetensors"]),
        "truncated data": (good[: len(good) // 2], ["model.safetensors"]),
        "oversized header length": (safetensors(b"{}", length=1 << 62), ["model.safetensors"]),
        "header is not JSON": (safetensors(b"not json"), ["model.safetensors"]),
        "overlapping offsets": (with_header(overlap), ["model.safetensors"]),
        "offsets beyond the file": (with_header(beyond), ["model.safetensors"]),
        "NaN weights": (bytes(nan), [first]),
        "missing tensor": (with_header(missing), ["model.layers.0.self_attn.q_proj.weight"]),
        "transposed tensor": (with_header(transposed), ["model.layers.0.mlp.gate_proj.weight"]),
    }
    for i, (name, (content, words)) in enumerate(cases.items()):
        refused(f"safetensors: {name}", variant(base, work / f"st{i}", model_safetensors=content), words)


def bad_configs(base: Path, work: Path) -> None:
    config = json.loads((base / "config.json").read_text())

    def changed(**fields) -> bytes:
        return json.dumps({k: v for k, v in {**config, **fields}.items() if v is not None}).encode()

    cases = {
        "not JSON": (b"{", ["config.json"]),
        "not UTF-8": (b"\xff\xfe{}", ["config.json"]),
        "a list": (b"[]", ["config.json"]),
        "missing": (None, ["config.json"]),
        "no hidden_size": (changed(hidden_size=None), ["hidden_size"]),
        "hidden_size as text": (changed(hidden_size="64"), ["hidden_size"]),
        "hidden_size 0": (changed(hidden_size=0), ["hidden_size"]),
        "hidden_size -1": (changed(hidden_size=-1), ["hidden_size"]),
        "hidden_size 1e18": (changed(hidden_size=10**18), ["1000000000000000000"]),
        "odd hidden_size": (changed(hidden_size=63), ["63"]),
        "heads that do not divide": (changed(num_attention_heads=7), ["7 attention heads"]),
        "heads 0": (changed(num_attention_heads=0), ["num_attention_heads"]),
        "kv heads 0": (changed(num_key_value_heads=0), ["num_key_value_heads"]),
        "a million layers": (changed(num_hidden_layers=10**6), ["100000", "number of layers"]),
        "layers 1e18": (changed(num_hidden_layers=10**18), ["num_hidden_layers"]),
        "vocab_size of another model": (changed(vocab_size=12345), ["embed_tokens"]),
        "rope_theta as text": (changed(rope_theta="big", rope_parameters=None), ["rope_theta"]),
        "unknown model_type": (changed(model_type="no_such_model", architectures=["NoSuchForCausalLM"]), ["no_such_model", str(PLUGINS)]),
        "no model_type": (changed(model_type=None, architectures=None), ["model_type"]),
    }
    for i, (name, (content, words)) in enumerate(cases.items()):
        refused(f"config.json: {name}", variant(base, work / f"cfg{i}", config_json=content), words)


def bad_gguf(work: Path) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    head = b"GGUF" + struct.pack("<I", 3)
    arch = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    one_key = struct.pack("<QQ", 0, 1) + text("a")
    pad = b"\0" * 256
    name = text("token_embd.weight")
    tensor = name + struct.pack("<I", 2) + struct.pack("<QQ", 32, 32) + struct.pack("<I", 0)
    cases = {
        "empty": (b"", ["truncated"]),
        "wrong magic": (b"GGML" + b"\0" * 64, ["gguf"]),
        "version 99": (b"GGUF" + struct.pack("<IQQ", 99, 0, 0), ["version"]),
        "huge tensor count": (head + struct.pack("<QQ", 1 << 60, 0) + pad, ["tensor table"]),
        "huge metadata count": (head + struct.pack("<QQ", 0, 1 << 60) + pad, ["metadata"]),
        "huge string": (head + struct.pack("<QQ", 0, 1) + struct.pack("<Q", (1 << 64) - 1) + pad, ["truncated", "key 0"]),
        "huge array": (head + one_key + struct.pack("<IIQ", 9, 8, 1 << 60) + pad, ["array `a`"]),
        "unknown value type": (head + one_key + struct.pack("<I", 77) + pad, ["`a`", "77"]),
        "arrays in arrays": (head + one_key + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 200 + pad, ["`a`"]),
        "key that is not UTF-8": (head + struct.pack("<QQ", 0, 1) + struct.pack("<Q", 2) + b"\xff\xfe" + struct.pack("<II", 4, 0) + pad, ["utf-8"]),
        "alignment 0": (head + struct.pack("<QQ", 1, 1) + text("general.alignment") + struct.pack("<II", 4, 0) + tensor + pad, ["general.alignment"]),
        "two billion dimensions": (head + struct.pack("<QQ", 1, 1) + arch + name + struct.pack("<I", 1 << 31) + pad, ["token_embd.weight"]),
        "overflowing shape": (head + struct.pack("<QQ", 1, 1) + arch + name + struct.pack("<IQQIQ", 2, 1 << 40, 1 << 40, 0, 0) + pad, ["token_embd.weight"]),
        "truncated": (head + struct.pack("<QQ", 1, 1) + arch[:20], ["truncated"]),
        "no tensors": (head + struct.pack("<QQ", 0, 1) + arch, ["no tensors"]),
        "offset beyond the file": (head + struct.pack("<QQ", 1, 1) + arch + tensor + struct.pack("<Q", 1 << 50), ["token_embd.weight"]),
    }
    for i, (name, (content, words)) in enumerate(cases.items()):
        path = work / f"bad{i}.gguf"
        path.write_bytes(content)
        refused(f"gguf: {name}", path, words)


def bad_paths(base: Path, work: Path) -> None:
    (work / "nothing").mkdir()
    refused("an empty directory", work / "nothing", [str(work / "nothing")])
    refused("a path that does not exist", work / "absent.gguf", ["absent.gguf"])
    folder = variant(base, work / "folder", model_safetensors=None)
    (folder / "model.safetensors").mkdir()
    refused("weights that are a folder", folder, ["model.safetensors"])
    if os.geteuid() != 0:  # root reads everything
        for file in ("config.json", "model.safetensors"):
            locked = variant(base, work / f"unreadable-{file}")
            (locked / file).chmod(0)
            refused(f"an unreadable {file}", locked, [file, "permission"])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused("a port in use", base, [port], "--port", port)


def bad_requests(base: Path) -> None:
    with Server(base, "--max-body-bytes", 20000, "--max-model-len", 64) as server:

        def status(path: str, body: bytes):
            request = urllib.request.Request(server.url + path, data=body, headers={"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return response.status, response.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()

        def answered() -> bool:
            good = json.dumps({"prompt": [1, 2, 3], "max_tokens": 1}).encode()
            return status("/v1/completions", good)[0] == 200

        fields = {
            "no prompt": {},
            "prompt is a number": {"prompt": 7},
            "token beyond the vocabulary": {"prompt": [10**9]},
            "negative token": {"prompt": [-1]},
            "prompt too long": {"prompt": [1] * 500},
            "empty prompt": {"prompt": []},
            "temperature as text": {"prompt": [1], "temperature": "hot"},
            "temperature -1": {"prompt": [1], "temperature": -1},
            "top_p 7": {"prompt": [1], "top_p": 7},
            "max_tokens -1": {"prompt": [1], "max_tokens": -1},
            "n 1000000": {"prompt": [1], "n": 10**6},
            "logprobs 10000": {"prompt": [1], "logprobs": 10000},
            "unknown model": {"prompt": [1], "model": "other"},
            "logit_bias of a word": {"prompt": [1], "logit_bias": {"word": 1}},
            "text without a tokenizer": {"prompt": "text"},
        }
        bodies = {name: json.dumps(body).encode() for name, body in fields.items()}
        bodies["not JSON"] = b"{"
        bodies["not UTF-8"] = b'{"prompt": "\xff\xfe"}'
        bodies["a list"] = b"[]"
        bodies["deep nesting"] = b"[" * 9000
        bodies["body too large"] = json.dumps({"prompt": [1] * 20000}).encode()
        for name, body in bodies.items():
            code, answer = status("/v1/completions", body)
            try:
                message = json.loads(answer)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                message = ""
            problem = "" if 400 <= code < 500 and message else f"HTTP {code}: {answer[:200]!r}"
            check(f"request: {name}", problem or ("" if answered() else "the server no longer answers"))
        log = server.log_tail(1 << 20)
        check("request: the server's log", "a panic: " + log[-400:] if panicked(log) else "")


def bad_translations() -> None:
    with Server(ROOT / "tests" / "models" / "tiny-nllb-eng-spa", "--max-model-len", 64) as server:

        def status(path: str, body: dict):
            data = json.dumps(body).encode()
            request = urllib.request.Request(server.url + path, data=data, headers={"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return response.status, response.read()
            except urllib.error.HTTPError as error:
                return error.code, error.read()

        good = {"q": "hello", "source": "en", "target": "es", "max_tokens": 2}
        wrong = {
            "no text": {"q": None},
            "a text that is a number": {"q": 7},
            "an unknown target": {"target": "klingon"},
            "an unknown source": {"source": "\U0001f600" * 1000},
            "a script that the model has not": {"source": "eng_Cyrl"},
            "a language that cannot be told": {"q": "123", "source": "auto"},
            "a text longer than the context": {"q": "the king " * 100},
            "a million alternatives": {"alternatives": 10**6},
            "more beams than a step has": {"num_beams": 1000},
            "html": {"format": "html"},
        }
        for name, fields in wrong.items():
            code, answer = status("/translate", {**good, **fields})
            try:
                message = json.loads(answer)["error"]
            except (ValueError, KeyError, TypeError):
                message = ""
            problem = "" if 400 <= code < 500 and isinstance(message, str) and message else f"HTTP {code}: {answer[:200]!r}"
            is_up = status("/translate", good)[0] == 200
            check(f"translation: {name}", problem or ("" if is_up else "the server no longer answers"))
        log = server.log_tail(1 << 20)
        check("translation: the server's log", "a panic: " + log[-400:] if panicked(log) else "")


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        base = golden(work)
        bad_paths(base, work)
        bad_safetensors(base, work)
        bad_configs(base, work)
        bad_gguf(work)
        bad_requests(base)
        bad_translations()
    print(f"{len(failures)} of the cases failed" if failures else "every case was refused in words")
    return 1 if failures else 0


if __name__ == "__main__":
    main_with_errors(main)

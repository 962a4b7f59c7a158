#!/usr/bin/env python3
"""Behind `make test-clients`: serves SmolLM2 and runs each client script of this directory against it; many clients at once with
SmolLM2 and with a hybrid of attention and recurrent layers; LibreTranslate's client with a small translation model.

What cannot be downloaded is skipped, with a message. Exit status 1 if a script fails.
"""
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests" / "parity"))

import fetch  # noqa: E402
from metrale_server import Server, main_with_errors  # noqa: E402

SCRIPTS = ("openai_client.py",)


def client_python() -> str:
    """An interpreter that has the client libraries."""
    python = ROOT / ".venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(ROOT / ".venv")], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", "-r", str(HERE / "requirements.txt")], check=True)
    return str(python)


def main() -> int:
    try:
        python, model = client_python(), fetch.fetch("smollm2")
    except (fetch.FetchError, subprocess.CalledProcessError) as error:
        print(f"SKIPPED: the client tests: {error}", file=sys.stderr)
        return 0
    with Server(model) as server:
        runs = [subprocess.run([python, str(HERE / script), server.url + "/v1"]) for script in SCRIPTS]
    translator = ROOT / "tests" / "models" / "tiny-nllb-eng-spa"
    with Server(translator, "--dtype", "float32") as server:
        script = HERE / "libretranslate_client.py"
        runs.append(subprocess.run([python, str(script), server.url, str(translator / "golden.json")]))
    for served in (model, ROOT / "tests" / "models" / "tiny-qwen3-next"):
        runs.append(subprocess.run([sys.executable, str(HERE / "concurrency.py"), str(served)]))
    return 1 if any(run.returncode for run in runs) else 0


if __name__ == "__main__":
    main_with_errors(main)

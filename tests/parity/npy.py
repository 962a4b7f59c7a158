"""Reads two-dimensional float32 .npy files without numpy."""
import array
import ast
import sys
from pathlib import Path


def load_rows(path: Path) -> list:
    """The rows of a C-ordered little-endian float32 matrix, as lists of floats."""
    data = path.read_bytes()
    if data[:6] != b"\x93NUMPY":
        raise ValueError(f"{path}: not an .npy file")
    length_bytes = 2 if data[6] == 1 else 4
    start = 8 + length_bytes + int.from_bytes(data[8 : 8 + length_bytes], "little")
    header = ast.literal_eval(data[8 + length_bytes : start].decode("latin-1"))
    if header["descr"] != "<f4" or header["fortran_order"] or len(header["shape"]) != 2:
        raise ValueError(f"{path}: expected a C-ordered <f4 matrix, found {header}")
    rows, columns = header["shape"]
    values = array.array("f", data[start : start + 4 * rows * columns])
    if sys.byteorder == "big":
        values.byteswap()
    return [values[row * columns : (row + 1) * columns].tolist() for row in range(rows)]

"""Writes the files of this folder and the table of its README: python3 make.py

Each is as small as what it attacks allows. Larger ones are made by the tests.
"""

import json
import struct
import zipfile
from io import BytesIO
from pathlib import Path

here = Path(__file__).parent


def file(header, data=b"", length=None):
    """A safetensors file; length is what its first 8 bytes say, if not the truth."""
    text = header if isinstance(header, bytes) else header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def zipped(name, data):
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr(zipfile.ZipInfo(name), data)
    return out.getvalue()


def gguf(*fields):
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(fields)) + b"".join(fields)


def key(name, kind, value):
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


# what os.system would be called by, if anything here read pickles
pickle = b"cos\nsystem\n(S'echo pwned > pwned'\ntR."
one = {"t": tensor("F32", [4], 0, 16)}
sixteen = bytes(16)

files = {
    # the header's length
    "length-2-60": (file(one, sixteen, 1 << 60), "a header of 2^60 bytes", "safetensors: HeaderTooLarge; a reader that allocates what it is told has no such memory"),
    "length-wraps": (file(one, sixteen, (1 << 64) - 3), "a length that wraps around when a few bytes are added to it", "fastllm #712"),
    "length-negative": (file(one, sixteen, 1 << 63), "a length that is negative in 64 bits with a sign", "fastllm #712"),
    "length-past-end": (file({"weight": tensor("F32", [2, 2], 0, 16)}, sixteen, 1000), "a length of 1000 in a small file", "safetensors, attacks/safetensors_abuse_attempt_1.py"),
    "length-over-cap": (file(one, sixteen, 100_000_001), "a length beyond what the format allows", "safetensors: HeaderTooLarge, after the audit by Trail of Bits (2023)"),
    "length-zero": (file(b"", sixteen), "no header at all", "safetensors: InvalidHeaderStart"),
    # the header's text
    "start-space": (file(b" " + json.dumps(one).encode(), sixteen), "a header that does not begin with {", "safetensors: InvalidHeaderStart, against files of two formats"),
    "start-array": (file([one], sixteen), "a header that is an array", "safetensors: InvalidHeaderStart"),
    "duplicate-key": (file('{"t":%s,"t":%s}' % (json.dumps(tensor("F32", [4], 0, 16)), json.dumps(tensor("F16", [8], 0, 16))), sixteen), "one name twice, of which readers take the first or the last", "safetensors: the format forbids it, after the audit (2023); MLX takes the last"),
    "not-utf8": (file(b'{"\xff\xfe":%s}' % json.dumps(tensor("F32", [4], 0, 16)).encode(), sixteen), "a name that is not UTF-8", "safetensors: InvalidHeader"),
    "deep-json": (file(b'{"__metadata__":' + b'{"a":' * 5000 + b"1" + b"}" * 5000 + b"}"), "5,000 objects in each other, for parsers that call themselves", "JSON bombs; safetensors stops at 128 levels"),
    "nul-name": (file({"t\x00.weight": tensor("F32", [4], 0, 16)}, sixteen), "a name that ends early in C", "MLX: names are C strings in mlx-c"),
    # shapes
    "shape-wraps-to-0": (file({"t": tensor("F32", [1 << 32, 1 << 32], 0, 0)}), "a number of elements that wraps around to 0", "stable-diffusion.cpp #1876; safetensors-cpp in LiteRT #9255"),
    "shape-wraps-to-1": (file({"t": tensor("F32", [998724481, 1119412321, 33], 0, 4)}, bytes(4)), "a number of elements that wraps around to 1, by axes that fit", "safetensors-cpp's proof of concept"),
    "shape-wraps-32": (file({"t": tensor("U8", [(1 << 32) + 4, 4], 0, 16)}, sixteen), "an axis that wraps around in 32 bits", "MLX: keeps axes in 32 bits"),
    "shape-negative": (file({"t": tensor("F32", [-2, -2], 0, 16)}, sixteen), "negative axes with a positive product", "imp #1605: no sign guard"),
    "shape-float": (file({"t": tensor("F32", [4.0], 0, 16)}, sixteen), "an axis that is written as a fraction", "imp #1605: axes read as float64"),
    "shape-huge": (file({"t": tensor("F32", [1e308], 0, 16)}, sixteen), "an axis of 1e308", "imp #1605: axes read as float64"),
    "shape-many-axes": (file({"t": tensor("F32", [1] * 5000 + [4], 0, 16)}, sixteen), "5,001 axes, for readers with room for a few", "fastsafetensors; ggml has four"),
    "shape-over-data": (file({"t": tensor("F32", [1000, 1000], 0, 4)}, bytes(4)), "a shape larger than its bytes", "MLX #3363: read past the end; ds4 #543"),
    "shape-under-data": (file({"t": tensor("F32", [4, 2], 0, 4096)}, bytes(4096)), "a buffer by the shape, filled by the offsets", "fastllm #712"),
    "dtype-unknown": (file({"t": tensor("F128", [1], 0, 16)}, sixteen), "a dtype that does not exist", "fastsafetensors: crashed; imp #1603: skipped all checks"),
    # offsets
    "offsets-overlap": (file({f"weight_{i}": tensor("F32", [2, 2], 0, 16) for i in range(100)}, sixteen), "100 tensors of the same bytes: a small file for much memory", "safetensors, attacks/safetensors_abuse_attempt_2.py and _3.py"),
    "offsets-hole": (file({"a": tensor("F32", [1], 0, 4), "b": tensor("F32", [1], 12, 16)}, sixteen), "bytes that belong to no tensor, in which another format hides", "safetensors: the format forbids holes, after the audit (2023)"),
    "offsets-outside": (file({"a": tensor("F32", [4], 0, 16), "b": tensor("F32", [4], 1 << 40, (1 << 40) + 16)}, sixteen), "a tensor beyond the end of the file", "stable-diffusion.cpp #1754"),
    "offsets-backwards": (file({"t": tensor("F32", [4], 16, 0)}, sixteen), "an end before its beginning", "fastllm #712"),
    "offsets-wrap": (file({"t": {"dtype": "F32", "shape": [4], "data_offsets": [18446744073709551608, 8]}}, sixteen), "offsets whose difference is right only after wrapping around", "imp #1603: added without a check"),
    "offsets-one": (file({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0]}}, sixteen), "one offset instead of two", "fastllm #712; MLX #3363"),
    "empty-inside": (file({"a": tensor("F32", [4], 0, 16), "z": tensor("F32", [0], 8, 8)}, sixteen), "an empty tensor inside another one", "huntr's finding F002 in safetensors"),
    "truncated": (file({"a": tensor("F32", [2], 0, 8), "b": tensor("F32", [8], 8, 40)}, bytes(24)), "a file that was cut", "safetensors: MetadataIncompleteBuffer; older MLX read what was in memory"),
    "zip-appended": (file(one, sixteen) + zipped("data.pkl", pickle), "a zip archive behind the tensors, which torch.load would take", "Trail of Bits: polyglot files (2023)"),
    # other formats under the name
    "pickle-protocol-2": (b"\x80\x02" + pickle, "a pickle that runs a command", "safetensors, attacks/torch_ace_create.py"),
    "pickle-protocol-0": (pickle, "a pickle of the oldest protocol that runs a command", "safetensors, attacks/torch_ace_create.py"),
    "pickle-zip": (zipped("archive/data.pkl", b"\x80\x02" + pickle), "a pickle in a zip archive, as torch.save writes", "safetensors, attacks/torch_ace_create.py"),
    "numpy-bomb": (b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000,), }".ljust(128), "a NumPy file that says it has 40 TB", "safetensors, attacks/numpy_dos_create.py"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + bytes(88), "an HDF5 file, as Keras writes", "safetensors, attacks/tf_ace_create.py"),
    "gguf-string-1gib": (gguf(key(b"general.name", 8, struct.pack("<Q", (1 << 30) - 1))).ljust(160, b"\0"), "160 bytes of GGUF with a text of 1 GiB", "ggml #1516"),
    "gguf-alignment": (gguf(key(b"general.alignment", 4, struct.pack("<I", 1 << 30))).ljust(160, b"\0"), "160 bytes of GGUF with 1 GiB between tensors", "ggml #1516"),
    "gguf-counts": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 32, 1 << 32), "24 bytes of GGUF with 2^32 tensors", "ollama #17042; ds4 #545"),
}

lines = [
    "# Attacks",
    "",
    "Files that were published as attacks on programs that read model files, made anew by `make.py`. Each is refused,",
    "by package weights and by everything on top of it: `TestAttacks` in weights, models and cmd/gomflux.",
    "",
    "| file | what it is | published |",
    "|---|---|---|",
]
for name, (data, what, who) in files.items():
    (here / f"{name}.safetensors").write_bytes(data)
    lines.append(f"| `{name}` | {what} | {who} |")
for old in here.glob("*.safetensors"):
    if old.stem not in files:
        old.unlink()
(here / "README.md").write_text("\n".join(lines) + "\n")

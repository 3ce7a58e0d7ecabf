"""A recorder that sends tensors instead of keeping them (see stream.py)."""

import json
import os

import torch

from .record import Recorder, kept

DTYPES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class Sender(Recorder):
    """Sends all tensors but attention's weights to a binary file."""

    def __init__(self, file, settings: dict):
        super().__init__(None, ["*", "*:[qkv]*"])
        self.file, self.settings = file, settings
        self.early = {}  # values that were sent before the pipeline uses them

    def begin(self, settings: dict):
        self._send({"settings": json.dumps(settings | self.settings)})

    def put_early(self, name: str, tensor: torch.Tensor):
        """Sends a value that is put later, when it is used: gomflux compares it as soon as it is computed."""
        if name not in self.early:
            self.early[name] = kept(tensor).contiguous().to("cpu", copy=True)
            self._store(name, self.early[name])

    def put(self, name: str, tensor: torch.Tensor):
        if (early := self.early.get(name)) is None:
            super().put(name, tensor)
        elif not torch.equal(early, kept(tensor).cpu()):
            raise SystemExit(f"{name} has changed before it was used: this version of diffusers cannot be compared live")

    def called(self, name: str):
        self._send({"finished": name})

    def _store(self, name, t):
        self._send(None, name, t)

    def _send(self, metadata=None, name=None, t=None):
        header, data = {"__metadata__": metadata} if metadata else {}, b""
        if name:
            data = memoryview(t.view(-1).view(torch.uint8).numpy())
            header[name] = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data_offsets": [0, t.nbytes]}
        text = json.dumps(header).encode()
        try:
            self.file.write(len(text).to_bytes(8, "little") + text)
            self.file.write(data)
            self.file.flush()
        except BrokenPipeError:  # nobody reads it any more
            os._exit(1)

    def finish(self, settings: dict):
        self._send({"end": ""})

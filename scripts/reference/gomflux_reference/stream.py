"""stream: sends a run's tensors to standard output as they are computed, for gomflux parity live.

The stream is a sequence of safetensors files without anything between them. The metadata of the first one has the
settings of the run, with the names of all modules ("settings"). Then there is a file for each tensor, one after each
call of a module ("finished": its name, with step and number), and the last one ("end"). No tensor is sent twice, and
none stands for another: who reads the stream keeps what there is room for, and the run waits meanwhile.

The process ends when nobody reads the stream any more, and when its standard input, if that is a pipe, is closed. So it
does not outlive the program that has started it, however that one ended.
"""

import os
import stat
import sys
import threading


def take_output():
    """Returns standard output as a binary file. What is printed from now on goes to standard error."""
    if os.isatty(1):
        raise SystemExit("stream writes tensors to standard output, not to a terminal (gomflux parity live reads them)")
    sys.stdout.flush()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


def end_with_input():
    """Ends the process when standard input, if that is a pipe, is closed."""
    mode = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return

    def wait():
        while os.read(0, 1 << 10):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def run(
    out, model, prompt, negative_prompt, steps, guidance, seed, height, width, max_sequence_length, picture=None,
    image_strength=None, references=(), scheduler=None, compute="float32", device="cpu", threads=1, loras=(),
    unchecked=False, mask=None, mask_crop=None, **cfg,
):  # fmt: skip
    """Runs a generation, and sends its tensors to the file out."""
    from . import dump
    from .inpaint import Pictures
    from .sender import Sender

    images = Pictures(picture, image_strength, references, mask, mask_crop)
    pipe, name, family = dump.opened(model, negative_prompt, images, scheduler, compute, device, threads, loras, cfg)
    if family.bare:
        raise SystemExit(f"{type(pipe).__name__}: no module in families describes it (dump records it nevertheless)")
    given = dict(
        prompt=prompt, negative_prompt=negative_prompt, steps=dump.steps_of(pipe, steps), guidance=guidance, seed=seed, height=height,
        width=width, max_sequence_length=max_sequence_length, compute=compute, **dump.given_only(cfg),
    )  # fmt: skip
    settings = dump.describe("stream", family=name, model=str(model), **given, modules=sorted(dump.names_of(pipe)))
    settings |= {name: str(file.resolve()) for name, file in (("picture", picture), ("mask", mask)) if file}
    if references:
        settings["references"] = [str(file.resolve()) for file in references]
    record = Sender(out, settings)
    record.taps.unwanted += family.untapped
    dump.generate(pipe, family, record, given, images, scheduler, None, None, unchecked)
    record.finish({})

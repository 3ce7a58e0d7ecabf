"""Language models: the time to read a prompt, and the time of each token after it, with gomflux, transformers and mlx-lm."""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from . import process, timing

ENGINES = {
    "gomflux": "gomflux",
    "transformers": "transformers, eager",
    "transformers-static": "transformers, static cache, compiled",
    "mlx-lm": "mlx-lm",
}
HEADS = {"head_dim": 128, "num_attention_heads": 16, "num_key_value_heads": 8}
MODELS = {
    "qwen3-4b": HEADS | {
        "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
        "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "small": HEADS | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8, "vocab_size": 32000},
    "tiny": HEADS | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 100},
}  # fmt: skip


def config(model: str) -> dict:
    own = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "rope_theta": 1000000.0, "rms_norm_eps": 1e-6}
    return own | {"tie_word_embeddings": False, "max_position_embeddings": 40960} | MODELS[model]


def compare(args) -> int:
    """Runs the engines in turn, each in a process of its own, and prints the medians."""
    found = {}
    for engine in timing.in_turn(args.engines or list(ENGINES), args.rounds):
        try:
            one = measure_gomflux(args) if engine == "gomflux" else measure_peer(args, engine)
        except process.Failed as e:
            print(f"{ENGINES[engine]}: {e}", file=sys.stderr, flush=True)
            continue
        found.setdefault(engine, []).append(one)
        print(f"{ENGINES[engine]}: {json.dumps(one)}", file=sys.stderr, flush=True)
    print(f"{args.model}, {args.dtype}, {args.tokens} tokens of the prompt, {args.text_tokens} of text")
    for engine, all in found.items():
        read, token = (statistics.median(one[k] for one in all) for k in ("read_s", "token_s"))
        print(f"{ENGINES[engine]:40} read {1000 * read:9.2f} ms, token {1000 * token:9.3f} ms, {1 / token:8.2f} tokens/s")
    return 0 if len(found) == len(args.engines or ENGINES) else 1


def measure_gomflux(args) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config(args.model)), encoding="utf-8")
        words = [
            args.gomflux, "bench", "--random", folder, "--text-tokens", args.text_tokens, "--prompt-tokens", args.tokens,
            "--dtype", args.dtype, "--repeat", args.repeats, "--json", "--quiet",
        ]  # fmt: skip
        words += ["--quantize", args.quantize] if args.quantize else []
        words += ["--device", "cpu" if args.device == "cpu" else "gpu"] if args.device else []
        report = json.loads(process.run([str(w) for w in words], args.timeout))
    phases = {p["name"]: p["steady_s"] for p in report["phases"]}
    return {"read_s": phases["read"], "token_s": phases["token"], "peak_memory_bytes": report["peak_memory_bytes"]}


def measure_peer(args, engine: str) -> dict:
    words = [sys.executable, "-m", __package__, "text-peer", engine, "--model", args.model, "--dtype", args.dtype]
    words += ["--tokens", str(args.tokens), "--text-tokens", str(args.text_tokens), "--repeats", str(args.repeats)]
    words += ["--device", args.device] if args.device else []
    return json.loads(process.run(words, args.timeout).strip().splitlines()[-1])


def peer(args) -> int:
    """Measures another program in this process. The time of a token is the difference of two lengths."""
    seconds, peak = (mlx_lm if args.engine == "mlx-lm" else transformers)(args)
    for _ in range(2):  # the first one compiles
        seconds(args.text_tokens)
    whole = statistics.median(seconds(args.text_tokens) for _ in range(args.repeats))
    seconds(1)
    read = statistics.median(seconds(1) for _ in range(args.repeats))
    token = (whole - read) / (args.text_tokens - 1)
    print(json.dumps({"read_s": read, "token_s": token, "peak_memory_bytes": peak()}))
    return 0


def mlx_lm(args):
    """Returns what writes a number of tokens by mlx_lm's generate_step, and the peak of memory."""
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.models.qwen3 import Model, ModelArgs

    if args.device == "cpu" or not mx.is_available(mx.gpu):
        mx.set_default_device(mx.cpu)
    mx.random.seed(0)
    model = Model(ModelArgs.from_dict(config(args.model)))
    model.set_dtype(getattr(mx, args.dtype))
    mx.eval(model.parameters())
    ids = mx.random.randint(0, MODELS[args.model]["vocab_size"], (args.tokens,))

    def seconds(n: int) -> float:
        start = time.perf_counter()
        for _ in generate_step(ids, model, stream=mx.default_stream(mx.default_device()), max_tokens=n):
            pass
        return time.perf_counter() - start

    return seconds, mx.get_peak_memory


def transformers(args):
    """Returns what writes a number of tokens by transformers' generate, and the peak of memory."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from .torch_side import default_device, finisher, peak_memory

    device = args.device or default_device()
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, args.dtype))
    with torch.device(device), torch.no_grad():
        model = Qwen3ForCausalLM(Qwen3Config(**config(args.model))).eval()
    model.generation_config.eos_token_id = None
    ids = torch.randint(MODELS[args.model]["vocab_size"], (1, args.tokens), device=device)
    finish = finisher(device)
    options = {"cache_implementation": "static"} if args.engine == "transformers-static" else {}

    def seconds(n: int) -> float:
        start = time.perf_counter()
        with torch.no_grad():
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, min_new_tokens=n, do_sample=False, **options)
        finish()
        return time.perf_counter() - start

    return seconds, lambda: peak_memory(device)

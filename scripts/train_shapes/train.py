"""Trains the shapes model: first the autoencoder, then text encoder and transformer.

    python train.py tokenizer --work W
    python train.py vae  --work W --seconds 280
    python train.py flow --work W --seconds 500
    python train.py flow --work W --seconds 500 --decay 0.6    (goes on from W)
    python train.py export --work W --out ../../models/shapes/model
    python train.py import --work W --out ../../models/shapes/model    (to train an exported model on)

Everything a later part needs lies in the folder W, in files of at most 16 MB.
Each part fits itself into --seconds: learning rates follow the clock.
"""

import time

BEGAN = time.monotonic()

import argparse
import json
import math
import os
import random
import shutil
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import check
import model
import scenes

HERE = Path(__file__).parent
SHARD = 15 << 20


def elapsed():
    return time.monotonic() - BEGAN


def log(*words):
    print(f"{elapsed():6.1f} s ", *words, flush=True)


# Optimiser


def orthogonalize(g):
    """Newton-Schulz iteration of Muon on a stack of matrices [n, r, c]."""
    x = g / (g.norm(dim=(1, 2), keepdim=True) + 1e-7)
    if g.is_cuda:
        x = x.bfloat16()
    tall = g.shape[1] > g.shape[2]
    if tall:
        x = x.mT
    for _ in range(5):
        a = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(a, a, a, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return (x.mT if tall else x).float()


class Optimizer:
    """Muon for the weight matrices inside blocks, AdamW for everything else.

    Matrices of one shape are stepped as one stack. Muon's updates are scaled
    to AdamW's size (0.2 root mean square), so both share a learning rate.
    """

    def __init__(self, named, is_matrix, decay=0.01, momentum=0.95):
        self.named, self.decay, self.momentum = named, decay, momentum
        self.stacks = {}
        for name, p in named.items():
            if is_matrix(name, p):
                shape = (p.shape[0], p.numel() // p.shape[0])
                self.stacks.setdefault(shape, []).append(name)
        self.buffers = {
            shape: torch.zeros(len(names), *shape, device=named[names[0]].device)
            for shape, names in self.stacks.items()
        }
        stacked = {name for names in self.stacks.values() for name in names}
        self.rest = [name for name in named if name not in stacked]
        some = next(iter(named.values()))
        self.rate = torch.zeros((), device=some.device)  # a tensor, so that CUDA graphs can hold a step
        self.adam = torch.optim.AdamW(
            [named[name] for name in self.rest],
            lr=self.rate,
            betas=(0.9, 0.98),
            weight_decay=decay,
            fused=some.is_cuda,
            capturable=some.is_cuda,
        )

    @torch.no_grad()
    def step(self):
        params = [p for p in self.named.values() if p.grad is not None]
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        self.adam.step()
        for shape, names in self.stacks.items():
            matrices = [self.named[name] for name in names]
            g = torch.stack([p.grad.reshape(shape) for p in matrices])
            buffer = self.buffers[shape]
            buffer.lerp_(g, 1 - self.momentum)
            update = orthogonalize(g.lerp_(buffer, self.momentum))
            update *= self.rate * (-0.2 * max(shape) ** 0.5)
            torch._foreach_mul_(matrices, 1 - self.rate * self.decay)
            torch._foreach_add_(matrices, [u.view(p.shape) for u, p in zip(update.unbind(), matrices)])
        for p in params:
            p.grad = None

    def state(self):
        out = {}
        for shape, names in self.stacks.items():
            for name, buffer in zip(names, self.buffers[shape]):
                out[f"m/{name}"] = buffer.bfloat16()
        for name in self.rest:
            s = self.adam.state.get(self.named[name])
            if s:
                out[f"m/{name}"] = s["exp_avg"].bfloat16()
                out[f"v/{name}"] = s["exp_avg_sq"].sqrt().bfloat16()
        return out

    def load(self, state, step):
        for shape, names in self.stacks.items():
            for i, name in enumerate(names):
                if f"m/{name}" in state:
                    self.buffers[shape][i] = state[f"m/{name}"].to(self.buffers[shape])
        for name in self.rest:
            p = self.named[name]
            if f"m/{name}" in state:
                self.adam.state[p] = {
                    "step": torch.tensor(float(step), device=p.device if p.is_cuda else "cpu"),
                    "exp_avg": state[f"m/{name}"].to(p).contiguous(),
                    "exp_avg_sq": state[f"v/{name}"].to(p).square().contiguous(),
                }


# Files of a run


def save_sharded(folder, name, tensors, metadata):
    for old in folder.glob(f"{name}-*.safetensors"):
        old.unlink()
    shards, size = [{}], 0
    for key, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        if size + tensor.nbytes > SHARD:
            shards.append({})
            size = 0
        shards[-1][key] = tensor
        size += tensor.nbytes
    for i, shard in enumerate(shards):
        save_file(shard, folder / f"{name}-{i}.safetensors", metadata={k: str(v) for k, v in metadata.items()})


def load_sharded(folder, name):
    tensors = {}
    for file in sorted(folder.glob(f"{name}-*.safetensors")):
        tensors |= load_file(file)
    return tensors


def part(tensors, prefix):
    return {k[len(prefix):]: v.float() for k, v in tensors.items() if k.startswith(prefix)}


def scenes_to(batch, device):
    keep = ("shape", "cx", "cy", "extent", "present", "rgb", "background_rgb")
    return {k: torch.as_tensor(batch[k]).to(device) for k in keep}


# Autoencoder


def train_vae(args, device, amp):
    torch.manual_seed(args.seed)
    vae = model.make_vae(args.tiny).to(device, memory_format=torch.channels_last)
    if args.resume:
        vae.load_state_dict(part(load_sharded(args.work, "vae"), "vae."))
    average = {k: v.detach().clone() for k, v in vae.state_dict().items()}
    pool = scenes_to(scenes.sample(np.random.default_rng(args.seed), args.scenes), device)
    test = scenes_to(scenes.sample(np.random.default_rng(args.seed + 1), 512 if not args.tiny else 16), device)
    grid = torch.arange(scenes.SIZE, device=device) + 0.5

    def pictures(s):
        return scenes.draw(torch, s, grid[None, None, :], grid[None, :, None])[0] * 2 - 1

    def loss_of(x):
        with amp():
            mean, logvar = vae.encoder(x).float().chunk(2, 1)
            logvar = logvar.clamp(-30, 20)
            z = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
            y = vae.decoder(z).float()
        mse = (y - x).square().mean()
        kl = 0.5 * (mean.square() + logvar.exp() - 1 - logvar).mean()
        return mse + args.l1 * (y - x).abs().mean() + args.kl * kl, mse, kl

    draw, loss_fn = pictures, loss_of
    if args.compile:
        draw = torch.compile(pictures, dynamic=False)
        loss_fn = torch.compile(loss_of, dynamic=False)
    named = dict(vae.named_parameters())
    use_muon = not args.adamw
    optimizer = Optimizer(named, lambda n, p: use_muon and p.dim() == 4 and "conv_in" not in n and "conv_out" not in n)

    @torch.no_grad()
    def evaluate():
        rounded = model.make_vae(args.tiny).to(device)
        rounded.load_state_dict({k: v.bfloat16().float() for k, v in average.items()})
        errors, squares, sums, count = [], 0.0, 0.0, 0
        for i in range(0, len(test["cx"]), 64):
            s = {k: v[i : i + 64] for k, v in test.items()}
            x = pictures(s)
            mean = rounded.encoder(x).chunk(2, 1)[0]
            errors.append((rounded.decoder(mean) - x).square().mean((1, 2, 3)))
            squares, sums, count = squares + mean.square().sum(), sums + mean.sum(), count + mean.numel()
        mu = (sums / count).item()
        return torch.cat(errors).mean().item(), torch.cat(errors).max().item(), mu, math.sqrt((squares / count).item() - mu * mu)

    step, log_at, running = 0, 50, []
    began = None
    while True:
        now = 0.0 if began is None else (elapsed() - began) / (args.seconds - began)
        if now >= 1 or elapsed() > args.seconds:
            break
        which = torch.randint(0, args.scenes, (args.batch,), device=device)
        x = draw({k: v[which] for k, v in pool.items()}).to(memory_format=torch.channels_last)
        loss, mse, kl = loss_fn(x)
        loss.backward()
        optimizer.rate.fill_(args.rate * min(1.0, (step + 1) / 200) * min(1.0, 1.15 * (1 - now)))
        optimizer.step()
        step += 1
        keep = min(0.999, step / (step + 10))
        torch._foreach_lerp_([average[k] for k in named], list(named.values()), 1 - keep)
        if began is None:
            began = elapsed()
            log("first step")
        running.append(mse.detach())
        if step % log_at == 0:
            m = torch.stack(running).mean().item()
            running = []
            log(f"step {step} mse {m:.6f} kl {kl.item():.3f}")
            log_at = min(log_at * 2, 1000) if step >= log_at * 4 else log_at
    mse, worst, mu, std = evaluate()
    log(f"vae: {step} steps, mse {mse:.6f} (worst picture {worst:.6f}), latents {mu:.4f} +- {std:.4f}")
    tensors = {f"vae.{k}": v.bfloat16() for k, v in average.items()}
    tensors["shift"], tensors["scale"] = torch.tensor(mu), torch.tensor(1 / std)
    save_sharded(args.work, "vae", tensors, {"steps": step, "mse": mse})
    if args.samples:
        save_reconstructions(args, device, test, grid)


def load_vae(args, device):
    tensors = load_sharded(args.work, "vae")
    vae = model.make_vae(args.tiny)
    vae.load_state_dict(part(tensors, "vae."))
    vae.register_to_config(scaling_factor=round(tensors["scale"].item(), 6), shift_factor=round(tensors["shift"].item(), 6))
    return vae.to(device).eval().requires_grad_(False)


@torch.no_grad()
def save_reconstructions(args, device, test, grid):
    vae = load_vae(args, device)
    s = {k: v[:16] for k, v in test.items()}
    x = scenes.draw(torch, s, grid[None, None, :], grid[None, :, None])[0]
    y = to_uint8(vae.decoder(vae.encoder(x * 2 - 1).chunk(2, 1)[0]))
    sheet(y, args.samples)


def to_uint8(x):
    return ((x.float() / 2 + 0.5).clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()


def sheet(pictures, path, columns=8):
    rows = [np.concatenate(list(pictures[i : i + columns]), 1) for i in range(0, len(pictures) - columns + 1, columns)]
    if not rows:
        return
    Image.fromarray(np.concatenate(rows)).save(path)


# Text and labels


def text_batch(job):
    """Token ids [n, captions, 32], lengths and scene labels for one chunk."""
    work, seed, n, captions = job
    tokenizer = Tokenizer.from_file(str(Path(work) / "tokenizer" / "tokenizer.json"))
    words = random.Random(seed)
    batch = scenes.sample(np.random.default_rng(seed), n)
    ids = np.zeros((n, captions, model.CAPTION), np.int16)
    lengths = np.zeros((n, captions), np.uint8)
    for i in range(n):
        scene = scenes.describe(batch, i)
        for k in range(captions):
            tokens = None
            while tokens is None or len(tokens) > model.CAPTION:
                tokens = tokenizer.encode(model.chat(scenes.phrase(words, scene)), add_special_tokens=False).ids
            ids[i, k, : len(tokens)] = tokens
            lengths[i, k] = len(tokens)
    two = (batch["count"] == 2)[:, None]
    labels = np.concatenate(
        [
            batch["count"][:, None] - 1,
            batch["background"][:, None],
            batch["relation"][:, None] + 1,
            *(np.where(two | (k == 0), batch[f][:, k : k + 1], -100) for k in range(2) for f in ("color", "shape", "size")),
        ],
        1,
    ).astype(np.int8)
    return ids, lengths, labels


LABEL_CLASSES = (2, len(scenes.BACKGROUNDS), len(scenes.RELATIONS) + 1) + 2 * (
    len(scenes.COLORS),
    len(scenes.SHAPES),
    len(scenes.SIZES),
)


@torch.no_grad()
def make_cache(args, device, amp, workers):
    """Latents, captions and labels of args.scenes scenes, on the device."""
    if args.cache and args.cache.exists():
        cache = torch.load(args.cache, map_location=device)
        log(f"{len(cache['latents'])} scenes from the cache")
        return cache
    n = args.scenes // args.chunks
    jobs = [(args.work, args.seed * 100000 + i, n, args.captions) for i in range(args.chunks)]
    captions = workers.map_async(text_batch, jobs)
    chunks = [scenes.sample(np.random.default_rng(job[1]), n) for job in jobs]
    batch = {k: np.concatenate([c[k] for c in chunks]) for k in chunks[0]}
    count = len(batch["count"])
    cache = {
        "latents": torch.empty(count, model.LATENT_CHANNELS, model.LATENT, model.LATENT, device=device, dtype=torch.bfloat16),
        "patches": torch.empty(count, 2, model.TOKENS, device=device, dtype=torch.int8),
    }
    vae = load_vae(args, device)
    encoder = vae.encoder.to(memory_format=torch.channels_last)
    pool = scenes_to(batch, device)
    color, shape = (torch.as_tensor(batch[k]).to(device) for k in ("color", "shape"))
    grid = torch.arange(scenes.SIZE, device=device) + 0.5

    def encode(s, color, shape):
        x, covers = scenes.draw(torch, s, grid[None, None, :], grid[None, :, None])
        with amp():
            mean = encoder((x * 2 - 1).to(memory_format=torch.channels_last)).float().chunk(2, 1)[0]
        latents = (mean - vae.config.shift_factor) * vae.config.scaling_factor
        share, which = F.avg_pool2d(covers, 16).flatten(2).max(1)
        some = share > 0.08
        patches = torch.stack([torch.where(some, c.gather(1, which) + 1, 0) for c in (color, shape)], 1)
        return latents.bfloat16(), patches.to(torch.int8)

    run = torch.compile(encode, dynamic=False) if args.compile else encode
    step = 512 if not args.tiny else 32
    for i in range(0, count, step):
        i = min(i, count - step)
        j = slice(i, i + step)
        cache["latents"][j], cache["patches"][j] = run({k: v[j] for k, v in pool.items()}, color[j], shape[j])
    log(f"latents encoded, std {cache['latents'][:4096].float().std().item():.4f}")
    for i, name in enumerate(("ids", "lengths", "labels")):
        cache[name] = torch.from_numpy(np.concatenate([p[i] for p in captions.get()])).to(device)
    log(f"{count} scenes with {args.captions} captions each")
    if args.cache:
        torch.save(cache, args.cache)
    return cache


# Text encoder and transformer


class Heads(torch.nn.Module):
    """Read-outs that are trained along and thrown away: what a middle layer's
    image tokens say of colour and shape in their patch, and what the caption's
    last token says of the scene."""

    def __init__(self, width, text_width):
        super().__init__()
        self.patch = torch.nn.Linear(width, len(scenes.COLORS) + 1 + len(scenes.SHAPES) + 1)
        self.text = torch.nn.Linear(text_width, sum(LABEL_CLASSES))

    def forward(self, tapped, last, patches, labels):
        colors, shapes = self.patch(F.layer_norm(tapped.float(), tapped.shape[-1:])).float().split(
            [len(scenes.COLORS) + 1, len(scenes.SHAPES) + 1], -1
        )
        image = F.cross_entropy(colors.flatten(0, 1), patches[:, 0].flatten()) + F.cross_entropy(
            shapes.flatten(0, 1), patches[:, 1].flatten()
        )
        said = self.text(F.layer_norm(last.float(), last.shape[-1:])).float().split(LABEL_CLASSES, -1)
        text = sum(F.cross_entropy(s, labels[:, i], ignore_index=-100) for i, s in enumerate(said))
        return image, text / len(LABEL_CLASSES)


def make_parts(args, device):
    vocabulary = Tokenizer.from_file(str(args.work / "tokenizer" / "tokenizer.json")).get_vocab_size()
    parts = torch.nn.ModuleDict(
        {
            "transformer": model.make_transformer(args.tiny),
            "text_encoder": model.make_text_encoder(vocabulary, args.tiny),
        }
    )
    model.check_against_diffusers(parts["transformer"], parts["text_encoder"], "cpu")
    model.start(parts["transformer"])
    for p in parts["text_encoder"].layers[-1].parameters():
        p.requires_grad_(False)  # the pipeline never reads its output
    parts["text_encoder"].norm.requires_grad_(False)
    width, text_width = parts["transformer"].dim, parts["text_encoder"].config.hidden_size
    parts["heads"] = Heads(width, text_width)
    return parts.to(device)


def capture(train_step, params):
    """One CUDA graph of a whole step: its thousand small kernels cost the CPU
    longer to launch than the GPU to run."""
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            train_step()
    except RuntimeError as error:
        log(f"no CUDA graph: {error}")
        for p in params:
            p.grad = None
        return train_step
    log("step captured")
    return graph.replay


def train_flow(args, device, amp, workers):
    torch.manual_seed(args.seed)
    parts = make_parts(args, device)
    transformer, encoder, heads = parts["transformer"], parts["text_encoder"], parts["heads"]
    named = {n: p for n, p in parts.named_parameters() if p.requires_grad}
    use_muon = not args.adamw
    optimizer = Optimizer(
        named,
        lambda n, p: use_muon
        and p.dim() == 2
        and any(k in n for k in (".attention.", ".feed_forward.", ".self_attn.", ".mlp."))
        and "t_embedder" not in n,
    )
    average = {n: p.detach().clone() for n, p in named.items()}
    step = 0
    saved = load_sharded(args.work, "flow")
    if saved:
        step = int(saved["step"])
        with torch.no_grad():
            for n, p in named.items():
                p.copy_(saved[f"w/{n}"].to(p))
                average[n].copy_(saved.get(f"a/{n}", saved[f"w/{n}"]).to(p))
            parts.load_state_dict({k[2:]: v.float() for k, v in saved.items() if k.startswith("f/")}, strict=False)
        optimizer.load(saved, step)
        torch.manual_seed(args.seed + step)
        log(f"goes on from step {step}")
    cache = make_cache(args, device, amp, workers)
    turns = model.rotations(transformer, device)
    empty = empty_prompt(args, device)
    tap = len(transformer.layers) // 2
    count = len(cache["latents"])

    run, encode_text = model._block, model.encode_text
    if args.compile:
        run, encode_text = (torch.compile(f, dynamic=False) for f in (run, encode_text))
    params, means = list(named.values()), list(average.values())
    pick = torch.arange(args.batch, device=device)
    aux, keep = torch.ones((), device=device), torch.zeros((), device=device)
    sums = torch.zeros(3, device=device)

    def train_step():
        which = torch.randint(0, count, (args.batch,), device=device)
        caption = torch.randint(0, args.captions, (args.batch,), device=device)
        ids, lengths = cache["ids"][which, caption].int(), cache["lengths"][which, caption].long()
        labels, patches = cache["labels"][which].long(), cache["patches"][which].long()
        drop = torch.rand(args.batch, device=device) < args.drop
        ids = torch.where(drop[:, None], empty[0], ids)
        lengths = torch.where(drop, empty[1], lengths)
        labels = labels.masked_fill(drop[:, None], -100)
        latents = cache["latents"][which].float()
        noise = torch.randn_like(latents)
        u = torch.rand(args.batch, device=device)
        shifted = args.shift * u / (1 + (args.shift - 1) * u)
        sigma = torch.where(pick < 0.8 * args.batch, shifted, u)
        x = torch.lerp(latents, noise, sigma[:, None, None, None])
        with amp():
            text = encode_text(encoder, ids)
            out, tapped = model.denoise(transformer, x, 1 - sigma, text, lengths, turns, tap, run)
            last = text.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, text.shape[2]))[:, 0]
            image, words = heads(tapped, last, patches, labels)
        flow = (out.float() - (latents - noise)).square().mean()
        (flow + aux * (args.aux_image * image + args.aux_text * words)).backward()
        optimizer.step()
        with torch.no_grad():
            sums.add_(torch.stack((flow, image, words)))
            torch._foreach_mul_(means, keep)
            torch._foreach_add_(means, torch._foreach_mul(params, 1 - keep))

    replay = train_step
    here, began, next_look = 0, None, args.look or math.inf
    while True:
        if here % 10 == 0 and device == "cuda":
            torch.cuda.synchronize()  # or the clock would run behind the queue
        now = elapsed()
        if now >= args.seconds:
            break
        left = 1.0
        if args.decay and began is not None:
            left = min(1.0, (args.seconds - now) / (args.decay * (args.seconds - began)))
            aux.fill_(left)
        optimizer.rate.fill_(args.rate * min(1.0, (here + 1) / args.warm) * left)
        keep.fill_(min(args.average, (step + 1) / (step + 10)))
        if device == "cuda" and here < 4:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                train_step()
            torch.cuda.current_stream().wait_stream(side)
            if here == 3 and args.compile:
                replay = capture(train_step, params)
        else:
            replay()
        step, here = step + 1, here + 1
        if began is None:
            sums.tolist()
            began = elapsed()
            log("first step")
        if here % args.log == 0:
            flow, image, words = (sums / args.log).tolist()
            sums.zero_()
            log(f"step {step} loss {flow:.5f} image {image:.4f} text {words:.4f} rate {optimizer.rate.item():.1e} {1000 * (elapsed() - began) / max(1, here - 1):.1f} ms")
            if elapsed() > next_look:
                next_look = elapsed() + args.look
                score(args, device, workers, parts, average, turns, empty, ["12:2:3"], args.look_prompts, fresh=True)
    log(f"flow: step {step}, {here} here")
    tensors = {f"w/{n}": p.bfloat16() for n, p in named.items()}
    tensors |= {f"a/{n}": p.bfloat16() for n, p in average.items() if not n.startswith("heads.")}
    tensors |= {f"f/{n}": p.bfloat16() for n, p in parts.named_parameters() if not p.requires_grad}
    tensors |= optimizer.state()
    tensors["step"] = torch.tensor(step)
    save_sharded(args.work, "flow", tensors, {"step": step})
    if args.grid:
        score(args, device, workers, parts, average, turns, empty, args.grid.split(","), args.prompts_n, fresh=True)
        score(args, device, workers, parts, average, turns, empty, args.final.split(","), 500, fresh=False)


def empty_prompt(args, device):
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer" / "tokenizer.json"))
    tokens = tokenizer.encode(model.chat(""), add_special_tokens=False).ids
    ids = torch.zeros(1, model.CAPTION, dtype=torch.int, device=device)
    ids[0, : len(tokens)] = torch.tensor(tokens)
    return ids, torch.tensor([len(tokens)], dtype=torch.int, device=device)


@torch.no_grad()
def score(args, device, workers, parts, average, turns, empty, settings, n, fresh):
    """Prints how many of n held-out prompts come out wholly right with the
    averaged weights in bf16, for settings "steps:guidance:shift". Fresh
    prompts are others than the 500 of prompts.json: choices are made on them."""
    prompts = json.loads((HERE / "prompts.json").read_text())
    if fresh:
        prompts = scenes.held_out_prompts(99, n, [p["prompt"] for p in prompts])
    prompts = prompts[:n]
    n = len(prompts)
    tokenizer = Tokenizer.from_file(str(args.work / "tokenizer" / "tokenizer.json"))
    ids = torch.zeros(n, model.CAPTION, dtype=torch.int)
    lengths = torch.zeros(n, dtype=torch.int)
    for i, p in enumerate(prompts):
        tokens = tokenizer.encode(model.chat(p["prompt"]), add_special_tokens=False).ids[: model.CAPTION]
        ids[i, : len(tokens)] = torch.tensor(tokens)
        lengths[i] = len(tokens)
    ids, lengths = ids.to(device), lengths.to(device)
    vae = load_vae(args, device)
    held = {k: p.detach().clone() for k, p in parts.named_parameters()}
    for k, p in parts.named_parameters():
        p.copy_(average.get(k, p).bfloat16().float())
    g = torch.Generator(device).manual_seed(args.seed)
    noise = torch.randn(n, model.LATENT_CHANNELS, model.LATENT, model.LATENT, device=device, generator=g)
    for setting in settings:
        steps, guidance, shift = (float(x) for x in setting.split(":"))
        pictures = []
        for i in range(0, n, 125):
            j = slice(i, i + 125)
            z = model.generate(
                parts["transformer"], parts["text_encoder"], ids[j], lengths[j], empty, noise[j], turns, int(steps), guidance, shift
            )
            pictures.append(to_uint8(vae.decoder(z / vae.config.scaling_factor + vae.config.shift_factor)))
        pictures = np.concatenate(pictures)
        wrong = workers.starmap(check.mistakes, zip(pictures, prompts), chunksize=8)
        reasons = {}
        for reason in (r for w in wrong for r in w):
            reasons[reason] = reasons.get(reason, 0) + 1
        right = sum(not w for w in wrong)
        kind = "other held-out prompts" if fresh else "prompts.json"
        log(f"steps {int(steps)} guidance {guidance:g} shift {shift:g}: {right} of {n} right ({kind}) {reasons}")
    if args.samples:
        sheet(pictures[:32], args.samples)
    for k, p in parts.named_parameters():
        p.copy_(held[k])


def export(args):
    args.tiny = args.tiny or False
    parts = make_parts(args, "cpu")
    saved = load_sharded(args.work, "flow")
    parts.load_state_dict(part(saved, "a/") | part(saved, "f/"), strict=False)
    missing = [k for k, _ in parts.named_parameters() if f"a/{k}" not in saved and f"f/{k}" not in saved and "heads." not in k]
    assert not missing, missing
    model.save_pipeline(
        args.out, load_vae(args, "cpu"), parts["text_encoder"], parts["transformer"], args.work / "tokenizer", args.shift
    )


def import_model(args):
    """Puts an exported pipeline into W as if it had been trained there, without
    the optimiser's moments and the read-outs, which an export does not have."""
    shutil.copytree(args.out / "tokenizer", args.work / "tokenizer", dirs_exist_ok=True)
    parts = make_parts(args, "cpu")
    for name, file in (("transformer", "diffusion_pytorch_model"), ("text_encoder", "model")):
        weights = {k: v.float() for k, v in load_file(args.out / name / f"{file}.safetensors").items()}
        missing, unexpected = parts[name].load_state_dict(weights, strict=False)
        assert not missing and not unexpected, (missing, unexpected)
    tensors = {}
    for n, p in parts.named_parameters():
        if p.requires_grad:
            tensors[f"w/{n}"] = p.bfloat16()
            if not n.startswith("heads."):
                tensors[f"a/{n}"] = p.bfloat16()
        else:
            tensors[f"f/{n}"] = p.bfloat16()
    tensors["step"] = torch.tensor(0)
    save_sharded(args.work, "flow", tensors, {"step": 0})

    config = json.loads((args.out / "vae" / "config.json").read_text())
    vae = {f"vae.{k}": v for k, v in load_file(args.out / "vae" / "diffusion_pytorch_model.safetensors").items()}
    vae |= {"scale": torch.tensor(config["scaling_factor"]), "shift": torch.tensor(config["shift_factor"])}
    save_sharded(args.work, "vae", vae, {})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("tokenizer", "vae", "flow", "export", "import"))
    parser.add_argument("--work", type=Path, required=True, help="folder of the run")
    parser.add_argument("--seconds", type=float, default=300, help="when to be done, counted from the start")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1e-3, help="learning rate")
    parser.add_argument("--adamw", action="store_true", help="AdamW for every weight, no Muon")
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--scenes", type=int, default=0, help="how many scenes to draw from")
    parser.add_argument("--samples", type=Path, help="write some pictures to this file")
    parser.add_argument("--resume", action="store_true", help="vae: go on from the weights in W")
    parser.add_argument("--kl", type=float, default=5e-5)
    parser.add_argument("--l1", type=float, default=0.05)
    parser.add_argument("--decay", type=float, default=0.0, help="flow: share of the time in which the rate falls to zero")
    parser.add_argument("--warm", type=int, default=300, help="flow: steps of rising rate")
    parser.add_argument("--average", type=float, default=0.999, help="decay of the weights' average")
    parser.add_argument("--drop", type=float, default=0.1, help="share of captions dropped")
    parser.add_argument("--captions", type=int, default=4, help="phrasings of each scene")
    parser.add_argument("--aux-image", type=float, default=0.1)
    parser.add_argument("--aux-text", type=float, default=0.1)
    parser.add_argument("--cache", type=Path, help="flow: keep latents in this file")
    parser.add_argument("--chunks", type=int, default=64)
    parser.add_argument("--log", type=int, default=250)
    parser.add_argument("--look", type=float, default=0, help="flow: seconds between short scores")
    parser.add_argument("--look-prompts", type=int, default=250)
    parser.add_argument("--grid", default="", help="flow: settings steps:guidance:shift to score at the end")
    parser.add_argument("--final", default="12:2:3", help="flow: settings to score on prompts.json")
    parser.add_argument("--prompts-n", type=int, default=300)
    parser.add_argument("--shift", type=float, default=3.0, help="flow: shift of four fifths of the noise levels; export: the scheduler's")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="a toy size, to rehearse")
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    if args.part == "tokenizer":
        model.make_tokenizer(args.work / "tokenizer", args.seed)
        return
    if args.part == "export":
        export(args)
        return
    if args.part == "import":
        import_model(args)
        return
    # The workers start before CUDA does, and stay away from it.
    workers = get_context("fork").Pool(min(16, os.cpu_count() or 1)) if args.part == "flow" else None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True

    def amp():
        return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")

    if args.part == "vae":
        args.batch, args.scenes = args.batch or 32, args.scenes or 1 << 20
        train_vae(args, device, amp)
    else:
        args.batch, args.scenes = args.batch or 256, args.scenes or 3 << 16
        train_flow(args, device, amp, workers)
        workers.terminate()
    log("done")


if __name__ == "__main__":
    main()

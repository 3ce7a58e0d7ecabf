"""Tests of check.py: what transformers 5 makes of three references, and faults that are planted.

The three are found with the work-arounds of this package and of diffusers switched off, in the libraries that are
installed: nothing is imitated.
"""

import dataclasses
import io
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from unittest import mock

import diffusers
import torch
import transformers
from diffusers.models.transformers import transformer_flux, transformer_z_image

from . import again, check, check_model, dump
from .families import FAMILIES
from .files import read_json


@contextmanager
def prepared(prepare):
    """Has every family's pipelines prepared, or damaged, in another way."""
    families = {name: dataclasses.replace(f, prepare=prepare) for name, f in FAMILIES.items()}
    with mock.patch.object(dump, "FAMILIES", families):
        yield


def refusal(golden: Path, out: Path) -> str:
    """Repeats a golden's run. Returns what was printed when it was refused."""
    with redirect_stderr(io.StringIO()) as printed:
        try:
            again.repeat(golden / "dump", out, ["image"], 1 << 30)
        except SystemExit as e:
            assert "--unchecked" in str(e) and not (out / "settings.json").exists(), e
            return printed.getvalue()
    raise AssertionError(f"{golden.name} was recorded: {printed.getvalue()}")


def expect(what: str, said: str):
    assert what in said and said.count("\n") == 1, f"expected one line with {what!r}, found {said!r}"


def real(scratch: Path, root: Path):
    """What transformers 5 makes of three references."""
    assert int(transformers.__version__.split(".")[0]) >= 5
    positions_of_images(scratch, root)
    last_hidden_state()
    buffers_in_no_file(scratch)


def positions_of_images(scratch: Path, root: Path):
    """Qwen-Image's edits: diffusers does not pass on the types of tokens, so images count as text."""
    with prepared(lambda pipe: None):
        for golden, grid in (("qwen-edit", "2 and 3"), ("qwen-edit-plus", "")):
            said = refusal(root / golden, scratch / golden)
            assert "positions of image 1 have" in said and "mm_token_type_ids" in said and grid in said, said


class Words:
    """In the place of Qwen3-VL's processor: some tokens, whatever the text."""

    def __call__(self, **_):
        ids = torch.arange(1, 12)[None]
        return transformers.BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    def apply_chat_template(self, *_, **__):
        return [[1, 2, 3]]

    @property
    def tokenizer(self):
        return mock.Mock(encode=lambda text: [60])


def last_hidden_state():
    """Qwen-Image-2.1: hidden_states[-1] comes back after the final norm, but for the hook that diffusers sets."""
    torch.manual_seed(0)
    text = dict(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]},
    )  # fmt: skip
    vision = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, out_hidden_size=32)
    vision |= dict(num_position_embeddings=16, deepstack_visual_indexes=[0], patch_size=2)
    config = transformers.Qwen3VLConfig(text_config=text, vision_config=vision, image_token_id=60)
    encoder = transformers.Qwen3VLForConditionalGeneration(config).eval()
    family = dataclasses.replace(FAMILIES["qwen-image"], embeddings=lambda pipe: (3,))
    torch.nn.init.normal_(encoder.model.language_model.norm.weight)
    for workaround in (True, False):
        pipe = diffusers.QwenImage21Pipeline(None, None, encoder, Words(), None)
        checks = check.Checks(pipe, family, unchecked=True)
        checks.watch("text_encoder", encoder)
        norm = encoder.model.language_model.norm
        off = mock.patch.object(norm, "register_forward_hook", lambda hook: mock.Mock())
        with torch.no_grad(), redirect_stderr(io.StringIO()), off if not workaround else mock.MagicMock():
            embeds = pipe._get_qwen_prompt_embeds("a red circle")[0]
            checks.embeddings("prompt.embeds", embeds[0])
        if workaround:
            assert not checks.problems, checks.problems
        else:
            [problem] = checks.problems
            assert "are the last hidden states after the final norm" in problem and "made for" in problem, problem


class CustomConfig(transformers.PretrainedConfig):
    model_type = "gomflux-custom"

    def __init__(self, rope_theta=5000.0, dim=8, **more):
        self.rope_theta, self.dim = rope_theta, dim
        super().__init__(**more)


class CustomRotary(torch.nn.Module):
    """As the code that comes with a model's files has it, written for transformers 4."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        steps = torch.arange(0, config.dim, 2).float() / config.dim
        self.register_buffer("inv_freq", 1 / config.rope_theta**steps, persistent=False)


class Custom(transformers.PreTrainedModel):
    config_class = CustomConfig

    def __init__(self, config):
        super().__init__(config)
        self.rotary_emb = CustomRotary(config)
        self.proj = torch.nn.Linear(config.dim, config.dim)
        self.post_init()

    def _init_weights(self, module):
        pass


def buffers_in_no_file(scratch: Path):
    """Code of a model's own: from_pretrained makes modules without memory, and buffers in no file stay unset."""
    scratch.mkdir(parents=True, exist_ok=True)
    made = Custom(CustomConfig())
    assert not check.buffers("text_encoder", made)
    made.save_pretrained(scratch / "custom")
    loaded = Custom.from_pretrained(scratch / "custom")
    assert not torch.allclose(loaded.rotary_emb.inv_freq, made.rotary_emb.inv_freq), "transformers sets them"
    [problem] = check.buffers("text_encoder", loaded)
    assert problem.startswith("text_encoder.rotary_emb.inv_freq: "), problem
    # and by hand, as a port of such code does it
    with torch.device("meta"):
        empty = Custom(CustomConfig())
    [problem] = check.buffers("text_encoder", empty)
    assert "on the meta device" in problem, problem
    empty.to_empty(device="cpu")
    empty.rotary_emb.inv_freq.zero_()
    [problem] = check.buffers("text_encoder", empty)
    assert "all 4 values are zero" in problem, problem


def damaged(component: str, path: str, value):
    """A preparation of pipelines that changes a tensor."""

    def prepare(pipe):
        owner, _, name = path.rpartition(".")
        module = getattr(pipe, component).get_submodule(owner)
        setattr(module, name, value(getattr(module, name)))

    return prepare


def planted(scratch: Path, root: Path):
    """Faults of buffers, of tables, of positions and of norms."""
    out = scratch / "out"
    for path, value, what in (
        ("rotary_emb.inv_freq", lambda t: t * torch.nan, "values are NaN"),
        ("rotary_emb.inv_freq", torch.zeros_like, "values are zero"),
        ("rotary_emb.inv_freq", lambda t: t**1.1, "by the config"),
    ):
        with prepared(damaged("text_encoder", path, value)):
            expect(what, refusal(root / "zimage-ordinary", out))

    def norm_twice(pipe):
        encode = pipe._get_qwen_prompt_embeds

        def twice(*args, **kwargs):
            embeds, mask = encode(*args, **kwargs)
            return pipe.text_encoder.model.language_model.norm(embeds), mask

        pipe._get_qwen_prompt_embeds = twice

    with prepared(norm_twice):
        expect("after two final norms", refusal(root / "qwen-image-ordinary", out))

    def next_layer(pipe):
        pipe.text_encoder.config.output_hidden_states = True
        pipe.text_encoder.register_forward_hook(shifted)

    def shifted(module, args, output):
        output.hidden_states = (*output.hidden_states[1:], output.hidden_states[-1])
        return output

    with prepared(next_layer):
        expect("made for the output of layer 2", refusal(root / "zimage-ordinary", out))

    def positions(value):
        def hook(module, args, kwargs):
            return args, kwargs | {"img_ids": value(kwargs["img_ids"])}

        return lambda pipe: pipe.transformer.register_forward_pre_hook(hook, with_kwargs=True)

    for value in (lambda ids: ids * 0, lambda ids: ids * torch.tensor([1, 1, 0])):
        with prepared(positions(value)):
            expect("tokens of images", refusal(root / "flux1-dev-small", out))
    rotary_tables(root, out)


def rotary_tables(root: Path, out: Path):
    embed = transformer_z_image.RopeEmbedder.__call__
    for change, what in (
        (torch.ones_like, "is the identity"),
        (lambda t: t.real.to(t.dtype), "is the identity"),  # the imaginary part is lost, as in a cast
        (lambda t: t * torch.linspace(0.5, 2, t.shape[-1]), "no rotation"),
        (lambda t: t[:1].expand_as(t), "alike"),
        (lambda t: t * torch.nan, "not finite"),
    ):
        changed = mock.patch.object(
            transformer_z_image.RopeEmbedder, "__call__", lambda self, ids: change(embed(self, ids))
        )
        with changed:
            expect(what, refusal(root / "zimage-ordinary", out))
    forward = transformer_flux.FluxPosEmbed.forward
    changed = mock.patch.object(
        transformer_flux.FluxPosEmbed, "forward",
        lambda self, ids: tuple(t * 0 + 1 - i for i, t in enumerate(forward(self, ids))),
    )  # fmt: skip
    with changed:
        expect("is the identity", refusal(root / "flux1-dev-small", out))


def refused(scratch: Path, root: Path):
    """A run with a problem is recorded if that is asked for, with the problem; the command check says the same."""
    golden = root / "zimage-ordinary"
    broken = damaged("text_encoder", "rotary_emb.inv_freq", lambda t: t**1.1)
    with prepared(broken), redirect_stderr(io.StringIO()):
        settings = read_json(golden / "dump" / "settings.json")
        same = {key: settings[key] for key in again.SAME}
        dump.pipeline(golden / "model", scratch / "out", taps=["image"], unchecked=True, **same)
        [problem] = read_json(scratch / "out" / "settings.json")["problems"]
        assert problem.startswith("text_encoder.rotary_emb.inv_freq: ")
        again.repeat(scratch / "out", scratch / "again", ["image"], 1 << 30)  # of what was recorded nevertheless
        try:
            check_model.check(golden / "model")
        except SystemExit as e:
            assert "1 problem" in str(e), e
        else:
            raise AssertionError("check has found nothing")

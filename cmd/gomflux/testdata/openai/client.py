"""Checks gomflux serve with openai-python. TestServePython runs it: client.py URL TOKEN IMAGE MASK RESULT.

The server has the model shapes, one that edits and one whose language model sees images, and a
queue of one job. IMAGE is a PNG file, and MASK one whose left half is transparent. An image that the
test compares with that of gomflux generate is written to RESULT.
"""

import asyncio
import base64
import struct
import sys
import time
import urllib.request

import openai

url, token, image, mask, result = sys.argv[1:]
url = url.rstrip("/")
SLOW = {"steps": 1000}
FAST = {"steps": 2}


def client(kind=openai.OpenAI, **options):
    return kind(**{"base_url": url + "/v1", "api_key": token, "max_retries": 0, "timeout": 300, **options})


def size(b64):
    data = base64.b64decode(b64)
    assert data.startswith(b"\x89PNG"), data[:16]
    return struct.unpack(">II", data[16:24])


def raises(kind, call, **attributes):
    try:
        call()
    except kind as error:
        for name, value in attributes.items():
            assert getattr(error, name) == value, (name, getattr(error, name), value)
        return error
    raise AssertionError(f"expected {kind.__name__}")


def metrics():
    request = urllib.request.Request(url + "/metrics", headers={"Authorization": f"Bearer {token}"})
    lines = urllib.request.urlopen(request).read().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))


def wait_until_idle(canceled):
    """Waits until there are no jobs, of which some were canceled since the server started."""
    deadline = time.monotonic() + 60
    while True:
        found = metrics()
        jobs = sum(int(found[f'gomflux_jobs{{state="{state}"}}']) for state in ("queued", "loading", "running"))
        if jobs == 0 and int(found['gomflux_jobs_ended_total{state="canceled"}']) == canceled:
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def wait_until_running():
    deadline = time.monotonic() + 60
    while metrics()['gomflux_jobs{state="running"}'] != "1":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def check_models():
    models = list(ai.models.list())
    assert models[0].id == "shapes" and models[0].default and not models[0].edits
    editor = next(m.id for m in models if m.edits)
    assert ai.models.retrieve(editor).id == editor
    assert ai.models.retrieve("shapes").object == "model"
    raises(openai.NotFoundError, lambda: ai.models.retrieve("other"), code="model_not_found")
    return editor


def check_generate():
    raw = ai.images.with_raw_response.generate(
        model="gpt-image-2", prompt="a red circle", n=2, size="128x64", extra_body={"seed": 7, "steps": 3})
    answer = raw.parse()
    assert "gpt-image-2" in raw.headers["x-gomflux-warning"] and answer.model == "shapes"
    assert [size(d.b64_json) for d in answer.data] == [(128, 64)] * 2
    assert [d.seed for d in answer.data] == [7, 8] and answer.data[0].b64_json != answer.data[1].b64_json
    assert (answer.size, answer.background, answer.output_format) == ("128x64", "opaque", "png")
    assert answer.usage.output_tokens == 2 * 8 * 4
    with open(result, "wb") as f:
        f.write(base64.b64decode(answer.data[0].b64_json))
    for kind, start in (("jpeg", b"\xff\xd8"), ("webp", b"RIFF")):
        raw = ai.images.with_raw_response.generate(prompt="x", size="64x64", response_format="url", output_format=kind,
                                                   output_compression=80, extra_body=FAST)
        assert ("output_compression" in raw.headers.get("x-gomflux-warning", "")) == (kind == "webp")
        with urllib.request.urlopen(raw.parse().data[0].url) as response:  # without the token
            assert response.headers["Content-Type"] == "image/" + kind and response.read().startswith(start)


def check_edit(editor):
    with open(image, "rb") as f:
        data = f.read()
    single = ai.images.edit(image=open(image, "rb"), prompt="make it blue", model=editor, extra_body={"seed": 1, **FAST})
    again = ai.images.edit(image=[("in.png", data)], prompt="make it blue", model="gpt-image-2", extra_body={"seed": 1, **FAST})
    several = ai.images.edit(image=[("a.png", data), ("b.png", data), ("c.png", data)], prompt="make it blue",
                             input_fidelity="high", model=editor, extra_body={"seed": 1, **FAST})
    assert single.model == again.model == several.model == editor
    one, three = single.usage.input_tokens_details.image_tokens, several.usage.input_tokens_details.image_tokens
    assert three == 3 * one > 0
    assert size(single.data[0].b64_json) == size(several.data[0].b64_json)
    assert single.data[0].b64_json != several.data[0].b64_json
    started = ai.images.edit(image=data, prompt="a blue square", model="shapes", size="64x64",
                             extra_body={"strength": 0.5, "seed": 1, "steps": 4})
    assert started.model == "shapes" and size(started.data[0].b64_json) == (64, 64)
    masked = ai.images.edit(image=data, mask=open(mask, "rb"), prompt="a blue square", model="shapes",
                            extra_body={"strength": 0.9, "seed": 1, "steps": 4})
    assert masked.model == "shapes" and size(masked.data[0].b64_json) == (64, 64)
    error = raises(openai.BadRequestError, lambda: ai.images.edit(image=data, prompt="x", model="shapes"), param="model")
    assert "takes no reference images" in str(error) and editor in str(error)
    raises(openai.BadRequestError, lambda: ai.images.edit(image=b"no image", prompt="x", model=editor),
           code="invalid_image_file")


def check_stream(editor):
    with ai.images.generate(prompt="a cat", stream=True, partial_images=2, size="64x64", extra_body={"steps": 4}) as stream:
        events = list(stream)
    assert [e.type for e in events] == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
    assert [e.partial_image_index for e in events[:2]] == [0, 1]
    assert size(events[2].b64_json) == (64, 64) and events[2].size == "64x64" and events[2].usage.output_tokens == 16
    events = list(ai.images.edit(image=open(image, "rb"), prompt="x", model=editor, stream=True, partial_images=1, extra_body=FAST))
    assert [type(e).__name__ for e in events] == ["ImageEditPartialImageEvent", "ImageEditCompletedEvent"], events


def check_chat():
    seer = next(m.id for m in ai.models.list() if m.sees)
    with open(image, "rb") as f:
        shown = "data:image/png;base64," + base64.b64encode(f.read()).decode()
    ask = {"model": seer, "temperature": 0, "max_tokens": 8, "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": shown}}]}]}
    answer = ai.chat.completions.create(**ask)
    choice, usage = answer.choices[0], answer.usage
    assert answer.model == seer and choice.message.role == "assistant" and choice.message.content, answer
    assert 1 <= usage.completion_tokens <= 8 and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    assert choice.finish_reason == ("length" if usage.completion_tokens == 8 else "stop"), answer
    chunks = list(ai.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text.strip() == choice.message.content and chunks[-1].usage == usage, chunks
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [choice.finish_reason]
    ended = ai.chat.completions.create(**ask, stop=choice.message.content[1:3])
    assert ended.choices[0].message.content == choice.message.content[:1].strip() and ended.choices[0].finish_reason == "stop", ended
    raises(openai.NotFoundError, lambda: ai.chat.completions.create(**{**ask, "model": "other"}), code="model_not_found")
    ask["messages"][1]["content"][1]["image_url"]["url"] = "https://example.org/x.png"
    raises(openai.BadRequestError, lambda: ai.chat.completions.create(**ask), code="unsupported_value")


def check_errors():
    error = raises(openai.BadRequestError, lambda: ai.images.generate(prompt="x", n=11), param="n", type="invalid_request_error")
    assert "from 1 to 10" in str(error)
    raises(openai.BadRequestError, lambda: ai.images.generate(prompt="x", extra_body={"sead": 1}), code="unknown_parameter")
    raises(openai.BadRequestError, lambda: ai.images.generate(prompt="x", size="1x1"), param="size")
    raises(openai.AuthenticationError, lambda: client(api_key="wrong").images.generate(prompt="x"))
    raises(openai.AuthenticationError, lambda: client(api_key="wrong").models.list())
    raises(openai.NotFoundError, lambda: ai.images.generate(prompt="x", model="other"), code="model_not_found")
    error = raises(openai.NotFoundError, lambda: ai.images.generate(prompt="x", model="z-image-turbo"), code="model_not_found")
    assert "gomflux pull z-image-turbo" in str(error)
    raises(openai.InternalServerError, lambda: ai.images.create_variation(image=open(image, "rb")))


async def fill_queue():
    """Starts more slow jobs than the queue takes: one runs, one waits, and the third is refused."""
    slow = client(openai.AsyncOpenAI)
    running = asyncio.create_task(slow.images.generate(prompt="x", extra_body=SLOW))
    await asyncio.to_thread(wait_until_running)
    waiting = asyncio.create_task(slow.images.generate(prompt="x", extra_body=SLOW))
    while (await asyncio.to_thread(metrics))['gomflux_jobs{state="queued"}'] != "1":
        await asyncio.sleep(0.05)
    try:
        await slow.images.generate(prompt="x")
        raise AssertionError("the queue took three jobs")
    except openai.RateLimitError as error:
        assert error.code == "rate_limit_exceeded" and int(error.response.headers["retry-after"]) >= 1
    for task in (running, waiting):
        task.cancel()
    assert all(isinstance(e, asyncio.CancelledError) for e in await asyncio.gather(running, waiting, return_exceptions=True))


def check_cancel():
    raises(openai.APITimeoutError, lambda: client(timeout=1).images.generate(prompt="x", extra_body=SLOW))
    wait_until_idle(canceled=1)
    asyncio.run(fill_queue())
    wait_until_idle(canceled=3)
    with ai.images.generate(prompt="x", stream=True, partial_images=3, extra_body={"steps": 40}) as stream:
        assert next(iter(stream)).partial_image_index == 0
    wait_until_idle(canceled=4)
    # the server goes on
    assert ai.images.generate(prompt="x", size="64x64", extra_body=FAST).data


ai = client()
editor = check_models()
check_generate()
check_edit(editor)
check_stream(editor)
check_chat()
check_errors()
check_cancel()
print("all checks passed")

"""Checks a server with openai-python. TestPython runs it: client.py URL IMAGE.

The server has four engines below its URL: ok, failing (after the first image), full and hanging.
"""

import base64
import struct
import sys

import openai

url, image = sys.argv[1:]


def client(name, **options):
    return openai.OpenAI(base_url=f"{url}/{name}/v1", api_key="none", max_retries=0, **options)


def size(b64):
    data = base64.b64decode(b64)
    assert data.startswith(b"\x89PNG")
    return struct.unpack(">II", data[16:24])


def raises(kind, call, **attributes):
    try:
        call()
    except kind as error:
        for name, value in attributes.items():
            assert getattr(error, name) == value, (name, getattr(error, name), value)
        return error
    raise AssertionError(f"expected {kind.__name__}")


ok = client("ok")

answer = ok.images.generate(prompt="a red circle", n=3, size="32x48", extra_body={"seed": 7, "steps": 4})
assert [size(d.b64_json) for d in answer.data] == [(32, 48)] * 3
assert [d.seed for d in answer.data] == [7, 8, 9]
assert (answer.size, answer.quality, answer.background, answer.output_format) == ("32x48", "high", "opaque", "png")
assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens > 0

raw = ok.images.with_raw_response.generate(model="gpt-image-2", prompt="x", output_format="jpeg", output_compression=80)
assert "gpt-image-2" in raw.headers["x-gomflux-warning"] and raw.parse().model == "shapes"

answer = ok.images.generate(prompt="x", response_format="url")
assert answer.data[0].b64_json is None
response = ok._client.get(answer.data[0].url)
assert response.status_code == 200 and response.headers["content-type"] == "image/png"

with open(image, "rb") as f:
    data = f.read()
for images, count in ((data, 1), ([data, data, data], 3)):
    files = [("in.png", one) for one in images] if isinstance(images, list) else ("in.png", images)
    answer = ok.images.edit(image=files, prompt="make it blue", n=2, extra_body={"loras": [{"name": "style", "scale": 0.5}]})
    assert len(answer.data) == 2 and answer.model == "owner/editor"
    assert answer.usage.input_tokens_details.image_tokens == 2 * count

with ok.images.generate(prompt="x", stream=True, partial_images=2, size="32x48") as stream:
    events = list(stream)
assert [e.type for e in events] == ["image_generation.partial_image"] * 2 + ["image_generation.completed"]
assert [e.partial_image_index for e in events[:2]] == [0, 1]
assert size(events[2].b64_json) == (32, 48) and events[2].size == "32x48" and events[2].usage.output_tokens == 6

events = list(ok.images.edit(image=("in.png", data), prompt="x", stream=True, partial_images=1))
assert [type(e).__name__ for e in events] == ["ImageEditPartialImageEvent", "ImageEditCompletedEvent"]

assert [m.id for m in ok.models.list()] == ["shapes", "owner/editor", "owner/seer", "words"]
assert ok.models.retrieve("owner/editor").owned_by == "owner"

error = raises(openai.BadRequestError, lambda: ok.images.generate(prompt="x", n=11), param="n", type="invalid_request_error")
assert "from 1 to 10" in str(error)
raises(openai.NotFoundError, lambda: ok.images.generate(prompt="x", model="other"), code="model_not_found")
raises(openai.NotFoundError, lambda: ok.models.retrieve("other"), code="model_not_found")
raises(openai.BadRequestError, lambda: ok.images.edit(image=data, mask=data, prompt="x"), param="mask")
raises(openai.RateLimitError, lambda: client("full").images.generate(prompt="x"), code="rate_limit_exceeded")

failing = client("failing")
raises(openai.InternalServerError, lambda: failing.images.generate(prompt="x"), type="server_error")
raises(openai.APIError, lambda: list(failing.images.generate(prompt="x", n=2, stream=True)),
       message="the weights are damaged", code="internal_error")
raises(openai.APITimeoutError, lambda: client("hanging", timeout=0.5).images.generate(prompt="x"))

print("all checks passed")

"""Checks gomflux serve with comfy-api-simplified. TestComfyPython runs it: client.py URL TOKEN IMAGE MASK RESULT.

The server has the model shapes. An image that the test compares with that of gomflux generate is written to
RESULT.
"""

import sys

from comfy_api_simplified import ComfyApiError, ComfyApiWrapper, ComfyWorkflowWrapper

url, token, image, _, result = sys.argv[1:]
api = ComfyApiWrapper(url.rstrip("/"), user="ann", password=token)


def node(title, kind, **inputs):
    return {"class_type": kind, "inputs": inputs, "_meta": {"title": title}}


flow = ComfyWorkflowWrapper({
    "3": node("sampler", "KSampler", seed=1, steps=3, cfg=4, sampler_name="euler", scheduler="simple", denoise=1,
              model=["4", 0], positive=["6", 0], negative=["7", 0], latent_image=["5", 0]),
    "4": node("model", "CheckpointLoaderSimple", ckpt_name="shapes"),
    "5": node("size", "EmptyLatentImage", width=128, height=64, batch_size=1),
    "6": node("prompt", "CLIPTextEncode", text="?", clip=["4", 1]),
    "7": node("negative", "CLIPTextEncode", text="", clip=["4", 1]),
    "8": node("decode", "VAEDecode", samples=["3", 0], vae=["4", 2]),
    "9": node("save", "SaveImage", filename_prefix="x", images=["8", 0]),
})
flow.set_node_param("prompt", "text", "a red circle")
flow.set_node_param("sampler", "seed", 7)
images = api.queue_and_wait_images(flow, "save")
assert len(images) == 1, images
with open(result, "wb") as f:
    f.write(*images.values())

uploaded = api.upload_image(image, "folder")
flow["10"] = node("load", "LoadImage", image=f"{uploaded['subfolder']}/{uploaded['name']}")
flow["11"] = node("encode", "VAEEncode", pixels=["10", 0], vae=["4", 2])
flow.set_node_param("sampler", "latent_image", ["11", 0])
flow.set_node_param("sampler", "denoise", 0.5)
flow["9"]["class_type"] = "SaveImageWebsocket"
images = api.queue_and_wait_images(flow, "save")
assert all(data.startswith(b"\x89PNG") for data in images.values()) and len(images) == 1

assert "euler" in api.get_object_info("KSampler")["KSampler"]["input"]["required"]["sampler_name"][0]
assert api.get_system_stats()["devices"]
assert api.get_queue() == {"queue_running": [], "queue_pending": []}
assert api.get_embeddings() == []
api.interrupt()
flow["12"] = node("unknown", "FaceDetailer", image=["8", 0])
try:
    api.queue_prompt(flow)
    raise AssertionError("an unknown node was accepted")
except ComfyApiError:
    pass
print("all checks passed")

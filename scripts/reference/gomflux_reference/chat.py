"""What transformers renders with the chat templates of textgen/testdata."""

import json
from pathlib import Path

from transformers.utils.chat_template_utils import render_jinja_template

IMAGE = {"type": "image"}
CONVERSATIONS = {
    "user": [("user", ["a red fox"])],
    "system": [("system", ["Rewrite the prompt.\n\n1. Be brief."]), ("user", ["a red fox"])],
    "answered": [("system", ["Be kind."]), ("user", ["one"]), ("assistant", ["two"]), ("user", ["three"])],
    "spaces": [("system", ["  indented "]), ("user", ["\n two lines\n\nwith spaces  "])],
    "characters": [("user", ["\"quoted\" 'text' <b>&amp;</b> {{ x }} {% if %} \\n 日本 🦊"])],
    "empty": [("user", [""])],
    "image": [("user", [IMAGE, "What is this?"])],
    "images": [("system", ["Describe."]), ("user", ["first", IMAGE, IMAGE, " last "])],
}


def main(folder: Path):
    goldens = []
    for file in sorted((folder / "templates").glob("*.jinja")):
        for name, conversation in CONVERSATIONS.items():
            images = any(IMAGE in parts for _, parts in conversation)
            if images and "-vl" not in file.stem and "3.5" not in file.stem:
                continue
            messages = []
            for role, parts in conversation:
                content = "".join(parts) if IMAGE not in parts else [p if p == IMAGE else {"type": "text", "text": p} for p in parts]
                messages.append({"role": role, "content": content})
            for thinking in (False, True):
                text = render_jinja_template(
                    [messages], chat_template=file.read_text(), add_generation_prompt=True, enable_thinking=thinking
                )[0][0]
                goldens.append({"template": file.name, "conversation": name, "thinking": thinking, "text": text})
    parts = {n: [[r, [None if p == IMAGE else p for p in ps]] for r, ps in c] for n, c in CONVERSATIONS.items()}
    text = json.dumps({"conversations": parts, "goldens": goldens}, ensure_ascii=False, indent=1)
    (folder / "chat.json").write_text(text + "\n")

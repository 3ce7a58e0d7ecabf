"""Generates the pictures by which the built-in model is judged, with bin/gomflux.

    python generate.py DIR [-n N] [--force] [--inpaint DIR] [FLAG...]

There is one for each prompt of prompts.json, in float32, with the prompt's index
as its seed; check.py then counts the right ones. With --inpaint the prompts are
those of inpaint.py, which has drawn photos and masks in that folder. Flags that
are not listed go to gomflux, such as --device gpu, --steps 24 or --step-cache
first-block:0.1.

Pictures that exist are kept, so that an interrupted run can be continued.
"""

import argparse
import json
import subprocess
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path, help="folder of the pictures")
    parser.add_argument("-n", type=int, help="only the first N prompts")
    parser.add_argument("--force", action="store_true", help="generate pictures again that exist")
    parser.add_argument("--inpaint", type=Path, metavar="DIR", help="folder of photos, masks and their prompts")
    args, flags = parser.parse_known_args()
    prompts = json.loads(((args.inpaint or Path(__file__).parent) / "prompts.json").read_text())
    args.dir.mkdir(parents=True, exist_ok=True)
    for i, entry in enumerate(prompts[: args.n]):
        file = args.dir / f"{i:03}.png"
        if file.exists() and not args.force:
            continue
        command = ["bin/gomflux", "inpaint" if args.inpaint else "generate", "--model", "shapes", "--dtype", "float32",
                   "--device", "cpu", "--seed", str(i), "--prompt", entry["prompt"], "--output", str(file), "--overwrite"]
        if args.inpaint:
            command += ["--image", str(args.inpaint / f"{i:03}.photo.png"), "--mask", str(args.inpaint / f"{i:03}.mask.png")]
        subprocess.run(command + flags, check=True)


if __name__ == "__main__":
    main()

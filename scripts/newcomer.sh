#!/usr/bin/env bash
# What a newcomer does in the first hour, in a fresh clone: build, make pictures
# with all sorts of flags, make one again from itself, call the Go package, and
# get things wrong. It stops at the first thing that is not as promised.
#
#   scripts/newcomer.sh [FOLDER]   pictures go to FOLDER (out/newcomer)
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
out=${1:-out/newcomer}

summary=()
part=
begin() {
  finish
  part=$1
  started=$SECONDS
  printf '\n== %s\n' "$part"
}
finish() {
  if [ -n "$part" ]; then
    summary+=("$(printf '%5d s  %s' $((SECONDS - started)) "$part")")
  fi
  part=
}
fail() {
  printf 'newcomer: %s\n' "$*" >&2
  exit 1
}
trap 'code=$?; [ $code = 0 ] || printf "newcomer: failed in: %s\n" "${part:-the end}" >&2' EXIT

quoted() { printf ' %q' "$@"; }

gomflux() { "$root/bin/gomflux" "$@"; }

# generate makes small pictures with the built-in model, and checks that the
# files it names are there: as many as its first argument says.
generations=0
generate() {
  local want=$1 names
  shift
  printf '$ gomflux generate --model shapes%s\n' "$(quoted "$@")"
  names=$(gomflux generate --model shapes "$@")
  printf '%s\n' "$names"
  [ "$(wc -l <<<"$names")" = "$want" ] || fail "expected $want names"
  while read -r name; do
    [ -s "$name" ] || fail "$name is not there"
  done <<<"$names"
  generations=$((generations + 1))
}

# same compares two files bit for bit.
same() {
  cmp "$1" "$2" || fail "$1 and $2 differ"
  local sum
  if command -v sha256sum >/dev/null; then sum=$(sha256sum <"$1"); else sum=$(shasum -a 256 <"$1"); fi
  printf '%s and %s are equal, SHA-256 %s\n' "$1" "$2" "${sum%% *}"
}

# refused runs what must fail with a code and one line that has a text, and must
# leave the folder as it was.
refusals=0
refused() {
  local want=$1 text=$2 before code=0 said
  shift 2
  before=$(ls -lA) # not the folder itself, whose time is that of the file above
  said=$(gomflux "$@" 2>&1 >stdout) || code=$?
  [ ! -s stdout ] || fail "gomflux$(quoted "$@"): on standard output: $(cat stdout)"
  rm stdout
  printf '%3d  %s\n' "$code" "$said"
  [ "$code" = "$want" ] || fail "gomflux$(quoted "$@"): exit code $code, expected $want"
  [ "$(wc -l <<<"$said")" = 1 ] || fail "gomflux$(quoted "$@"): more than one line"
  case $said in
  "gomflux: "*"$text"*) ;;
  *) fail "gomflux$(quoted "$@"): expected a line with: $text" ;;
  esac
  [ "$before" = "$(ls -lA)" ] || fail "gomflux$(quoted "$@"): the folder has changed"
  refusals=$((refusals + 1))
}

begin "make build"
make build

begin "make demo"
make demo
[ -s out/demo.png ] || fail "out/demo.png is not there"

rm -rf "$out"
mkdir -p "$out"
cd "$out"

begin "look around"
gomflux version
gomflux doctor
gomflux models
gomflux help >/dev/null
for topic in environment exit-codes json metadata model pictures schedulers weights; do
  [ "$(gomflux help "$topic" | wc -l)" -gt 5 ] || fail "help $topic is short"
done
for shell in bash zsh fish; do
  gomflux completion "$shell" >"completion.$shell"
done
bash -n completion.bash

begin "twenty generations"
small=(--height 64 --width 64 --steps 2)
generate 1 --prompt "a red circle left of a blue square" --seed 7 --steps 4 -o first.png
generate 1 --prompt "a red circle left of a blue square" --seed 7 --steps 4 -o second.png
same first.png second.png
generate 1 -p "a green star" "${small[@]}" -S 1 -o star.jpg
generate 1 -p "a green star" -H 64 -W 128 -s 2 -S 1 -o wide.png
generate 3 -p "a green star" "${small[@]}" --seed 1 2 3 -o star.png
generate 2 -p "a green star" "${small[@]}" -S 1,2 -o "{prompt}-{seed}-{width}x{height}.png"
[ -s a-green-star-2-64x64.png ] || fail "a-green-star-2-64x64.png is not there"
generate 2 -p "a green star" "${small[@]}" --auto-seeds 2 -o "random-{index}.png"
generate 1 -p - "${small[@]}" -S 4 -o stdin.png <<<"a yellow ring"
echo "a yellow ring" >prompt.txt
generate 1 --prompt-file prompt.txt "${small[@]}" -S 4 -o file.png
same stdin.png file.png
generate 1 -p "a yellow ring" -n "a blue square" -g 3 "${small[@]}" -S 4 -o negative.png
generate 1 -p "a yellow ring" -g 0 "${small[@]}" -S 4 -o unguided.png
generate 1 -p "a yellow ring" "${small[@]}" -S 4 --scheduler heun -o heun.png
generate 1 -p "a yellow ring" "${small[@]}" -S 4 --scheduler linear -o linear.png
generate 1 -p "a yellow ring" "${small[@]}" -S 4 --rng torch -o torch.png
generate 1 -p "a yellow ring" "${small[@]}" -S 4 --dtype bf16 --device cpu -v -o bf16.png
generate 1 -p "a yellow ring" "${small[@]}" -S 4 --max-sequence-length 64 --quiet -o short.png
generate 1 -p "a yellow ring" "${small[@]}" -S 4 --metadata -o beside.png
[ -s beside.metadata.json ] || fail "beside.metadata.json is not there"
generate 1 -p "a yellow ring" "${small[@]}" -S 4 --no-metadata -o bare.png
generate 1 -p "a purple square" "${small[@]}" -S 4 --overwrite -o bare.png
generate 1 -p "a yellow ring" "${small[@]}" -S 4 -o beside.png
[ -s beside_1.png ] || fail "beside.png was overwritten"
generate 1 -p "a yellow ring" "${small[@]}" -S 4 --preview --show -o shown.png
[ $generations -ge 20 ] || fail "$generations generations"

begin "JSON lines"
gomflux generate -m shapes -p "a yellow ring" "${small[@]}" -S 4 --json -o lines.png >lines.json
python3 - lines.json <<'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
phases = [l.get("phase", l["message_type"]) for l in lines]
assert [p for i, p in enumerate(phases) if i == 0 or p != phases[i - 1]] == \
    ["load", "start", "encode", "step", "decode", "save", "picture"], phases
assert lines[-1]["file"] == "lines.png" and lines[-1]["settings"]["seed"] == 4
print(len(lines), "lines")
END

begin "info"
gomflux info first.png
gomflux info star.jpg beside.metadata.json linear.png | grep -E '^(prompt|seed|scheduler) '
gomflux info --json ./*.png ./*.jpg >info.json
[ "$(wc -l <info.json)" -ge 20 ] || fail "info.json is short"

begin "a picture again, from itself, bit for bit"
generate 1 -C first.png -o first-again.png
same first.png first-again.png
generate 1 -C heun.png -o heun-again.png
same heun.png heun-again.png
generate 1 -C beside.metadata.json -o beside-again.png
same beside.png beside-again.png
generate 1 -C star.jpg -o star-again.jpg
same star.jpg star-again.jpg

begin "picture to picture"
generate 1 -p "a blue circle left of a red square" --image first.png --image-strength 0.3 -s 8 -S 9 -o turned.png
generate 1 -C turned.png -o turned-again.png
same turned.png turned-again.png
generate 1 -p "a red circle" -i star.jpg -W 128 -s 4 -S 9 -o enlarged.png

begin "step pictures on a sheet"
generate 1 -p "a red circle left of a blue square" -H 128 -W 128 -s 4 -S 7 -o steps.png --stepwise-image-output-dir steps
for name in seed_7_step1of4 seed_7_step4of4 seed_7_composite; do
  [ -s "steps/$name.png" ] || fail "steps/$name.png is not there"
done

begin "the autoencoder alone: roundtrip, decode"
gomflux roundtrip first.png --model shapes -o roundtrip.png
[ -s roundtrip.png ] || fail "roundtrip.png is not there"
python3 - latents.safetensors "$root/models/shapes/model/vae/config.json" <<'END'
import json, struct, sys
channels = json.load(open(sys.argv[2]))["latent_channels"]
shape = [channels, 16, 16]
header = json.dumps({"latents": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4 * channels * 256]}}).encode()
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header + struct.pack(f"<{channels * 256}f", *[0.1 * (i % 7) for i in range(channels * 256)]))
END
gomflux decode latents.safetensors --model shapes -o decoded.png
[ -s decoded.png ] || fail "decoded.png is not there"

begin "a Go program of thirty lines"
mkdir program
cat >program/main.go <<'END'
package main

import (
	"context"
	"fmt"
	"image/png"
	"log"
	"os"

	"github.com/gomflux/gomflux"
	_ "github.com/gomflux/gomflux/models/shapes"
)

func main() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "shapes", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	seed := uint64(7)
	result, err := model.Generate(ctx, gomflux.Options{
		Prompt: "a red circle left of a blue square", Seed: &seed, Steps: 4,
		OnStep: func(s gomflux.Step) error {
			fmt.Println("step", s.Step, "of", s.Steps)
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	f, err := os.Create("program.png")
	if err != nil {
		log.Fatal(err)
	}
	if err := png.Encode(f, result.Image); err != nil {
		log.Fatal(err)
	}
	fmt.Println("seed", result.Settings.Seed, "on", model.Device())
}
END
(
  cd program
  go mod init example
  go mod edit -replace "github.com/gomflux/gomflux=$root"
  go mod tidy
  GOMFLUX_MLX=${GOMFLUX_MLX:-$root/.setup/lib} go run .
)
gomflux roundtrip program/program.png --model shapes >/dev/null || fail "program.png cannot be read"
python3 - first.png program/program.png <<'END'
import sys, zlib

def rows(name):
    """The pixels of an RGB or RGBA PNG file, as RGB."""
    data, at, idat = open(name, "rb").read(), 8, b""
    while at < len(data):
        size, kind = int.from_bytes(data[at:at + 4], "big"), data[at + 4:at + 8]
        body = data[at + 8:at + 8 + size]
        if kind == b"IHDR":
            width, height, depth, colour = int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big"), body[8], body[9]
            assert depth == 8 and colour in (2, 6), (depth, colour)
        if kind == b"IDAT":
            idat += body
        at += 12 + size
    n = 3 if colour == 2 else 4
    raw, line, out = zlib.decompress(idat), bytearray(width * n), []
    for y in range(height):
        filter, row = raw[y * (width * n + 1)], bytearray(raw[y * (width * n + 1) + 1:(y + 1) * (width * n + 1)])
        for x in range(width * n):
            a, b, c = row[x - n] if x >= n else 0, line[x], line[x - n] if x >= n else 0
            p = a + b - c
            paeth = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            row[x] = (row[x] + [0, a, b, (a + b) // 2, paeth][filter]) & 255
        line = row
        out.append(bytes(v for i, v in enumerate(row) if i % n < 3))
    return out

assert rows(sys.argv[1]) == rows(sys.argv[2]), "the program's picture is another one than the command's"
print("the same pixels as the command's")
END

begin "quantized, with a LoRA, and saved"
generate 1 -p "a red circle" "${small[@]}" -S 4 -q 8 -o packed.png
gomflux save --model shapes -q 8 --path shapes-8bit
gomflux show shapes-8bit | grep "^quantized 8 bits$"
printf '$ gomflux generate --model shapes-8bit\n'
gomflux generate --model shapes-8bit -p "a red circle" "${small[@]}" -S 4 -o unpacked.png
gomflux inspect shapes-8bit --against shapes --tolerance 0.02 | tail -1
python3 - "$root"/models/shapes/model/transformer/*.safetensors <<'END'
import json, random, struct, sys

# a LoRA of rank 1 for the queries of the first layer
with open(sys.argv[1], "rb") as f:
    header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
rows, columns = header["layers.0.attention.to_q.weight"]["shape"]
tensors, data = {}, b""
for name, shape in (("lora_A", [1, columns]), ("lora_B", [rows, 1])):
    values = struct.pack("<%df" % (shape[0] * shape[1]), *(random.gauss(0, 0.3) for _ in range(shape[0] * shape[1])))
    tensors["transformer.layers.0.attention.to_q.%s.weight" % name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
    data += values
text = json.dumps(tensors).encode()
with open("lora.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + data)
END
generate 1 -p "a red circle" "${small[@]}" -S 4 --lora lora.safetensors 0.8 -o lora.png
gomflux info lora.png | grep "^lora 1 "
printf '$ gomflux generate -C lora.png\n'
gomflux generate -C lora.png -o lora2.png
same lora.png lora2.png

begin "what is wrong, in one line each"
gen=(generate -m shapes -p x)
printf 'not a picture\n' >text.png
yes word | head -n 10000 >long.txt || true
mkdir folder broken
export HF_HUB_CACHE=$PWD/folder # no other models, whatever this machine has
cp -R "$root/models/shapes/model/." broken
rm broken/transformer/*.safetensors
refused 2 "no --model given" generate -p x
refused 3 "no model nowhere" generate -m nowhere -p x
refused 3 "gomflux pull" generate -m z-image -p x
refused 3 "transformer" generate -m broken -p x
refused 3 "text.png" generate -m text.png -p x
refused 2 "no prompt" generate -m shapes
refused 2 "no such file" generate -m shapes --prompt-file nowhere.txt
refused 2 "needs quotes" generate -m shapes a red circle
refused 2 "tokens" generate -m shapes --prompt-file long.txt --refuse-long-prompts
refused 2 "unknown flag" "${gen[@]}" --stepz 3
refused 2 "whole number, 1 or more" "${gen[@]}" --steps 0
refused 2 "whole number, 1 or more" "${gen[@]}" --height 0
refused 2 "must be a positive multiple of" "${gen[@]}" --width 100
refused 2 "megapixels" "${gen[@]}" --width 64000 --height 64000
refused 2 "must be a number, 0 or more" "${gen[@]}" --guidance NaN
refused 2 "must be whole numbers, 0 or more" "${gen[@]}" --seed -1
refused 2 "either --seed or --auto-seeds" "${gen[@]}" --seed 1 --auto-seeds 2
refused 2 "euler_a" "${gen[@]}" --scheduler euler_a
refused 2 "must be" "${gen[@]}" --rng dice
refused 2 "must be float32" "${gen[@]}" --dtype int8
refused 2 "must be cpu or gpu" "${gen[@]}" --device tpu
refused 2 "must be 3, 4, 5, 6, 8" "${gen[@]}" -q 7
refused 3 "no LoRA nowhere" "${gen[@]}" --lora nowhere
refused 2 "has no effect" "${gen[@]}" --lora lora.safetensors 0
refused 2 "not empty" save -m shapes --path shapes-8bit
refused 2 "which is a whole model" "${gen[@]}" --base-model z-image
refused 2 "is a folder" "${gen[@]}" -o folder
refused 2 "does not exist" "${gen[@]}" -o nowhere/x.png
refused 2 "is not a folder" "${gen[@]}" -o text.png/x.png
refused 2 "a name that ends in .png" "${gen[@]}" -o x.gif
refused 2 "expected one of {date}" "${gen[@]}" -o "{sed}.png"
refused 2 "is a file" "${gen[@]}" --stepwise-image-output-dir text.png
refused 2 "no such file" "${gen[@]}" --image nowhere.png
refused 2 "not a PNG, JPEG or WebP" "${gen[@]}" --image text.png
refused 2 "no effect without --image" "${gen[@]}" --image-strength 0.5
refused 2 "above 0 and below 1" "${gen[@]}" --image first.png --image-strength 2
refused 2 "no such file" generate -C nowhere.png
refused 2 "not a PNG, JPEG or WebP" generate -C text.png
refused 2 "not a terminal image protocol" "${gen[@]}" --preview=vt52
refused 2 "unknown command" generat
refused 2 "no such file" info nowhere.png
refused 2 "" decode text.png -m shapes
refused 2 "" roundtrip text.png -m shapes

code=0 # this one also lists where it has looked
GOMFLUX_MLX=$PWD/folder gomflux "${gen[@]}" -o unlinked.png 2>said || code=$?
head -1 said
if [ $code != 4 ] || [ -e unlinked.png ]; then fail "without MLX: exit code $code"; fi
if [ -w /dev/full ]; then
  code=0
  gomflux "${gen[@]}" "${small[@]}" -S 4 -o told.png >/dev/full 2>said || code=$?
  tail -1 said
  if [ $code != 1 ] || [ ! -s told.png ]; then fail "a full standard output: exit code $code"; fi
fi
code=0
(ulimit -f 1 && gomflux generate -m "$root/models/shapes/model" -p x -H 256 -W 256 -s 1 -S 4 -o limit.png 2>said) || code=$?
tail -1 said
if [ $code != 1 ] || [ -e limit.png ]; then fail "a full disk: exit code $code"; fi
left=$(find . -name '.gomflux-*')
[ -z "$left" ] || fail "left behind: $left"

finish
printf '\n== all is as promised: %d generations with the command line, %d refusals, in %d s\n' $generations $refusals $SECONDS
printf '%s\n' "${summary[@]}"
printf 'The pictures are in %s\n' "$PWD"

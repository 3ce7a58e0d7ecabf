#!/usr/bin/env bash
# Checks the GPU of this machine with what needs no download and little memory: every kernel against MLX's
# operations, the built-in model, and all goldens in float32 and float16. CI runs it on Apple's virtual GPU,
# which has 7 GB of memory; on a machine without a GPU it checks the CPU. usage: scripts/metal.sh [REPORTS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
reports=${1:-out/metal}
mkdir -p "$reports"
failed=
step() { # step NAME COMMAND... keeps the output, and goes on after a failure
	local name=$1 start=$SECONDS
	shift
	if "$@" >"$reports/$name.txt" 2>&1; then
		echo "ok    $name ($((SECONDS - start)) s)"
	else
		failed="$failed $name"
		echo "FAIL  $name: $*"
		tail -n 30 "$reports/$name.txt" | sed 's/^/      /'
	fi
}
shapes() { # shapes DTYPE... generates an image with the built-in model
	bin/gomflux generate --model shapes --prompt "a red circle left of a blue square" --seed 7 --overwrite --quiet \
		--dtype "$1" --output "$reports/shapes-$1.png" "${@:2}"
}

go build -trimpath -o bin/gomflux ./cmd/gomflux
bin/gomflux doctor | tee "$reports/doctor.txt" | grep -E '^(memory|mlx |macos|device|kernels)'
if [ "$(uname -s)" = Darwin ]; then
	step gpu grep -E '^device +metal \(default\)' "$reports/doctor.txt"
fi
step kernels go test -count=1 -run 'TestKernels$' -v ./mlx
step shapes-float32 shapes float32
step shapes-float16 shapes float16
step shapes-cpu shapes float32 --device cpu --output "$reports/shapes-cpu.png"
step shapes-same bin/gomflux parity image "$reports/shapes-float32.png" "$reports/shapes-cpu.png" --max 4
step shapes-close bin/gomflux parity image "$reports/shapes-float16.png" "$reports/shapes-cpu.png" --max 8
for dump in models/testdata/*/dump; do
	name=$(basename "$(dirname "$dump")")
	case $name in
	*-bfloat16) continue ;; # which virtual GPUs lack
	*-float16) dtypes=float16 ;;
	*) dtypes="float32 float16" ;;
	esac
	for dtype in $dtypes; do
		step "$name-$dtype" bin/gomflux parity run "$dump" --dtype "$dtype"
	done
done
if [ -n "$failed" ]; then
	echo "failed:$failed (their output is in $reports)"
	exit 1
fi

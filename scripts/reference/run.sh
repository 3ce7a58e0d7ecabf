#!/bin/sh
# Runs a command of gomflux_reference: run.sh tiny /tmp/model --seed 7 (run.sh --help lists them all).
# The first run installs the pinned packages from PyPI into .setup/reference, about 6 GB: torch for Linux brings CUDA
# along. They stay until requirements.txt changes. PYTHON=... names a Python that has torch and diffusers, which is then used as it
# is, with a line for each version that matters; one without them is the Python that the packages are installed for.
# run.sh --install only installs, for parity and mflux too.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=$(cd "$here/../.." && pwd)/.setup/reference
own=
if [ -n "${PYTHON:-}" ] && ! "$PYTHON" -c '' 2>/dev/null; then
	echo "PYTHON=$PYTHON does not run" >&2
	exit 1
fi
if [ -n "${PYTHON:-}" ] && "$PYTHON" -c 'import sys; from importlib.util import find_spec as f; sys.exit(not (f("torch") and f("diffusers")))'; then
	own=$PYTHON
	"$own" "$here/gomflux_reference/check_python.py" "$here/requirements.txt"
elif [ -n "${PYTHON:-}" ] && echo "$PYTHON lacks torch or diffusers: $venv has them" >&2; ! cmp -s "$here/requirements.txt" "$venv/requirements.txt" || ! "$venv/bin/python" -c '' 2>/dev/null; then
	python=${PYTHON:-python3}
	"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
		echo "$python is too old or not there: Python 3.11 or newer is needed (PYTHON=... chooses one)" >&2
		exit 1
	}
	echo "installing torch, diffusers and transformers into $venv" >&2
	"$python" -m venv --clear "$venv"
	"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"
	cp "$here/requirements.txt" "$venv/requirements.txt"
fi
# further installs what only some commands need.
further() {
	if [ -z "$own" ] && ! cmp -s "$here/$1" "$venv/$1"; then
		"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --requirement "$here/$1"
		cp "$here/$1" "$venv/$1"
	fi
}
case " $* " in
" --install ")
	further requirements-lora.txt
	further requirements-mflux.txt
	exit
	;;
" mflux "* | " mflux-golden "* | *" --framework mflux "* | *" --framework=mflux "*) further requirements-mflux.txt ;;
" comfy-golden "*) further requirements-comfy.txt ;;
" upscaler-golden "* | *" --framework spandrel "*) further requirements-upscale.txt ;;
" seedvr2-golden "* | *" --framework seedvr2 "*) further requirements-seedvr2.txt ;;
" loras "* | *" --lora "* | " parity "* | " selftest "*) further requirements-lora.txt ;;
esac
# The last bits of PyTorch's exp on a CPU depend on the processor: it takes those of MKL, which has several. With the one that
# all processors have, sinusoids of times are the same everywhere, and those of the goldens.
export MKL_CBWR="${MKL_CBWR:-COMPATIBLE}"
PYTHONPATH=$here PYTHONDONTWRITEBYTECODE=1 exec "${own:-$venv/bin/python}" -m gomflux_reference "$@"

#!/bin/sh
# Remakes models/testdata; `git diff` then shows what has changed. Another command of gomflux_reference runs with
# its arguments: goldens.sh tiny /tmp/model --seed 7
# The first run installs the pinned packages into .setup/reference (about 6 GB: PyPI's torch brings CUDA along).
set -eu
cd "$(dirname "$0")"
venv=$(cd ../.. && pwd)/.setup/reference
if ! cmp -s requirements.txt "$venv/requirements.txt"; then
	python3 -m venv --clear "$venv"
	"$venv/bin/pip" install --quiet --requirement requirements.txt
	cp requirements.txt "$venv/requirements.txt"
fi
here=$(pwd)
[ $# -gt 0 ] || set -- goldens
cd "$OLDPWD"
PYTHONPATH=$here exec "$venv/bin/python" -m gomflux_reference "$@"

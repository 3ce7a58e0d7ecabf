#!/bin/sh
# Runs a command of peers: run.sh compare --preset 1024 (run.sh --help lists them all). PYTHON chooses a Python in which
# diffusers or mflux is installed; without it, it is that of scripts/reference/run.sh, if that has been set up.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
scripts=$(cd "$here/../.." && pwd)
reference=$scripts/../.setup/reference/bin/python
if [ -z "${PYTHON:-}" ] && [ -x "$reference" ]; then PYTHON=$reference; fi
PYTHONPATH=$scripts/bench:$scripts/reference${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 exec "${PYTHON:-python3}" -m peers "$@"

#!/bin/sh
# Remakes models/testdata; `git diff` then shows what has changed. goldens.sh selftest compares it instead.
set -eu
[ $# -gt 0 ] || set -- goldens
exec "$(dirname "$0")/run.sh" "$@"

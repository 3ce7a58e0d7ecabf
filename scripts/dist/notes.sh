#!/bin/sh
# Prints what CHANGELOG.md says about a version: scripts/dist/notes.sh v0.1.0
set -eu
cd "$(dirname "$0")/../.."
version=${1#v}
notes=$(awk -v heading="## $version" '
  /^## / { on = $0 == heading || index($0, heading " ") == 1; next }
  on' CHANGELOG.md)
if [ -z "$notes" ]; then
  echo "CHANGELOG.md has no section \"## $version\" with anything in it" >&2
  exit 1
fi
echo "$notes"

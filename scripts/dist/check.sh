#!/bin/sh
# Unpacks an archive of make dist into an empty folder and uses it there, with
# nothing in the environment: usage: scripts/dist/check.sh ARCHIVE
# It needs nothing of the checkout, so that it can run in a container or in
# another root.
set -eu

fail() { echo "check: $*" >&2; exit 1; }

[ $# = 1 ] || fail "usage: scripts/dist/check.sh ARCHIVE"
archive=$1
folder=$(cd "$(dirname "$archive")" && pwd)
name=$(basename "$archive" .tar.gz)

sum() { if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }
(cd "$folder" && sum -c "$name.tar.gz.sha256" >/dev/null) || fail "the checksum of $archive is wrong"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/an empty folder" "$work/elsewhere"
tar -xzf "$folder/$name.tar.gz" -C "$work/an empty folder"
here="$work/an empty folder/$name"
cd "$work/elsewhere"

for file in README.txt LICENSE licences/INDEX.txt completions/gomflux completions/_gomflux completions/gomflux.fish; do
  [ -s "$here/$file" ] || fail "no $file in the archive"
done

# through a link, as on a PATH
ln -s "$here/gomflux" gomflux
env -i ./gomflux doctor >doctor.txt || fail "gomflux doctor failed"
cat doctor.txt
grep "^mlx-c .*$here/lib/\(macos[0-9.]*/\)\{0,1\}libmlxc" doctor.txt >/dev/null || fail "it does not use the library of the archive"
if [ "$(uname -s)" = Linux ]; then
  grep "^blas .*$here/lib/libopenblas" doctor.txt >/dev/null || fail "it does not use the OpenBLAS of the archive"
fi

env -i "$here/gomflux" generate --model shapes --prompt "a red circle" --seed 7 --output circle.png
[ "$(head -c 8 circle.png | od -An -tx1 | tr -d ' \n')" = 89504e470d0a1a0a ] || fail "circle.png is not a PNG file"
[ "$(wc -c <circle.png)" -gt 1000 ] || fail "circle.png has only $(wc -c <circle.png) bytes"
echo "check: $name works"

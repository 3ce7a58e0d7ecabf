#!/usr/bin/env bash
# Tests gomflux serve with programs that people use: openai-python, openai-node, comfy-api-simplified
# (ComfyUI's API), and a browser with axe-core. The packages that this folder pins are installed into .setup/clients. What cannot be
# tested on this machine is skipped, with a line that has the reason; CI=true lets the script
# install Chromium where it is root. With --install it only installs, and prints the variables
# with which go test runs these tests, in words of the shell.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
here=scripts/clients
into=$PWD/.setup/clients
skip() { echo "clients: skipped: $*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
# fresh PROGRAM FILE... reports whether PROGRAM was installed from these files.
fresh() {
	local program=$1 file
	shift
	for file; do cmp -s "$here/$file" "$into/$file" || return 1; done
	[ -e "$program" ]
}
clients= # alternatives of the ends of the tests' names

python=${PYTHON:-python3}
if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; then
	skip "openai-python, since $python is not Python 3.11 to 3.14 with venv (PYTHON=... chooses one)"
else
	if ! fresh "$into/python/bin/python" requirements.txt || ! "$into/python/bin/python" -c 'import openai' 2>/dev/null; then
		echo "clients: installing openai-python into $into" >&2
		"$python" -m venv --clear "$into/python"
		"$into/python/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
			--only-binary=:all: --requirement "$here/requirements.txt"
		cp "$here/requirements.txt" "$into/"
	fi
	export GOMFLUX_OPENAI_PYTHON=$into/python/bin/python
	clients=Python
fi

# openai-node asks for Node.js 22, and what the tests use runs on 20 too
if have node && have npm && node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)'; then
	if ! fresh "$into/node_modules/openai" package.json package-lock.json; then
		echo "clients: installing openai-node and axe-core into $into" >&2
		mkdir -p "$into"
		cp "$here/package.json" "$here/package-lock.json" "$into/"
		(cd "$into" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) || {
			rm "$into/package-lock.json" # so that the next run tries again
			exit 1
		}
	fi
	export GOMFLUX_OPENAI_NODE=$into GOMFLUX_TEST_AXE=$into/node_modules/axe-core/axe.min.js
	clients=${clients:+$clients|}Node
else
	skip "openai-node and axe-core, since there is no Node.js 20 or newer with npm"
fi

browser() { have chromium || have chromium-browser || have google-chrome; }
if ! browser && [ "${CI-}" = true ] && [ "$(id -u)" = 0 ] && have apt-get; then
	echo "clients: installing chromium" >&2
	apt-get -qq update || true # an old list may do
	DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends \
		chromium >/dev/null || true
fi

if [ "${1-}" = --install ]; then
	for name in GOMFLUX_OPENAI_PYTHON GOMFLUX_OPENAI_NODE GOMFLUX_TEST_AXE; do
		[ -z "${!name-}" ] || printf 'export %s=%q\n' "$name" "${!name}"
	done
	exit
fi
if [ -n "$clients" ]; then
	go test -count=1 -run "($clients)\$" ./serve/openai ./cmd/gomflux
fi
if browser; then
	go test -count=1 ./serve/page
else
	skip "the page in a browser, since there is no Chromium (apt-get install chromium)"
fi

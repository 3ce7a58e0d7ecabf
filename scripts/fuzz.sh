#!/usr/bin/env bash
# Runs every fuzz target for a time: fuzz.sh TIME [PACKAGE...], by default all
# packages of this module. What fails is kept in the package's testdata/fuzz, as
# go test does, which then runs it too.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
time=${1:?usage: fuzz.sh TIME [PACKAGE...]}
shift
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
corpus=$(go env GOCACHE)/fuzz
run() {
	(cd "$2" && "$build/test" -test.run '^$' -test.fuzz "^$3\$" -test.fuzztime "$time" -test.fuzzminimizetime 50x -test.fuzzcachedir "$corpus/$1") >"$build/log" 2>&1
}

# Go fails now and then when the time ends while an input runs; without an input
# that fails it is tried again.
unfinished() {
	grep -q 'context deadline exceeded' "$build/log" && ! grep -q 'Failing input' "$build/log" && run "$@"
}

# what brings the fuzzer further is hardly made smaller, which takes most of a short
# time; a package is linked once for all of its targets
while read -r package dir; do
	targets=$(grep -hoE '^func Fuzz[A-Za-z0-9_]*\(f \*testing\.F\)' "$dir"/*_test.go 2>/dev/null | sed 's/^func //; s/(.*//') || continue
	go test -c -fuzz . -o "$build/test" "$package"
	for target in $targets; do
		echo "$package $target"
		run "$package" "$dir" "$target" || unfinished "$package" "$dir" "$target" || {
			cat "$build/log"
			exit 1
		}
		sed -n 's/^fuzz: elapsed: /  /p' "$build/log" | tail -n 1
	done
done < <(go list -f '{{.ImportPath}} {{.Dir}}' "${@:-./...}")

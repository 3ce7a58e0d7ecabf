package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"passes", `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA/slow","Output":"    a_test.go:1: chatter\n"}
{"Action":"pass","Package":"p","Test":"TestA/slow","Elapsed":4}
{"Action":"pass","Package":"p","Test":"TestA","Elapsed":4.5}
{"Action":"skip","Package":"p","Test":"TestB","Elapsed":0}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t11.0s\n"}
{"Action":"pass","Package":"p","Elapsed":11}
`, `ok  	p	11.0s
the slowest packages (10 s and more):
   11.0 s  p
the slowest tests (3 s and more):
    4.5 s  p TestA
    4.0 s  p TestA/slow
1 passed, 0 failed, 1 skipped, in 1 packages
`},
		{"fails", `{"Action":"output","Package":"p","Test":"TestA/x","Output":"    --- FAIL: TestA/x (0.00s)\n"}
{"Action":"output","Package":"p","Test":"TestA/x","Output":"        a_test.go:1: wrong\n"}
{"Action":"fail","Package":"p","Test":"TestA/x","Elapsed":0}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"p","Output":"FAIL\tp\t1.0s\n"}
{"Action":"fail","Package":"p","Elapsed":1}
`, `    --- FAIL: TestA/x (0.00s)
        a_test.go:1: wrong
FAIL	p	1.0s
0 passed, 1 failed, 0 skipped, in 1 packages
`},
		{"ends early", `{"Action":"output","Package":"p","Test":"TestA","Output":"panic: test timed out\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t600s\n"}
{"Action":"fail","Package":"p","Elapsed":1}
`, `panic: test timed out
FAIL	p	600s
0 passed, 0 failed, 0 skipped, in 1 packages
`},
		{"does not compile", `{"ImportPath":"p [p.test]","Action":"build-output","Output":"a_test.go:1:1: undefined: x\n"}
{"ImportPath":"p [p.test]","Action":"build-fail"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"p [p.test]"}
`, `a_test.go:1:1: undefined: x
FAIL	p [build failed]
0 passed, 0 failed, 0 skipped, in 1 packages
`},
	} {
		var out bytes.Buffer
		r := report{out: &out, output: map[string]map[string]*bytes.Buffer{}}
		if err := r.read(strings.NewReader(c.in)); err != nil {
			t.Fatal(err)
		}
		r.end()
		if out.String() != c.want {
			t.Errorf("%s:\n%s\nexpected:\n%s", c.name, out.String(), c.want)
		}
		if fails := r.failed > 0 || r.broken; fails != (c.name != "passes") {
			t.Errorf("%s: failed %v, broken %v", c.name, r.failed, r.broken)
		}
	}
}

package serve

import (
	"strings"
	"testing"

	"github.com/gomflux/gomflux/serve"
)

// TestPullRefusal checks which servers start downloads.
func TestPullRefusal(t *testing.T) {
	t.Setenv("HF_HUB_OFFLINE", "")
	tokens := []serve.Token{{Name: "ann", Secret: "0123456789abcdef"}}
	hosts := []string{"images.example.org"}
	for _, test := range []struct {
		options serveOptions
		want    string // in the reason, "" if downloads are allowed
	}{
		{serveOptions{listen: serveAddress}, ""},
		{serveOptions{listen: "localhost:80"}, ""},
		{serveOptions{listen: "[::1]:80"}, ""},
		{serveOptions{listen: serveAddress, noPull: true}, "--no-pull"},
		{serveOptions{listen: "0.0.0.0:80"}, "--pull"},
		{serveOptions{listen: ":80"}, "--pull"},
		{serveOptions{listen: ":80", pull: true}, ""},
		{serveOptions{listen: serveAddress, tokens: tokens}, "--pull"},
		{serveOptions{listen: serveAddress, allowedHosts: hosts}, "--pull"},
		{serveOptions{listen: serveAddress, baseURL: "https://images.example.org"}, "--pull"},
		{serveOptions{listen: serveAddress, tokens: tokens, allowedHosts: hosts, pull: true}, ""},
	} {
		got := test.options.pullRefusal()
		if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
			t.Errorf("%+v: %q, expected %q", test.options, got, test.want)
		}
	}
	t.Setenv("HF_HUB_OFFLINE", "1")
	if got := (&serveOptions{listen: serveAddress}).pullRefusal(); !strings.Contains(got, "offline") {
		t.Errorf("offline: %q", got)
	}
}

package catalog

import (
	"testing"

	"github.com/gomflux/gomflux/internal/disk"
)

func TestTildePath(t *testing.T) {
	tests := []struct{ home, name, want string }{
		{"/home/me", "/home/me/models/x", "~/models/x"},
		{"/home/me/", "/home/me/models/x", "~/models/x"},
		{"/home/me", "/home/me", "~"},
		{"/home/me", "/home/mexico/x", "/home/mexico/x"},
		{"/home/me", "/data/x", "/data/x"},
		{"/home/me", "home/me/x", "home/me/x"},
		{"/home/me", "someone/model", "someone/model"},
		{"/home/me", "", ""},
		{"/", "/data/x", "/data/x"},
		{"", "/data/x", "/data/x"},
	}
	for _, test := range tests {
		t.Setenv("HOME", test.home)
		got := TildePath(test.name)
		if got != test.want {
			t.Errorf("home %q: %q is shown as %q, expected %q", test.home, test.name, got, test.want)
		}
		if back := disk.ExpandHome(got); back != test.name {
			t.Errorf("home %q: %q comes back from %q as %q", test.home, test.name, got, back)
		}
	}
	t.Setenv("HOME", "/home/me")
	for name, want := range map[string]string{"~": "/home/me", "~/": "/home/me", "~you/x": "~you/x", "a/~/x": "a/~/x", "~~": "~~"} {
		if got := disk.ExpandHome(name); got != want {
			t.Errorf("%q is %q, expected %q", name, got, want)
		}
	}
}

package textfile

import "testing"

func TestDecode(t *testing.T) {
	for data, want := range map[string]string{
		"a\nb":                          "a\nb",
		"":                              "",
		"\ufeffa\r\nb\r\n":              "a\nb\n",
		"\xff\xfea\x00\r\x00\n\x00":     "a\n",
		"\xfe\xff\x00a\xd8\x3d\xde\x00": "a😀",
		"\xff\xfe":                      "",
		"a\rb":                          "a\rb",
		"\xe4":                          "\xe4", // callers check what they need
	} {
		if got, err := Decode([]byte(data)); err != nil || string(got) != want {
			t.Errorf("%q: got %q, %v", data, got, err)
		}
	}
	if _, err := Decode([]byte("\xff\xfea")); err == nil {
		t.Error("half of a character was accepted")
	}
}

package plainjson

import (
	"math"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	v := map[string]string{"a": "<b> & é"}
	for indent, want := range map[string]string{"": `{"a":"<b> & é"}`, "  ": "{\n  \"a\": \"<b> & é\"\n}"} {
		var b strings.Builder
		if err := Write(&b, v, indent); err != nil || b.String() != want+"\n" {
			t.Errorf("wrote %q (%v), expected %q and a line's end", b.String(), err, want)
		}
		if got, err := Marshal(v, indent); err != nil || string(got) != want {
			t.Errorf("marshalled %q (%v), expected %q", got, err, want)
		}
	}
	if got, err := Marshal(math.NaN(), ""); err == nil || got != nil {
		t.Errorf("NaN is %q (%v)", got, err)
	}
}

func TestFields(t *testing.T) {
	v := struct {
		A string `json:"a"`
		B int    `json:"b"`
	}{"<", 1}
	got, err := Fields(v, func(name string) bool { return name == "a" })
	if err != nil || len(got) != 1 || string(got["a"]) != `"<"` {
		t.Errorf("fields %s (%v)", got, err)
	}
	if _, err := Fields([]int{1}, nil); err == nil {
		t.Error("an array has fields")
	}
}

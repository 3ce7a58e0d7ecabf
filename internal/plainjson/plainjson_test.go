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

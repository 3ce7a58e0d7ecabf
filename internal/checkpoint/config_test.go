package checkpoint

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
)

func TestReadJSON(t *testing.T) {
	type config struct {
		Dim    int     `json:"dim"`
		Eps    float64 `json:"eps"`
		Name   string  `json:"name"`
		Nested struct {
			Heads []int `json:"heads"`
		} `json:"nested"`
	}
	const good = "{\n \"dim\": 3, \"eps\": 1e-5, \"name\": \"x\", \"nested\": {\"heads\": [1, 2]}, \"_class_name\": null\n}\n"
	for _, test := range []struct {
		name, text, err string
	}{
		{"good", good, ""},
		{"byte order mark", "\ufeff" + good, ""},
		{"line ends of Windows", strings.ReplaceAll(good, "\n", "\r\n"), ""},
		{"UTF-16", "\xff\xfe" + strings.Join(strings.Split(good, ""), "\x00") + "\x00", ""},
		{"empty", "", "line 1: unexpected end of JSON input"},
		{"null", " null", "expected an object, found null"},
		{"two values", "{}\n{}", "line 2: invalid character '{' after top-level value"},
		{"truncated", "{\n\"dim\": 3,\n", "line 2: unexpected end of JSON input"},
		{"comma at the end", "{\"dim\": 3,\n}", "line 2: invalid character '}'"},
		{"comment", "{\n// x\n}", "line 2: invalid character '/'"},
		{"a byte too few", "\xff\xfe{\x00}", "is not valid UTF-16: expected an even number of bytes, found 5"},
		{"NaN", "{\"eps\":\nNaN}", "line 2: NaN and Infinity are not JSON"},
		{"minus infinity", "{\"eps\": -Infinity}", "line 1: NaN and Infinity are not JSON"},
		{"duplicate key", "{\"dim\": 1,\n\"dim\": 2}", `line 2: duplicate key "dim"`},
		{"duplicate key within", "{\"nested\": {\"heads\": [],\n\"heads\": []}}", `line 2: duplicate key "heads"`},
		{"duplicate key in an array", "{\"x\": [{\"y\":1,\"y\":1}]}", `duplicate key "y"`},
		{"wrong type", "{\n\"dim\": \"3\"}", `line 2: key "dim": expected int, found string`},
		{"wrong type within", "{\"nested\":\n{\"heads\": 3}}", `line 2: key "nested.heads": expected []int, found number`},
		{"fraction for int", "{\"dim\": 3.5}", `key "dim": expected int, found number 3.5`},
		{"array", "[]", "expected object, found array"},
		{"bad word", "{\"dim\": nul}", "in literal null"},
		{"invalid number", "{\"dim\": 1.}", "in numeric literal"},
		{"deep", strings.Repeat("[", 100_000), "exceeded max depth"},
		{"too large", `{"x":"` + strings.Repeat("x", maxConfig) + `"}`, "is too large"},
	} {
		t.Run(test.name, func(t *testing.T) {
			fsys := fstest.MapFS{"vae/config.json": {Data: []byte(test.text)}}
			var got config
			err := ReadJSON(fsys, "vae/config.json", &got)
			if test.err != "" {
				wantError(t, err, "vae/config.json: ", test.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.Dim != 3 || got.Eps != 1e-5 || got.Name != "x" || len(got.Nested.Heads) != 2 {
				t.Errorf("read %+v", got)
			}
		})
	}
}

func FuzzReadJSON(f *testing.F) {
	for _, text := range []string{
		`{}`, `[]`, ` {"a":[1,-2.5e+3,true,false,null,"x"],"b":{"c":{}}} `, `{"a":1,"a":2}`, `{"a":1,"\u0061":2}`,
		`"\ud83d\ude00\"\\\/\b\f\n\r\t"`, `"\ud800"`, `NaN`, `-Infinity`, `-0`, `01`, `1.`, `1e`, `[1,]`, `{"a"}`,
		"\"\x01\"", "\"\xff\"", `null`, `1e999`, `{}{}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var got any
		err := ReadJSON(fstest.MapFS{"c": {Data: data}}, "c", &got)
		if err != nil {
			// What is refused is not JSON, or for a reason that JSON does not have.
			for _, reason := range []string{"duplicate key", "not UTF-8", `invalid \u escape`, "found null", "max depth",
				"expected float64, found number"} {
				if strings.Contains(err.Error(), reason) {
					return
				}
			}
			if json.Valid(data) {
				t.Errorf("refused %q: %v", data, err)
			}
			return
		}
		var want any
		decoder := json.NewDecoder(bytes.NewReader(data))
		if err := decoder.Decode(&want); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("read %v, encoding/json %v, error %v", got, want, err)
		}
	})
}

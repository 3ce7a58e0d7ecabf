package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gomflux/gomflux/parity/runs"
)

func TestFindTrace(t *testing.T) {
	tree, err := runs.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := FindTrace(tree, ""); !errors.Is(err, ErrNoTrace) {
		t.Errorf("error %v", err)
	}
	dir := filepath.Join(tree.Root, "traces")
	if err := os.MkdirAll(filepath.Join(dir, "debug_folder.jsonl"), 0o777); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"debug_20261122T100000.000000Z.jsonl", "debug_20261123T100000.000001Z.jsonl",
		"debug_20261123T110000.000000Z.jsonl", "debug_20261123T110000.000000Z.log", "other.jsonl"} {
		put(t, filepath.Join(dir, name), "")
	}
	for _, c := range []struct{ time, want, wantErr string }{
		{"", "20261123T110000.000000Z", ""},
		{"20261123T11", "20261123T110000.000000Z", ""},
		{"2026-11-22 10:00", "20261122T100000.000000Z", ""},
		{"20261123T100000.000001Z", "20261123T100000.000001Z", ""},
		{"20261123", "", "2 begin like this: 20261123T110000.000000Z, 20261123T100000.000001Z"},
		{"2025", "", "no trace of 2025 (the newest are 20261123T110000.000000Z, "},
	} {
		f, err := FindTrace(tree, c.time)
		if f.Time != c.want || (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
			t.Errorf("%q: %+v (%v), expected %q (%s)", c.time, f, err, c.want, c.wantErr)
		}
	}
}

func TestReadTrace(t *testing.T) {
	text := `{"time":"t","event":"start","arguments":["generate"],"duration":0.5}` + "\n" +
		"\n" +
		`{"time":"t"}` + "\n" +
		"\x00\xff\n" +
		`{"time":"t","event":"end","result":{"state":"finished"}}` + "\n" +
		`{"time":"t","event":"sto`
	var events []string
	faults, err := readTrace(strings.NewReader(text), func(l TraceLine) error {
		events = append(events, fmt.Sprint(l.Event, string(l.Arguments), string(l.Result), l.Duration))
		return nil
	})
	if got, want := fmt.Sprint(events), `[start["generate"]0.5 end{"state":"finished"}0]`; err != nil || got != want {
		t.Errorf("found %s (%v), expected %s", got, err, want)
	}
	var lines []string
	for _, f := range faults {
		line, _, _ := strings.Cut(f.Error(), " is damaged")
		lines = append(lines, line)
	}
	if got, want := fmt.Sprint(lines), "[line 2 line 3 line 4 line 6]"; got != want {
		t.Errorf("faults %s, expected %s", got, want)
	}
	stop := errors.New("stop")
	if _, err := readTrace(strings.NewReader(text), func(TraceLine) error { return stop }); err != stop {
		t.Errorf("error %v", err)
	}
}

// TestTraceIsBounded: neither a line without an end nor a large file of another kind is read whole.
func TestTraceIsBounded(t *testing.T) {
	for _, c := range []struct {
		unit, want string
		lines      int
	}{{"x", "longer than", 1}, {"x\n", "too many damaged lines", maxTraceFaults + 1}} {
		r := &repeated{text: c.unit}
		faults, err := readTrace(r, func(TraceLine) error { return nil })
		if err != nil || len(faults) != c.lines || !strings.Contains(faults[len(faults)-1].Error(), c.want) {
			t.Errorf("%q: %d faults (%v), the last one %v", c.unit, len(faults), err, faults[len(faults)-1])
		}
		if r.read > 2*maxTraceLine {
			t.Errorf("%q: %d bytes were read", c.unit, r.read)
		}
	}
}

// repeated is a file of a gigabyte.
type repeated struct {
	text string
	read int
}

func (r *repeated) Read(p []byte) (int, error) {
	if r.read > 1<<30 {
		return 0, errors.New("all was read")
	}
	n := copy(p, bytes.Repeat([]byte(r.text), len(p)/len(r.text)))
	r.read += n
	return n, nil
}

// FuzzTrace: what is read of a trace has events.
func FuzzTrace(f *testing.F) {
	f.Add([]byte(`{"time":"t","event":"start","arguments":["generate"],"duration":0.5}` + "\n{"))
	f.Add([]byte(`{"event":"stop","result":{"name":"x","variables":{"variables":[{"stats":{"min":"NaN"}}]}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		lines := 0
		_, err := readTrace(bytes.NewReader(data), func(l TraceLine) error {
			lines++
			if l.Event == "" {
				t.Errorf("%+v", l)
			}
			return nil
		})
		if err != nil || lines > bytes.Count(data, []byte("\n"))+1 {
			t.Errorf("%d lines, %v", lines, err)
		}
	})
}

package api

import (
	"testing"
	"time"
)

func TestFiles(t *testing.T) {
	now := time.Unix(1e9, 0)
	f := Files{Keep: time.Hour, Most: 100, Now: func() time.Time { return now }}
	f.Put("first", make([]byte, 60))
	f.Put("second", make([]byte, 40))
	if f.Get("first") == nil || f.Get("second") == nil || f.bytes != 100 {
		t.Errorf("%d bytes are kept", f.bytes)
	}
	f.Put("second", make([]byte, 50)) // for which the first one makes room
	if f.Get("first") != nil || len(f.Get("second")) != 50 || f.bytes != 50 {
		t.Errorf("%d bytes are kept after the third file", f.bytes)
	}
	now = now.Add(time.Hour)
	if f.Get("second") != nil || f.bytes != 0 || len(f.kept)+len(f.order) != 0 {
		t.Errorf("%d bytes are kept after an hour", f.bytes)
	}
	f.Keep = 0
	f.Put("third", make([]byte, 10))
	if now = now.Add(1000 * time.Hour); f.Get("third") == nil {
		t.Error("a file without a limit of time is dropped")
	}
}

// A file that is put again is as new as the others: the oldest ones make room.
func TestFilesAgain(t *testing.T) {
	f := &Files{Most: 3}
	for _, name := range []string{"a", "b", "a", "c", "d"} {
		f.Put(name, []byte(name))
	}
	for name, kept := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
		if got := f.Get(name) != nil; got != kept {
			t.Errorf("%s: kept %v, expected %v", name, got, kept)
		}
	}
}

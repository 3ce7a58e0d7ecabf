package api

import (
	"slices"
	"sync"
	"time"
)

// Files keep files in memory, the newest ones up to a size.
type Files struct {
	Keep time.Duration    // for which a file is kept, 0 for as long as there is room
	Most int64            // bytes of all files
	Now  func() time.Time // the clock, nil for time.Now

	mu    sync.Mutex
	kept  map[string]keptFile
	order []string // of names, oldest first
	bytes int64
}

type keptFile struct {
	data    []byte
	expires time.Time // zero for never
}

// Put keeps a file. The oldest ones make room for it.
func (f *Files) Put(name string, data []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expire(int64(len(data)))
	if f.kept == nil {
		f.kept = map[string]keptFile{}
	}
	f.bytes += int64(len(data) - len(f.kept[name].data))
	file := keptFile{data: data}
	if f.Keep > 0 {
		file.expires = f.now().Add(f.Keep)
	}
	f.kept[name] = file
	f.order = append(slices.DeleteFunc(f.order, func(other string) bool { return other == name }), name)
}

func (f *Files) now() time.Time {
	if f.Now == nil {
		return time.Now()
	}
	return f.Now()
}

// expire drops files that were kept long enough, and the oldest until there is room.
func (f *Files) expire(room int64) {
	for len(f.order) > 0 {
		oldest, ok := f.kept[f.order[0]]
		if ok && (oldest.expires.IsZero() || f.now().Before(oldest.expires)) && f.bytes+room <= f.Most {
			return
		}
		f.bytes -= int64(len(oldest.data))
		delete(f.kept, f.order[0])
		f.order = f.order[1:]
	}
}

// Get returns a file, nil if it is not kept.
func (f *Files) Get(name string) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expire(0)
	return f.kept[name].data
}

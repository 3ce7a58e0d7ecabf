package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx/hooks"
)

// TraceFile has the names of all tensors of a run, in the order in which they were computed. It is a
// path in the run's folder.
const TraceFile = "traces/taps.jsonl"

// ReadTrace numbers the tensors of a run from 1, in the order in which they were computed: by its
// [TraceFile], or else by [StatsFile]. The result is empty without both, and lacks an incomplete
// last line of a run that was killed.
func ReadTrace(fsys fs.FS) (map[string]int, error) {
	f, err := fsys.Open(TraceFile)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = fsys.Open(StatsFile)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("trace of the run: %w", err)
	}
	defer f.Close()
	made := map[string]int{}
	for d := json.NewDecoder(f); ; {
		var tap struct {
			Name string `json:"name"`
		}
		if d.Decode(&tap) != nil {
			return made, nil
		}
		if made[tap.Name] == 0 {
			made[tap.Name] = len(made) + 1
		}
	}
}

// Ranges returns the statistics of a run's tensors in the order in which they were computed: those
// of [StatsFile], and of saved tensors that are not in it. Records without a name in the trace of
// the run come last. A *[DamagedError] is about files that cannot be read, and comes with the
// statistics of the others.
func (r RunInfo) Ranges() ([]Record, error) {
	fsys := os.DirFS(r.Dir)
	var errs []error
	records, err := ReadStats(fsys)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, fmt.Errorf("%s: %w", r.Dir, err))
	}
	known := map[string]bool{}
	for _, rec := range records {
		known[rec.Name] = true
	}
	entries, _, damage := listRun(r.Dir, r.Side)
	errs = append(errs, damage...)
	added := false
	for _, e := range entries {
		if known[e.Name] {
			continue
		}
		rec, err := e.Summary()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		records, added = append(records, rec), true
	}
	if added {
		made, err := ReadTrace(fsys)
		if err != nil {
			errs = append(errs, err)
		}
		at := func(rec Record) int {
			if n := made[rec.Name]; n > 0 {
				return n
			}
			return len(made) + 1
		}
		slices.SortStableFunc(records, func(a, b Record) int { return at(a) - at(b) })
	}
	return records, damaged(errs)
}

// Summary returns the record of a saved tensor. If its file does not have one, the values are read.
func (e Entry) Summary() (Record, error) {
	if e.Record != nil {
		return *e.Record, nil
	}
	f, err := checkpoint.OpenArrays(e.Path)
	if err != nil {
		return Record{}, err
	}
	defer f.Close()
	stats, first, err := f.Stats(e.Key, Previewed)
	if err != nil {
		return Record{}, err
	}
	rec := newRecord(e.Tensor, stats, first, Location{})
	rec.Timestamp = e.Modified.Format(timestamp)
	return rec, nil
}

// Kind returns the role of the tensor, by its name.
func (r Record) Kind() hooks.Kind { return hooks.NameOf(r.Name).Point.Kind }

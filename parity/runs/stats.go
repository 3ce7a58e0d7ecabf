package runs

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"

	"github.com/gomflux/gomflux/internal/oserr"
)

// StatsFile has the statistics of a run's tensors, in the order in which they were computed: a
// [Record] per line. It is a path in the run's folder.
const StatsFile = "traces/stats.jsonl"

// Limits of a StatsFile. A line of gomflux has less than a thousand bytes, and the statistics of
// every tensor of a step a few megabytes.
const (
	maxStatsLine = 64 << 10
	maxStatsFile = 1 << 30
)

// ReadStats reads the statistics in a run's folder, without the incomplete last line of a run that
// was killed. Without the file the error is [fs.ErrNotExist].
func ReadStats(fsys fs.FS) ([]Record, error) {
	records, err := readStats(fsys)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", StatsFile, oserr.Bare(err))
	}
	return records, nil
}

func readStats(fsys fs.FS) (records []Record, err error) {
	f, err := fsys.Open(StatsFile)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("expected a file, found %v", info.Mode().Type())
	case info.Size() > maxStatsFile:
		return nil, fmt.Errorf("has %d bytes, expected at most %d", info.Size(), maxStatsFile)
	}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxStatsLine)
	lines.Split(wholeLines)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		rec, err := parseRecord(lines.Bytes())
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		records = append(records, rec)
	}
	return records, lines.Err()
}

// wholeLines splits text into lines, and leaves out the rest after the last one.
func wholeLines(data []byte, _ bool) (advance int, line []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	return 0, nil, nil
}

func parseRecord(line []byte) (rec Record, err error) {
	if err := json.Unmarshal(line, &rec); err != nil {
		return rec, err
	}
	switch {
	case rec.Name == "":
		return rec, fmt.Errorf("has no name")
	case slices.ContainsFunc(rec.Shape, func(n int) bool { return n < 0 }):
		return rec, fmt.Errorf("tensor %s: negative size in shape %v", rec.Name, rec.Shape)
	case rec.Stats.NaN < 0 || rec.Stats.Inf < 0:
		return rec, fmt.Errorf("tensor %s: negative number of NaN or infinite values", rec.Name)
	}
	return rec, nil
}

// Stat appends a tensor's statistics to [StatsFile]. The line is written at once, so that it stays
// if the process is killed.
func (r *Run) Stat(rec Record) error {
	key := "stats " + rec.Name // different from saved tensors' names
	r.hits[key]++
	rec.HitCount = r.hits[key]
	if err := r.appendJSON(StatsFile, rec); err != nil {
		return fmt.Errorf("statistics of %s: %w", rec.Name, err)
	}
	r.recorded++
	return nil
}

package parity

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing/fstest"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/parity/report"
)

// A number is one in a config that a port may get wrong.
type number struct {
	file, key string
	value     float64 // where the key comes first in the file
}

// numberLine is an epsilon or the base of a rotary embedding in a config.
var numberLine = regexp.MustCompile(`"(\w*(?:eps|epsilon|theta))"\s*:\s*([0-9][-+.0-9eE]*)`)

// mistake is the factor of the wrong numbers.
const mistake = 10

// Blind finds the numbers in the model's configs of which a run does not show whether they are right: it replays the
// run with each of them wrong.
func Blind(ctx context.Context, run string, o Options) (found []report.Blind, err error) {
	var numbers []number
	var names []string
	err = mlx.Do(ctx, func() error {
		ref, err := OpenRun(folder(run))
		if err != nil {
			return fmt.Errorf("%w: %w", ErrRun, err)
		}
		names = ref.Names()
		r := &replay{Options: o, ref: ref, run: run}
		_, fsys, err := r.find()
		if err != nil {
			return err
		}
		numbers, err = numbersOf(fsys)
		return err
	})
	o.Readings, o.quick, o.Debugger, o.Loaded = []string{report.Isolated}, true, nil, nil
	for _, n := range numbers {
		o.config = n.plant
		rep, err := Replay(ctx, run, o)
		if ctx.Err() != nil {
			return found, context.Cause(ctx)
		}
		if err == nil && rep.Verdict.OK { // a config that is refused shows itself
			found = append(found, report.Blind{
				Config: n.file, Key: n.key, Value: n.value, Tried: n.value * mistake, Record: n.record(names),
			})
		}
	}
	return found, err
}

// numbersOf finds the numbers of all components.
func numbersOf(fsys fs.FS) (all []number, err error) {
	files, err := fs.Glob(fsys, "*/config.json")
	for _, file := range files {
		text, err := fs.ReadFile(fsys, file)
		if err != nil {
			return nil, err
		}
		for _, m := range numberLine.FindAllSubmatch(text, -1) {
			n := number{file: file, key: string(m[1])}
			same := func(o number) bool { return o.file == n.file && o.key == n.key }
			if json.Unmarshal(m[2], &n.value) == nil && !slices.ContainsFunc(all, same) {
				all = append(all, n)
			}
		}
	}
	return all, err
}

// plant returns the model's folder with the number wrong, wherever the config repeats it.
func (n number) plant(fsys fs.FS) (fs.FS, error) {
	f, ok := fsys.(checkpoint.Folder)
	if !ok {
		return nil, fmt.Errorf("%s: only configs in a folder can be changed", n.file)
	}
	text, err := fs.ReadFile(fsys, n.file)
	if err != nil {
		return nil, err
	}
	text = numberLine.ReplaceAllFunc(text, func(line []byte) []byte {
		m := numberLine.FindSubmatch(line)
		var value float64
		if string(m[1]) != n.key || json.Unmarshal(m[2], &value) != nil {
			return line
		}
		return fmt.Appendf(nil, "%q: %v", n.key, value*mistake)
	})
	f.FS = changedFile{f.FS, n.file, text}
	return f, nil
}

// A changedFile is a file system in which a file has another text.
type changedFile struct {
	fs.FS
	name string
	text []byte
}

func (c changedFile) Open(name string) (fs.File, error) {
	if name == c.name {
		return fstest.MapFS{name: {Data: bytes.Clone(c.text)}}.Open(name)
	}
	return c.FS.Open(name)
}

// record returns what a run must have to show the number.
func (n number) record(names []string) string {
	component, point, what := path.Dir(n.file), "*norm*", "smaller activations, which an epsilon changes: a random model, or other weights"
	if strings.HasSuffix(n.key, "theta") {
		point, what = "*:[qk]", "more positions: a longer prompt or a larger image"
	}
	glob := component + "." + point
	for _, name := range names {
		if ok, _ := path.Match(glob+"*", name); ok {
			return what
		}
	}
	return "--taps '" + glob + "'"
}

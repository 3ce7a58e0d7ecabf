package runs

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"go/build"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gomflux/gomflux/internal/atomicfile"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx/hooks"
	"github.com/gomflux/gomflux/mlx/nn"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/textenc"
	"github.com/gomflux/gomflux/transformer"
	"github.com/gomflux/gomflux/upscaler"
	"github.com/gomflux/gomflux/vae"
)

const settingsFile = "settings.json"

// A Run is a run that is being recorded. It must be used by one goroutine at a time.
type Run struct {
	Tree  *Tree
	Side  string
	Dir   string // its folder
	Began time.Time

	settings map[string]any
	hits     map[string]int // how often each name was saved
	size     int64          // of the tree, in bytes
	saved    int
	recorded int                 // lines of StatsFile
	files    map[string]*os.File // that grow: TraceFile, StatsFile and OutputFile
	unlock   func()

	checkpoints int // files
}

// Saved returns how many tensors the run has saved.
func (r *Run) Saved() int { return r.saved }

// Recorded returns the number of tensors whose statistics the run has recorded.
func (r *Run) Recorded() int { return r.recorded }

// OutputFile is a copy of the text that a run printed. It is a path in the run's folder.
const OutputFile = "output.log"

// Write appends to [OutputFile].
func (r *Run) Write(text []byte) (n int, err error) { return r.append(OutputFile, text) }

// append appends to a file of the run, which the first text creates.
func (r *Run) append(name string, text []byte) (n int, err error) {
	if err := r.Tree.room(r.size, int64(len(text))); err != nil {
		return 0, err
	}
	if r.files[name] == nil {
		f, err := os.Create(filepath.Join(r.Dir, filepath.FromSlash(name)))
		if err != nil {
			return 0, err
		}
		r.files[name] = f
	}
	n, err = r.files[name].Write(text)
	r.size += int64(n)
	return n, err
}

// appendJSON appends a line of JSON to a file of the run.
func (r *Run) appendJSON(name string, v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = r.append(name, append(text, '\n'))
	}
	return err
}

// Describe adds to the run's settings.json. The names are those of the reference's dumps: model,
// prompt, seed and so on.
func (r *Run) Describe(settings map[string]any) error {
	if r.settings == nil {
		r.settings = map[string]any{
			"side": r.Side, "began": Stamp(r.Began), "command_line": quote.Shell(os.Args...), "versions": versions(),
			"machine": runtime.GOOS + " " + runtime.GOARCH, "git": gitState(),
		}
	}
	maps.Copy(r.settings, settings)
	return r.write(settingsFile, r.settings)
}

// write writes a JSON file of the run atomically.
func (r *Run) write(name string, v any) error {
	return atomicfile.Replace(filepath.Join(r.Dir, name), func(w io.Writer) error { return plainjson.Write(w, v, " ") })
}

// Close ends the run.
func (r *Run) Close() error { return r.end(map[string]any{"ended": Stamp(time.Now())}) }

// Interrupt ends a run that a signal or an error has stopped.
func (r *Run) Interrupt() error { return r.end(map[string]any{"interrupted": true}) }

func (r *Run) end(settings map[string]any) error {
	maps.Copy(settings, map[string]any{"tensors": r.saved, "stats": r.recorded, "checkpoints": r.checkpoints})
	err := r.Describe(settings)
	for _, f := range r.files {
		err = errors.Join(err, f.Close())
	}
	clear(r.files)
	r.unlock()
	return err
}

// A Location is a place in a program.
type Location struct {
	File     string `json:"file"`
	Line     int    `json:"line"`
	Function string `json:"function"`
}

// A Record describes a tensor of a run: in the metadata of its file, or in a line of [StatsFile].
type Record struct {
	Name      string             `json:"name"`
	HitCount  int                `json:"hit_count"` // of the name within the run, from 1
	Timestamp string             `json:"timestamp"`
	Location  Location           `json:"location"`
	Point     string             `json:"point"` // output, input or inner value
	Class     string             `json:"class"` // of the module: a Go type; "" for values of the pipeline
	Shape     []int              `json:"shape"`
	Dtype     string             `json:"dtype"` // as PyTorch names it
	Stats     checkpoint.Stats   `json:"stats"`
	Preview   []checkpoint.Float `json:"preview"` // the first values
}

// RecordKey is the metadata key of the [Record] in a saved tensor's file.
const RecordKey = "gomflux"

// timestamp is the format of times in records.
const timestamp = "2006-01-02T15:04:05.000000"

// Previewed is how many first values of a tensor are recorded, and shown.
const Previewed = 10

// RecordOf describes a tensor that was made at a place.
func RecordOf(t *checkpoint.Array, at Location) Record {
	return newRecord(t.Tensor(), t.Stats(), t.First(Previewed), at)
}

// newRecord makes the record of a tensor of which there are no more than its first elements.
func newRecord(t checkpoint.Tensor, stats checkpoint.Stats, first []float64, at Location) Record {
	rec := Record{
		Name: t.Name, HitCount: 1, Timestamp: time.Now().Format(timestamp), Location: at,
		Shape: append([]int{}, t.Shape...), Dtype: t.Dtype.Long(), Stats: stats,
		Preview: checkpoint.Floats(first),
	}
	rec.Point = rec.Kind().String()
	return rec
}

// Save writes a tensor as safetensors and returns the file. If the run has saved the name before,
// the tensor is saved as a further call: name#1.
func (r *Run) Save(t *checkpoint.Array, at Location) (string, error) {
	return r.saveOf(t, "", at)
}

// saveOf is Save for a tensor of a module of a class.
func (r *Run) saveOf(t *checkpoint.Array, class string, at Location) (string, error) {
	path, err := r.save(*t, class, at)
	if err != nil {
		return "", fmt.Errorf("save tensor %s: %w", t.Name, err)
	}
	return path, nil
}

func (r *Run) save(t checkpoint.Array, class string, at Location) (string, error) {
	if t.Name == "" {
		return "", errors.New("the name is empty")
	}
	r.hits[t.Name]++
	hit := r.hits[t.Name]
	if hit > 1 {
		if n, err := hooks.ParseName(t.Name); err == nil {
			n.Call += hit - 1
			t.Name = n.String()
		} else {
			t.Name = fmt.Sprintf("%s#%d", t.Name, hit-1)
		}
	}
	file := fileName(t.Name) + ".safetensors"
	if len(file) > 255 {
		return "", fmt.Errorf("the name is too long for a file, %d bytes", len(file))
	}
	if err := r.Tree.room(r.size, int64(len(t.Data))); err != nil {
		return "", err
	}
	rec := RecordOf(&t, at)
	rec.HitCount, rec.Class = hit, class
	text, err := json.Marshal(rec)
	if err != nil {
		return "", err
	}
	path := filepath.Join(r.Dir, "tensors", file)
	if err := checkpoint.WriteFile(path, []*checkpoint.Array{&t}, map[string]string{RecordKey: string(text)}); err != nil {
		return "", err
	}
	r.saved++
	r.size += int64(len(t.Data))
	if r.size > r.Tree.Warn && r.size-int64(len(t.Data)) <= r.Tree.Warn {
		r.Tree.warn("%s now holds %s of runs, the limit is %s", r.Tree.Root, units.Gigabytes(r.size), units.Gigabytes(r.Tree.Limit))
	}
	return path, nil
}

// fileName returns a tensor's name as a file name. Unusual bytes are written as %3A.
func fileName(name string) string {
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if letter || strings.IndexByte("_-@#=", c) >= 0 || c == '.' && i > 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// Trace appends a tensor that passed, saved or not, to traces/taps.jsonl.
func (r *Run) Trace(name, point string, shape []int, dtype string) error {
	return r.appendJSON(TraceFile, struct {
		Name  string `json:"name"`
		Point string `json:"point"`
		Shape []int  `json:"shape"`
		Dtype string `json:"dtype"`
	}{name, point, shape, dtype})
}

// A savedCheckpoint is the file of a checkpoint, with the keys of mflux's debugger.
type savedCheckpoint struct {
	Name      string         `json:"checkpoint_name"`
	HitCount  int            `json:"hit_count"`
	Timestamp string         `json:"timestamp"`
	Location  Location       `json:"location"`
	Context   *CodeContext   `json:"code_context,omitempty"`
	Metadata  map[string]any `json:"metadata,omitempty"`
	Variables map[string]any `json:"variables"`
}

// A CodeContext has the lines around a [Location], by number.
type CodeContext struct {
	StartLine int               `json:"start_line"`
	EndLine   int               `json:"end_line"`
	Lines     map[string]string `json:"lines"`
}

// A checkpoint's variables: tensors, and anything else.
type (
	tensorVariable struct {
		Type    string             `json:"type"`
		Shape   []int              `json:"shape"`
		Dtype   string             `json:"dtype"`
		Preview []checkpoint.Float `json:"preview"`
		Stats   checkpoint.Stats   `json:"stats"`
	}
	plainVariable struct {
		Type  string `json:"type"`
		Value any    `json:"value"`
	}
)

// Checkpoint writes the values of variables at a place of the program to
// checkpoints/checkpoint_NAME_hit001.json, where the number counts the calls, and returns the
// file. Of tensors (*checkpoint.Array) it writes shape, dtype, statistics and first values;
// everything else is written in full.
func (r *Run) Checkpoint(name string, variables, metadata map[string]any, at Location) (string, error) {
	if err := r.Tree.room(r.size, 0); err != nil {
		return "", fmt.Errorf("checkpoint %s: %w", name, err)
	}
	key := "checkpoint " + name // different from tensors' names
	r.hits[key]++
	c := savedCheckpoint{
		Name: name, HitCount: r.hits[key], Timestamp: time.Now().Format(timestamp), Location: at,
		Context: at.Context(), Metadata: metadata, Variables: map[string]any{},
	}
	c.Location.File = filepath.Base(at.File)
	for name, v := range variables {
		c.Variables[name] = plainVariable{fmt.Sprintf("%T", v), v}
		if tensor, ok := v.(*checkpoint.Array); ok {
			rec := RecordOf(tensor, at)
			c.Variables[name] = tensorVariable{"mlx.core.array", rec.Shape, "mlx.core." + rec.Dtype, rec.Preview, rec.Stats}
		}
	}
	file := filepath.Join("checkpoints", fmt.Sprintf("checkpoint_%s_hit%03d.json", fileName(name), c.HitCount))
	if err := r.write(file, c); err != nil {
		return "", fmt.Errorf("checkpoint %s: %w", name, err)
	}
	r.checkpoints++
	path := filepath.Join(r.Dir, file)
	if info, err := os.Stat(path); err == nil {
		r.size += info.Size()
	}
	return path, nil
}

// Context reads the lines around a place, or returns nil without the source file.
func (at Location) Context() *CodeContext {
	text, err := at.read()
	if err != nil {
		return nil
	}
	const around = 5
	lines := strings.Split(string(text), "\n")
	c := &CodeContext{max(1, at.Line-around), min(len(lines), at.Line+around), map[string]string{}}
	for n := c.StartLine; n <= c.EndLine; n++ {
		c.Lines[fmt.Sprint(n)] = lines[n-1]
	}
	return c
}

// read reads the source file of a place. The names in trimmed builds begin with a module's path. This module's
// may be in the working folder or one above it, and its networks are in the program; files of modules with a
// version are in the module cache.
func (at Location) read() ([]byte, error) {
	text, err := os.ReadFile(at.File)
	if err == nil {
		return text, nil
	}
	name := ShortFile(at.File)
	if name == at.File {
		cache := cmp.Or(os.Getenv("GOMODCACHE"), filepath.Join(cmp.Or(filepath.SplitList(build.Default.GOPATH)...), "pkg", "mod"))
		return os.ReadFile(filepath.Join(cache, filepath.FromSlash(at.File)))
	}
	for dir := "."; exists(filepath.Join(dir, "..")) && len(dir) < 100; dir = filepath.Join(dir, "..") {
		if exists(filepath.Join(dir, "go.mod")) {
			if text, err = os.ReadFile(filepath.Join(dir, name)); err == nil {
				return text, nil
			}
			break
		}
	}
	return fs.ReadFile(sources[path.Dir(name)], path.Base(name))
}

// sources are the source files in the program, by their folder.
var sources = map[string]embed.FS{
	"mlx/nn": nn.Source, "models": models.Source, "textenc": textenc.Source, "transformer": transformer.Source,
	"upscaler": upscaler.Source, "vae": vae.Source,
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// versions returns the versions that are known without MLX.
func versions() map[string]string {
	found := map[string]string{"go": runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		found[filepath.Base(info.Main.Path)] = info.Main.Version
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				found["revision"] = s.Value
			}
		}
	}
	return found
}

// gitState returns the commit of the working folder's repository and whether files differ from it,
// or nil outside of a repository.
func gitState() any {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(ctx, "git", args...).Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("rev-parse", "HEAD")
	if err != nil {
		return nil
	}
	status, err := git("status", "--porcelain")
	if err != nil {
		return nil
	}
	return map[string]any{"commit": commit, "dirty": status != ""}
}

// caller returns the first place up the stack that skip does not skip.
func caller(skip func(function string) bool) Location {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs)])
	for {
		f, more := frames.Next()
		if !skip(f.Function) {
			_, function, _ := strings.Cut(filepath.Base(f.Function), ".")
			return Location{f.File, f.Line, function}
		}
		if !more {
			return Location{}
		}
	}
}

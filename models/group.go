package models

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
)

// The ways to split the work of a run over the processes of a group.
const (
	SplitAuto     = "auto"     // passes, or sequence without guidance; stages if the model fits no process
	SplitPictures = "pictures" // each process generates images of its own, and knows nothing of the others
	SplitPasses   = "passes"   // the passes for prompt and negative prompt; of more than two processes each half has one
	SplitSequence = "sequence" // the tokens of the transformer
	SplitStages   = "stages"   // the blocks of transformer and text encoders, whose weights no other process has
)

// Splits are the values of Request.Split.
var Splits = []string{SplitAuto, SplitPictures, SplitPasses, SplitSequence, SplitStages}

// JoinGroup connects this process with those that were started together with it, as MLX's environment
// variables describe them. It returns nil for a process that is alone, without MLX_RANK.
func JoinGroup() (*mlx.Group, error) {
	rank := os.Getenv("MLX_RANK")
	if rank == "" {
		return nil, nil
	}
	if n, err := strconv.Atoi(rank); err != nil || n < 0 {
		return nil, errs.Requestf("environment variable MLX_RANK is %q: must be a number from 0", rank)
	}
	available := mlx.GroupBackends()
	for _, backend := range []struct{ name, variable string }{
		{"nccl", "NCCL_HOST_IP"}, {"jaccl", "MLX_IBV_DEVICES"}, {"ring", "MLX_HOSTFILE"},
	} {
		switch found := os.Getenv(backend.variable) != ""; {
		case found && slices.Contains(available, backend.name):
			return mlx.JoinGroup(backend.name)
		case found && backend.name != "nccl": // whose address a process with ring may have too
			return nil, fmt.Errorf("environment variable %s is for MLX's backend %s, which this library does not have (it has %s)",
				backend.variable, backend.name, strings.Join(available, ", "))
		}
	}
	return nil, errs.Requestf("MLX_RANK is set, but none of MLX_HOSTFILE, NCCL_HOST_IP and MLX_IBV_DEVICES: they tell where the other " +
		"processes are (gomflux launch sets them)")
}

// A division has the parts of a pipeline's group that compute something together in a split, nil without.
type division struct {
	passes   *mlx.Group // two members, of which the first has the pass for the prompt
	sequence *mlx.Group // the members that have the same pass
	stages   *mlx.Group // the members that run the blocks one after the other
}

// SplitOf returns how the pipeline's group generates the image of a request, one of Splits but SplitAuto,
// and the number of its members: "" and 0 for a process that is alone.
func (p *Pipeline) SplitOf(r *Request) (split string, members int, err error) {
	split = cmp.Or(r.Split, SplitAuto)
	if !slices.Contains(Splits, split) {
		return "", 0, errs.Requestf("split %q: expected one of %s", split, strings.Join(Splits, ", "))
	}
	if p.group == nil {
		if split != SplitAuto {
			err = errs.Requestf("split %s: this process is alone (gomflux launch starts several that compute together)", split)
		}
		return "", 0, err
	}
	n := p.group.Size()
	passes, sequence := p.checkPasses(r, n), p.checkSequence(r, n)
	switch split {
	case SplitPasses:
		err = passes
	case SplitSequence:
		err = sequence
	case SplitStages:
		err = p.checkStages(r, n)
	case SplitAuto:
		switch {
		case p.tooLarge && p.checkStages(r, n) == nil:
			split = SplitStages
		case passes == nil:
			split = SplitPasses
		default:
			split, err = SplitSequence, sequence
		}
	}
	return split, n, err
}

// checkPasses returns an error if n processes cannot share the passes of a request.
func (p *Pipeline) checkPasses(r *Request, n int) error {
	switch {
	case !p.UsesNegativePrompt(*r):
		return errs.Requestf("split passes: %s has one pass in each step at guidance %g (a guidance scale with a negative prompt has two)",
			p.Class, r.Guidance)
	case n%2 != 0:
		return errs.Requestf("split passes: there are two passes for %d processes (start an even number)", n)
	case n > 2:
		return p.checkSequence(r, n/2)
	}
	return nil
}

// checkSequence returns an error if n processes cannot share the transformer's sequence.
func (p *Pipeline) checkSequence(r *Request, n int) error {
	if tokens := p.tokens(r.Height, r.Width); tokens < n {
		return errs.Requestf("split sequence: an image of %dx%d has %d tokens for %d processes (generate %d images or more: "+
			"--split pictures)", r.Width, r.Height, tokens, n, n)
	}
	return nil
}

// checkStages returns an error if n processes cannot each have a part of the transformer's blocks.
func (p *Pipeline) checkStages(r *Request, n int) error {
	if r.Hook != nil {
		return errs.Requestf("split stages: no process has all values for a hook (use one that is alone, or split passes or sequence)")
	}
	blocks := 0
	if s := p.declared.Transformer().Staged(); s != nil {
		blocks = len(s.StageBlocks())
	}
	if blocks < n {
		return errs.Requestf("split stages: the transformer of %s has %d blocks for %d processes (start fewer)", p.Class, blocks, n)
	}
	return nil
}

// chooseStages makes runs that choose their split use stages, if some process has not enough memory for a whole
// component, and all have enough for a stage. All members of the group call it at once.
func (p *Pipeline) chooseStages(runs []*Run, batch int, warn func(string)) error {
	if p.group == nil {
		return nil
	}
	runs = slices.DeleteFunc(slices.Clone(runs), func(r *Run) bool {
		return !r.automatic || p.checkStages(&r.Request, p.group.Size()) != nil
	})
	type memory struct{ Free, Whole, Stage int64 }
	own, least := memory{Free: p.available()}, leastMemory
	for _, r := range runs {
		r.batch = max(1, batch)
		own.Whole = max(own.Whole, r.estimate(least, p.loader.Quantize).Peak())
		staged := r.changed(func(r *Run) { r.Split = SplitStages })
		own.Stage = max(own.Stage, staged.estimate(least, p.loader.Quantize).Peak())
	}
	all, err := gather(p.group, own)
	if err != nil {
		return err
	}
	lacks := -1
	for rank, m := range all {
		if m.Free > 0 && m.Whole > m.Free && (lacks < 0 || m.Free < all[lacks].Free) {
			lacks = rank
		}
	}
	if lacks < 0 || slices.ContainsFunc(all, func(m memory) bool { return m.Free > 0 && m.Stage > m.Free }) {
		return nil
	}
	p.tooLarge = true
	for _, r := range runs {
		r.Split = SplitStages
		r.findCached()
	}
	if m := all[lacks]; warn != nil && p.group.Rank() == 0 {
		warn(fmt.Sprintf("the model needs about %s of memory, and %s are free on rank %d: its blocks are split over %d processes, each "+
			"of which needs about %s (split stages)", units.About(m.Whole), units.About(m.Free), lacks, len(all), units.About(m.Stage)))
	}
	return nil
}

// gather returns what each member of a group passes, in the order of the members. All call it at once.
func gather[T any](g *mlx.Group, own T) ([]T, error) {
	text, err := json.Marshal(own)
	all := make([]T, g.Size())
	for rank, text := range g.Gather(text) {
		err = cmp.Or(err, json.Unmarshal(text, &all[rank]))
	}
	return all, err
}

// divide returns the parts of the group for a split. All members call it at once.
func (p *Pipeline) divide(split string) division {
	d, ok := p.divisions[split]
	if ok || p.group == nil {
		return d
	}
	n := p.group.Size()
	switch {
	case split == SplitSequence:
		d.sequence = p.group
	case split == SplitStages:
		d.stages = p.group
	case split == SplitPasses && n == 2:
		d.passes = p.group
	case split == SplitPasses:
		var pairs [][]int // of a ring these are neighbours: 0 and 3, 1 and 2
		halves := make([][]int, 2)
		for i := range n {
			halves[2*i/n] = append(halves[2*i/n], i)
			if i < n/2 {
				pairs = append(pairs, []int{i, n - 1 - i})
			}
		}
		d.passes, d.sequence = p.group.Split(pairs), p.group.Split(halves)
	}
	p.divisions[split] = d
	return d
}

// A Field is something that all members of a group must have in common.
type Field struct{ Name, Value string }

// A GroupError is an error of processes that compute together. All have got it at the same time and can go on, unless it
// is Broken: then the others wait for this process until it ends.
type GroupError struct {
	Err    error
	Broken bool
}

func (e *GroupError) Error() string { return e.Err.Error() }
func (e *GroupError) Unwrap() error { return e.Err }

// Agree returns an error unless all members of a group have the same fields and none has an error. It names the
// first field that differs, or else the error, and the member. All members call it at once, on the MLX thread, and
// get a [GroupError]. An error that is one, which they know, it returns as it is.
func Agree(g *mlx.Group, fields []Field, failed error) error {
	if _, known := errors.AsType[*GroupError](failed); known {
		return failed
	}
	type member struct {
		Host    string
		Fields  []Field
		Error   string
		Request bool // it is an errs.ErrRequest
	}
	var text []byte
	if len(fields) > 0 || failed != nil {
		own := member{Fields: fields}
		own.Host, _ = os.Hostname()
		if failed != nil {
			own.Error, own.Request = failed.Error(), errors.Is(failed, errs.ErrRequest)
		}
		text, _ = json.Marshal(own) // only texts
	}
	all := make([]member, g.Size())
	for rank, text := range g.Gather(text) {
		m := &all[rank]
		if err := json.Unmarshal(text, m); len(text) > 0 && err != nil {
			return fmt.Errorf("rank %d runs another version of gomflux: %w", rank, err)
		}
		if failed == nil && m.Error != "" {
			if failed = fmt.Errorf("rank %d (%s): %s", rank, m.Host, m.Error); m.Request {
				failed = errs.Request(failed)
			}
		}
	}
	if failed != nil {
		return &GroupError{Err: failed}
	}
	first := all[0]
	for rank, m := range all {
		for i := range max(len(first.Fields), len(m.Fields)) {
			a, b := at(first.Fields, i), at(m.Fields, i)
			if a != b {
				show := func(f Field) string { return quote.Printable(fmt.Sprintf("%.60s", cmp.Or(f.Value, "none"))) }
				return &GroupError{Err: errs.Requestf("the processes differ in %s: %s on rank 0 (%s), and %s on rank %d (%s)",
					cmp.Or(a.Name, b.Name), show(a), first.Host, show(b), rank, m.Host)}
			}
		}
	}
	return nil
}

func at(fields []Field, i int) (f Field) {
	if i < len(fields) {
		f = fields[i]
	}
	return f
}

// agreeOnModel compares the model and the runs that it is loaded for with those of the other processes of
// the group, before weights are read.
func (p *Pipeline) agreeOnModel(runs []*Run, o LoadOptions) error {
	if p.group == nil {
		return nil
	}
	var q mlx.Quantization // none
	if o.Quantize != nil {
		q = *o.Quantize
	}
	fields := []Field{{"pipeline", p.Class}, {"device", p.device.String()}, {"dtype", p.dtype.String()},
		{"quantization", fmt.Sprintf("%d bits in groups of %d %s", q.Bits, q.Group, q.Mode)}}
	for _, c := range p.declared.Components {
		fields = append(fields, Field{"the files of " + c.Dir, p.files[c.Dir]})
	}
	for _, l := range o.LoRAs {
		dir, name := path.Split(l.Path)
		f, err := checkpoint.Open(os.DirFS(cmp.Or(dir, ".")), name)
		if err != nil {
			return err
		}
		sum, err := sampleHash(nil, f)
		f.Close()
		if err != nil {
			return err
		}
		fields = append(fields, Field{"LoRA " + name, fmt.Sprintf("%s times %g, baked %t", sum, l.Scale, !o.RuntimeLoRA)})
	}
	for _, r := range runs {
		fields = append(fields, r.fields()...)
	}
	return Agree(p.group, fields, nil)
}

// sampleHash identifies a component by its config and samples of its files.
func sampleHash(config []byte, files ...*checkpoint.File) (string, error) {
	h := sha256.New()
	h.Write(config)
	for _, f := range files {
		if err := f.WriteSample(h); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// identify notes what the files of a component are, for agreeOnModel.
func (p *Pipeline) identify(c component.Component, ck *checkpoint.Checkpoint) (err error) {
	if p.group == nil {
		return nil
	}
	const most = 1 << 20 // bytes of a config, which the model has been declared by
	config, err := checkpoint.ReadFile(p.loader.FS, path.Join(c.Dir, component.ConfigFile), most)
	if err == nil {
		p.files[c.Dir], err = sampleHash(config, ck.Files...)
	}
	return err
}

// fields lists everything that a run depends on, except its model and its seeds.
func (r *Run) fields() (fields []Field) {
	request := reflect.ValueOf(r.Request)
	for i := range request.NumField() {
		f := request.Type().Field(i)
		switch f.Type.Kind() {
		case reflect.String, reflect.Int, reflect.Float64, reflect.Bool:
			fields = append(fields, Field{"the field " + f.Name, fmt.Sprint(request.Field(i))})
		}
	}
	sum := sha256.New()
	if r.Image != nil {
		hash := r.Conversions.convert(r.Autoencoder, r.Image).hash
		sum.Write(hash[:])
	}
	for _, img := range r.references() {
		sum.Write(img.hash[:])
	}
	if r.mask != nil {
		sum.Write(r.mask.Pix)
	}
	fields = append(fields, Field{"the input images", hex.EncodeToString(sum.Sum(nil)[:8])},
		Field{"the guidance interval", fmt.Sprint(r.GuidanceInterval)}, Field{"the noise schedule", fmt.Sprint(r.schedule.Timesteps)})
	for _, prompt := range r.prompts {
		for _, t := range prompt.tokens {
			fields = append(fields, Field{"the tokens of the " + prompt.label, fmt.Sprint(t.Count)})
		}
	}
	return fields
}

// joinSplit prepares the run for the split of its group, and compares it with that of the other processes.
func (r *Run) joinSplit(seeds []uint64) error {
	r.division = r.divide(r.Split)
	if r.division == (division{}) {
		return nil
	}
	return Agree(r.group, append(r.fields(), Field{"the seeds", fmt.Sprint(seeds)}), nil)
}

// goOn returns an error unless all processes that share the run go on. This one does not if it has an error, or is
// asked to stop.
func (r *Run) goOn(err error) error {
	if r.division == (division{}) {
		return err
	}
	if err == nil && r.Stopped != nil {
		err = r.Stopped()
	}
	return Agree(r.group, nil, err)
}

// divideRows makes the members of the group divide the rows of images in the autoencoder, until end is called.
// Without it this process encodes and decodes alone, as for a preview.
func (r *Run) divideRows() (end func()) {
	r.vae.SetGroup(r.rows())
	return func() { r.vae.SetGroup(nil) }
}

// rows returns the group whose members divide the rows of images, nil if the image must be that of one process bit for bit.
func (r *Run) rows() *mlx.Group {
	if r.Split == SplitPictures || r.Split == SplitStages || r.Split == SplitPasses && r.group.Size() == 2 {
		return nil
	}
	return r.group
}

// allHave reports whether all processes that encode an image together have its latents already.
func (r *Run) allHave(own bool) bool {
	if g := r.rows(); g != nil {
		all, _ := gather(g, own)
		own = !slices.Contains(all, false)
	}
	return own
}

// own returns the prompts whose passes this process computes.
func (r *Run) own() []*prompt {
	if r.passes == nil {
		return r.prompts
	}
	return r.prompts[r.passes.Rank():][:1]
}

// exchange returns the predictions [B, C, h, w] of both passes, of which this process has computed its own.
func (r *Run) exchange(own *mlx.Array) (positive, negative *mlx.Array) {
	both, n := r.passes.AllGather(own), own.Dim(0)
	return both.Slice(0, 0, n), both.Slice(0, n, 2*n)
}

// agreeOnSkipped exchanges the steps that step caches left out, of which a process knows those of its own
// pass.
func (r *Run) agreeOnSkipped() error {
	if r.passes == nil || r.StepCache == "" {
		return nil
	}
	own := r.skipped
	if r.passes.Rank() > 0 {
		own = r.skippedNegative
	}
	all, err := gather(r.passes, own)
	r.skipped, r.skippedNegative = all[0], all[1]
	return err
}

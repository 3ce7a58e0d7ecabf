package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/inspect"
)

type pullOptions struct {
	revision               string
	files                  []string
	offline, dryRun, check bool
	asJSON, quiet          bool
}

func newPullCommand() *cobra.Command {
	var o pullOptions
	cmd := &cobra.Command{
		Use:   "pull NAME[@REVISION][:FILE]",
		Short: "Fetch a model from the Hugging Face hub",
		Long: `Pull fetches a published model into the Hugging Face cache, which it shares with
other programs: what one has fetched, all use. NAME is a short name, one of its
aliases, or owner/name; gomflux models lists the known ones. REVISION is a
branch, a tag or a commit, and main if it is not given.

Only what a model is loaded from is fetched: model_index.json and, of each
component that it names, configs, tokenizer and safetensors files, in one
variant; and the model's card and licence. There must be space on the disk for
all of it before anything is fetched. What it will take in memory is compared
with what this machine has, and a warning says what would make it fit.

With :FILE it is one file of the repository, for --lora NAME:FILE or as a model
of a single file for --model NAME:FILE; --file can be repeated for several. The
config beside it, the card and the licence come with it. A repository of a LoRA
needs no name of a file: there the LoRA is chosen.

Large files come in parts, over several connections. A connection that is cut is
tried again, and a pull that was interrupted, killed or cut off goes on where it
ended when it is started again. Every file is compared with the hash that the
hub has for it, and a model is there when all of its files are.

The folder, or the file, is printed on standard output, progress on standard
error. With --json there are lines of JSON instead, by message_type:

  start      what will be fetched
             repo, revision, commit, licence, files (path, bytes)
             bytes, bytes_here: of all files, and what is here of them
  progress   bytes, total_bytes: what is here, of all
             bytes_per_second, seconds_left: 0 while they are not known
             waiting_for: a file that another process is fetching
  model      it is here
             repo, revision, commit, path, bytes, fetched_bytes, seconds
  warning    message
  error      message, exit_code; it is the last line

Gated models are fetched with a token of somebody who has accepted their
conditions on their page: HF_TOKEN, or the token that hf auth login has stored.
It is sent to the hub only. gomflux help environment has other variables.
` + exitStatus,
		Example: `  gomflux pull z-image-turbo
  gomflux pull me/my-model@main --dry-run
  gomflux pull me/my-loras:ink.safetensors`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			p := &pullPrinter{stdout: cmd.OutOrStdout(), stderr: cmd.ErrOrStderr(), json: o.asJSON, quiet: o.quiet}
			err := o.run(cmd.Context(), args[0], p)
			if err != nil && o.asJSON {
				(&printer{stdout: p.stdout, json: true}).failed(err)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.revision, "revision", "", "the `branch`, tag or commit, as after @")
	f.StringArrayVar(&o.files, "file", nil, "fetch this file (`name`) of the repository only, as after a colon (can be repeated)")
	f.BoolVar(&o.offline, "offline", false, "ask nobody: only say whether it is here (HF_HUB_OFFLINE=1 does it too)")
	f.BoolVar(&o.dryRun, "dry-run", false, "say what would be fetched, and fetch nothing")
	f.BoolVar(&o.check, "verify", false, "compare the files that are here with their hashes too, and fetch damaged ones again")
	f.BoolVar(&o.asJSON, "json", false, "print lines of JSON")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "say nothing but the folder, warnings and errors")
	return cmd
}

// oneName is for commands about one model.
func oneName(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return usageErrorf("give a model's name (gomflux models lists them)")
	case len(args) > 1:
		return usageErrorf("unexpected argument %q", args[1])
	}
	return nil
}

// publishedName takes an argument apart that must name a published model.
func publishedName(name string) (repo, revision string, preset *family.Model, err error) {
	if _, ok := catalog.Builtins()[name]; ok {
		return "", "", nil, usageErrorf("%s is built in, and always here", name)
	}
	repo, revision, preset = catalog.Published(name)
	if repo == "" {
		return "", "", nil, usageErrorf("%q is no published model: it is no owner/name[@revision], and none of those that gomflux models lists", name)
	}
	return repo, revision, preset, nil
}

// run fetches a model.
func (o *pullOptions) run(ctx context.Context, name string, p *pullPrinter) error {
	name, file, colon := strings.Cut(name, ":")
	repo, revision, preset, err := publishedName(name)
	if err != nil {
		return err
	}
	files := o.files
	if colon {
		files = append([]string{file}, files...)
	}
	for _, file := range files {
		if _, _, _, ok := hub.ParseAddress(hub.Address(repo, "", file)); !ok || file == "" {
			return usageErrorf("%q is not the name of a file in a repository", file)
		}
	}
	if o.revision != "" {
		if revision != "" {
			return usageErrorf("the revision is given twice, as %s and with --revision", name)
		}
		if !hub.IsRevision(o.revision) {
			return usageErrorf("--revision: %q is not the name of a revision", o.revision)
		}
		revision = o.revision
	}
	if o.offline || hub.Offline() {
		return o.here(repo, revision, files, p)
	}
	client, err := hub.NewClient()
	if err != nil {
		return coded(exitUsage, err)
	}
	client.UserAgent = "gomflux/" + gomflux.Version()
	info, err := client.Info(ctx, repo, revision)
	if err != nil {
		return hubError(err)
	}
	plan, err := client.Plan(ctx, info, o.check, files...)
	if errors.Is(err, hub.ErrSeveral) {
		return usageErrorf("%w (such as gomflux pull %s:FILE)", err, hub.Address(repo, revision, ""))
	}
	if err != nil {
		return hubError(err)
	}
	if preset != nil {
		info.Licence = cmp.Or(preset.Licence, info.Licence)
	}
	p.start(plan)
	if len(files) == 0 {
		o.warn(ctx, plan, p)
	}
	if o.dryRun {
		return p.unwritten()
	}
	began := time.Now()
	folder, err := client.Pull(ctx, plan, p.begin(plan))
	p.end()
	switch {
	case errors.Is(err, errInterrupted):
		again := "gomflux pull " + hub.Address(repo, revision, "")
		if len(files) == 1 {
			again += ":" + files[0]
		}
		if len(files) > 1 {
			again = "the same command"
		}
		p.say("what has been fetched is kept: %s goes on from there", again)
		return err
	case errors.Is(err, hub.ErrSpace), errors.Is(err, hub.ErrNoAccess):
		return hubError(err)
	case err != nil:
		return hubError(fmt.Errorf("%w (what has been fetched is kept: the same command goes on from there)", err))
	}
	if len(files) == 1 {
		folder = filepath.Join(folder, filepath.FromSlash(files[0]))
	}
	return p.done(plan, folder, time.Since(began))
}

// hubError gives an error of the hub its exit code.
func hubError(err error) error {
	if errors.Is(err, hub.ErrNoAccess) || errors.Is(err, hub.ErrFormat) {
		return coded(exitModel, err)
	}
	return err
}

// here is what a pull does when it may ask nobody.
func (o *pullOptions) here(repo, revision string, files []string, p *pullPrinter) error {
	folder, err := whole(repo, revision, files)
	if err != nil {
		return coded(exitModel, fmt.Errorf("%w (offline, so nothing is fetched)", err))
	}
	size := int64(0)
	for _, file := range files {
		if info, err := os.Stat(filepath.Join(folder, filepath.FromSlash(file))); err == nil {
			size += info.Size()
		}
	}
	if len(files) == 0 {
		size = inspect.Model(os.DirFS(folder)).Size
	}
	path := folder
	if len(files) == 1 {
		path = filepath.Join(folder, filepath.FromSlash(files[0]))
	}
	if p.json {
		p.line(jsonPulled{MessageType: "model", Repo: repo, Revision: cmp.Or(revision, "main"), Commit: filepath.Base(folder), Path: path, Bytes: size})
		return p.failed
	}
	_, err = fmt.Fprintln(p.stdout, path)
	return err
}

// whole is the snapshot of a model that is here, a LoRA, or some files.
func whole(repo, revision string, files []string) (folder string, err error) {
	for _, file := range files {
		if _, err := hub.FindFile(repo, revision, file); err != nil {
			return "", err
		}
	}
	if len(files) > 0 {
		return hub.Find(repo, revision)
	}
	s, err := gomflux.Find(hub.Address(repo, revision, ""))
	if err != nil {
		return "", err
	}
	incomplete := inspect.Model(s.FS()).Incomplete
	if _, err := catalog.FindLoRA(s.Path()); incomplete != nil && !isPipeline(s.Path()) && err == nil {
		incomplete = nil
	}
	return s.Path(), incomplete
}

// warn of what will be fetched to no use on this machine.
func (o *pullOptions) warn(ctx context.Context, plan *hub.Plan, p *pullPrinter) {
	var index struct {
		Class string `json:"_class_name"`
	}
	sizes, files := map[string]int64{}, 0
	for _, f := range plan.Files {
		if strings.HasSuffix(f.Path, ".safetensors") {
			sizes[path.Dir(f.Path)] += f.Size
			files++
		}
	}
	_, parts := sizes["transformer"]
	switch none := plan.Index == nil && !plan.Adapter; {
	case none && parts: // as mflux saves it
		p.warn("%s has no model_index.json: what it does not have is taken from the model that it is made from, which has to be here too", plan.Info.Repo)
	case none && files == 1 && sizes["."] > 0:
		p.warn("%s has no model_index.json but one file: if that is no LoRA, but a model, what it does not have is taken from the model that it is made from, which has to be here too", plan.Info.Repo)
	case none:
		p.warn("%s has no model_index.json: it is no pipeline in the layout of Hugging Face diffusers", plan.Info.Repo)
	case plan.Index != nil && json.Unmarshal(plan.Index, &index) == nil && !slices.Contains(family.Classes(), index.Class):
		p.warn("%s is a %s, which this version does not run", plan.Info.Repo, quote.Printable(index.Class))
	}
	if text := fitWarning(sizes, parts && plan.Index == nil, memoryForModels(ctx)); text != "" {
		p.warn("%s", text)
	}
}

// memoryForModels is that of the device that models run on, in bytes; 0 if it is
// not known.
func memoryForModels(ctx context.Context) (n int64) {
	n = int64(systemMemory())
	if _, err := mlx.Open(); err != nil {
		return n
	}
	mlx.Do(ctx, func() error { // if it fails, it is that of the system
		for _, d := range mlx.Devices() {
			if d.Device == mlx.GPU && d.Memory > 0 {
				n = int64(d.Memory)
			}
		}
		return nil
	})
	return n
}

// fitWarning compares the weights of a pipeline's components, by their folders
// and in bytes, with a device's memory, and says by which flags they would fit.
// The sizes of files are all that is known before the first byte is fetched: a
// weight that can be quantized is taken to have 16 bits in them, unless they are
// mflux's, which are quantized as a rule.
func fitWarning(sizes map[string]int64, quantized bool, memory int64) string {
	ways := []struct {
		flags string
		part  float64 // of the weights
		one   bool    // at a time
	}{
		{"", 1, false}, {"--low-ram", 1, true}, {"-q 8", 8.5 / 16, false}, {"-q 8 --low-ram", 8.5 / 16, true}, {"-q 4", 4.5 / 16, false}, {"-q 4 --low-ram", 4.5 / 16, true},
	}
	var all int64
	for _, n := range sizes {
		all += n
	}
	var fitting []string
	for _, way := range ways {
		if quantized && way.part < 1 {
			break
		}
		var sum, largest, always float64
		for dir, n := range sizes {
			switch {
			case dir == "vae":
				always += float64(n)
			default:
				sum += float64(n) * way.part
				largest = max(largest, float64(n)*way.part)
			}
		}
		need := always + sum
		if way.one {
			need = always + largest
		}
		need *= 1.25 // what is computed with them
		if int64(need) > memory {
			continue
		}
		if way.flags == "" {
			return ""
		}
		fitting = append(fitting, fmt.Sprintf("%s (about %s)", way.flags, units.Bytes(int64(need))))
		if !way.one || len(fitting) == 2 {
			break
		}
	}
	if memory == 0 || all == 0 {
		return ""
	}
	text := fmt.Sprintf("its weights are %s, and this machine has %s of memory for them and what is computed with them: ", units.Bytes(all), units.Bytes(memory))
	if len(fitting) == 0 {
		least := ways[len(ways)-1].flags
		if quantized {
			least = "--low-ram"
		}
		return text + "they do not fit, even with " + least
	}
	return text + "they fit with " + strings.Join(fitting, " or ")
}

// The lines of --json. Fields are only ever added.
type (
	jsonPullStart struct {
		MessageType string         `json:"message_type"` // start
		Repo        string         `json:"repo"`
		Revision    string         `json:"revision"`
		Commit      string         `json:"commit"`
		Licence     string         `json:"licence,omitempty"`
		Files       []jsonPullFile `json:"files"`
		Bytes       int64          `json:"bytes"`
		BytesHere   int64          `json:"bytes_here"`
	}
	jsonPullFile struct {
		Path  string `json:"path"`
		Bytes int64  `json:"bytes"`
	}
	jsonPullProgress struct {
		MessageType    string  `json:"message_type"` // progress
		Bytes          int64   `json:"bytes"`
		TotalBytes     int64   `json:"total_bytes"`
		BytesPerSecond float64 `json:"bytes_per_second"`
		SecondsLeft    float64 `json:"seconds_left"`
		WaitingFor     string  `json:"waiting_for,omitempty"`
	}
	jsonPulled struct {
		MessageType  string  `json:"message_type"` // model
		Repo         string  `json:"repo"`
		Revision     string  `json:"revision"`
		Commit       string  `json:"commit"`
		Path         string  `json:"path"`
		Bytes        int64   `json:"bytes"`
		FetchedBytes int64   `json:"fetched_bytes"`
		Seconds      float64 `json:"seconds"`
	}
)

// A pullPrinter says how a pull goes.
type pullPrinter struct {
	stdout, stderr io.Writer
	json, quiet    bool

	failed error // of standard output, the first
	bars   *mpb.Progress
	bar    *mpb.Bar
	rate   rate
	told   time.Time
}

func (p *pullPrinter) line(v any) {
	if err := writeJSON(p.stdout, v); p.failed == nil {
		p.failed = err
	}
}

func (p *pullPrinter) unwritten() error { return p.failed }

// say is for people.
func (p *pullPrinter) say(format string, args ...any) {
	if !p.json && !p.quiet {
		fmt.Fprintf(p.stderr, format+"\n", args...)
	}
}

func (p *pullPrinter) warn(format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	if p.json {
		p.line(jsonMessage{MessageType: "warning", Message: message})
		return
	}
	warnings{p.stderr}.warn("%s", message)
}

// start says what will be fetched.
func (p *pullPrinter) start(plan *hub.Plan) {
	info := plan.Info
	if p.json {
		line := jsonPullStart{"start", info.Repo, info.Revision, info.Commit, info.Licence, nil, plan.Bytes, plan.Here}
		for _, f := range plan.Files {
			line.Files = append(line.Files, jsonPullFile{f.Path, f.Size})
		}
		p.line(line)
		return
	}
	text := fmt.Sprintf("%s@%s (%.12s): %s, %s", info.Repo, info.Revision, info.Commit, plural(len(plan.Files), "file"), units.Bytes(plan.Bytes))
	if plan.Here > 0 {
		text += fmt.Sprintf(", %s of it here", units.Bytes(plan.Here))
	}
	if info.Licence != "" {
		text += "; licence " + quote.Printable(info.Licence)
	}
	p.say("%s", text)
}

// begin starts to show progress, and returns what is told of it.
func (p *pullPrinter) begin(plan *hub.Plan) func(hub.Progress) {
	p.rate = rate{}
	switch f, ok := p.stderr.(*os.File); {
	case p.json:
		return func(pr hub.Progress) {
			p.rate.add(time.Now(), pr.Here)
			if time.Since(p.told) < time.Second/2 && pr.Here < pr.Bytes {
				return
			}
			p.told = time.Now()
			per := p.rate.perSecond()
			p.line(jsonPullProgress{"progress", pr.Here, pr.Bytes, per, milliseconds(timeLeft(pr.Bytes-pr.Here, per)), pr.Waiting})
		}
	case p.quiet || plan.Complete() || !ok || !term.IsTerminal(int(f.Fd())):
		return nil
	}
	p.bars = mpb.New(mpb.WithOutput(p.stderr), mpb.WithWidth(24), mpb.WithRefreshRate(redraw))
	var text atomic.Value // the line is drawn on a goroutine of its own
	text.Store("")
	left := decor.Any(func(decor.Statistics) string { return "fetch" })
	right := decor.Any(func(decor.Statistics) string { return text.Load().(string) })
	// a bar that is full ends itself, so the total is one more
	p.bar, _ = p.bars.Add(plan.Bytes+1, mpb.BarStyle().Build(), mpb.PrependDecorators(left), mpb.AppendDecorators(right))
	return func(pr hub.Progress) {
		p.rate.add(time.Now(), pr.Here)
		if p.bar != nil {
			text.Store(p.rate.text(pr))
			p.bar.SetCurrent(pr.Here)
		}
	}
}

// end removes the changing line.
func (p *pullPrinter) end() {
	if p.bars == nil {
		return
	}
	if p.bar != nil {
		p.bar.Abort(true)
	}
	p.bars.Wait()
	p.bars = nil
}

// done says that the model is here.
func (p *pullPrinter) done(plan *hub.Plan, folder string, took time.Duration) error {
	fetched := plan.Missing()
	if p.json {
		p.line(jsonPulled{"model", plan.Info.Repo, plan.Info.Revision, plan.Info.Commit, folder, plan.Bytes, fetched, milliseconds(took)})
		return p.failed
	}
	if fetched > 0 {
		p.say("fetched %s in %s, %s/s", units.Bytes(fetched), seconds(took), units.Bytes(int64(float64(fetched)/max(took.Seconds(), 1e-3))))
	}
	_, err := fmt.Fprintln(p.stdout, folder)
	return err
}

// A rate is how fast something grows, over the last seconds.
type rate struct{ samples []sample }

type sample struct {
	at time.Time
	n  int64
}

// window is how far back a rate looks.
const window = 10 * time.Second

func (r *rate) add(now time.Time, n int64) {
	if len(r.samples) > 0 && n < r.samples[len(r.samples)-1].n {
		r.samples = nil // a damaged file begins again
	}
	r.samples = append(r.samples, sample{now, n})
	for len(r.samples) > 2 && now.Sub(r.samples[1].at) >= window {
		r.samples = r.samples[1:]
	}
}

// perSecond is 0 while it is not known.
func (r *rate) perSecond() float64 {
	if len(r.samples) < 2 {
		return 0
	}
	first, last := r.samples[0], r.samples[len(r.samples)-1]
	if last.at.Sub(first.at) < time.Second/2 {
		return 0
	}
	return float64(last.n-first.n) / last.at.Sub(first.at).Seconds()
}

func (r *rate) text(pr hub.Progress) string {
	text := fmt.Sprintf("%s of %s", units.Bytes(pr.Here), units.Bytes(pr.Bytes))
	if per := r.perSecond(); per > 0 {
		text += fmt.Sprintf(", %s/s", units.Bytes(int64(per)))
		if left := timeLeft(pr.Bytes-pr.Here, per); left > 0 {
			text += fmt.Sprintf(", %s left", seconds(left))
		}
	}
	if pr.Waiting != "" {
		text += ", waiting for another process"
	}
	return text
}

// timeLeft is 0 while it is not known.
func timeLeft(n int64, perSecond float64) time.Duration {
	if perSecond <= 0 {
		return 0
	}
	return time.Duration(min(float64(n)/perSecond, 1e6) * float64(time.Second))
}

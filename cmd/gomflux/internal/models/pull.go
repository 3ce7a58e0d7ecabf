package models

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/inspect"
)

const pullHelp = `Pull downloads a published model into the Hugging Face cache, which it shares
with other programs. NAME is a short name, an alias, or owner/name; gomflux
models lists the known ones. REVISION is a branch, a tag or a commit; the
default is main.

Only the files that a model is loaded from are downloaded: model_index.json, the
configs, tokenizer and safetensors files (one variant) of each component, the
model card and the licence. The disk must have space for all of them. Pull warns
if the model will not fit into memory, and names the flags that make it fit.

With :FILE only one file of the repository is downloaded, for --lora NAME:FILE
or as a single-file model for --model NAME:FILE, with the config next to it, the
card and the licence; --file can be repeated for more. The repository of a LoRA
needs no :FILE; the LoRA is found.

Large files are downloaded in parts over several connections, and retried when a
connection breaks. An interrupted pull resumes when it is started again. Every
file is checked against the hash that the hub has for it. A model appears when
all of its files are complete.

A licence that restricts commercial use is a warning before the download begins.
Gated models need a token of an account that has accepted their conditions on
their page: HF_TOKEN, or the token that hf auth login has stored. It is sent to
the hub only. gomflux help environment lists other variables.

JSON
The folder or file is printed on standard output, progress on standard error.
With --json there are lines of JSON instead, by message_type:

  start      before the download
             repo, revision, commit, gated, files (path, bytes)
             licence, licence_url, commercial_use, licence_terms: as with
             gomflux models --json
             bytes, bytes_here: size of all files, and downloaded so far
  progress   bytes, total_bytes: downloaded so far, and of all files
             bytes_per_second, seconds_left: 0 while unknown
             waiting_for: file that another process downloads
  model      the download is complete
             repo, revision, commit, path, bytes, fetched_bytes, seconds
  warning    message
  error      message, exit_code; always the last line
` + cli.ExitStatus

// pullOptions are the flags of gomflux pull.
type pullOptions struct {
	cli.OutputFlags
	revision                string
	files                   []string
	offline, dryRun, verify bool
}

func NewPullCommand() *cobra.Command {
	var o pullOptions
	cmd := &cobra.Command{
		Use:   "pull NAME[@REVISION][:FILE]",
		Short: "Download a model from the Hugging Face hub",
		Long:  pullHelp,
		Example: `  gomflux pull z-image-turbo
  gomflux pull me/my-model@main --dry-run
  gomflux pull me/my-loras:ink.safetensors`,
		Args: oneName,
		RunE: o.Lines(func(cmd *cobra.Command, out *ui.Output, args []string) error {
			t, err := o.validate(args[0])
			if err != nil {
				return err
			}
			return o.run(cmd.Context(), out, t)
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.revision, "revision", "", "`branch`, tag or commit, as after @")
	f.StringArrayVar(&o.files, "file", nil, "download only this file (`name`) of the repository, as after a colon (can be repeated)")
	f.BoolVar(&o.offline, "offline", false, "use no network: only check that the model is downloaded (same as HF_HUB_OFFLINE=1)")
	f.BoolVar(&o.dryRun, "dry-run", false, "show what would be downloaded, and download nothing")
	f.BoolVar(&o.verify, "verify", false, "check existing files against their hashes too, and download damaged ones again")
	o.AddJSON(f, "JSON lines")
	o.AddQuiet(f, "q", "the folder, warnings and errors")
	return cmd
}

// oneName takes the name of a model.
var oneName = cli.OneArg("a model's name (gomflux models lists them)")

// publishedName splits the name of a published model.
func publishedName(name string) (repo, revision string, preset *family.Model, err error) {
	if _, ok := catalog.Builtins()[name]; ok {
		return "", "", nil, cli.UsageErrorf("%s is built in, so it cannot be downloaded or removed", name)
	}
	if m := catalog.PublishedUpscaler(name); m != nil {
		return m.Repo, "", nil, nil
	}
	repo, revision, preset = catalog.Published(name)
	if repo == "" {
		const expected = "expected owner/name[@revision], or a name that gomflux models lists"
		return "", "", nil, cli.UsageErrorf("%q is not a published model (%s)", name, expected)
	}
	return repo, revision, preset, nil
}

// A pullTarget is a model or some files of a repository.
type pullTarget struct {
	repo, revision string
	files          []string      // empty for a model
	preset         *family.Model // nil if the model has no short name
}

// path returns the target's path in the folder of its snapshot.
func (t *pullTarget) path(folder string) string {
	if len(t.files) != 1 {
		return folder
	}
	return filepath.Join(folder, filepath.FromSlash(t.files[0]))
}

// again returns the command that resumes a download.
func (t *pullTarget) again() string {
	command := "gomflux pull " + hub.Address(t.repo, t.revision, "")
	switch len(t.files) {
	case 0:
		return command
	case 1:
		return command + ":" + t.files[0]
	}
	return "the same command"
}

// validate reads the argument, and refuses flags that do not fit it.
func (o *pullOptions) validate(arg string) (*pullTarget, error) {
	var more []string
	if m := catalog.PublishedUpscaler(arg); m != nil {
		arg, more = m.Address(), m.More
	}
	name, file, colon := strings.Cut(arg, ":")
	repo, revision, preset, err := publishedName(name)
	if err != nil {
		return nil, err
	}
	t := &pullTarget{repo: repo, revision: revision, files: o.files, preset: preset}
	if colon {
		t.files = append(append([]string{file}, more...), t.files...)
	}
	for _, file := range t.files {
		if _, _, _, ok := hub.ParseAddress(hub.Address(repo, "", file)); !ok || file == "" {
			return nil, cli.UsageErrorf("%q is not the name of a file in a repository", file)
		}
	}
	if o.revision != "" {
		if revision != "" {
			return nil, cli.UsageErrorf("the revision is given twice: in %s and with --revision", name)
		}
		if !hub.IsRevision(o.revision) {
			return nil, cli.UsageErrorf("--revision: %q is not the name of a revision", o.revision)
		}
		t.revision = o.revision
	}
	return t, nil
}

func (o *pullOptions) run(ctx context.Context, out *ui.Output, t *pullTarget) error {
	report := &pullReport{out: out}
	if o.offline || hub.Offline() {
		return reportDownloaded(report, t)
	}
	client, err := hub.NewClient()
	if err != nil {
		return cli.Coded(cli.ExitUsage, err)
	}
	client.UserAgent = "gomflux/" + gomflux.Version()
	client.Waiting = func(wait time.Duration) { out.Note("too many requests: the hub asks to wait %s", ui.Duration(wait)) }
	plan, err := o.plan(ctx, client, t)
	if err != nil {
		return err
	}
	licence := t.licence(plan)
	report.start(plan, &licence)
	if notice := licence.Notice(); notice != "" && !plan.Complete() {
		out.Warn("%s", quote.Printable(notice))
	}
	if len(t.files) == 0 {
		for _, text := range cli.Unusable(plan, cli.ModelMemory(ctx)) {
			out.Warn("%s", text)
		}
	}
	if o.dryRun {
		return out.Err()
	}
	began := time.Now()
	report.begin(plan)
	folder, err := client.Pull(ctx, plan, report.progress)
	report.bar.Close()
	if err != nil {
		return pullError(out, t, err)
	}
	return report.done(pulled{
		Repo: plan.Info.Repo, Revision: plan.Info.Revision, Commit: plan.Info.Commit, Path: t.path(folder),
		Bytes: plan.Bytes, Fetched: plan.Missing(), took: time.Since(began),
	})
}

// plan asks the hub what has to be downloaded.
func (o *pullOptions) plan(ctx context.Context, client *hub.Client, t *pullTarget) (*hub.Plan, error) {
	info, err := client.Info(ctx, t.repo, t.revision)
	if err != nil {
		return nil, hubError(err)
	}
	plan, err := client.Plan(ctx, info, o.verify, t.files...)
	if errors.Is(err, hub.ErrSeveral) {
		return nil, cli.UsageErrorf("%w (such as gomflux pull %s:FILE)", err, hub.Address(t.repo, t.revision, ""))
	}
	if err != nil {
		return nil, hubError(err)
	}
	return plan, nil
}

// licence returns the licence of a published model, or that in the card of the repository.
func (t *pullTarget) licence(plan *hub.Plan) family.Licence {
	if t.preset != nil {
		return t.preset.Licence
	}
	return family.LicenceNamed(plan.Info.Licence)
}

// pullError explains how an unfinished download is resumed.
func pullError(out *ui.Output, t *pullTarget, err error) error {
	switch {
	case errors.Is(err, cli.ErrInterrupted):
		out.Note("the downloaded parts are kept: %s resumes", t.again())
		return err
	case errors.Is(err, hub.ErrSpace), errors.Is(err, hub.ErrNoAccess):
		return hubError(err)
	}
	return hubError(fmt.Errorf("%w (the downloaded parts are kept: the same command resumes)", err))
}

// hubError gives an error of the hub its exit code.
func hubError(err error) error {
	if errors.Is(err, hub.ErrNoAccess) || errors.Is(err, hub.ErrFormat) {
		return cli.Coded(cli.ExitModel, err)
	}
	return err
}

// reportDownloaded is pull without a network.
func reportDownloaded(report *pullReport, t *pullTarget) error {
	folder, err := downloaded(t.repo, t.revision, t.files)
	if err != nil {
		return cli.Coded(cli.ExitModel, fmt.Errorf("%w (offline, so nothing is downloaded)", err))
	}
	size := int64(0)
	for _, file := range t.files {
		if info, err := os.Stat(filepath.Join(folder, filepath.FromSlash(file))); err == nil {
			size += info.Size()
		}
	}
	if len(t.files) == 0 {
		size = inspect.Model(os.DirFS(folder)).Size
	}
	return report.done(pulled{
		Repo: t.repo, Revision: cmp.Or(t.revision, "main"), Commit: filepath.Base(folder), Path: t.path(folder), Bytes: size,
	})
}

// downloaded returns the snapshot folder of a complete model, of a LoRA, or of
// files.
func downloaded(repo, revision string, files []string) (folder string, err error) {
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
	if _, err := catalog.FindLoRA(s.Path()); incomplete != nil && !cli.IsPipeline(s.Path()) && err == nil {
		incomplete = nil
	}
	return s.Path(), incomplete
}

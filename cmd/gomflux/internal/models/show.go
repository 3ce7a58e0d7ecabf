package models

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/ui"
	"github.com/gomflux/gomflux/internal/filehash"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
)

const showHelp = `Show prints the files, class, revision, licence and memory needs of one model on
this machine. MODEL is what --model takes; @REVISION selects one of several
revisions in the Hugging Face cache. A single file is shown with the components
that it takes from its base model. Only configs and headers of files are
checked; gomflux pull --verify compares files with their hashes. --hash reads
all files and adds their SHA-256 hashes to the JSON object.

Memory is the estimated peak of generating an image of the model's default size,
on the device and in the dtype that gomflux generate chooses by default: with
all components in memory, and with one at a time (--low-ram). Before that,
--enhance takes the memory that is shown for it, without images.

JSON
With --json show prints one object: the fields of gomflux models --json and

  base_model         model that supplies the missing components of a single file
  files              array of path, bytes and, with --hash, sha256
  memory             device, dtype, width, height, weights_bytes, weights (by
                     component), peak_bytes, low_ram_peak_bytes, free_bytes,
                     and enhance_peak_bytes if the model has a language model;
                     left out if the model cannot be run
` + cli.ExitStatus

func NewShowCommand() *cobra.Command {
	var o cli.OutputFlags
	var base string
	var hash bool
	cmd := &cobra.Command{
		Use:   "show MODEL",
		Short: "Show a model's files, revision, licence and memory needs",
		Long:  showHelp,
		Example: `  gomflux show shapes
  gomflux show z-image-turbo --json | jq .revision`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if hash && !o.JSON {
				return cli.UsageErrorf("--hash has no effect without --json")
			}
			if m := cli.FoundUpscaler(args[0]); m != nil && base == "" {
				size := m.Bytes
				return o.Out(cmd).Result(&ShownModel{ListedModel: *m, Files: []shownFile{{Path: filepath.Base(m.Path), Bytes: size}}})
			}
			source, err := cli.FindWith(args[0], base)
			if err != nil {
				return err
			}
			m, err := showModel(args[0], source)
			if err != nil {
				return err
			}
			for i := range m.Files {
				if f := &m.Files[i]; hash && err == nil {
					f.SHA256, err = hashOf(cmd.Context(), source.FS(), f.Path)
				}
			}
			if err != nil {
				return cli.Coded(cli.ExitModel, err)
			}
			m.Memory = estimateMemory(cmd.Context(), source)
			return o.Out(cmd).Result(m)
		},
	}
	o.AddJSON(cmd.Flags(), "a JSON object")
	cmd.Flags().BoolVar(&hash, "hash", false, "with --json: add the hashes of files")
	cli.AddBaseModel(cmd.Flags(), &base)
	return cmd
}

// A ShownModel is what show prints of a model.
type ShownModel struct {
	cli.ListedModel
	BaseModel string       `json:"base_model,omitempty"`
	Files     []shownFile  `json:"files"`
	Memory    *shownMemory `json:"memory,omitempty"`
}

// A shownMemory is the estimated memory of generating an image, in bytes.
type shownMemory struct {
	Device     string           `json:"device"`
	Dtype      string           `json:"dtype"`
	Width      int              `json:"width"`
	Height     int              `json:"height"`
	AllWeights int64            `json:"weights_bytes"`
	Weights    map[string]int64 `json:"weights"`
	Peak       int64            `json:"peak_bytes"`
	LowRAMPeak int64            `json:"low_ram_peak_bytes"`
	Enhance    int64            `json:"enhance_peak_bytes,omitempty"`
	Free       int64            `json:"free_bytes,omitempty"`
}

// estimateMemory returns nil for a model that cannot be run here.
func estimateMemory(ctx context.Context, source *gomflux.Source) *shownMemory {
	if _, err := mlx.Open(); err != nil {
		return nil
	}
	var m *shownMemory
	defaults := (*family.Defaults)(source.Defaults())
	err := mlx.Do(ctx, func() error {
		e, low, free, err := models.EstimateModel(source.FS(), models.LoadOptions{Defaults: defaults})
		if err != nil {
			return err
		}
		m = &shownMemory{
			Device: e.Device.String(), Dtype: e.Dtype.String(), Width: e.Width, Height: e.Height,
			AllWeights: e.AllWeights(), Weights: e.Weights, Peak: e.Peak(), LowRAMPeak: low.Peak(), Free: free,
		}
		if source.Path() != "" { // a built-in model is not trained to write
			m.Enhance = e.Rewrite
		}
		return nil
	})
	if err != nil {
		return nil
	}
	return m
}

type shownFile struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"` // -1 for a broken link

	SHA256 string `json:"sha256,omitempty"`
}

func showModel(name string, s *gomflux.Source) (*ShownModel, error) {
	m := &ShownModel{ListedModel: cli.FoundModel(name, s), BaseModel: s.BaseModel()}
	err := fs.WalkDir(s.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir // of Git or of huggingface_hub
		}
		if err != nil || d.IsDir() {
			return err
		}
		file := shownFile{Path: path, Bytes: -1}
		if info, err := fs.Stat(s.FS(), path); err == nil {
			file.Bytes = info.Size()
		}
		m.Files = append(m.Files, file)
		return nil
	})
	return m, err
}

func hashOf(ctx context.Context, files fs.FS, path string) (string, error) {
	f, err := files.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return filehash.Sum(ctx, f)
}

func (m *ShownModel) Text(p *ui.Page) {
	field := p.Fields(9)
	line := func(name, text string) {
		if text != "" {
			field(name, "%s", text)
		}
	}
	line("model", m.Name)
	line("about", m.About)
	line("base", m.BaseModel)
	line("repo", m.Repo)
	line("revision", m.Revision)
	line("class", m.Class)
	line("licence", quote.Printable(strings.TrimSpace(m.Licence.Name+" "+m.URL)))
	line("terms", m.Terms)
	line("folder", catalog.TildePath(m.Path))
	line("size", units.Bytes(m.Bytes))
	if m.Quantized != "" {
		line("quantized", cli.QuantizationText(m.Quantized))
	}
	if m.Packed != "" {
		field("packed", "%s: dequantized to bfloat16 while it is loaded", m.Packed)
	}
	line("state", m.State())
	if e := m.Memory; e != nil {
		field("memory", "%s for %dx%d on %s in %s, %s of them weights; with --low-ram %s",
			units.Bytes(e.Peak), e.Width, e.Height, e.Device, e.Dtype, units.Bytes(e.AllWeights), units.Bytes(e.LowRAMPeak))
		if e.Enhance > 0 {
			field("enhance", "%s before that, with --enhance", units.Bytes(e.Enhance))
		}
	}
	for _, problem := range m.Problems {
		line("problem", problem)
	}
	if m.Get != "" {
		line("to get", m.Get)
	}
	for _, f := range m.Files {
		size := "gone"
		switch {
		case f.Bytes >= 1000:
			size = units.Bytes(f.Bytes)
		case f.Bytes >= 0:
			size = fmt.Sprint(f.Bytes, " B")
		}
		p.Printf("%9s  %s\n", size, quote.Printable(f.Path))
	}
}

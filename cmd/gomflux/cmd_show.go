package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
)

func newShowCommand() *cobra.Command {
	var asJSON bool
	var base string
	cmd := &cobra.Command{
		Use:   "show MODEL",
		Short: "Show a model's files, class, revision and licence",
		Long: `Show says what there is of one model on this machine: MODEL is what --model
takes, with @REVISION for one of several in the Hugging Face cache. A single
file is shown with what it takes from its base model. Files are judged by their
configs and headers, as by gomflux models; gomflux pull --verify compares them
with their hashes.

Memory is what a picture of the model's own size takes, as it is and with one
part of the model in memory at a time, on the device and in the dtype that
gomflux generate would choose.

With --json it is one object: the fields of gomflux models --json and

  base_model         what a single file is completed from
  files              an array of path and bytes
  memory             device, dtype, width, height, weights_bytes and
                     weights (by component), peak_bytes, low_ram_peak_bytes and
                     free_bytes; not of a model that cannot be run
` + exitStatus,
		Example: `  gomflux show shapes
  gomflux show z-image-turbo --json | jq .revision`,
		Args: oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			source, err := findWith(args[0], base)
			if err != nil {
				return err
			}
			m, err := showModel(args[0], source)
			if err != nil {
				return err
			}
			m.Memory = estimateMemory(cmd.Context(), source)
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), m)
			}
			return m.print(cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	addBaseModel(cmd.Flags(), &base)
	return cmd
}

// A shownModel is one with its files.
type shownModel struct {
	listedModel
	BaseModel string       `json:"base_model,omitempty"`
	Files     []shownFile  `json:"files"`
	Memory    *shownMemory `json:"memory,omitempty"`
}

// A shownMemory is what a picture takes of memory, in bytes.
type shownMemory struct {
	Device     string           `json:"device"`
	Dtype      string           `json:"dtype"`
	Width      int              `json:"width"`
	Height     int              `json:"height"`
	AllWeights int64            `json:"weights_bytes"`
	Weights    map[string]int64 `json:"weights"`
	Peak       int64            `json:"peak_bytes"`
	LowRAMPeak int64            `json:"low_ram_peak_bytes"`
	Free       int64            `json:"free_bytes,omitempty"`
}

// estimateMemory is nil for a model that cannot be run here.
func estimateMemory(ctx context.Context, source *gomflux.Source) *shownMemory {
	if _, err := mlx.Open(); err != nil {
		return nil
	}
	var m *shownMemory
	defaults := (*family.Defaults)(source.Defaults())
	err := mlx.Do(ctx, func() error {
		e, free, err := models.EstimateModel(source.FS(), models.LoadOptions{Defaults: defaults})
		if err != nil {
			return err
		}
		low, _, err := models.EstimateModel(source.FS(), models.LoadOptions{Defaults: defaults, LowRAM: true})
		m = &shownMemory{e.Device.String(), e.Dtype.String(), e.Width, e.Height, e.AllWeights(), e.Weights, e.Peak(), low.Peak(), free}
		return err
	})
	if err != nil {
		return nil
	}
	return m
}

type shownFile struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"` // -1 for a link to what is not there
}

func showModel(name string, s *gomflux.Source) (*shownModel, error) {
	m := &shownModel{listedModel: listedModel{Name: name}, BaseModel: s.BaseModel()}
	if b, ok := catalog.Builtins()[name]; ok {
		m.Builtin, m.About = true, b.About
	}
	m.inspect(s.Path(), s.FS())
	if s.Revision() != "" {
		m.Repo, m.Revision = s.Name(), s.Revision()
		if _, _, preset := catalog.Published(name); preset != nil {
			m.Aliases, m.Licence, m.LicenceURL, m.Gated = preset.Aliases, preset.Licence, preset.LicenceURL, preset.Gated
		}
		if !m.Complete {
			m.Get = "gomflux pull " + name
		}
	}
	if m.Licence == "" {
		if card, err := checkpoint.ReadFile(s.FS(), "README.md", 1<<20); err == nil {
			m.Licence = hub.CardLicence(card)
		}
	}
	err := fs.WalkDir(s.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		file := shownFile{path, -1}
		if info, err := fs.Stat(s.FS(), path); err == nil {
			file.Bytes = info.Size()
		}
		m.Files = append(m.Files, file)
		return nil
	})
	return m, err
}

func (m *shownModel) print(w io.Writer) error {
	var b strings.Builder
	line := func(what, text string) {
		if text != "" {
			fmt.Fprintf(&b, "%-9s %s\n", what, quote.Printable(text))
		}
	}
	line("model", m.Name)
	line("about", m.About)
	line("base", m.BaseModel)
	line("repo", m.Repo)
	line("revision", m.Revision)
	line("class", m.Class)
	line("licence", strings.TrimSpace(m.Licence+" "+m.LicenceURL))
	line("folder", catalog.TildePath(m.Path))
	line("size", units.Bytes(m.Bytes))
	if m.Quantized != "" {
		line("quantized", quantizationText(m.Quantized))
	}
	line("state", m.state())
	if e := m.Memory; e != nil {
		line("memory", fmt.Sprintf("%s for %dx%d on %s in %s, %s of them weights; with --low-ram %s", units.Bytes(e.Peak), e.Width, e.Height, e.Device, e.Dtype, units.Bytes(e.AllWeights), units.Bytes(e.LowRAMPeak)))
	}
	for _, p := range m.Problems {
		line("problem", p)
	}
	if m.Get != "" {
		line("to get", m.Get)
	}
	for _, f := range m.Files {
		amount := "gone"
		switch {
		case f.Bytes >= 1000:
			amount = units.Bytes(f.Bytes)
		case f.Bytes >= 0:
			amount = fmt.Sprint(f.Bytes, " B")
		}
		fmt.Fprintf(&b, "%9s  %s\n", amount, quote.Printable(f.Path))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

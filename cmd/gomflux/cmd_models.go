package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/internal/units"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/inspect"
)

func newModelsCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "models",
		Short: "List the models that there are",
		Long: `Models lists the built-in models, the published ones that are known by a short
name, and what else there is in the Hugging Face cache: diffusers' pipelines,
and models that mflux saved. Each has a name for --model, its size on disk, a
state, and where it is:

  ready           its files are whole and have the tensors of its configs
  incomplete      files are missing, damaged or of another model, as the lines
                  below it say
  not supported   this version cannot run it
  not here        it can be fetched by the command that is given

The files are judged by their configs and headers, without loading them.

Below a published model are its other names for --model and its licence and, if
it is gated and not here, what there is to do before it can be fetched.

With --json it is one array of objects:

  name               as --model takes it
  repo, revision     of a published model, and the commit that is here
  path               the folder; a built-in model has none
  builtin            whether it is part of the program
  about              what a built-in model is for
  class              the pipeline class
  bytes              size on disk
  quantized          how most of its quantized layers are: 4, 8, mxfp4 and so on
  here               whether there is anything of it on this machine
  complete           whether all files are there and whole
  supported          whether this version can run it
  problems           what is wrong, an array of texts
  unfinished         files whose download has not ended
  get                the command that fetches what is missing
  aliases            other names for --model, an array of texts
  licence            of a published model, by its SPDX identifier if it has one
  licence_url        where that can be read
  gated              whether it is fetched with a token, by those who have
                     accepted its conditions on its page
` + exitStatus,
		Example: `  gomflux models
  gomflux models --json | jq -r '.[] | select(.complete and .supported) | .name'`,
		Args: noArgs(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, err := listModels()
			return cmp.Or(writeModels(cmd.OutOrStdout(), list, asJSON), err)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON array")
	return cmd
}

// A listedModel is one that --model takes, whether it is here or not.
type listedModel struct {
	Name       string   `json:"name"`
	Repo       string   `json:"repo,omitempty"`
	Revision   string   `json:"revision,omitempty"`
	Path       string   `json:"path,omitempty"`
	Builtin    bool     `json:"builtin"`
	About      string   `json:"about,omitempty"`
	Class      string   `json:"class,omitempty"`
	Bytes      int64    `json:"bytes"`
	Quantized  string   `json:"quantized,omitempty"`
	Here       bool     `json:"here"`
	Complete   bool     `json:"complete"`
	Supported  bool     `json:"supported"`
	Problems   []string `json:"problems,omitempty"`
	Unfinished []string `json:"unfinished,omitempty"`
	Get        string   `json:"get,omitempty"`
	Aliases    []string `json:"aliases,omitempty"`
	Licence    string   `json:"licence,omitempty"`
	LicenceURL string   `json:"licence_url,omitempty"`
	Gated      bool     `json:"gated"`

	access string // what there is to do before it can be fetched
}

func (m *listedModel) state() string {
	switch {
	case !m.Here:
		return "not here"
	case !m.Supported:
		return "not supported"
	case !m.Complete:
		return "incomplete"
	}
	return "ready"
}

func (m *listedModel) where() string {
	switch {
	case m.Builtin:
		return "built in: " + m.About
	case !m.Here:
		return "to get it: " + m.Get
	}
	return quote.Printable(catalog.TildePath(m.Path))
}

// listModels finds all models. With an error it is those that could be found.
func listModels() ([]listedModel, error) {
	list := []listedModel{}
	builtins := catalog.Builtins()
	for _, name := range slices.Sorted(maps.Keys(builtins)) {
		m := listedModel{Name: name, Builtin: true, About: builtins[name].About}
		m.inspect("", checkpoint.Folder{FS: builtins[name].FS, Name: name})
		list = append(list, m)
	}
	cached, err := hub.List()
	repos := map[string]hub.Repo{}
	for _, r := range cached {
		repos[r.Name] = r
	}
	for _, p := range catalog.Presets {
		m := listedModel{Name: p.Name, Repo: p.Repo, Get: "gomflux pull " + p.Name, Supported: true}
		s, err := gomflux.Find(p.Name)
		switch {
		case err == nil:
			m.inspect(s.Path(), s.FS())
			m.Revision = s.Revision()
		case !errors.Is(err, gomflux.ErrNotFound) || repos[p.Repo].Blobs:
			m.Here, m.Problems = true, []string{err.Error()}
		}
		if s != nil && s.Revision() == "" {
			m.Repo, m.Get = "", "" // a folder of that name
		} else {
			m.Aliases, m.Licence, m.LicenceURL, m.Gated = p.Aliases, p.Licence, p.LicenceURL, p.Gated
			if m.Gated {
				m.access = p.Access()
			}
			m.Unfinished = repos[p.Repo].Unfinished
			delete(repos, p.Repo)
		}
		list = append(list, m)
	}
	for _, name := range slices.Sorted(maps.Keys(repos)) {
		r := repos[name]
		if r.Err != nil && !errors.Is(r.Err, hub.ErrNotCached) {
			list = append(list, listedModel{Name: name, Repo: name, Here: true, Supported: true, Problems: []string{r.Err.Error()}, Unfinished: r.Unfinished})
			continue
		}
		fsys, err := pipelineIn(r)
		if fsys == nil && err == nil {
			continue // something else than a pipeline, as far as can be seen
		}
		m := listedModel{Name: name, Repo: name, Revision: filepath.Base(r.Snapshot), Unfinished: r.Unfinished, Get: "gomflux pull " + name}
		if err != nil {
			m.Here, m.Problems = true, []string{err.Error()}
		} else {
			m.inspect(r.Snapshot, fsys)
		}
		list = append(list, m)
	}
	return list, err
}

// pipelineIn is the pipeline in a repository's snapshot, in diffusers' layout or
// completed to that; nil for none.
func pipelineIn(r hub.Repo) (fs.FS, error) {
	if r.Snapshot == "" {
		return nil, nil
	}
	if _, err := os.Lstat(filepath.Join(r.Snapshot, "model_index.json")); !errors.Is(err, fs.ErrNotExist) {
		return checkpoint.OpenFolder(r.Snapshot)
	}
	s, err := gomflux.Find(r.Name)
	if err != nil {
		return nil, nil
	}
	if _, err := fs.Stat(s.FS(), "model_index.json"); err != nil {
		return nil, nil
	}
	return s.FS(), nil
}

// inspect judges the model in a folder.
func (m *listedModel) inspect(path string, fsys fs.FS) {
	info := inspect.Model(fsys)
	m.Path, m.Class, m.Bytes, m.Quantized, m.Here = path, info.Class, info.Size, info.Quantization, true
	m.Complete, m.Supported = info.Incomplete == nil, info.Unsupported == nil
	for _, err := range []error{info.Unsupported, info.Incomplete} {
		if err != nil {
			m.Problems = append(m.Problems, err.Error())
		}
	}
	if m.Complete {
		m.Get = ""
	}
}

// quantizationText is a level in words.
func quantizationText(name string) string {
	if len(name) == 1 {
		return name + " bits"
	}
	return name
}

// writeModels prints a list, or writes it as JSON.
func writeModels(w io.Writer, list []listedModel, asJSON bool) error {
	if asJSON {
		return writeJSON(w, list)
	}
	return printModels(w, list)
}

func printModels(w io.Writer, list []listedModel) error {
	width := 0
	for _, m := range list {
		width = max(width, len(m.Name))
	}
	var b strings.Builder
	for _, m := range list {
		amount := "-"
		if m.Here {
			amount = units.Bytes(m.Bytes)
		}
		line := fmt.Sprintf("%-*s  %9s  %-13s  %s", width, m.Name, amount, m.state(), m.where())
		if m.Quantized != "" {
			line += ", quantized: " + quantizationText(m.Quantized)
		}
		fmt.Fprintln(&b, strings.TrimRight(line, " "))
		for _, p := range m.Problems {
			fmt.Fprintf(&b, "\t%s\n", quote.Printable(p))
		}
		if m.Here && !m.Complete {
			for _, name := range m.Unfinished {
				fmt.Fprintf(&b, "\tdownload not ended: %s\n", quote.Printable(catalog.TildePath(name)))
			}
			if m.Get != "" {
				fmt.Fprintf(&b, "\tto get what is missing: %s\n", m.Get)
			}
		}
		if m.access != "" && !m.Complete {
			fmt.Fprintf(&b, "\tgated: %s\n", m.access)
		}
		var about []string
		if len(m.Aliases) > 0 {
			about = append(about, "also "+strings.Join(m.Aliases, ", "))
		}
		if m.Licence != "" {
			about = append(about, "licence "+m.Licence)
		}
		if len(about) > 0 {
			fmt.Fprintf(&b, "\t%s\n", strings.Join(about, "; "))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

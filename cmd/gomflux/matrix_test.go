package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/png"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gomflux/gomflux/internal/hubtest"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/internal/publishedtest"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
)

// matrixEnv, if it is set, has TestMatrix fill every cell, or those of the columns that it names, with commas between
// them; otherwise only those of CI.
const matrixEnv = "GOMFLUX_MATRIX"

// A column of the matrix is a surface of the program.
type column struct {
	name string
	ci   scope // of the models that CI runs it for
	// commands are lines: arguments of gomflux, or a word of own and its arguments (see row.command).
	commands string
	// refusal returns the message that the first command is refused with, "" if the model can do it.
	refusal func(r *row) string
	// check looks at what the commands have made, or does what no command line does.
	check func(r *row) error
}

// A scope is a choice of models.
type scope int

const (
	nightly   scope = iota // no model in CI
	perFamily              // the first of each family
	perClass               // the first of each pipeline class
	all
)

// A row of the matrix is a published model, in small dimensions and with random weights.
type row struct {
	*publishedtest.Model
	dir, folder string
	declared    *family.Declared
	scope       scope    // the smallest that the model is in
	env         []string // of the commands
	address     string   // of a server with the models of all rows
	output      string   // of the last command
}

// A cell is what a surface has done for a model.
type cell struct {
	exit    string // status of the last command, "-" if it was not run
	message string // last line of standard error
	wrong   error
}

// TestMatrix runs every surface for every published model whose small files are there. A model does what is asked
// of it, or refuses it with the message that the capabilities of its pipeline class call for.
func TestMatrix(t *testing.T) {
	root := publishedtest.Root("../..")
	if _, err := os.Stat(root); err != nil {
		t.Skipf("the small files of published models are not there (%s names their folder): %v", publishedtest.Env, err)
	}
	t.Setenv("HF_HOME", t.TempDir()) // values come from gomflux, not from downloaded models
	t.Setenv("GOMFLUX_MLX", absolute(libraries))
	found, err := publishedtest.Models(root)
	if err != nil {
		t.Fatal(err)
	}
	rows := matrixRows(t, found)
	serve := []string{"--no-gallery", "--device", "cpu"}
	for _, r := range rows {
		if r.runs(serveColumn) {
			serve = append(serve, "--model", r.folder)
		}
	}
	_, address, log := startServe(t, serve...)
	cells := make([]map[string]cell, len(rows))
	t.Run("rows", func(t *testing.T) {
		for i, r := range rows {
			r.address, cells[i] = strings.TrimSuffix(address, "/"), map[string]cell{}
			t.Run(r.Name, func(t *testing.T) {
				t.Parallel()
				for _, c := range columns {
					if !r.runs(c) {
						continue
					}
					made := r.fill(c)
					if cells[i][c.name] = made; made.wrong != nil {
						t.Errorf("%s: %v", c.name, made.wrong)
					}
				}
			})
		}
	})
	if text := log.String(); t.Failed() && text != "" || strings.Contains(text, "internal error") || strings.Contains(text, "status=500") {
		t.Errorf("log of the server: %s", text)
	}
	t.Log(matrixTable(rows, cells))
}

// matrixRows writes the models.
func matrixRows(t *testing.T, found []*publishedtest.Model) (rows []*row) {
	seen := map[any]bool{}                           // families and classes
	runtime, err := os.MkdirTemp("/tmp", "gomflux-") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		endSessions(runtime)
		os.RemoveAll(runtime)
	})
	for i, m := range found {
		r := &row{Model: m, dir: t.TempDir()}
		r.folder = filepath.Join(r.dir, filepath.Base(m.Name))
		sockets := filepath.Join(runtime, fmt.Sprint(i))
		err := errors.Join(m.Write(r.folder, true), os.Mkdir(sockets, 0o700))
		if err == nil {
			err = errors.Join(m.WriteWeights(r.folder),
				modeltest.WriteLoRA(filepath.Join(r.dir, "lora.safetensors"), r.folder, 1),
				drawn(filepath.Join(r.dir, "a.png"), 1, 255), drawn(filepath.Join(r.dir, "b.png"), 2, 255),
				drawn(filepath.Join(r.dir, "mask.png"), 1, 0))
		}
		if err != nil {
			t.Fatalf("%s: %v", m.Name, err)
		}
		r.declared = declared(t, r.folder)
		class := r.declared.Class
		i := slices.IndexFunc(family.All, func(f *family.Family) bool { return slices.Contains(f.Pipelines, class) })
		if r.scope = all; !seen[family.All[i]] {
			r.scope = perFamily
		} else if !seen[class] {
			r.scope = perClass
		}
		seen[family.All[i]], seen[class] = true, true
		r.env = append(os.Environ(), "HF_HUB_CACHE="+filepath.Join(r.dir, "cache"), "HF_ENDPOINT=http://127.0.0.1:1",
			"XDG_RUNTIME_DIR="+sockets)
		rows = append(rows, r)
	}
	return rows
}

// drawn writes an image whose pixels differ. Its left half has an alpha value.
func drawn(path string, seed int, alpha byte) error {
	img := image.NewNRGBA(image.Rect(0, 0, 64, 64))
	for i := range img.Pix {
		img.Pix[i] = byte(seed * i * i >> 4)
		if i%4 == 3 {
			img.Pix[i] = 255
			if i%img.Stride < img.Stride/2 {
				img.Pix[i] = alpha
			}
		}
	}
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o666)
}

// runs reports whether a surface is run for the model.
func (r *row) runs(c column) bool {
	switch chosen := os.Getenv(matrixEnv); chosen {
	case "":
		return c.ci >= r.scope
	case "all":
		return true
	default:
		return c.name == columns[0].name || slices.Contains(strings.Split(chosen, ","), c.name)
	}
}

// fill runs a surface.
func (r *row) fill(c column) (made cell) {
	made.exit = "-"
	refusal := ""
	if c.refusal != nil {
		refusal = c.refusal(r)
	}
	for line := range strings.Lines(c.commands) {
		var args []string
		for _, word := range strings.Fields(line) {
			args = append(args, r.expand(word)...)
		}
		if len(args) == 0 {
			continue
		}
		code, stderr, err := r.command(args)
		lines := strings.Split(strings.TrimSpace(stderr), "\n")
		made.exit, made.message = fmt.Sprint(code), strings.ReplaceAll(lines[len(lines)-1], r.dir+"/", "")
		switch said := fmt.Sprintf("gomflux %.300s: exit status %d: %s", strings.Join(args, " "), code, stderr); {
		case err != nil:
			made.wrong = fmt.Errorf("%s: %w", strings.TrimSpace(line), err)
		case refusal != "":
			if code != 2 || len(lines) != 1 || !strings.HasPrefix(stderr, "gomflux: ") || !regexp.MustCompile(refusal).MatchString(stderr) {
				made.wrong = fmt.Errorf("%s, expected a refusal: %s", said, refusal)
			}
			return made
		case code != 0 || strings.Contains(stderr, "internal error"):
			made.wrong = errors.New(said)
		}
		if made.wrong != nil {
			return made
		}
	}
	if c.check == nil {
		return made
	}
	if made.wrong = c.check(r); made.wrong == nil {
		made.exit = "0"
	}
	return made
}

// expand returns a word of a command line, or the words that a variable stands for.
func (r *row) expand(word string) []string {
	settings := []string{"-m", r.folder, "-p", "a red cat -- on a mat", "-H", "64", "-W", "64", "-s", "2", "-S", "7"}
	guidance := fmt.Sprint(r.declared.Pipeline.Defaults().Guidance)
	switch word {
	case "$SETTINGS":
		return settings
	case "$RUN":
		return append(r.made(), settings...)
	case "$COMMAND":
		return r.made()[:1]
	case "$RUNS": // without the model
		return append(r.made(), settings[2:]...)
	}
	return []string{strings.NewReplacer("$MODEL", r.folder, "$REPO", r.Name, "$GUIDANCE", guidance).Replace(word)}
}

// made is what a model is made for: a command with the images that it needs.
func (r *row) made() []string {
	switch {
	case r.fills():
		return []string{"inpaint", "-i", "a.png", "--mask", "rect:8,8,40,40"}
	case noPrompt(r) != "":
		return []string{"edit", "-i", "a.png"}
	}
	return []string{"generate"}
}

// command runs gomflux, or
//
//	same A B        compares the pixels of two images
//	near A B        the same, where the order of computations differs, and so rounding
//	quantized A B   the same as same, for models that mflux quantizes all of
//	within A        compares the tensors of a folder with the model, which may have more: mflux leaves out what has no effect
//	hub             starts a hub with the model, for the commands that follow
func (r *row) command(args []string) (code int, stderr string, err error) {
	switch args[0] {
	case "same", "near", "quantized":
		unquantized := func(m family.Member) bool { return m.MFlux != nil && m.MFlux.Unquantized }
		if args[0] == "quantized" && slices.ContainsFunc(r.declared.Class.Components, unquantized) {
			return 0, "", nil
		}
		return 0, "", samePixels(r.dir, args[1:], map[string]int{"near": 2}[args[0]])
	case "within":
		code, stderr, err := r.command([]string{"inspect", args[1], "--against", r.folder})
		equal := `[a-z_0-9]*|[0-9]+ tensors equal|only in ` + regexp.QuoteMeta(r.folder) + `: .*|[0-9]+ differences? beyond.*`
		if code == 1 && regexp.MustCompile(`^((`+equal+`)\n)+$`).MatchString(r.output) {
			code, stderr = 0, ""
		}
		return code, stderr, err
	case "hub":
		files, err := hubtest.ReadFiles(os.DirFS(r.folder))
		if err == nil {
			h, _ := hubtest.Start(r.Name, files)
			r.env = append(r.env, "HF_ENDPOINT="+h.URL)
		}
		return 0, "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, "gomflux", args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = r.dir, r.env, &out, &errs
	err = cmd.Run()
	r.output = out.String()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode(), errs.String(), nil
	}
	return 0, errs.String(), err
}

// samePixels compares two images, whose values may differ by some number.
func samePixels(dir string, names []string, most int) error {
	var images []*image.RGBA
	for _, name := range names {
		p, err := picture.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		images = append(images, p.Image)
	}
	if a, b := images[0].Rect, images[1].Rect; a != b {
		return fmt.Errorf("sizes %v and %v", a, b)
	}
	for i, v := range images[0].Pix {
		if w := images[1].Pix[i]; max(v, w)-min(v, w) > uint8(most) {
			return fmt.Errorf("values %d and %d", v, w)
		}
	}
	return nil
}

// matrixTable is the table of exits, a line for each surface and a number for each model, and what was said where a
// surface was refused or went wrong.
func matrixTable(rows []*row, cells []map[string]cell) string {
	var b strings.Builder
	b.WriteString("exits by model\n")
	for i, r := range rows {
		fmt.Fprintf(&b, "%3d %s (%s)", i+1, r.Name, r.declared.Class.Name)
		if len(r.Filled) > 0 {
			fmt.Fprintf(&b, ", gomflux's own %s", strings.Join(slices.Sorted(maps.Keys(r.Filled)), ", "))
		}
		b.WriteString("\n")
	}
	said := map[string][]string{}
	for _, c := range columns {
		fmt.Fprintf(&b, "%-16s", c.name)
		for i := range rows {
			made, ok := cells[i][c.name]
			switch {
			case !ok:
				made.exit = "."
			case made.wrong != nil:
				made.exit += "!"
			}
			fmt.Fprintf(&b, "%4s", made.exit)
			if ok && (made.exit == "2" || made.wrong != nil) {
				text := fmt.Sprintf("%s: %s", c.name, made.message)
				said[text] = append(said[text], fmt.Sprint(i+1))
			}
		}
		b.WriteString("\n")
	}
	for _, text := range slices.Sorted(maps.Keys(said)) {
		fmt.Fprintf(&b, "%s (%s)\n", text, strings.Join(said[text], " "))
	}
	return b.String()
}

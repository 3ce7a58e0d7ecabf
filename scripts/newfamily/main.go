// Command newfamily writes the files of a new family of pipelines, on both sides. They compile, and what they
// leave to be filled in is an error that names its place.
//
//	go run ./scripts/newfamily moon-1 --like krea-2
//
// The family has the components of the published model --like, except its transformer.
package main

import (
	"bytes"
	"embed"
	"errors"
	"flag"
	"fmt"
	"go/format"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/family"
)

func main() {
	like := flag.String("like", "", "the published `model` whose other components it has (gomflux models)")
	class := flag.String("pipeline", "", "its pipeline `class` in diffusers (default: from the name)")
	unpatched := flag.Bool("unpatched", false, "the transformer takes latents as they are, not in patches of 2x2")
	args := os.Args[1:]
	name := ""
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	flag.CommandLine.Parse(args)
	if name == "" {
		name = flag.Arg(0)
	}
	if err := write(".", name, *like, *class, !*unpatched); err != nil {
		fmt.Fprintln(os.Stderr, "newfamily:", err)
		os.Exit(1)
	}
}

// A skeleton is what the templates are filled with.
type skeleton struct {
	Name, Flag, Type, Value, File string // Moon 1, moon-1, Moon1, moon1, moon_1
	Pipeline, Transformer         string // classes
	Members                       []member
	Encoders                      []encoder
	Patches                       bool // latents in patches of 2x2
}

type member struct{ Folder, Variable, Alias string }

type encoder struct{ Folder, Tokenizer, IDs, Embeds, Shape string }

//go:embed *.txt
var templates embed.FS

const references = "scripts/reference/gomflux_reference/families/"

// places are what remains besides the files, see docs/adding-a-family.md.
const places = `to be filled in, in this order (gomflux parity run DUMP passes after each):
  {{.P}}{{.File}}.py: transformer, autoencoder, build, draw, latents, guidance, matches
  transformer/{{.File}}.go: the config, the modules, Forward, first as plain maths; fused operations follow once all passes
  models/family/{{.File}}.go: Predictor, then PromptEncodings; Models, Help, Guide and Mu where they differ
  models/component/{{.File}}_transformer_2d.go: FLOPs, names in files of others, Infer, Quantization
and for its tests and pages:
  scripts/reference/gomflux_reference/goldens.py: COMMANDS; models/testdata/README.md; internal/modeltest: Models
  models/estimate_test.go, models/catalog/presets_test.go; parity/faults_{{.File}}_test.go, in TestFaults
  cmd/gomflux/testdata/script; docs/models; example_test.go; README.md; CHANGELOG.md
go test ./models/family names those that are missing
`

var words = regexp.MustCompile(`^[a-z][a-z0-9]*([-.][a-z0-9]+)*$`)

// describe fills a skeleton for a family like that of a published model.
func describe(name, like, pipeline string) (*skeleton, error) {
	if !words.MatchString(name) {
		return nil, fmt.Errorf("%q: expected a name such as moon-1 (go run ./scripts/newfamily NAME --like MODEL)", name)
	}
	s := &skeleton{Flag: name, File: strings.NewReplacer("-", "_", ".", "").Replace(name)}
	for _, word := range strings.FieldsFunc(name, func(r rune) bool { return r == '-' || r == '.' }) {
		s.Type += strings.ToUpper(word[:1]) + word[1:]
	}
	s.Name = strings.ToUpper(name[:1]) + strings.ReplaceAll(name[1:], "-", " ")
	s.Value = strings.ToLower(s.Type[:1]) + s.Type[1:]
	s.Pipeline, s.Transformer = s.Type+"Pipeline", s.Type+"Transformer2DModel"
	if pipeline != "" {
		s.Pipeline = pipeline
	}
	var class *family.Class
	var names []string
	for _, f := range family.All {
		for _, m := range f.Models {
			names = append(names, m.Name)
			if m.Name == like {
				class = family.Find(m.Class)
			}
		}
	}
	if class == nil {
		return nil, fmt.Errorf("--like %q: expected one of %s", like, strings.Join(names, ", "))
	}
	if family.Find(s.Pipeline) != nil {
		return nil, fmt.Errorf("there is a family for %s", s.Pipeline)
	}
	for _, m := range class.Components {
		one := member{m.Folder, strings.ReplaceAll(m.Class.Name, "_", ""), m.Alias}
		switch m.Class.Role {
		case component.Transformer:
			one = member{Folder: m.Folder, Variable: s.Transformer}
		case component.TextEncoder:
			suffix := strings.TrimPrefix(m.Folder, "text_encoder")
			for i := range s.Encoders { // as FLUX.1's: the last one makes the sequence
				s.Encoders[i].Embeds, s.Encoders[i].Shape = "pooled_embeds", "-1"
			}
			s.Encoders = append(s.Encoders, encoder{m.Folder, "tokenizer" + suffix, "input_ids" + suffix, "embeds", "-1, -1"})
		}
		s.Members = append(s.Members, one)
	}
	return s, nil
}

// files returns the new files and those with the new lines of lists, by their names in root.
func (s *skeleton) files(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for name, at := range map[string]string{
		"family.go.txt": "models/family/" + s.File + ".go", "transformer.go.txt": "transformer/" + s.File + ".go",
		"component.go.txt": "models/component/" + s.File + "_transformer_2d.go", "family.py.txt": references + s.File + ".py",
	} {
		var b bytes.Buffer
		if err := template.Must(template.ParseFS(templates, name)).Execute(&b, s); err != nil {
			return nil, err
		}
		text := b.Bytes()
		if path.Ext(at) == ".go" {
			var err error
			if text, err = format.Source(text); err != nil {
				return nil, fmt.Errorf("%s: %w", at, err)
			}
		}
		if _, err := os.Stat(filepath.Join(root, at)); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s is there already", at)
		}
		files[at] = text
	}
	for _, list := range []struct{ file, pattern, with string }{
		{"models/family/list.go", `(var All = \[\]\*Family\{.*)\}`, "${1}, " + s.Type + "}"},
		{"models/component/list.go", `(?m)^(\tAutoencoderKLFlux2, )`, "\t" + s.Transformer + ",\n${1}"},
		{references + "__init__.py", `(MODULES = \(.*)\)`, `${1}, "` + s.File + `")`},
	} {
		text, err := os.ReadFile(filepath.Join(root, list.file))
		if err != nil {
			return nil, err
		}
		pattern := regexp.MustCompile(list.pattern)
		if !pattern.Match(text) {
			return nil, fmt.Errorf("%s: no list that matches %s", list.file, list.pattern)
		}
		files[list.file] = pattern.ReplaceAll(text, []byte(list.with))
	}
	return files, nil
}

// write writes the files into root, and prints what is to be done.
func write(root, name, like, pipeline string, patches bool) error {
	s, err := describe(name, like, pipeline)
	if err != nil {
		return err
	}
	s.Patches = patches
	files, err := s.files(root)
	if err != nil {
		return err
	}
	for _, at := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(filepath.Join(root, at), files[at], 0o644); err != nil {
			return err
		}
		fmt.Println("wrote", at)
	}
	return template.Must(template.New("").Parse(places)).Execute(os.Stdout, struct{ P, File string }{references, s.File})
}

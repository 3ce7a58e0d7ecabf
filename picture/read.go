package picture

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/textfile"
)

// ErrNoSettings is wrapped by errors about valid files without settings in a
// supported format.
var ErrNoSettings = errors.New("has no settings of a generated image")

// Source is the kind of metadata that contained the settings.
type Source string

// Kinds of metadata, from the most to the least complete. ReadSettings uses the
// most complete one of a file.
const (
	// SourceGomflux is the JSON of this package.
	SourceGomflux Source = "gomflux"
	// SourceMflux is the JSON of mflux.
	SourceMflux Source = "mflux"
	// SourceParameters is the text that AUTOMATIC1111's web UI, Forge,
	// stable-diffusion.cpp and many others write. Its model is the name in that
	// program, often a file name. Its scheduler is set only if gomflux wrote the
	// text, or other programs have it by another name.
	SourceParameters Source = "parameters"
	// The following are the JSON of other programs, whose models are named as in SourceParameters.
	SourceSwarmUI       Source = "swarmui"
	SourceInvokeAI      Source = "invokeai"
	SourceFooocus       Source = "fooocus"
	SourceEasyDiffusion Source = "easydiffusion"
	SourceDrawThings    Source = "drawthings"
	// SourceComfyUI is the nodes that ComfyUI ran, of which the common ones are read.
	SourceComfyUI Source = "comfyui"
)

// NamesModel reports whether the model in the settings is one that gomflux can find by its name.
func (s Source) NamesModel() bool { return s == SourceGomflux || s == SourceMflux }

// Found is the result of ReadSettings. Its strings are those of the file,
// including control characters.
type Found struct {
	Settings Settings
	Source   Source
	// Format is the format of the file, 0 for a JSON file.
	Format Format
	// Width and Height are the size of the stored image in pixels, 0 for a JSON
	// file and if the size cannot be read.
	Width, Height int
	// Fields are the JSON names of the fields of Settings that the file had, in
	// the order of Settings. The others are zero.
	Fields []string
	// JSON is the object in the file, nil for SourceParameters. It can have more
	// keys than Settings, such as mflux's lora_paths.
	JSON json.RawMessage
	// Parameters is the parameters text, which a file can have in addition to
	// JSON, or "".
	Parameters string
	// NotUsed are settings of another program that are not in Settings.
	NotUsed []Leftover
}

// Has reports whether the file had the field with a JSON name.
func (f *Found) Has(field string) bool { return slices.Contains(f.Fields, field) }

// ReadSettings reads the settings from a PNG, JPEG or WebP file or from a JSON
// sidecar file. It detects the format by the contents. It reads PNG's tEXt, zTXt,
// iTXt and eXIf chunks, JPEG's comments, EXIF and XMP in JPEG and WebP, and the JSON
// files of EncodeSettings and of the programs of [Source]. If the file has no settings, the error
// wraps ErrNoSettings.
func ReadSettings(r io.Reader) (*Found, error) {
	data, format, err := readAll(r, true)
	if err != nil {
		return nil, err
	}
	reader, ok := readers[format]
	if !ok {
		return parseSidecar(data)
	}
	t, err := reader.texts(data)
	if err != nil {
		return nil, damaged(format, err)
	}
	f, err := t.parse()
	if err != nil {
		return nil, err
	}
	f.Format = format
	// do not fail if only the size cannot be read
	if config, err := reader.config(bytes.NewReader(data)); err == nil {
		f.Width, f.Height = config.Width, config.Height
	}
	return f, nil
}

// ReadSettingsFile reads the settings from a file. Errors contain its name.
func ReadSettingsFile(name string) (*Found, error) { return readFile(name, ReadSettings) }

// texts are the metadata of an image file that may contain settings.
type texts struct {
	settings    []byte            // JSON object of gomflux
	description string            // EXIF image description
	comment     string            // EXIF user comment
	parameters  string            // PNG text "parameters"
	chunks      map[string]string // other PNG texts, and what ComfyUI writes to EXIF
	xmp         string
}

// addEXIF adds the texts of an EXIF block, unless there are some already.
func (t *texts) addEXIF(block []byte) {
	e := parseEXIF(block)
	t.description, t.comment = cmp.Or(t.description, e.description), cmp.Or(t.comment, e.comment)
	for _, text := range append(e.camera, e.description) { // ComfyUI's nodes have "prompt:" or "workflow:" in one of these
		if key, value, ok := strings.Cut(text, ":"); ok && len(key) <= len("workflow") {
			t.addChunk(strings.ToLower(key), value)
		}
	}
}

func (t *texts) addChunk(key, value string) {
	if t.chunks == nil {
		t.chunks = map[string]string{}
	}
	t.chunks[key] = cmp.Or(t.chunks[key], value)
}

// xmpComment matches EXIF's user comment in XMP.
var xmpComment = regexp.MustCompile(`(?s)<exif:UserComment>.*?<rdf:li[^>]*>(.*?)</rdf:li>`)

// objects returns the texts that may be the JSON of a program.
func (t *texts) objects() (all []string) {
	if m := xmpComment.FindStringSubmatch(t.xmp); m != nil {
		all = append(all, html.UnescapeString(m[1]))
	}
	if t.chunks["num_inference_steps"] != "" { // Easy Diffusion has a chunk for each
		text, _ := json.Marshal(t.chunks) // consists of strings: cannot fail
		all = append(all, string(text))
	}
	return append(all, t.chunks["invokeai_metadata"], t.parameters, t.comment)
}

func (t texts) parse() (*Found, error) {
	var parameters *Found
	for _, text := range []string{t.parameters, t.comment, t.description} {
		if parameters = parseParameters(text); parameters != nil {
			break
		}
	}
	f, err := t.parseObjects()
	switch {
	case err != nil:
		return nil, err
	case parameters == nil && f == nil:
		f = parseComfy(t.chunks["prompt"])
	case parameters != nil && f == nil:
		f = parameters
	case parameters != nil:
		f.Parameters = parameters.Parameters
	}
	if f != nil {
		return f, nil
	}
	if w := t.chunks["workflow"]; strings.Contains(w, `"nodes"`) && strings.Contains(w, `"links"`) {
		return nil, fmt.Errorf("%w that gomflux reads: it has a workflow of ComfyUI without the prompt that was run", ErrNoSettings)
	}
	return nil, ErrNoSettings
}

// parseObjects reads the JSON of gomflux or of another program, nil without any.
func (t texts) parseObjects() (*Found, error) {
	if t.settings == nil && strings.HasPrefix(t.description, commentStart) {
		members, err := parseObject([]byte(t.description))
		if err != nil {
			return nil, err
		}
		t.settings = members["gomflux"]
	}
	if t.settings != nil {
		return parseSettings(t.settings)
	}
	for _, text := range t.objects() {
		members, err := parseObject([]byte(text))
		if err != nil {
			continue // it may be another program's
		}
		if f, err := parseForeign([]byte(text), members); f != nil || err != nil {
			return f, err
		}
	}
	return nil, nil
}

// parseForeign reads the JSON object of another program, nil for that of none.
func parseForeign(object []byte, members map[string]json.RawMessage) (f *Found, err error) {
	if members["mflux_version"] != nil {
		if f, err = parseMflux(members); err != nil {
			return nil, fmt.Errorf("settings of mflux: %w", err)
		}
	}
	for _, p := range programs {
		if f == nil {
			f = p.parse(members)
		}
	}
	if f != nil {
		f.JSON = object
	}
	return f, nil
}

// parseSidecar reads a JSON file.
func parseSidecar(data []byte) (*Found, error) {
	data, err := textfile.Decode(data)
	if err != nil {
		return nil, err
	}
	data = bytes.TrimSpace(data)
	members, err := parseObject(data)
	if err != nil {
		return nil, err
	}
	if object, ok := members["gomflux"]; ok {
		return parseSettings(object)
	}
	if f, err := parseForeign(data, members); f != nil || err != nil {
		return f, err
	}
	if f := parseComfy(string(data)); f != nil {
		return f, nil
	}
	return nil, fmt.Errorf("%w (expected the key gomflux or mflux_version, or the settings of another program)", ErrNoSettings)
}

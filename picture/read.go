package picture

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
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
	// text.
	SourceParameters Source = "parameters"
)

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
}

// Has reports whether the file had the field with a JSON name.
func (f *Found) Has(field string) bool { return slices.Contains(f.Fields, field) }

// ReadSettings reads the settings from a PNG, JPEG or WebP file or from a JSON
// sidecar file. It detects the format by the contents. It reads PNG's tEXt, zTXt,
// iTXt and eXIf chunks, JPEG's EXIF and comments, WebP's EXIF, and the sidecar
// files of EncodeSettings and of mflux. If the file has no settings, the error
// wraps ErrNoSettings.
func ReadSettings(r io.Reader) (*Found, error) {
	data, format, err := readAll(r, true)
	if err != nil {
		return nil, err
	}
	var t texts
	switch format {
	case PNG:
		t, err = pngTexts(data)
	case JPEG:
		t, err = jpegTexts(data)
	case WebP:
		t, err = webpTexts(data)
	default:
		return parseSidecar(data)
	}
	if err != nil {
		return nil, damaged(format, err)
	}
	f, err := t.parse()
	if err != nil {
		return nil, err
	}
	f.Format = format
	// do not fail if only the size cannot be read
	if config, err := decoders[format].config(bytes.NewReader(data)); err == nil {
		f.Width, f.Height = config.Width, config.Height
	}
	return f, nil
}

// ReadSettingsFile reads the settings from a file. Errors contain its name.
func ReadSettingsFile(name string) (*Found, error) { return readFile(name, ReadSettings) }

// texts are the metadata of an image file that may contain settings.
type texts struct {
	settings    []byte // JSON object of gomflux
	description string // EXIF image description
	comment     string // EXIF user comment
	parameters  string // PNG text "parameters"
}

// addEXIF adds the texts of an EXIF block, unless there are some already.
func (t *texts) addEXIF(block []byte) {
	e := parseEXIF(block)
	t.description, t.comment = cmp.Or(t.description, e.description), cmp.Or(t.comment, e.comment)
}

func (t texts) parse() (*Found, error) {
	f := &Found{}
	s, fields, ok := parseParameters(t.parameters)
	if ok {
		f.Parameters = t.parameters
	} else if s, fields, ok = parseParameters(t.comment); ok {
		f.Parameters = t.comment
	}
	if t.settings == nil && strings.HasPrefix(t.description, commentStart) {
		members, err := parseObject([]byte(t.description))
		if err != nil {
			return nil, err
		}
		t.settings = members["gomflux"]
	}
	if t.settings != nil {
		return f.gomflux(t.settings)
	}
	if strings.HasPrefix(strings.TrimSpace(t.comment), "{") {
		// ignore errors: it may be another program's comment
		if members, err := parseObject([]byte(t.comment)); err == nil && isMflux(members) {
			return f.mflux([]byte(t.comment), members)
		}
	}
	if !ok {
		return nil, ErrNoSettings
	}
	f.Settings, f.Fields, f.Source = s, fields, SourceParameters
	return f, nil
}

func (f *Found) gomflux(object []byte) (*Found, error) {
	var err error
	if f.Settings, f.Fields, err = parseSettings(object); err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	f.Source, f.JSON = SourceGomflux, object
	return f, nil
}

func (f *Found) mflux(object []byte, members map[string]json.RawMessage) (*Found, error) {
	var err error
	if f.Settings, f.Fields, err = parseMflux(members); err != nil {
		return nil, fmt.Errorf("settings of mflux: %w", err)
	}
	f.Source, f.JSON = SourceMflux, object
	return f, nil
}

// parseSidecar reads a JSON file.
func parseSidecar(data []byte) (*Found, error) {
	members, err := parseObject(data)
	if err != nil {
		return nil, err
	}
	f := &Found{}
	if object, ok := members["gomflux"]; ok {
		return f.gomflux(object)
	}
	if isMflux(members) {
		return f.mflux(bytes.TrimSpace(data), members)
	}
	return nil, fmt.Errorf("%w (expected the key gomflux or mflux_version)", ErrNoSettings)
}

package picture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// ErrNoSettings is wrapped by errors about files that are whole but have no
// settings that this package knows.
var ErrNoSettings = errors.New("has no settings of a generated picture")

// Source is the kind of metadata that settings were found in.
type Source string

// Kinds of metadata, from the one that says most to the one that says least. A
// file's best one counts.
const (
	// SourceGomflux is the JSON of this package.
	SourceGomflux Source = "gomflux"
	// SourceMflux is the JSON of mflux.
	SourceMflux Source = "mflux"
	// SourceParameters is the text that AUTOMATIC1111's web UI, Forge,
	// stable-diffusion.cpp and many others write. Its model is what they call
	// it, often a file's name, and its scheduler is set only where gomflux wrote
	// the text.
	SourceParameters Source = "parameters"
)

// Found is what ReadSettings found. Its strings are as the file has them, control
// characters included.
type Found struct {
	Settings Settings
	Source   Source
	// Format is the file's, 0 for a JSON file.
	Format Format
	// Width and Height are the stored picture's in pixels, 0 for a JSON file and a
	// picture that does not say them.
	Width, Height int
	// Fields are the JSON names of those fields of Settings that the file had,
	// in their order. The others are zero.
	Fields []string
	// JSON is the object as it was read, nil for SourceParameters. It can have
	// more than Settings does, such as mflux's lora_paths.
	JSON json.RawMessage
	// Parameters is the parameters text, which can be there beside JSON, or "".
	Parameters string
}

// Has reports whether the file had the field with a JSON name.
func (f *Found) Has(field string) bool { return slices.Contains(f.Fields, field) }

// ReadSettings reads the settings in a PNG, JPEG or WebP file or in a JSON
// sidecar file, its kind judged by its content. It reads PNG's tEXt, zTXt, iTXt
// and eXIf chunks, JPEG's EXIF and comments, WebP's EXIF, and the sidecars of
// EncodeSettings and of mflux. The error wraps ErrNoSettings where there are
// none.
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
	// a picture whose head is damaged is one all the same
	if config, err := decoders[format].config(bytes.NewReader(data)); err == nil {
		f.Width, f.Height = config.Width, config.Height
	}
	return f, nil
}

// ReadSettingsFile is ReadSettings for a file; its errors name it.
func ReadSettingsFile(name string) (*Found, error) { return readFile(name, ReadSettings) }

// texts are what a picture file carries that may be settings.
type texts struct {
	settings   []byte // our JSON object
	comment    string // EXIF's user comment
	parameters string // PNG's text of that name
}

func (t texts) parse() (*Found, error) {
	f := &Found{}
	s, fields, ok := parseParameters(t.parameters)
	if ok {
		f.Parameters = t.parameters
	} else if s, fields, ok = parseParameters(t.comment); ok {
		f.Parameters = t.comment
	}
	if t.settings != nil {
		return f.gomflux(t.settings)
	}
	if strings.HasPrefix(strings.TrimSpace(t.comment), "{") {
		// somebody else's comment, if it cannot be read
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

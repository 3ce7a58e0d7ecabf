package picture

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/plainjson"
	"github.com/gomflux/gomflux/internal/quote"
)

// SettingsVersion is the version of the JSON form of Settings that this package
// writes, and the newest that it reads.
const SettingsVersion = 1

// Settings are all settings that are needed to generate an image again. Their JSON
// form is stored in images and in sidecar files under the key "gomflux". Later
// releases may add fields to a version, so readers must ignore unknown fields.
type Settings struct {
	// Version is the version of the JSON form. 0 is written as SettingsVersion.
	Version int `json:"version"`
	// Generator is the program that generated the image and its version, such as
	// "gomflux v0.4.0".
	Generator string `json:"generator"`
	// Model is the argument of --model: a name, owner/name, or a folder.
	Model string `json:"model"`
	// Revision is the commit of the model's repository, if known.
	Revision string `json:"revision,omitempty"`
	// BaseModel is the model that supplied the components that a single file lacks.
	BaseModel string `json:"base_model,omitempty"`
	// Class is the pipeline class: the one that model_index.json names, or of several with the same
	// components the one for prompts alone.
	Class string `json:"class,omitempty"`

	Prompt string `json:"prompt"`
	// OriginalPrompt is the prompt that a language model rewrote to Prompt, "" if none did.
	OriginalPrompt string `json:"original_prompt,omitempty"`
	// EnhancedBy is the language model that rewrote the prompt.
	EnhancedBy     string `json:"enhanced_by,omitempty"`
	NegativePrompt string `json:"negative_prompt,omitempty"`
	// Seed chooses the initial noise.
	Seed uint64 `json:"seed"`
	// Steps is the number of denoising steps, at least 1.
	Steps int `json:"steps"`
	// Guidance is the guidance scale.
	Guidance float64 `json:"guidance"`
	// GuidanceUnit is how Guidance counts, "" for the unit of the model's pipeline.
	GuidanceUnit GuidanceUnit `json:"guidance_unit,omitempty"`
	// GuidanceInterval are the two fractions of the steps between which guidance was
	// applied, nil for all steps.
	GuidanceInterval []float64 `json:"guidance_interval,omitempty"`
	// TrueCFGScale is the scale of classifier-free guidance in addition to a distilled one, 0 without
	// it. Models without a distilled scale use it as Guidance.
	TrueCFGScale float64 `json:"true_cfg_scale,omitempty"`
	// CFGNormalization is the largest norm of a guided prediction, relative to one that is not
	// guided, 0 without a limit.
	CFGNormalization float64 `json:"cfg_normalization,omitempty"`
	// CFGTruncation is the part of the noise after which there was no guidance, 0 if there
	// always was.
	CFGTruncation float64 `json:"cfg_truncation,omitempty"`
	// StepCache is the rule of the step cache and its threshold, "" if all steps were
	// computed.
	StepCache string `json:"step_cache,omitempty"`
	// Sigmas are the noise levels of the steps that were asked for, nil for those of the model.
	Sigmas []float64 `json:"sigmas,omitempty"`
	// Height and Width are in pixels.
	Height int `json:"height"`
	Width  int `json:"width"`
	// MaxSequenceLength is the limit on the prompt's tokens, 0 if unknown.
	MaxSequenceLength int `json:"max_sequence_length,omitempty"`
	// Scheduler is the name of diffusers' class in snake case, such as
	// flow_match_euler_discrete.
	Scheduler string `json:"scheduler,omitempty"`
	// RNG is the generator of the noise: torch or mlx. "" means mlx.
	RNG string `json:"rng,omitempty"`
	// Background is transparent or opaque, as in --background. "" means that it is as the
	// model generated it.
	Background string `json:"background,omitempty"`
	// Layers is the number of layers into which the first of References was split, 0 for an image that is
	// not made of layers.
	Layers int `json:"layers,omitempty"`
	// Layer is the number of the layer that the image is, from 1 for the lowest; 0 for the image that they
	// compose.
	Layer int `json:"layer,omitempty"`
	// Batch is the number of images that were generated together, which can affect
	// rounding. 0 means 1.
	Batch int `json:"batch,omitempty"`

	// Split is how several processes generated the image together, as in --split: passes or sequence, which
	// affects rounding, or pictures or stages, which do not. "" means that one process did.
	Split string `json:"split,omitempty"`
	// Ranks is the number of these processes, 0 if one process generated the image.
	Ranks int `json:"ranks,omitempty"`

	// Dtype is the dtype of the computation: float32, bfloat16 or float16.
	Dtype string `json:"dtype,omitempty"`
	// Device is the device of the computation: cpu, metal or cuda.
	Device string `json:"device,omitempty"`
	// MLX is the version of MLX.
	MLX string `json:"mlx,omitempty"`
	// Tuning has the choices of gomflux bench --tune that the computation differed in from
	// the defaults, which affects rounding. "" means the defaults.
	Tuning string `json:"tuning,omitempty"`
	// KVCache means that keys and values of the prompt or of the reference images were
	// computed in the first step and kept for the others, which affects rounding.
	KVCache bool `json:"kv_cache,omitempty"`

	// Image is the initial image of image-to-image, nil without one.
	Image *SourceImage `json:"image,omitempty"`
	// ImageStrength is the value of --image-strength, from 0 to 1.
	ImageStrength float64 `json:"image_strength,omitempty"`
	// References are the reference images of an edit, in order.
	References []SourceImage `json:"references,omitempty"`

	// Mask is the mask with which Image was inpainted, nil without one. Its path is a
	// file, a shape such as "rect:10,10,200,120", or "alpha", the transparency of Image.
	Mask *SourceImage `json:"mask,omitempty"`
	// InvertMask means that the black part of the mask was repainted.
	InvertMask bool `json:"invert_mask,omitempty"`
	// MaskBlur is the width over which the repainted part fades in, in pixels of Image. nil
	// stands for the default.
	MaskBlur *int `json:"mask_blur,omitempty"`
	// MaskCrop is the padding around the mask, in pixels of Image, of the part that the
	// model saw. nil means that it saw the whole image.
	MaskCrop *int `json:"mask_crop,omitempty"`
	// Expand are the numbers of pixels that were added to Image at its left, top, right
	// and bottom, nil without any.
	Expand []int `json:"expand,omitempty"`
	// NoPasteBack means that the image is as the model generated it, with Height and
	// Width. Otherwise it is Image, with Expand, and only the masked part differs.
	NoPasteBack bool `json:"no_paste_back,omitempty"`

	// Upscaler is the network by which the image was enlarged afterwards, or lanczos; "" if it was not.
	Upscaler string `json:"upscaler,omitempty"`
	// UpscaledHeight and UpscaledWidth are the size of the enlarged image, in pixels, 0 if it was not enlarged.
	UpscaledHeight int `json:"upscaled_height,omitempty"`
	UpscaledWidth  int `json:"upscaled_width,omitempty"`
	// Refine is how much of the enlarged image was generated again, from 0 to 1.
	Refine float64 `json:"refine,omitempty"`

	// Quantize is the quantization of the weights during loading: 3, 4, 5, 6 or 8
	// bits, mxfp4, mxfp8 or nvfp4; "" if the weights were not changed.
	Quantize string `json:"quantize,omitempty"`
	// GroupSize is the number of weights that share a scale, 0 for the default.
	GroupSize int `json:"group_size,omitempty"`
	// LoRAs are the LoRAs that changed the weights, in order.
	LoRAs []LoRA `json:"loras,omitempty"`
	// RuntimeLoRA means that LoRAs were computed next to the weights, instead of
	// being baked into them.
	RuntimeLoRA bool `json:"runtime_lora,omitempty"`

	// Created is the time of generation. It is written in UTC, to the second
	// (RFC 3339).
	Created time.Time `json:"created,omitzero"`
	// Seconds is the duration of the generation.
	Seconds float64 `json:"seconds,omitempty"`
}

// A SourceImage is an image that was an input of the generation.
type SourceImage struct {
	// Path is the file as the user named it.
	Path string `json:"path"`
	// SHA256 is the hash of the file's bytes in lower-case hexadecimal digits,
	// "" if it is not known.
	SHA256 string `json:"sha256,omitempty"`
}

// A LoRA is a LoRA file that changed the weights of a model.
type LoRA struct {
	// Path is the argument of --lora: a file, or owner/name:file.
	Path string `json:"path"`
	// Revision is the commit of the LoRA's repository, if it has one.
	Revision string `json:"revision,omitempty"`
	// Scale is the factor of the LoRA's changes.
	Scale float64 `json:"scale"`
	// SHA256 is the hash of the file's bytes in lower-case hexadecimal digits,
	// "" if it is not known.
	SHA256 string `json:"sha256,omitempty"`
	// Partial means that tensors that fit no layer of the model were left out.
	Partial bool `json:"partial,omitempty"`
}

// MaxSide is the largest height and width that Settings can have, in pixels.
const MaxSide = 1 << 16

// MaxCount is the largest number of steps and of tokens that Settings can have.
const MaxCount = 1 << 20

// Limits for reading and writing. A text of maxText bytes is long enough for two
// prompts of maxPrompt and the paths of maxReferences and maxLoRAs, even if JSON
// has to escape all of their characters.
const (
	maxText   = 8 << 20 // bytes of a metadata text or a sidecar file
	maxPrompt = 1 << 18 // bytes
	maxString = 1 << 12 // bytes of any other string

	maxReferences = 64
	maxLoRAs      = 32
)

// settingsFields are the JSON names of all fields, in the order of Settings, and optionalFields
// those that are not written if they are zero.
var settingsFields, optionalFields = taggedFields()

func taggedFields() (all, optional []string) {
	t := reflect.TypeFor[Settings]()
	for i := range t.NumField() {
		name, option, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		all = append(all, name)
		if option != "" {
			optional = append(optional, name)
		}
	}
	return all, optional
}

// field returns a pointer to the field with a JSON name, a *string also for other types of strings.
func (s *Settings) field(name string) any {
	p := reflect.ValueOf(s).Elem().Field(slices.Index(settingsFields, name)).Addr()
	if p.Elem().Kind() == reflect.String {
		p = p.Convert(reflect.TypeFor[*string]())
	}
	return p.Interface()
}

// Check validates the settings. Encode and EncodeSettings do not write settings
// with strings that are not UTF-8 or are too long (prompts of more than 256 KiB,
// other strings of more than 4 KiB), with numbers that are not finite or out of
// range, with more than 64 references or 32 LoRAs, or with one without a path.
func (s *Settings) Check() error {
	t := *s
	if t.Version == 0 {
		t.Version = SettingsVersion
	}
	for _, name := range settingsFields {
		if n, ok := t.field(name).(*int); ok && *n == 0 && slices.Contains(optionalFields, name) {
			continue
		}
		if err := t.checkField(name); err != nil {
			return fmt.Errorf("settings: %w", err)
		}
	}
	return nil
}

// checkSigmas refuses sigmas that are not above 0, at most 1 and falling.
func checkSigmas(sigmas []float64) error {
	last := 1.5
	for _, v := range sigmas {
		if !(v > 0 && v <= 1 && v < last) {
			return fmt.Errorf("sigmas: expected numbers from 1 at most to above 0 that fall, found %v", sigmas)
		}
		last = v
	}
	if len(sigmas) > MaxCount {
		return fmt.Errorf("sigmas: %d numbers, expected at most %d", len(sigmas), MaxCount)
	}
	return nil
}

func (s *Settings) checkField(name string) error {
	switch v := s.field(name).(type) {
	case *string:
		limit := maxString
		if name == "prompt" || name == "original_prompt" || name == "negative_prompt" {
			limit = maxPrompt
		}
		return checkString(name, *v, limit)
	case *int:
		return checkInt(name, *v)
	case **int:
		if *v != nil {
			return checkInt(name, **v)
		}
	case *[]int:
		return checkBorder(name, *v)
	case *float64:
		return checkFloat(name, *v)
	case *[]float64:
		if name == "sigmas" {
			return checkSigmas(*v)
		}
		if f := *v; f != nil && !(len(f) == 2 && f[0] >= 0 && f[0] < f[1] && f[1] <= 1) {
			return fmt.Errorf("%s: expected two numbers from 0 to 1 that rise, found %v", name, f)
		}
	case *time.Time:
		if y := v.UTC().Year(); y < 1 || y > 9999 {
			return fmt.Errorf("%s: expected a year from 1 to 9999, found %d", name, y)
		}
	case **SourceImage:
		if *v != nil {
			return (*v).check(name)
		}
	case *[]SourceImage:
		if len(*v) > maxReferences {
			return fmt.Errorf("%s: expected at most %d, found %d", name, maxReferences, len(*v))
		}
		for i, r := range *v {
			name := fmt.Sprintf("%s[%d]", name, i)
			if r.Path == "" {
				return fmt.Errorf("%s.path is missing", name)
			}
			if err := r.check(name); err != nil {
				return err
			}
		}
	case *[]LoRA:
		if len(*v) > maxLoRAs {
			return fmt.Errorf("%s: expected at most %d, found %d", name, maxLoRAs, len(*v))
		}
		for i, l := range *v {
			if err := l.check(fmt.Sprintf("%s[%d]", name, i)); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkInt(name string, v int) error {
	least, limit := 1, MaxCount
	switch name {
	case "version":
		if v > SettingsVersion {
			return fmt.Errorf("written by a newer gomflux (settings version %d, this one reads up to %d)", v, SettingsVersion)
		}
	case "height", "width", "upscaled_height", "upscaled_width":
		limit = MaxSide
	case "mask_blur", "mask_crop":
		least, limit = 0, MaxSide
	}
	if v < least || v > limit {
		return fmt.Errorf("%s: expected a whole number from %d to %d, found %d", name, least, limit, v)
	}
	return nil
}

// checkBorder checks the pixels that were added on four sides, of which one must be
// more than 0.
func checkBorder(name string, sides []int) error {
	outside := func(n int) bool { return n < 0 || n > MaxSide }
	if sides != nil && (len(sides) != 4 || slices.ContainsFunc(sides, outside) || slices.Max(sides) == 0) {
		return fmt.Errorf("%s: expected four whole numbers from 0 to %d, one of them more than 0, found %v", name, MaxSide, sides)
	}
	return nil
}

func checkFloat(name string, v float64) error {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return fmt.Errorf("%s: expected a finite number, found %v", name, v)
	case (name == "image_strength" || name == "refine") && (v < 0 || v > 1):
		return fmt.Errorf("%s: expected a number from 0 to 1, found %v", name, v)
	case name == "seconds" && v < 0:
		return fmt.Errorf("%s: expected at least 0, found %v", name, v)
	}
	return nil
}

func (l *LoRA) check(name string) error {
	switch {
	case l.Path == "":
		return fmt.Errorf("%s.path is missing", name)
	case math.IsNaN(l.Scale) || math.IsInf(l.Scale, 0):
		return fmt.Errorf("%s.scale: expected a finite number, found %v", name, l.Scale)
	}
	if err := checkString(name+".revision", l.Revision, maxString); err != nil {
		return err
	}
	return (&SourceImage{l.Path, l.SHA256}).check(name)
}

func (i *SourceImage) check(name string) error {
	if err := checkString(name+".path", i.Path, maxString); err != nil {
		return err
	}
	if h := i.SHA256; h != "" && !isSHA256(h) {
		return fmt.Errorf("%s.sha256: expected 64 hexadecimal digits, found %s", name, quote.Text(h))
	}
	return nil
}

func checkString(name, value string, limit int) error {
	if len(value) > limit {
		return fmt.Errorf("%s: expected at most %d bytes, found %d", name, limit, len(value))
	}
	if !utf8.ValidString(value) {
		return fmt.Errorf("%s is not UTF-8", name)
	}
	return nil
}

func isSHA256(h string) bool {
	data, err := hex.DecodeString(h)
	return err == nil && len(data) == sha256.Size && h == strings.ToLower(h)
}

// marshal checks the settings and returns them as JSON, indented by indent.
func (s *Settings) marshal(indent string) ([]byte, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	t := *s
	t.Version = SettingsVersion
	t.Created = t.Created.UTC().Truncate(time.Second)
	return plainjson.Marshal(t, indent)
}

// wrap returns the JSON of sidecar files and JPEG comments, indented by indent.
func (s *Settings) wrap(indent string) ([]byte, error) {
	object, err := s.marshal("")
	if err != nil {
		return nil, err
	}
	text, err := plainjson.Marshal(map[string]json.RawMessage{"gomflux": object}, indent)
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	return text, nil
}

// EncodeSettings writes a sidecar file: a JSON object with the settings under
// the key "gomflux".
func EncodeSettings(w io.Writer, s *Settings) error {
	text, err := s.wrap("  ")
	if err != nil {
		return err
	}
	if _, err := w.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	return nil
}

// parseSettings parses the JSON object that marshal writes.
func parseSettings(text []byte) (*Found, error) {
	f := &Found{Source: SourceGomflux, JSON: text}
	members, err := parseObject(text)
	if err == nil && members["version"] == nil {
		err = errors.New("version is missing")
	}
	if err == nil {
		err = f.readFields(members)
	}
	if err != nil {
		return nil, fmt.Errorf("settings: %w", err)
	}
	return f, nil
}

// readFields reads the members that are fields of Settings and ignores others.
func (f *Found) readFields(members map[string]json.RawMessage) error {
	for _, name := range settingsFields {
		if raw, ok := members[name]; ok {
			if err := f.Settings.readField(name, raw); err != nil {
				return err
			}
			f.Fields = append(f.Fields, name)
		}
	}
	return nil
}

// wanted describes the JSON of fields by their types.
var wanted = map[reflect.Type]string{
	reflect.TypeFor[*string]():        "a string",
	reflect.TypeFor[*int]():           "a whole number",
	reflect.TypeFor[**int]():          "a whole number",
	reflect.TypeFor[*[]int]():         "an array of four whole numbers",
	reflect.TypeFor[*uint64]():        "a whole number from 0 to 2^64-1",
	reflect.TypeFor[*float64]():       "a number",
	reflect.TypeFor[*[]float64]():     "an array of two numbers",
	reflect.TypeFor[*time.Time]():     "a time (RFC 3339)",
	reflect.TypeFor[**SourceImage]():  "an object with path and sha256",
	reflect.TypeFor[*[]SourceImage](): "an array of objects with path and sha256",
	reflect.TypeFor[*[]LoRA]():        "an array of objects with path, revision, scale, sha256 and partial",
	reflect.TypeFor[*bool]():          "true or false",
}

func (s *Settings) readField(name string, raw json.RawMessage) error {
	p := s.field(name)
	if isNull(raw) || json.Unmarshal(raw, p) != nil {
		return fmt.Errorf("%s: expected %s, found %s", name, wanted[reflect.TypeOf(p)], show(raw))
	}
	return s.checkField(name)
}

func isNull(raw json.RawMessage) bool { return string(raw) == "null" }

// parseObject parses a JSON object. Unlike json.Unmarshal it rejects duplicate
// keys and text that is not UTF-8, which other readers may interpret differently.
func parseObject(text []byte) (map[string]json.RawMessage, error) {
	if len(text) > maxText {
		return nil, fmt.Errorf("expected at most %d bytes of JSON, found %d", maxText, len(text))
	}
	if !utf8.Valid(text) {
		return nil, errors.New("the JSON is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil {
		return nil, fmt.Errorf("invalid JSON: %w", oserr.NoEOF(err))
	} else if t != json.Delim('{') {
		return nil, errors.New("expected a JSON object")
	}
	members := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("invalid JSON: %w", oserr.NoEOF(err))
		}
		key := t.(string) // Token guarantees a string here
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return nil, fmt.Errorf("invalid JSON: %s: %w", quote.Text(key), oserr.NoEOF(err))
		}
		if _, ok := members[key]; ok {
			return nil, fmt.Errorf("invalid JSON: duplicate key %s", quote.Text(key))
		}
		members[key] = value
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("invalid JSON: %w", oserr.NoEOF(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("invalid JSON: text after the object")
	}
	return members, nil
}

// show shortens a JSON value to one line for a message.
func show(raw json.RawMessage) string {
	const most = 60 // bytes
	text := string(raw)
	if len(text) > most {
		text = text[:most] + "..."
	}
	return printable(strings.Join(strings.Fields(strings.ToValidUTF8(text, "")), " "))
}

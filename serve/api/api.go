// Package api has what the HTTP APIs of gomflux serve do in the same way: seeds, image files,
// streams of events, and the HTTP status of errors.
package api

import (
	"fmt"
	"image"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/serve/engine"
)

// Seeds returns n consecutive seeds. If first is nil, they are random ones of 32 bits, which are
// easy to type.
func Seeds(first *uint64, n int) []uint64 {
	seeds := make([]uint64, n)
	for i := range seeds {
		if seeds[i] = uint64(rand.Uint32()); first != nil {
			seeds[i] = *first + uint64(i)
		}
	}
	return seeds
}

// CutLoRAs takes the LoRAs out of a request's prompt, and adds them to its own, of which there are then at
// most a number. known lists the names that they can stand for.
func CutLoRAs(r *engine.Request, known func() []string, most int) error {
	text, tags, err := picture.CutLoRAs(r.Options.Prompt)
	if err != nil {
		return err
	}
	if n := len(r.LoRAs) + len(tags); n > most {
		return fmt.Errorf("expected at most %d LoRAs, found %d", most, n)
	}
	if r.Options.Prompt = text; len(tags) > 0 {
		r.LoRAs = append(r.LoRAs, NamedLoRAs(tags, known())...)
	}
	return nil
}

// NamedLoRAs returns LoRAs of a prompt, with the names of those in known that they stand for.
func NamedLoRAs(tags []picture.LoRA, known []string) (loras []gomflux.LoRA) {
	for _, tag := range tags {
		loras = append(loras, gomflux.LoRA{Path: tag.Named(known).Path, Scale: tag.Scale})
	}
	return loras
}

// A LoRA is how a LoRA of a request is used.
type LoRA struct {
	Scale   *float64 `json:"scale"` // nil stands for 1
	Partial bool     `json:"partial"`
}

// AppendTo appends the LoRA with a path, unless its scale is 0, which has no effect and stands for 1 in [gomflux.LoRA].
func (l LoRA) AppendTo(loras []gomflux.LoRA, path string) []gomflux.LoRA {
	switch {
	case l.Scale == nil:
		return append(loras, gomflux.LoRA{Path: path, Scale: 1, Partial: l.Partial})
	case *l.Scale == 0:
		return loras
	}
	return append(loras, gomflux.LoRA{Path: path, Scale: *l.Scale, Partial: l.Partial})
}

// Recorded returns the settings for an image's file, as gomflux generate writes them: without
// times, so that the same image is the same file. It returns nil for settings that cannot be
// stored, such as those with a prompt that is too long for metadata.
func Recorded(s picture.Settings) *picture.Settings {
	if s.Check() != nil {
		return nil
	}
	s.Created, s.Seconds = time.Time{}, 0
	return &s
}

// EncodePNG writes an image as gomflux generate does: as PNG with the settings of [Recorded].
func EncodePNG(w io.Writer, img image.Image, s picture.Settings) error {
	return picture.Encode(w, picture.PNG, img, Recorded(s))
}

// LanguageModel returns the name of a model that writes and, if that is asked for, sees images: the named
// one, the default one or the first.
func LanguageModel(models []engine.ModelInfo, name string, sees bool) (string, bool) {
	for _, is := range []func(m engine.ModelInfo) bool{
		func(m engine.ModelInfo) bool { return m.Is(name) },
		func(m engine.ModelInfo) bool { return m.Default },
		func(engine.ModelInfo) bool { return true },
	} {
		if i := slices.IndexFunc(models, func(m engine.ModelInfo) bool { return m.CanWrite(sees) && is(m) }); i >= 0 {
			return models[i].Name, true
		}
	}
	return "", false
}

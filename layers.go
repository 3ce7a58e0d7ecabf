package gomflux

import (
	"context"
	"fmt"
	"image"
	"strings"

	"github.com/gomflux/gomflux/textgen"
)

// Layers returns the default number of layers of a model that splits an image into layers, and 0 for other
// models. See Options.Layers.
func (m *Model) Layers() int { return m.pipeline.DefaultLayers() }

// A caption is the text with which a model's text encoder described an image.
type caption struct {
	of   image.Image
	text Answer
}

// caption sets the prompt of an image that is split into layers to what the model's text encoder says about
// it, if it is empty.
func (m *Model) caption(ctx context.Context, o *Options) error {
	if m.Layers() == 0 || strings.TrimSpace(o.Prompt) != "" || o.Enhance != nil || o.Values != nil || len(o.References) != 1 {
		return nil
	}
	img := o.References[0]
	m.captioned.Lock()
	defer m.captioned.Unlock()
	if m.captioned.of != img {
		if err := m.makeRoom(ctx); err != nil {
			return err
		}
		open := &LanguageOptions{Device: m.Device(), Dtype: m.Dtype(), Quantize: Quantization(m.changes.Quantize), Progress: o.Progress}
		answer, err := withLanguage(ctx, m.source, open, func(l *LanguageModel) (*Answer, error) {
			return l.answer(ctx, func() (textgen.Text, error) { return l.model.Caption(img, m.pipeline.EditSize(o.References)) })
		})
		if err != nil {
			return fmt.Errorf("describing the image, since there is no prompt: %w", err)
		}
		m.captioned.caption = caption{img, *answer}
	}
	o.Prompt, o.EnhancedBy = m.captioned.text.Text, m.captioned.text.Model
	return nil
}

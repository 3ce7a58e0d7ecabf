package gomflux_test

import (
	"context"
	"image"
	"slices"
	"testing"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/modeltest"
	"github.com/gomflux/gomflux/picture"
)

// TestTransparent generates, decodes and encodes images with transparent pixels.
func TestTransparent(t *testing.T) {
	ctx := context.Background()
	folder := modeltest.Transparent(t, "zimage-small")
	open := &gomflux.OpenOptions{Device: gomflux.CPU}
	m, err := gomflux.Open(ctx, folder, open)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if !m.HasAlpha() {
		t.Fatal("the model's images are opaque")
	}
	var last gomflux.Latents
	o := gomflux.Options{Prompt: "a red circle", Height: 32, Width: 32, Steps: 1, Seed: new(uint64),
		OnStep: func(s gomflux.Step) error { last = s.Latents; return nil }}
	res, err := m.Generate(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Transparent == nil || res.Pixels() != image.Image(res.Transparent) || res.Settings.Background != "" {
		t.Fatalf("transparent %v, background %q", res.Transparent != nil, res.Settings.Background)
	}
	if !slices.Equal(picture.Opaque(res.Transparent).Pix, res.Image.Pix) {
		t.Error("the image is not on white")
	}
	o.Background = gomflux.OpaqueBackground
	white, err := m.Generate(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	if white.Transparent != nil || white.Pixels() != image.Image(white.Image) || !slices.Equal(white.Image.Pix, res.Image.Pix) {
		t.Error("an opaque background: other pixels than on white")
	}
	if s := white.Settings; s.Background != "opaque" || gomflux.OptionsFrom(&s).Background != gomflux.OpaqueBackground {
		t.Errorf("recorded background %q", s.Background)
	}

	v, err := gomflux.OpenVAE(ctx, folder, open)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	decoded, err := v.DecodeTransparent(ctx, last, false)
	if err != nil {
		t.Fatal(err)
	}
	if !v.HasAlpha() || !slices.Equal(decoded.Pix, res.Transparent.Pix) {
		t.Error("the autoencoder alone decodes other pixels")
	}
	opaque, err := v.Decode(ctx, last)
	if err != nil || !slices.Equal(opaque.Pix, res.Image.Pix) {
		t.Errorf("the autoencoder alone decodes other pixels on white (%v)", err)
	}
	seen, err := v.Encode(ctx, decoded)
	if err != nil {
		t.Fatal(err)
	}
	if unseen, err := v.Encode(ctx, opaque); err != nil || slices.Equal(seen.Data, unseen.Data) {
		t.Errorf("the encoder does not see transparency (%v)", err)
	}
}

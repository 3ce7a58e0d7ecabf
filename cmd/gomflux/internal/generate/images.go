package generate

import (
	"cmp"
	"context"
	"fmt"
	"image"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/cmd/gomflux/internal/cli"
	"github.com/gomflux/gomflux/internal/oserr"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/picture"
)

// prompt returns the prompt of an image. All images of a prompt follow one another,
// since the model caches its embeddings.
func (g *generation) prompt(i int) string { return g.allPrompts[i/g.each] }

// seed returns the seed of an image; all prompts have the same seeds. Random ones are
// drawn when they are needed, since there may be any number of them.
func (g *generation) seed(i int) uint64 {
	for i %= g.each; i >= len(g.knownSeeds); {
		draw := rand.Uint32 // 32 bits are easy to type again
		if g.random != nil {
			draw = g.random.Uint32
		}
		g.knownSeeds = append(g.knownSeeds, uint64(draw()))
	}
	return g.knownSeeds[i]
}

// readImages reads the image to start from, those to edit, or the one to inpaint with its
// mask.
func (g *generation) readImages() (images []image.Image, err error) {
	read := map[string]*picture.Picture{} // a file may be given twice
	for i, name := range g.images {
		if read[name] == nil {
			if read[name], err = picture.ReadFile(name); err != nil {
				return nil, err
			}
		}
		hash := read[name].SHA256
		images = append(images, read[name].Pixels())
		if read[name].Transparent != nil && !(i == 0 && g.masked()) {
			g.transparent = append(g.transparent, name)
		}
		g.sources = append(g.sources, picture.SourceImage{Path: catalog.TildePath(name), SHA256: hash})
		if g.recordedFrom != nil && g.recordedFrom[i].SHA256 != "" && g.recordedFrom[i].SHA256 != hash {
			g.out.Warn("%s has changed since %s was generated from it", name, g.config)
		}
	}
	if g.masked() {
		name := g.images[0]
		return images, g.useMask(read[name], name)
	}
	return images, nil
}

// finish saves a generated image, and shows it.
func (g *generation) finish(ctx context.Context, index int, result *gomflux.Result, steps []sheetStep) error {
	g.report.saving(index)
	switch s := &result.Settings; {
	case g.masked():
		s.Image, s.Mask, s.References = &g.sources[0], g.maskSource, g.sources[1:]
	case g.edits:
		s.References = g.sources
	case len(g.sources) > 0:
		s.Image = &g.sources[0]
	}
	if result.Settings.EnhancedBy != "" && g.options.Prompt == "" {
		g.out.Note("prompt of the text encoder: %s", quote.Printable(result.Settings.Prompt))
	}
	start := time.Now()
	file, layers, err := g.save(ctx, result, index)
	if err != nil {
		return err
	}
	var sheetErr error // reported after the image, which is saved
	if len(steps) > 0 {
		sheetErr = g.saveStep(ctx, g.stepName(index)+"_composite.png", contactSheet(steps))
	}
	took := time.Since(start)
	g.report.end()
	if err := cmp.Or(g.report.image(file, layers, result, took), sheetErr); err != nil {
		return err
	}
	if err := g.results.Show(result.Image); err != nil { // no reason to end the run
		g.out.Warn("cannot show the image: %v", oserr.Bare(err))
	}
	return g.endRecording(result)
}

// save writes an image with its settings, and the layers that compose it, and returns the files' names.
func (g *generation) save(ctx context.Context, result *gomflux.Result, index int) (file string, layers []string, err error) {
	name, err := g.fileName(result.Settings, index)
	if err != nil {
		return "", nil, cli.Coded(cli.ExitUsage, err)
	}
	s := cli.Saver{Overwrite: g.Overwrite && !g.saved[name]} // two prompts may have the same name
	if err := result.Settings.Check(); err == nil {
		if !g.noMetadata {
			// without times, so that the same image is the same file
			settings := result.Settings
			settings.Created, settings.Seconds = time.Time{}, 0
			s.Settings = &settings
		}
		if g.sidecar {
			s.Sidecar = &result.Settings
		}
	} else if g.sidecar || !g.noMetadata {
		g.out.Warn("the image is saved without its settings: %v", err)
	}
	g.saved[name] = true
	if isJPEG(name) && result.Transparent != nil {
		g.out.Note("the transparent pixels of the image are white, since JPEG has no transparency (.png and .webp have it)")
	}
	s.Layers = result.Layers
	if file, err = s.Save(ctx, name, result.Pixels()); err != nil || picture.IsOpenRaster(name) {
		return file, nil, err
	}
	s.Sidecar = nil
	ext := filepath.Ext(file)
	for i, layer := range result.Layers {
		if s.Settings != nil {
			s.Settings.Layer = i + 1
		}
		name, err := s.Save(ctx, fmt.Sprintf("%s-%d%s", strings.TrimSuffix(file, ext), i+1, ext), layer)
		if err != nil {
			return file, layers, err
		}
		layers = append(layers, name)
	}
	return file, layers, nil
}

// checkLayers refuses what the model cannot do with or without layers.
func (g *generation) checkLayers() error {
	name := g.Output
	switch splits := g.model.Layers() > 0; {
	case splits && isJPEG(name):
		return cli.UsageErrorf("output %s: JPEG has no transparency, which layers need (.png, .webp and .ora have it)", name)
	case !splits && picture.IsOpenRaster(name):
		return cli.UsageErrorf("output %s: OpenRaster is for layers, and %s generates one image (%s splits an image into layers)", name,
			g.model.Class(), family.Splitters())
	case !splits && strings.TrimSpace(g.allPrompts[0]) == "" && g.layers.Given():
		return cli.UsageErrorf("layers %d: %s generates one image (%s splits an image into layers)", g.layers.OrZero(), g.model.Class(),
			family.Splitters())
	}
	return nil
}

// isJPEG reports whether a file of this name is written as JPEG, which has no transparency.
func isJPEG(name string) bool {
	format, err := picture.FormatOf(name)
	return err == nil && format == picture.JPEG
}

// noteTransparent notes the input images whose transparency the model does not see.
func (g *generation) noteTransparent() {
	if g.model.HasAlpha() {
		return
	}
	for _, name := range slices.Compact(g.transparent) {
		g.out.Note("the transparent pixels of %s are white for this model, whose images are opaque", name)
	}
}

// fileName returns the name of an image's file.
func (g *generation) fileName(s picture.Settings, index int) (string, error) {
	return expandName(g.Output, s, index, g.total, len(g.allPrompts))
}

// stepName returns the start of the names of an image's steps.
func (g *generation) stepName(index int) string {
	name := fmt.Sprintf("seed_%d", g.seed(index))
	if len(g.allPrompts) > 1 {
		name = fmt.Sprintf("%d_%s", index+1, name)
	}
	return name
}

// saveStep writes an image to the folder of --stepwise-image-output-dir.
func (g *generation) saveStep(ctx context.Context, name string, img image.Image) error {
	_, err := cli.Saver{Overwrite: g.Overwrite}.Write(ctx, filepath.Join(g.stepwise, name), img)
	return err
}

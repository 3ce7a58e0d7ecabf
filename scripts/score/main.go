// Command score generates the images by which the built-in model is judged: one for each prompt of
// scripts/train_shapes/prompts.json, in float32, with the prompt's index as its seed.
// scripts/train_shapes/check.py then counts the correct ones.
//
//	go run ./scripts/score [-n N] [-force] [-device gpu] [-steps N] [-step-cache RULE] [-guidance-interval A,B] [-inpaint DIR]
//
// With -inpaint DIR the prompts are those of scripts/train_shapes/inpaint.py, which has drawn photos and
// masks there, and which counts the correct images too.
//
// Images that exist already are skipped, so an interrupted run can be continued.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"image/png"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/internal/atomicfile"
	_ "github.com/gomflux/gomflux/models/shapes" // the built-in model
	"github.com/gomflux/gomflux/picture"
	"github.com/gomflux/gomflux/scheduler"
)

// settings are what the flags of the command set.
type settings struct {
	n                           int
	force                       bool
	model, device               string
	promptFile, inpaintDir, out string
	options                     gomflux.Options
}

func main() {
	var s settings
	flag.IntVar(&s.n, "n", 0, "only the first `N` prompts")
	flag.BoolVar(&s.force, "force", false, "generate images again that exist already")
	flag.StringVar(&s.model, "model", "shapes", "the built-in model, or the `folder` of another one of its kind")
	flag.StringVar(&s.promptFile, "prompts", "scripts/train_shapes/prompts.json", "`file` of the prompts")
	flag.StringVar(&s.out, "out", "out/score", "`folder` of the images")
	flag.IntVar(&s.options.Steps, "steps", 0, "denoising steps (default: the model's)")
	flag.StringVar(&s.inpaintDir, "inpaint", "", "`folder` of photos, masks and their prompts")
	flag.StringVar(&s.device, "device", "cpu", "cpu or gpu")
	flag.StringVar(&s.options.StepCache, "step-cache", "", "`rule` of a step cache, such as first-block:0.1")
	flag.Func("guidance-interval", "the part of the steps with guidance, such as `0,0.6` (default: all)", func(text string) (err error) {
		s.options.GuidanceInterval, err = scheduler.ParsePart(text)
		return err
	})
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if s.inpaintDir != "" {
		s.promptFile = filepath.Join(s.inpaintDir, "prompts.json")
	}
	if err := score(ctx, &s); err != nil {
		fmt.Fprintln(os.Stderr, "score:", err)
		os.Exit(1)
	}
}

// score generates the images that do not exist yet.
func score(ctx context.Context, s *settings) error {
	prompts, err := s.prompts()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.out, 0o777); err != nil {
		return err
	}
	m, err := open(ctx, s.model, s.device)
	if err != nil {
		return err
	}
	defer m.Close()

	var took time.Duration
	made, skipped := 0, 0
	for i, p := range prompts {
		file := filepath.Join(s.out, fmt.Sprintf("%03d.png", i))
		if _, err := os.Stat(file); err == nil && !s.force {
			continue
		}
		start := time.Now()
		options, err := s.optionsFor(i, p)
		if err != nil {
			return err
		}
		res, err := m.Generate(ctx, options)
		if err != nil {
			return fmt.Errorf("prompt %d: %w", i, err)
		}
		took += time.Since(start)
		skipped += len(res.SkippedSteps) + len(res.SkippedNegativeSteps)
		made++
		// atomically, since a file that exists is skipped next time
		if err := atomicfile.Replace(file, func(w io.Writer) error { return png.Encode(w, res.Image) }); err != nil {
			return err
		}
		mean := took / time.Duration(made)
		fmt.Fprintf(os.Stderr, "%s (%d of %d)  %.2f s an image, at most %v left\n", file, i+1, len(prompts), mean.Seconds(),
			(mean * time.Duration(len(prompts)-i-1)).Round(time.Second))
	}
	if made > 0 {
		fmt.Fprintf(os.Stderr, "%d images generated, %.2f s each, %d existed\n", made,
			(took / time.Duration(made)).Seconds(), len(prompts)-made)
		if s.options.StepCache != "" {
			fmt.Fprintf(os.Stderr, "%.1f predictions of an image used the step cache\n", float64(skipped)/float64(made))
		}
	} else {
		fmt.Fprintf(os.Stderr, "all %d images exist (-force generates them again)\n", len(prompts))
	}
	return nil
}

// prompts reads the prompts of the images.
func (s *settings) prompts() (prompts []string, err error) {
	data, err := os.ReadFile(s.promptFile)
	if err != nil {
		return nil, err
	}
	var list []struct{ Prompt string }
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", s.promptFile, err)
	}
	if s.n > 0 && s.n < len(list) {
		list = list[:s.n]
	}
	for _, p := range list {
		prompts = append(prompts, p.Prompt)
	}
	return prompts, nil
}

// optionsFor returns the options of image i.
func (s *settings) optionsFor(i int, prompt string) (gomflux.Options, error) {
	o, seed := s.options, uint64(i)
	o.Prompt, o.Seed = prompt, &seed
	if s.inpaintDir == "" {
		return o, nil
	}
	name := filepath.Join(s.inpaintDir, fmt.Sprintf("%03d", i))
	photo, err := picture.ReadFile(name + ".photo.png")
	if err != nil {
		return o, err
	}
	mask, err := picture.ReadFile(name + ".mask.png")
	if err != nil {
		return o, err
	}
	o.Image, o.Mask = photo.Image, mask.Image
	return o, nil
}

// open opens a model with the defaults of the built-in one.
func open(ctx context.Context, name, device string) (*gomflux.Model, error) {
	builtin, err := gomflux.Find("shapes")
	if err != nil {
		return nil, err
	}
	return gomflux.Open(ctx, name, &gomflux.OpenOptions{Device: gomflux.Device(device), Dtype: gomflux.Float32,
		Defaults: builtin.Defaults()})
}

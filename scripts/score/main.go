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

func main() {
	n := flag.Int("n", 0, "only the first `N` prompts")
	force := flag.Bool("force", false, "generate images again that exist already")
	model := flag.String("model", "shapes", "the built-in model, or the `folder` of another one of its kind")
	prompts := flag.String("prompts", "scripts/train_shapes/prompts.json", "`file` of the prompts")
	out := flag.String("out", "out/score", "`folder` of the images")
	steps := flag.Int("steps", 0, "denoising steps (default: the model's)")
	inpaint := flag.String("inpaint", "", "`folder` of photos, masks and their prompts")
	device := flag.String("device", "cpu", "cpu or gpu")
	stepCache := flag.String("step-cache", "", "`rule` of a step cache, such as first-block:0.1")
	var interval scheduler.Part
	flag.Func("guidance-interval", "the part of the steps with guidance, such as `0,0.6` (default: all)", func(s string) (err error) {
		interval, err = scheduler.ParsePart(s)
		return err
	})
	flag.Parse()
	if flag.NArg() > 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if *inpaint != "" {
		*prompts = filepath.Join(*inpaint, "prompts.json")
	}
	if err := score(ctx, *model, *device, *prompts, *inpaint, *out, *n, *force, gomflux.Options{
		Steps: *steps, StepCache: *stepCache, GuidanceInterval: interval,
	}); err != nil {
		fmt.Fprintln(os.Stderr, "score:", err)
		os.Exit(1)
	}
}

func score(ctx context.Context, name, device, promptFile, inpaint, out string, n int, force bool, options gomflux.Options) error {
	data, err := os.ReadFile(promptFile)
	if err != nil {
		return err
	}
	var prompts []struct{ Prompt string }
	if err := json.Unmarshal(data, &prompts); err != nil {
		return fmt.Errorf("%s: %w", promptFile, err)
	}
	if n > 0 && n < len(prompts) {
		prompts = prompts[:n]
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	m, err := open(ctx, name, device)
	if err != nil {
		return err
	}
	defer m.Close()

	var took time.Duration
	made, skipped := 0, 0
	for i, p := range prompts {
		file := filepath.Join(out, fmt.Sprintf("%03d.png", i))
		if _, err := os.Stat(file); err == nil && !force {
			continue
		}
		start := time.Now()
		seed := uint64(i)
		options.Prompt, options.Seed = p.Prompt, &seed
		if inpaint != "" {
			if err := readMask(filepath.Join(inpaint, fmt.Sprintf("%03d", i)), &options); err != nil {
				return err
			}
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
		if options.StepCache != "" {
			fmt.Fprintf(os.Stderr, "%.1f predictions of an image used the step cache\n", float64(skipped)/float64(made))
		}
	} else {
		fmt.Fprintf(os.Stderr, "all %d images exist (-force generates them again)\n", len(prompts))
	}
	return nil
}

// readMask reads the photo and the mask of a case.
func readMask(name string, o *gomflux.Options) error {
	photo, err := picture.ReadFile(name + ".photo.png")
	if err != nil {
		return err
	}
	mask, err := picture.ReadFile(name + ".mask.png")
	if err != nil {
		return err
	}
	o.Image, o.Mask = photo.Image, mask.Image
	return nil
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

package gomflux_test

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"log"
	"os"
	"path/filepath"

	"github.com/gomflux/gomflux"
	"github.com/gomflux/gomflux/picture"
	_ "github.com/gomflux/gomflux/shapes" // the built-in model
)

func Example() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "shapes", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	seed := uint64(7)
	result, err := model.Generate(ctx, gomflux.Options{Prompt: "a red circle left of a blue square", Steps: 4, Seed: &seed})
	if err != nil {
		log.Fatal(err)
	}

	// the file has the settings in it, for gomflux info and generate -C
	name := filepath.Join(os.TempDir(), "shapes.png")
	f, err := os.Create(name)
	if err != nil {
		log.Fatal(err)
	}
	defer os.Remove(name)
	if err := picture.Encode(f, picture.PNG, result.Image, &result.Settings); err != nil {
		log.Fatal(err)
	}
	if err := f.Close(); err != nil {
		log.Fatal(err)
	}
	found, err := picture.ReadSettingsFile(name)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Image.Bounds().Size(), found.Settings.Seed, found.Settings.Prompt)
	// Output: (256,256) 7 a red circle left of a blue square
}

// The settings in a file make its picture again, bit for bit.
func ExampleOptionsFrom() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/zimage-ordinary/model", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	first, err := model.Generate(ctx, gomflux.Options{Prompt: "a red circle", Height: 24, Width: 40, Steps: 3})
	if err != nil {
		log.Fatal(err)
	}
	var file bytes.Buffer
	if err := picture.Encode(&file, picture.PNG, first.Image, &first.Settings); err != nil {
		log.Fatal(err)
	}

	found, err := picture.ReadSettings(&file)
	if err != nil {
		log.Fatal(err)
	}
	s := &found.Settings
	same, err := gomflux.Open(ctx, s.Model, &gomflux.OpenOptions{Device: s.Device, Dtype: s.Dtype})
	if err != nil {
		log.Fatal(err)
	}
	defer same.Close()
	again, err := same.Generate(ctx, gomflux.OptionsFrom(s))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(bytes.Equal(first.Image.Pix, again.Image.Pix))
	// Output: true
}

// A callback sees every step: its latents, what the model takes the picture to
// be by then, and both as pictures. It may end the run.
func ExampleModel_Generate_steps() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/zimage-ordinary/model", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	_, err = model.Generate(ctx, gomflux.Options{Prompt: "a red circle", Height: 24, Width: 40, Steps: 3,
		OnStep: func(s gomflux.Step) error {
			preview, err := model.Preview(ctx, s.Denoised) // next to free
			if err != nil {
				return err
			}
			full, err := model.Decode(ctx, s.Latents) // as long as the last phase of a run
			if err != nil {
				return err
			}
			fmt.Println(s.Step, "of", s.Steps, preview.Bounds().Size(), full.Bounds().Size())
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// 1 of 3 (10,6) (40,24)
	// 2 of 3 (10,6) (40,24)
	// 3 of 3 (10,6) (40,24)
}

// A picture to start from: of ten steps the first four are skipped, and the
// others turn the picture into what the prompt says.
func ExampleModel_Generate_image() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/zimage-ordinary/model", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	start := image.NewRGBA(image.Rect(0, 0, 40, 24)) // or picture.ReadFile
	result, err := model.Generate(ctx, gomflux.Options{Prompt: "a red circle", Image: start, ImageStrength: 0.4, Steps: 10})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Image.Bounds().Size(), result.StepsRun)
	// Output: (40,24) 6
}

// The autoencoder alone: nothing else of the model is loaded.
func ExampleOpenVAE() {
	ctx := context.Background()
	vae, err := gomflux.OpenVAE(ctx, "shapes", nil)
	if err != nil {
		log.Fatal(err)
	}
	latents, err := vae.Encode(ctx, image.NewRGBA(image.Rect(0, 0, 64, 32)))
	if err != nil {
		log.Fatal(err)
	}
	img, err := vae.Decode(ctx, latents)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(latents.Shape, img.Bounds().Size())
	// Output: [8 4 8] (64,32)
}

package gomflux_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"log"
	"os"
	"path/filepath"

	"github.com/gomflux/gomflux"
	_ "github.com/gomflux/gomflux/models/shapes" // the built-in model
	"github.com/gomflux/gomflux/picture"
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
	same, err := gomflux.Open(ctx, s.Model, gomflux.OpenOptionsFrom(s))
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

// A model is written in eight bits, and opened as it is in the files.
func ExampleSave() {
	ctx := context.Background()
	folder := filepath.Join(os.TempDir(), "shapes-8bit")
	defer os.RemoveAll(folder)
	report, err := gomflux.Save(ctx, "shapes", folder, &gomflux.SaveOptions{Quantize: "8", Overwrite: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, layer := range report.Layers {
		if layer.Error > 0.02 {
			fmt.Println(layer.Component, layer.Name, layer.Error)
		}
	}
	model, err := gomflux.Open(ctx, folder, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()
	fmt.Println(report.Layout, report.Quantization, model.Class())
	// Output: mflux 8 ZImagePipeline
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

// FLUX.1 schnell: nothing but a prompt has to be given. The model was made to
// do without guidance, and says so.
func ExampleModel_Generate_flux1() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/flux1-schnell-ordinary/model", nil) // or flux1-schnell, flux1-dev
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	o := gomflux.Options{Prompt: "a lighthouse at dusk", Height: 32, Width: 48}
	result, err := model.Generate(ctx, o)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(model.Class(), result.Image.Bounds().Size(), result.StepsRun, "steps")

	guidance := 3.5
	o.Guidance = &guidance
	_, err = model.Generate(ctx, o)
	fmt.Println(errors.Is(err, gomflux.ErrRequest), err)
	// Output:
	// FluxPipeline (48,32) 4 steps
	// true guidance 3.5: this model was made to do without (leave it out, or give 0)
}

// Several pictures with one model: what it makes of a prompt is kept from one
// to the next.
func ExampleModel_Generate_seeds() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/flux1-schnell-ordinary/model", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	pictures := map[string]bool{}
	for _, seed := range []uint64{1, 2, 3} {
		result, err := model.Generate(ctx, gomflux.Options{Prompt: "a lighthouse at dusk", Height: 32, Width: 48, Seed: &seed})
		if err != nil {
			log.Fatal(err)
		}
		pictures[string(result.Image.Pix)] = true
	}
	fmt.Println(len(pictures), "different pictures")
	// Output: 3 different pictures
}

// FLUX.2-klein edits: it is shown pictures, which the prompt can speak of. The
// result is as large as the first of them.
func ExampleModel_Generate_references() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/flux2-klein/model", nil) // or flux2-klein-4b
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	var references []image.Image
	for _, name := range []string{"first.png", "second.png"} {
		read, err := picture.ReadFile(filepath.Join("models/testdata/flux2-klein-edit2", name))
		if err != nil {
			log.Fatal(err)
		}
		references = append(references, read.Image)
	}
	result, err := model.Generate(ctx, gomflux.Options{Prompt: "put the hat of $2 on the cat of $1", References: references, Steps: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(references[0].Bounds().Size(), references[1].Bounds().Size(), result.Image.Bounds().Size())

	// what is wrong with a picture says which one it is
	references[1] = image.NewRGBA(image.Rect(0, 0, 800, 80))
	_, err = model.Generate(ctx, gomflux.Options{Prompt: "put the hat of $2 on the cat of $1", References: references})
	var wrong *gomflux.ReferenceError
	if errors.As(err, &wrong) {
		fmt.Println(wrong.Index, wrong.Err)
	}
	// Output:
	// (70,67) (83,64) (64,64)
	// 1 has 800x80 pixels, and one side may be at most 8 times as long as the other (crop it)
}

// Qwen-Image: with guidance above 1 the model runs a second time in each step,
// for what the picture does not show.
func ExampleModel_Generate_qwenImage() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/qwen-image-ordinary/model", nil) // or qwen-image
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	o := gomflux.Options{Prompt: "a sign that says “open”", NegativePrompt: "blurry, dark", Height: 32, Width: 48, Steps: 4}
	result, err := model.Generate(ctx, o)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Image.Bounds().Size(), "guidance", result.Settings.Guidance, model.UsesNegativePrompt(o))

	// a model that was distilled to few steps needs none, and half the time
	guidance := 1.0
	o.Guidance = &guidance
	if _, err := model.Generate(ctx, o); err != nil {
		log.Fatal(err)
	}
	fmt.Println(model.UsesNegativePrompt(o))
	// Output:
	// (48,32) guidance 4 true
	// false
}

// Qwen-Image-Edit-2509 and later ones are shown several pictures, and the result
// has the proportions of the last.
func ExampleModel_Generate_qwenImageEdit() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/qwen-edit-plus/model", nil) // or qwen-image-edit-2511
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	var references []image.Image
	for _, name := range []string{"first.png", "second.png"} {
		read, err := picture.ReadFile(filepath.Join("models/testdata/qwen-edit-plus", name))
		if err != nil {
			log.Fatal(err)
		}
		references = append(references, read.Image)
	}
	o := gomflux.Options{Prompt: "the cat of image 1 on the mat of image 2", References: references, Steps: 2}
	result, err := model.Generate(ctx, o)
	if err != nil {
		log.Fatal(err)
	}
	// the model works on about a megapixel, and this small one on less
	fmt.Println(model.Class(), references[1].Bounds().Size(), result.Image.Bounds().Size())

	o.References = nil
	_, err = model.Generate(ctx, o)
	fmt.Println(errors.Is(err, gomflux.ErrRequest))
	// Output:
	// QwenImageEditPlusPipeline (33,97) (32,64)
	// true
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

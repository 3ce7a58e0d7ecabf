package gomflux_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
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

	// the file contains the settings, for gomflux info and generate -C
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

// The settings in an image file generate the same image again, bit for bit.
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

// Quantize a model to 8 bits, save it, and open the saved model.
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

// A callback is called after every step. It can preview or decode the latents, and the
// prediction of the image without noise. An error ends the run.
func ExampleModel_Generate_steps() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/zimage-ordinary/model", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	_, err = model.Generate(ctx, gomflux.Options{Prompt: "a red circle", Height: 24, Width: 40, Steps: 3,
		OnStep: func(s gomflux.Step) error {
			preview, err := model.Preview(ctx, s.Denoised) // cheap
			if err != nil {
				return err
			}
			full, err := model.Decode(ctx, s.Latents) // takes as long as the last phase of a run
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

// A tiny autoencoder decodes previews of the full size.
func ExampleOpenOptions_previewDecoder() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/zimage-ordinary/model",
		&gomflux.OpenOptions{PreviewDecoder: "vae/testdata/tiny-preview"}) // or gomflux.TinyPreviews
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	_, err = model.Generate(ctx, gomflux.Options{Prompt: "a red circle", Height: 24, Width: 40, Steps: 2,
		OnStep: func(s gomflux.Step) error {
			preview, err := model.Preview(ctx, s.Denoised)
			if err != nil {
				return err
			}
			fmt.Println(s.Step, "of", s.Steps, preview.Bounds().Size())
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// 1 of 2 (40,24)
	// 2 of 2 (40,24)
}

// Image-to-image: the first four of ten steps are skipped, and the others change the
// image towards the prompt.
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

// Inpainting: only the white part of the mask is generated. The image keeps its size, and
// its pixels outside of the mask.
func ExampleModel_Generate_mask() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/zimage-ordinary/model", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	photo := image.NewRGBA(image.Rect(0, 0, 45, 30)) // or picture.ReadFile
	draw.Draw(photo, photo.Rect, image.NewUniform(color.RGBA{200, 160, 90, 255}), image.Point{}, draw.Src)
	mask := image.NewGray(photo.Rect)
	draw.Draw(mask, image.Rect(20, 0, 45, 30), image.White, image.Point{}, draw.Src)

	result, err := model.Generate(ctx, gomflux.Options{Prompt: "a red circle", Image: photo, Mask: mask, Steps: 4})
	if err != nil {
		log.Fatal(err)
	}
	kept, all := 0, 0
	for y := range 30 {
		for x := range 20 {
			if all++; result.Image.RGBAAt(x, y) == photo.RGBAAt(x, y) {
				kept++
			}
		}
	}
	fmt.Println(result.Image.Bounds().Size(), kept, "of", all, "pixels kept")

	// outpainting: 16 pixels more on the right
	result, err = model.Generate(ctx, gomflux.Options{Prompt: "a red circle", Image: photo, Steps: 4,
		Inpaint: gomflux.InpaintOptions{Expand: gomflux.Border{Right: 16}}})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Image.Bounds().Size())
	// Output:
	// (45,30) 600 of 600 pixels kept
	// (61,30)
}

// FLUX.1 [schnell] needs only a prompt. It does not support guidance: a guidance scale is
// an error.
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
	// true guidance 3.5: this model has no guidance (leave it out, or set it to 0)
}

// Several images with one model: prompt embeddings are kept from one run to the next.
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

// FLUX.2-klein edits images. The prompt can refer to the reference images, and the result
// has the size of the first one.
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

	// an error about a reference image has its index
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

// FLUX.1-Kontext edits one image. By default the result has the size to which the
// reference image is resized.
func ExampleModel_Generate_flux1Kontext() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/flux1-kontext/model", nil) // or flux1-kontext-dev
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	read, err := picture.ReadFile("models/testdata/flux1-kontext/first.png")
	if err != nil {
		log.Fatal(err)
	}
	o := gomflux.Options{Prompt: "the same room at night", References: []image.Image{read.Image}, Steps: 2}
	result, err := model.Generate(ctx, o)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(read.Image.Bounds().Size(), result.Image.Bounds().Size(), result.Settings.Guidance)

	o.References = append(o.References, read.Image)
	_, err = model.Generate(ctx, o)
	fmt.Println(errors.Is(err, gomflux.ErrRequest), err)
	// Output:
	// (61,40) (56,40) 2.5
	// true 2 images: this model edits one (flux2-klein-4b, flux3-klein, qwen-image-edit-2509 and qwen-image-2.1 take several)
}

// Qwen-Image supports negative prompts: with a guidance scale above 1, the model runs a
// second time in each step for the negative prompt.
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

	// a model distilled to few steps needs no guidance, which halves the time
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

// Qwen-Image-Edit-2509 and later models edit several reference images. The result has the
// aspect ratio of the last one.
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
	// the published model works on about a megapixel, this small one on less
	fmt.Println(model.Class(), references[1].Bounds().Size(), result.Image.Bounds().Size())

	o.References = nil
	_, err = model.Generate(ctx, o)
	fmt.Println(errors.Is(err, gomflux.ErrRequest))
	// Output:
	// QwenImageEditPlusPipeline (33,97) (32,64)
	// true
}

// Qwen-Image-2.1 generates images with an alpha channel. Result.Image is the image on white, and
// Result.Transparent the image itself, if some of its pixels are transparent.
func ExampleModel_Generate_transparent() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/qwen-image-21/model", nil) // or qwen-image-2.1
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	o := gomflux.Options{
		Prompt: "a sticker of a red fox, on a transparent background", Background: "transparent",
		Height: 32, Width: 64, Steps: 2,
	}
	result, err := model.Generate(ctx, o)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Image.Bounds().Size(), result.Transparent != nil, model.HasAlpha())
	// Output:
	// (64,32) true true
}

// Krea 2 Turbo is distilled to 8 steps without guidance. Krea 2 Raw, of which it is made, has
// guidance and takes negative prompts.
func ExampleModel_Generate_krea2() {
	ctx := context.Background()
	for _, name := range []string{"krea-2", "krea-2-raw"} {
		model, err := gomflux.Open(ctx, "models/testdata/"+name+"/model", nil) // or name alone
		if err != nil {
			log.Fatal(err)
		}
		defer model.Close()

		result, err := model.Generate(ctx, gomflux.Options{Prompt: "a red circle", Height: 32, Width: 48, Steps: 2})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(result.Image.Bounds().Size(), "guidance", result.Settings.Guidance)
	}
	// Output:
	// (48,32) guidance 0
	// (48,32) guidance 4.5
}

// Qwen-Image-Layered splits an image into layers with an alpha channel. Result.Image is all of
// them over each other, on white.
func ExampleModel_Generate_layers() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/qwen-layered/model", nil) // or qwen-image-layered
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	read, err := picture.ReadFile("models/testdata/qwen-layered/transparent.png")
	if err != nil {
		log.Fatal(err)
	}
	result, err := model.Generate(ctx, gomflux.Options{References: []image.Image{read.Image}, Layers: 3, Steps: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(result.Layers), result.Layers[0].Bounds() == result.Image.Bounds())
	// Output:
	// 3 true
}

// A LoRA that is made for few steps may need noise levels of its own, such as the Turbo LoRA of FLUX.2-dev.
func ExampleModel_Generate_sigmas() {
	ctx := context.Background()
	model, err := gomflux.Open(ctx, "models/testdata/flux2-dev/model", nil) // or flux2-dev, with OpenOptions.LoRAs
	if err != nil {
		log.Fatal(err)
	}
	defer model.Close()

	guidance := 2.5
	o := gomflux.Options{
		Prompt: "a red circle", Height: 32, Width: 48, Guidance: &guidance,
		Sigmas: []float64{1, 0.6509, 0.4374, 0.2932, 0.1893, 0.1108, 0.0495, 0.00031},
	}
	result, err := model.Generate(ctx, o)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(result.Settings.Steps, "steps")

	o.Steps = 4
	_, err = model.Generate(ctx, o)
	fmt.Println(errors.Is(err, gomflux.ErrRequest))
	// Output:
	// 8 steps
	// true
}

// Enlarge an image with a network, here the built-in one.
func ExampleOpenUpscaler() {
	ctx := context.Background()
	upscaler, err := gomflux.OpenUpscaler(ctx, "shapes", nil) // or a file, such as RealESRGAN_x4plus.safetensors
	if err != nil {
		log.Fatal(err)
	}
	defer upscaler.Close()

	small := image.NewRGBA(image.Rect(0, 0, 32, 24))
	large, err := upscaler.Upscale(ctx, small, &gomflux.UpscaleOptions{Scale: 2})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(upscaler.Class(), upscaler.Scale(), large.Bounds().Size())
	// Output:
	// SRVGGNetCompact 4 (64,48)
}

// Load only the autoencoder of a model.
func ExampleOpenVAE() {
	ctx := context.Background()
	vae, err := gomflux.OpenVAE(ctx, "shapes", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer vae.Close()

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

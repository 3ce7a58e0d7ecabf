// Package gomflux generates pictures with diffusion models on Apple's MLX:
// Metal on Macs, CUDA or the CPU on Linux.
//
//	model, err := gomflux.Open(ctx, "path/to/Z-Image-Turbo", nil)
//	if err != nil {
//		log.Fatal(err)
//	}
//	defer model.Close()
//	result, err := model.Generate(ctx, gomflux.Options{Prompt: "a red circle left of a blue square"})
//	if err != nil {
//		log.Fatal(err)
//	}
//	err = png.Encode(w, result.Image)
//
// A model is a folder in the layout of Hugging Face diffusers. The MLX
// libraries are found as package [github.com/gomflux/gomflux/mlx] describes;
// make setup puts them into .setup/lib of a checkout.
//
// All functions may be called from several goroutines; runs follow one another.
package gomflux

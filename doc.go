// Package gomflux generates images with diffusion models. It runs on Apple's MLX: on
// Metal on Macs, and on CUDA or the CPU on Linux.
//
//	model, err := gomflux.Open(ctx, "z-image-turbo", nil)
//	if err != nil {
//		log.Fatal(err)
//	}
//	defer model.Close()
//	result, err := model.Generate(ctx, gomflux.Options{Prompt: "a lighthouse at dusk"})
//	if err != nil {
//		log.Fatal(err)
//	}
//	err = picture.Encode(w, picture.PNG, result.Image, &result.Settings)
//
// Most programs need this package and [github.com/gomflux/gomflux/picture], which reads
// and writes image files together with the settings that generated them. The MLX
// libraries must be installed; package [github.com/gomflux/gomflux/mlx] describes where
// they are searched for. In a checkout, make setup installs them into .setup/lib.
//
// # Models
//
// [Open] loads a model by its name. A model can be a folder in the layout of Hugging
// Face diffusers or of mflux, a published model in the Hugging Face cache, a single
// safetensors file, or a model that is built into the program, such as that of package
// [github.com/gomflux/gomflux/models/shapes]. Nothing is downloaded; the command
// gomflux pull does that. [Find] returns a [Source], which describes a model without
// loading it. A single file is completed with the components of its base model, see
// [FindWith].
//
// [OpenOptions] select the device and the dtype, quantize the weights and limit memory.
// [OpenVAE] loads only the autoencoder of a model, and [Save] writes a model to a folder,
// quantized or with LoRAs baked into its weights.
//
// # Images
//
// [Model.Generate] generates an image from [Options]. An option with the value zero
// stands for the setting that the model's makers recommend. Options.Image starts from
// an image (image-to-image), with Options.Mask only a part of it is generated
// (inpainting), and Options.References are the images that an edit model works on.
// [Model.GenerateBatch] generates images for several seeds at once. The [Settings] of a
// [Result] generate the same image again, with [OptionsFrom] and
// [OpenOptionsFrom].
//
// # LoRAs
//
// A [LoRA] is a file that changes the weights of a model. OpenOptions.LoRAs are baked
// into the weights while the model is loaded, or computed next to them at run time.
// Tensors of a LoRA that do not fit the model are a [LoRAError].
//
// # Hooks
//
// A [Hook] receives the output of every module of a model, under the name that it has in
// diffusers, and may replace it. [Values] override tensors at the beginning of a run,
// such as the prompt embeddings or the initial latents.
//
// # Memory
//
// The memory of a run is estimated before weights are loaded. If it exceeds what is
// free, components are loaded only while they are needed (OpenOptions.LowRAM), large
// images are decoded in strips, and OpenOptions.Warn receives a message about what would
// fit. [Model.Close] frees a model.
//
// Memory that a run does not need any more is kept for the next one, which is up to 4 GB
// on a CPU and more on a GPU. [ReleaseMemory] returns it to the system, for programs that
// do not generate images all the time.
//
// OpenOptions.PromptCache keeps prompt embeddings on disk, so that a prompt that was
// encoded before, by another process too, needs no text encoder.
//
// # Goroutines
//
// All functions may be called from several goroutines. MLX runs on one thread, so calls
// that compute something wait for each other. Callbacks run on the goroutine that called
// Generate, and may use the model themselves. Only a callback that reports the loading
// of a component must not generate images.
//
// # Errors
//
// An error is one line, except for errors that list tensors. It names the file, tensor
// or option, and includes a hint if there is one. Use [errors.Is] to distinguish
// [ErrRequest], [ErrNotFound], [ErrUnsupported] and [ErrMemory], and [errors.As] for the
// details of a [ReferenceError], a [NotFiniteError] or a [LoRAError]. If the context is
// done, a call returns an error that wraps the context's cause. A damaged file results
// in an error, never in an image.
//
// # Compatibility
//
// Settings that a version stores in an image, or next to it, can be read and used by all
// later versions. The same settings generate the same image, bit for bit, with the same
// versions of gomflux and MLX on the same machine. Other versions, devices, dtypes and
// batch sizes may change an image slightly. Exit codes and JSON fields of the command
// keep their meaning; fields may be added.
//
// From version 1 on, this package, picture and models/shapes are stable: programs that
// use them will compile with every later version 1. They expose only their own types and
// those of the standard library. Until then, CHANGELOG.md lists the changes. All other
// packages are the engine. They are exported for porting and debugging models, and may
// change at any time.
package gomflux

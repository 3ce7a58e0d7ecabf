// Package gomflux generates pictures with diffusion models on Apple's MLX:
// Metal on Macs, CUDA or the CPU on Linux.
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
// A model is a folder in the layout of Hugging Face diffusers or of mflux, a
// published one that is in the Hugging Face cache, a single file, or a built-in
// one, such as that of package [github.com/gomflux/gomflux/models/shapes], which the
// program imports. [Find] tells what is there without opening it. [OpenOptions]
// quantize a model's weights and change them by LoRAs; [Save] writes what comes of it.
// [Options] whose values are zero stand for what the model's makers recommend. A
// model that edits is shown [Options].References. A [Hook] sees what the model's
// modules compute and may replace it, and [Values] take the place of what a run would
// begin with. Most programs need this package and
// [github.com/gomflux/gomflux/picture], which reads and writes picture files together
// with the settings that made them.
//
// The MLX libraries are found as package [github.com/gomflux/gomflux/mlx]
// describes; make setup puts them into .setup/lib of a checkout.
//
// # Goroutines
//
// All functions may be called from several goroutines. MLX works on one thread,
// so runs follow one another. Callbacks run on the goroutine that called
// Generate and may use the model themselves, except that one which tells of
// loading cannot make another picture.
//
// # Errors
//
// Errors are one line, except those that list tensors, name the file, tensor or
// option, and say what to do where something can be done. [ErrRequest],
// [ErrNotFound], [ErrUnsupported] and [ErrMemory] tell their kinds apart
// ([errors.Is]), and a [ReferenceError], a [NotFiniteError] or a [LoRAError] says more
// of what is wrong ([errors.As]). A context that is done ends a run with an error that
// wraps its cause. A damaged file is an error, never a picture.
//
// # Compatibility
//
// The settings that any version stores in a picture or beside it can be read
// and used by all later ones. The same settings make the same picture, bit for
// bit, with the same version of gomflux and MLX on the same machine; another
// version, device or dtype may change it slightly, and so may a batch of another
// size. Exit codes and the fields of JSON that the command prints keep their
// meaning; fields are only added.
//
// From version 1 on, programs that use the root package, picture and models/shapes
// compile with every later version 1: these packages show no types but their own and
// those of the standard library. Until then CHANGELOG.md says what has changed. The
// other packages are the engine, exported for those who port and debug models; they
// promise nothing.
package gomflux

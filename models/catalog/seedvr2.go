package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
)

// What people have of SeedVR2 are files of its parts, in one folder or in ComfyUI's folders: the transformer, the autoencoder,
// and the embeddings of the only prompt, which ComfyUI has in the transformer's file.

// transformerOf returns the name of SeedVR2's transformer in a folder, "" without one.
func transformerOf(folder string) (string, error) {
	var found []string
	for _, dir := range []string{".", "diffusion_models"} {
		entries, _ := os.ReadDir(filepath.Join(folder, dir))
		for _, e := range entries {
			name := strings.ToLower(e.Name())
			if strings.HasPrefix(name, "seedvr2") && !strings.Contains(name, vaeFile) && strings.HasSuffix(name, safetensors) {
				found = append(found, filepath.Join(dir, e.Name()))
			}
		}
	}
	if len(found) > 1 {
		return "", fmt.Errorf("%s: has several transformers of SeedVR2: name one of %s", folder, strings.Join(found, ", "))
	}
	return strings.Join(found, ""), nil
}

// vaeFile is a part of the names of files with the autoencoder, promptFile the name of one with the embeddings, and promptPickle
// that of its makers' file.
const vaeFile, promptFile, promptPickle = "ema_vae", "pos_emb" + safetensors, "pos_emb.pt"

// PromptFolder is the folder with the embeddings of the prompt, beside component.Upscalers and component.Autoencoders.
const PromptFolder = "prompt"

// completeSeedVR2 adds the autoencoder and the embeddings to the files of the transformer.
func (s *Source) completeSeedVR2(o *overlay) error {
	dir := filepath.Dir(s.Folder)
	folders := []string{dir, filepath.Join(dir, component.Autoencoders), filepath.Join(filepath.Dir(dir), component.Autoencoders)}
	if err := o.addAutoencoder(folders); err != nil {
		return err
	}
	weights := o.files[path.Join(component.Upscalers, "model"+safetensors)]
	ck, err := openWeights(weights.fsys, weights.path)
	if err != nil {
		return err
	}
	defer ck.Close()
	within := func(name string) bool { return strings.HasSuffix(name, component.PromptEmbeddings) }
	if slices.ContainsFunc(slices.Collect(maps.Keys(ck.Tensors)), within) {
		o.files[path.Join(PromptFolder, "model"+safetensors)] = weights
		return nil
	}
	fsys := os.DirFS(dir)
	if _, err := fs.Stat(fsys, promptFile); err == nil {
		o.files[path.Join(PromptFolder, "model"+safetensors)] = overlayFile{fsys: checkpoint.Folder{FS: fsys, Name: dir}, path: promptFile}
		return nil
	}
	if _, err := fs.Stat(fsys, promptPickle); err == nil {
		return pickleError(filepath.Join(dir, promptPickle), `save_file({"embedding": torch.load(%q)}, %q)`)
	}
	return errs.NotFound(fmt.Errorf("%s: has no tensor %s, and there is no %s beside it with the embeddings of SeedVR2's prompt "+
		"(mflux's package has that file; or put the makers' %s there)", s.Folder, component.PromptEmbeddings, promptFile, promptPickle))
}

// addAutoencoder adds SeedVR2's autoencoder from one of the folders.
func (o *overlay) addAutoencoder(folders []string) error {
	for _, dir := range folders {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if !strings.Contains(strings.ToLower(e.Name()), vaeFile) || !strings.HasSuffix(e.Name(), safetensors) {
				continue
			}
			parts, err := componentsOfFile(checkpoint.Folder{FS: os.DirFS(dir), Name: dir}, e.Name())
			if err != nil {
				return err
			}
			if part := parts[component.Autoencoders]; part != nil && part.class == component.VideoAutoencoderKL.Name {
				return o.add(component.Autoencoders, part)
			}
		}
	}
	return errs.NotFound(fmt.Errorf("no autoencoder of SeedVR2 in %s: expected a safetensors file with %s in its name (published "+
		"are seedvr2_ema_vae_fp16.safetensors and ema_vae_fp16.safetensors)", strings.Join(slices.Compact(folders), ", "), vaeFile))
}

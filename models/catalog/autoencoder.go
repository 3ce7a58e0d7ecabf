package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/vae"
)

// FindAutoencoder finds an autoencoder by name: its folder, a model's folder, a single file, or a
// repository or a file of one in the Hugging Face cache, as in [Find]. The result has the layout of
// diffusers.
func FindAutoencoder(name string) (fs.FS, error) {
	_, err := os.Stat(disk.ExpandHome(name))
	plain, _, _ := strings.Cut(name, ":")
	if repo, _, _ := Published(plain); repo == "" && errors.Is(err, fs.ErrNotExist) && builtins[name].FS == nil {
		return nil, errs.NotFound(fmt.Errorf("no autoencoder %s: expected a folder, a file, or owner/name[@revision][:file] "+
			"of the Hugging Face hub", name))
	}
	s, err := locate(name)
	if err != nil {
		return nil, err
	}
	return s.lone(component.Autoencoders, "an autoencoder")
}

// lone returns the files of a source, or those of a component in its single file, with the config that the tensors
// have, as a model folder with the component in its usual place.
func (s *Source) lone(folder, what string) (fs.FS, error) {
	file, err := s.loneFile(folder)
	if err != nil || file == "" {
		return s.FS, err
	}
	parts, err := componentsOfFile(s.FS, file)
	if err != nil {
		return nil, err
	}
	part := parts[folder]
	if part == nil {
		return nil, fmt.Errorf("%s: expected %s, found only %s", checkpoint.FullName(s.FS, file), what, describe(parts))
	}
	o := &overlay{name: part.from, files: map[string]overlayFile{}}
	return o, o.add(folder, part)
}

// add adds a component, whose config is inferred, in a folder.
func (o *overlay) add(folder string, part *bareComponent) error {
	config := map[string]any{"_class_name": part.class}
	maps.Copy(config, part.inferred.Published)
	maps.Copy(config, part.inferred.Inferred)
	for weights, f := range part.files {
		o.files[path.Join(folder, weights)] = f
	}
	return o.writeJSON(path.Join(folder, component.ConfigFile), "inferred from the shapes of its tensors", config)
}

// loneFile returns the name of the source's single file: the source itself, or the only
// safetensors file of a folder without a config. It is empty for other folders.
func (s *Source) loneFile(folder string) (string, error) {
	if s.Folder == "" {
		return "", nil // built into the program
	}
	info, err := os.Stat(s.Folder)
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return filepath.Base(s.Folder), nil
	}
	for _, name := range []string{component.ConfigFile, folder} {
		if _, err := fs.Stat(s.FS, name); err == nil {
			return "", nil
		}
	}
	if found, _ := fs.Glob(s.FS, "*"+safetensors); len(found) == 1 {
		return found[0], nil
	}
	return "", nil
}

// FindTiny finds the published tiny autoencoder for the latents of a model's autoencoder, and returns
// its name too. If no such autoencoder is known, or it is not on this machine, the error is an
// errs.ErrNotFound.
func FindTiny(c component.Component) (fsys fs.FS, name string, err error) {
	var published *component.TinyAutoencoder
	if a, ok := c.Model.(vae.Autoencoder); ok && c.Class.Tiny != nil {
		published = c.Class.Tiny(a)
	}
	if published == nil {
		return nil, "", errs.NotFound(fmt.Errorf("no tiny autoencoder is known for the latents of this model's %s", c.Class.Name))
	}
	name = hub.Address(published.Repo, "", published.File)
	fsys, err = FindAutoencoder(name)
	if errors.Is(err, errs.ErrNotFound) {
		err = errs.NotFound(fmt.Errorf("the tiny autoencoder for this model is not on this machine (to get it: gomflux pull %s)", name))
	}
	return fsys, name, err
}

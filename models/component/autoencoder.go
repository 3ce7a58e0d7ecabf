package component

import (
	"fmt"
	"path"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/vae"
)

// HasAlpha reports whether the class is an autoencoder whose images have an alpha channel by default.
func (c *Class) HasAlpha() bool {
	if c.NewAutoencoder == nil {
		return false
	}
	a, err := c.NewAutoencoder(func(vae.Config) error { return nil })
	return err == nil && a.ImageChannels() == 4
}

// newAutoencoder returns the NewAutoencoder of a class, from its default config and its constructor.
func newAutoencoder[C any, P interface {
	*C
	vae.Config
}, A vae.Autoencoder](defaults func() C, declare func(C) A) func(read func(vae.Config) error) (vae.Autoencoder, error) {
	return func(read func(vae.Config) error) (vae.Autoencoder, error) {
		c := defaults()
		if err := read(P(&c)); err != nil {
			return nil, err
		}
		return declare(c), nil
	}
}

// DeclareAutoencoder declares the autoencoder described by the config in a folder.
func DeclareAutoencoder(f *Folder, dir string) (vae.Autoencoder, Component, error) {
	var config struct {
		Class         string   `json:"_class_name"`
		Architectures []string `json:"architectures"` // as transformers writes it
	}
	file := path.Join(dir, ConfigFile)
	if err := checkpoint.ReadJSON(f.FS, file, &config); err != nil {
		return nil, Component{}, err
	}
	if config.Class == "" && len(config.Architectures) > 0 {
		config.Class = config.Architectures[0]
	}
	class := Find(config.Class)
	if class == nil || class.Role != Autoencoder {
		return nil, Component{}, fmt.Errorf("%w: %s: class %q: expected one of %s",
			errs.ErrUnsupported, checkpoint.FullName(f.FS, file), config.Class, strings.Join(Names(Autoencoder), ", "))
	}
	a, err := class.NewAutoencoder(func(c vae.Config) error { return f.ConfigAt(file, c) })
	if err != nil {
		return nil, Component{}, err
	}
	projection, err := readProjection(f.FS, dir, class, a)
	if err != nil {
		return nil, Component{}, err
	}
	return a, Component{Class: class, Name: Autoencoders, Dir: dir, Model: a, Ignore: a.Unused(), Projection: projection}, nil
}

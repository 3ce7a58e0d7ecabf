package component

import "github.com/gomflux/gomflux/vae"

// HasAlpha reports whether the class is an autoencoder whose images have an alpha channel by default.
func (c *Class) HasAlpha() bool {
	if c.NewAutoencoder == nil {
		return false
	}
	a, err := c.NewAutoencoder(func(Config) error { return nil })
	return err == nil && a.ImageChannels() == 4
}

// newAutoencoder returns the NewAutoencoder of a class, from its default config and its constructor.
func newAutoencoder[C any, P interface {
	*C
	Config
}, A vae.Autoencoder](defaults func() C, declare func(C) A) func(read func(Config) error) (vae.Autoencoder, error) {
	return func(read func(Config) error) (vae.Autoencoder, error) {
		c := defaults()
		if err := read(P(&c)); err != nil {
			return nil, err
		}
		return declare(c), nil
	}
}

// DeclareAutoencoder declares the autoencoder described by the config in a folder.
func DeclareAutoencoder(f *Folder, dir string) (vae.Autoencoder, Component, error) {
	class, err := f.classIn(dir, Autoencoder)
	if err != nil {
		return nil, Component{}, err
	}
	a, err := class.NewAutoencoder(func(c Config) error { return f.Config(dir, c) })
	if err != nil {
		return nil, Component{}, err
	}
	projection, err := readProjection(f.FS, dir, class, a)
	if err != nil {
		return nil, Component{}, err
	}
	return a, Component{Class: class, Name: Autoencoders, Dir: dir, Model: a, Ignore: a.Unused(), Projection: projection}, nil
}

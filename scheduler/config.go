package scheduler

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// A Config is the config of a scheduler class.
type Config interface {
	// Validate returns an error that names the first value that is not supported.
	Validate() error
	// New returns a scheduler for one run. The sigmas are those of the pipeline, one for each
	// step and not shifted yet ([LinearSigmas]); mu is the shift for the image's size, for
	// classes with dynamic shifting ([DynamicShift.Mu]).
	New(sigmas []float32, mu float64) (Scheduler, error)
}

// A ModelConfig is a model's scheduler_config.json. It is read by the class that it names, and can
// be applied to other classes. The zero value is an empty config.
type ModelConfig struct {
	text      []byte
	className string
	config    Config // nil for a class that is not known
	shift     DynamicShift
}

// UnmarshalJSON decodes the config of the class in _class_name. A class that is not known is an
// error of Validate only.
func (c *ModelConfig) UnmarshalJSON(text []byte) error {
	var base struct {
		ClassName string `json:"_class_name"`
	}
	if err := json.Unmarshal(text, &base); err != nil {
		return err
	}
	out := ModelConfig{text: append([]byte(nil), text...), className: base.ClassName, shift: DefaultDynamicShift()}
	if err := json.Unmarshal(text, &out.shift); err != nil {
		return err
	}
	if class, err := out.class(""); err == nil {
		if out.config, err = out.as(class); err != nil {
			return err
		}
	}
	*c = out
	return nil
}

// ClassName returns the class that the config names, "" for none.
func (c *ModelConfig) ClassName() string { return c.className }

// Validate returns an error that names the first value that is not supported.
func (c *ModelConfig) Validate() error {
	if c.config != nil {
		return c.config.Validate()
	}
	if _, err := c.class(""); err != nil {
		return fmt.Errorf("_class_name: %w", err)
	}
	return nil
}

// DynamicShift returns the parameters of the shift by the image's size, which pipelines read from
// the config of any scheduler class.
func (c *ModelConfig) DynamicShift() DynamicShift {
	if c.text == nil {
		return DefaultDynamicShift()
	}
	return c.shift
}

// New returns a scheduler for one run, of the class that any of its names selects ([Name]), or of
// the config's own class if name is empty. See [Config.New] for sigmas and mu. A schedule whose
// sigmas are not finite or rise is an error.
func (c *ModelConfig) New(name string, sigmas []float32, mu float64) (Scheduler, error) {
	class, err := c.class(name)
	if err != nil {
		return nil, err
	}
	s, err := c.newOf(class, sigmas, mu)
	if err != nil {
		return nil, fmt.Errorf("scheduler %s: %w", class.Name, err)
	}
	s.Schedule().Name = class.Name
	if values := s.Schedule().Sigmas; !falls(values) {
		return nil, fmt.Errorf("scheduler %s: the shifts in the config give sigmas that are not finite or that rise: %g",
			class.Name, values)
	}
	return s, nil
}

// TakesSigmas returns an error if the scheduler of a name, or the config's own for "", spaces its sigmas itself.
func (c *ModelConfig) TakesSigmas(name string) error {
	class, err := c.class(name)
	if err == nil && class.OwnSigmas {
		err = fmt.Errorf("scheduler %s: spaces its sigmas itself, and takes no others (leave out the sigmas)", class.Name)
	}
	return err
}

// class finds the class for a name, or the config's own for "".
func (c *ModelConfig) class(name string) (*Class, error) {
	if name == "" {
		name = c.className
	}
	if name == "" {
		return All[0], nil
	}
	return find(name)
}

// as decodes the config as that of a class.
func (c *ModelConfig) as(class *Class) (Config, error) {
	config := class.DefaultConfig()
	if c.text == nil {
		return config, nil
	}
	err := json.Unmarshal(c.text, config)
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) { // a path of Go's embedded structs; the file is flat
		mismatch.Field = mismatch.Field[strings.LastIndex(mismatch.Field, ".")+1:]
	}
	return config, err
}

func (c *ModelConfig) newOf(class *Class, sigmas []float32, mu float64) (Scheduler, error) {
	config, err := c.as(class)
	if err != nil {
		return nil, err
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	return config.New(sigmas, mu)
}

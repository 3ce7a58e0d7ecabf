package scheduler

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// A ModelConfig is a model's scheduler_config.json. It is that of the class that it names, and can
// be applied to other classes. The zero value is an empty config.
type ModelConfig struct {
	className string
	config    *FlowMatchConfig // nil for the defaults
}

// UnmarshalJSON decodes the config. A class that is not known is an error of Validate only.
func (c *ModelConfig) UnmarshalJSON(text []byte) error {
	config := DefaultFlowMatchConfig()
	base := struct {
		ClassName string `json:"_class_name"`
		*FlowMatchConfig
	}{FlowMatchConfig: &config}
	err := json.Unmarshal(text, &base)
	var mismatch *json.UnmarshalTypeError
	if errors.As(err, &mismatch) { // a path of Go's embedded structs; the file is flat
		mismatch.Field = mismatch.Field[strings.LastIndex(mismatch.Field, ".")+1:]
	}
	if err == nil {
		*c = ModelConfig{base.ClassName, &config}
	}
	return err
}

// ClassName returns the class that the config names, "" for none.
func (c *ModelConfig) ClassName() string { return c.className }

// Validate returns an error that names the first value that is not supported.
func (c *ModelConfig) Validate() error {
	if _, err := c.class(""); err != nil {
		return fmt.Errorf("_class_name: %w", err)
	}
	config := c.flowMatch()
	return config.Validate()
}

// flowMatch returns the config, or the defaults.
func (c *ModelConfig) flowMatch() FlowMatchConfig {
	if c.config == nil {
		return DefaultFlowMatchConfig()
	}
	return *c.config
}

// DynamicShift returns the parameters of the shift by the image's size, which pipelines read from
// the config of any scheduler class.
func (c *ModelConfig) DynamicShift() DynamicShift { return c.flowMatch().DynamicShift }

// New returns a scheduler for one run, of the class that any of its names selects ([Name]), or of
// the config's own class if name is empty. See [Class.New] for sigmas and mu. A schedule whose
// sigmas are not finite or rise is an error.
func (c *ModelConfig) New(name string, sigmas []float32, mu float64) (Scheduler, error) {
	class, err := c.class(name)
	if err != nil {
		return nil, err
	}
	config := c.flowMatch()
	var s Scheduler
	if err = config.Validate(); err == nil {
		s, err = class.New(config, sigmas, mu)
	}
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

package lora

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// A config describes how an adapter is scaled. PEFT writes it to adapter_config.json
// next to the adapter, diffusers to the metadata of the file.
type config struct {
	Type         string            `json:"peft_type"`
	R            int               `json:"r"`
	LoRAAlpha    *float64          `json:"lora_alpha"`
	Alpha        *float64          `json:"alpha"` // LoKr's and LoHa's
	AlphaPattern patterns[float64] `json:"alpha_pattern"`
	RankPattern  patterns[int]     `json:"rank_pattern"`
	UseRSLoRA    bool              `json:"use_rslora"`
	UseDoRA      bool              `json:"use_dora"`
	Init         any               `json:"init_lora_weights"`

	source string // the file, or its metadata, for messages
}

// patterns gives values to modules by their names. The first match applies.
type patterns[T any] []pattern[T]

type pattern[T any] struct {
	name  *regexp.Regexp
	value T
}

// UnmarshalJSON reads an object and keeps the order of its keys.
func (p *patterns[T]) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(err, fmt.Errorf("expected an object of patterns and values, found %.40s", data))
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		one := pattern[T]{}
		if one.name, err = compilePattern(key.(string)); err != nil {
			return err
		}
		if err := d.Decode(&one.value); err != nil {
			return fmt.Errorf("pattern %q: %w", key, err)
		}
		*p = append(*p, one)
	}
	return nil
}

// find returns the value of the first pattern that matches one of the names.
func (p patterns[T]) find(names []string, otherwise T) T {
	for _, one := range p {
		if slices.ContainsFunc(names, one.name.MatchString) {
			return one.value
		}
	}
	return otherwise
}

const (
	configName  = "adapter_config.json"
	metadataKey = "lora_adapter_metadata"
	maxConfig   = 16 << 20
)

// readConfig reads an adapter_config.json.
func readConfig(fsys fs.FS, name string) (*config, error) {
	c := &config{source: checkpoint.FullName(fsys, name)}
	if err := checkpoint.ReadJSON(fsys, name, c); err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", c.source, err)
	}
	return c, nil
}

// parseMetadata reads the configs in a file's metadata. It returns them by component;
// the component is "" if the adapter of a single model was saved. Keys consist of the
// component, a dot and a key of PEFT's config.
func parseMetadata(text string) (map[string]*config, error) {
	var flat map[string]json.RawMessage
	if len(text) > maxConfig {
		return nil, fmt.Errorf("has %d bytes, expected at most %d", len(text), maxConfig)
	}
	if err := json.Unmarshal([]byte(text), &flat); err != nil {
		return nil, err
	}
	fields := map[string]map[string]json.RawMessage{}
	for key, value := range flat {
		component, name := "", key
		if i := strings.LastIndexByte(key, '.'); i >= 0 {
			component, name = key[:i], key[i+1:]
		}
		if fields[component] == nil {
			fields[component] = map[string]json.RawMessage{}
		}
		fields[component][name] = value
	}
	configs := map[string]*config{}
	for component, fields := range fields {
		data, err := json.Marshal(fields)
		if err != nil {
			return nil, err
		}
		c := &config{source: "its metadata, " + metadataKey}
		if err := json.Unmarshal(data, c); err != nil {
			return nil, err
		}
		if err := c.check(); err != nil {
			return nil, err
		}
		configs[component] = c
	}
	return configs, nil
}

// check returns an error if the config has values that are invalid or not supported.
func (c *config) check() error {
	init, _ := c.Init.(string)
	residual := func(method string) bool { return strings.HasPrefix(init, method) }
	switch {
	case c.Type != "" && !slices.Contains([]string{"LORA", "LOKR", "LOHA"}, c.Type):
		return fmt.Errorf("peft_type %q: expected LORA, LOKR or LOHA", c.Type)
	case slices.ContainsFunc([]string{"pissa", "olora", "corda", "loftq", "lora_ga"}, residual):
		return fmt.Errorf("init_lora_weights %q: the adapter needs base weights that its initialisation changed "+
			"(convert it with PEFT's save_pretrained(folder, path_initial_model_for_weight_conversion=...))", init)
	case c.R < 1:
		return fmt.Errorf("r: expected a positive rank, found %d", c.R)
	case c.alpha() == nil:
		return errors.New("expected lora_alpha or alpha, found neither")
	}
	for _, rank := range c.RankPattern {
		if rank.value < 1 {
			return fmt.Errorf("rank_pattern: expected a positive rank, found %d", rank.value)
		}
	}
	err := checkAlpha(*c.alpha())
	for _, alpha := range c.AlphaPattern {
		err = errors.Join(err, checkAlpha(alpha.value))
	}
	return err
}

func (c *config) alpha() *float64 {
	if c.LoRAAlpha != nil {
		return c.LoRAAlpha
	}
	return c.Alpha
}

// compilePattern compiles a pattern as PEFT does: it matches the end of a module name.
func compilePattern(text string) (*regexp.Regexp, error) {
	if len(text) > 1000 {
		return nil, fmt.Errorf("a pattern has %d characters, expected at most 1000", len(text))
	}
	re, err := regexp.Compile(`^(?:.*\.)?(?:` + text + `)$`)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", text, err)
	}
	return re, nil
}

// scale returns the factor of a module's update, given the names by which patterns may
// match it. If rank, that of its tensors, is 0, the config's rank is used.
func (c *config) scale(names []string, rank int) float64 {
	alpha := c.AlphaPattern.find(names, *c.alpha())
	if rank == 0 {
		rank = c.RankPattern.find(names, c.R)
	}
	if c.UseRSLoRA {
		return alpha / math.Sqrt(float64(rank))
	}
	return alpha / float64(rank)
}

// checkAlpha returns an error unless alpha is positive and finite.
func checkAlpha(alpha float64) error {
	if !(alpha > 0) || math.IsInf(alpha, 0) {
		return fmt.Errorf("alpha is %v, expected a positive number", alpha)
	}
	return nil
}

// maxScale is the largest plausible alpha/rank. Real ones are between 1/128 and about 4.
const maxScale = 1e5

func checkScale(alpha, scale float64) error {
	if !(scale > 0 && scale <= maxScale) {
		return fmt.Errorf("alpha %v: scales the change by %v, expected at most %v", alpha, scale, float64(maxScale))
	}
	return nil
}

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

// A config is what PEFT writes beside an adapter, adapter_config.json, or diffusers
// into the file's metadata: how the adapter is to be scaled.
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

	source string // for messages
}

// patterns are the values of modules whose names fit. The first that fits counts.
type patterns[T any] []pattern[T]

type pattern[T any] struct {
	name  *regexp.Regexp
	value T
}

// UnmarshalJSON reads an object in its order.
func (p *patterns[T]) UnmarshalJSON(data []byte) error {
	if string(data) == "null" {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.Join(err, fmt.Errorf("expected patterns with their values, found %.40s", data))
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

// find is the value of the first pattern that fits one of the names.
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

// readConfig reads a PEFT config.
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

// parseMetadata reads the configs in a file's metadata by their components: ""
// for a model that was saved alone. The keys are those of one config behind the
// component's name.
func parseMetadata(text string) (map[string]*config, error) {
	var flat map[string]json.RawMessage
	if len(text) > maxConfig {
		return nil, fmt.Errorf("is too large: %d bytes, at most %d", len(text), maxConfig)
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

// check says what of the config cannot be followed.
func (c *config) check() error {
	init, _ := c.Init.(string)
	residual := func(method string) bool { return strings.HasPrefix(init, method) }
	switch {
	case c.Type != "" && !slices.Contains([]string{"LORA", "LOKR", "LOHA"}, c.Type):
		return fmt.Errorf("peft_type %q: expected LORA, LOKR or LOHA", c.Type)
	case slices.ContainsFunc([]string{"pissa", "olora", "corda", "loftq", "lora_ga"}, residual):
		return fmt.Errorf("init_lora_weights %q: the adapter belongs to weights that were changed when its training began; "+
			"save it with PEFT's save_pretrained(folder, path_initial_model_for_weight_conversion=...)", init)
	case c.R < 1:
		return fmt.Errorf("r is %d, expected a positive rank", c.R)
	case c.alpha() == nil:
		return errors.New("neither lora_alpha nor alpha is there")
	}
	for _, rank := range c.RankPattern {
		if rank.value < 1 {
			return fmt.Errorf("rank_pattern: found %d, expected a positive rank", rank.value)
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

// compilePattern is how PEFT reads a pattern: it fits the end of a module's name.
func compilePattern(text string) (*regexp.Regexp, error) {
	if len(text) > 1000 {
		return nil, fmt.Errorf("a pattern of %d characters, at most 1000", len(text))
	}
	re, err := regexp.Compile(`^(?:.*\.)?(?:` + text + `)$`)
	if err != nil {
		return nil, fmt.Errorf("pattern %q: %w", text, err)
	}
	return re, nil
}

// scale is what a module's update is multiplied with. The rank is that of its
// tensors, 0 if they have none: then it is the config's.
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

// checkAlpha refuses what no training writes.
func checkAlpha(alpha float64) error {
	if !(alpha > 0) || math.IsInf(alpha, 0) {
		return fmt.Errorf("alpha is %v, expected a positive number", alpha)
	}
	return nil
}

// maxScale bounds alpha by rank: real ones are from 1/128 to a few.
const maxScale = 1e5

func checkScale(alpha, scale float64) error {
	if !(scale > 0 && scale <= maxScale) {
		return fmt.Errorf("alpha %v scales the update by %v, expected at most %v", alpha, scale, float64(maxScale))
	}
	return nil
}

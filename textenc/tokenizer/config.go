package tokenizer

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
)

// tokenizerConfig has the fields of tokenizer_config.json and
// special_tokens_map.json that change ids.
type tokenizerConfig struct {
	Class          string               `json:"tokenizer_class"`
	MaxLength      float64              `json:"model_max_length"`
	AddedTokens    map[string]fileToken `json:"added_tokens_decoder"` // by id
	ExtraIDs       *int                 `json:"extra_ids"`
	SplitSpecial   bool                 `json:"split_special_tokens"`
	AddPrefixSpace bool                 `json:"add_prefix_space"`
	AddBOS         bool                 `json:"add_bos_token"`
	AddEOS         bool                 `json:"add_eos_token"`
	PaddingSide    string               `json:"padding_side"`
	TruncationSide string               `json:"truncation_side"`
	names          map[string]fileToken // bos_token and others; with an empty content where the file has null
	extra          []fileToken          // nil if the files have no list
}

// UnmarshalJSON adds the fields in data to those of c.
func (c *tokenizerConfig) UnmarshalJSON(data []byte) error {
	type plain tokenizerConfig
	if err := json.Unmarshal(data, (*plain)(c)); err != nil {
		return err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return err
	}
	for key, value := range all {
		if !strings.HasSuffix(key, "_token") || !slices.Contains([]byte(`"{n`), value[0]) {
			continue
		}
		var t fileToken
		if err := json.Unmarshal(value, &t); err != nil {
			return fmt.Errorf("%s: expected a token, found %.80s", key, value)
		}
		c.names[key] = t
	}
	// The name in transformers 5 takes precedence over that in transformers 4.
	for _, key := range []string{"extra_special_tokens", "additional_special_tokens"} {
		switch value := all[key]; {
		case len(value) == 0 || string(value) == "null" || c.extra != nil:
		case value[0] == '[':
			c.extra = []fileToken{}
			if err := json.Unmarshal(value, &c.extra); err != nil {
				return fmt.Errorf("%s: expected a list of tokens, found %.80s", key, value)
			}
			if len(c.extra) == 0 && len(all["additional_special_tokens"]) > 0 && key == "extra_special_tokens" {
				c.extra = nil
			}
		default:
			var byName map[string]fileToken
			if err := json.Unmarshal(value, &byName); err != nil {
				return fmt.Errorf("%s: expected a list of tokens, found %.80s", key, value)
			}
			maps.Copy(c.names, byName)
		}
	}
	return nil
}

// check returns an error for options that would change the ids of a class and are not supported.
func (c *tokenizerConfig) check(class *tokenizerClass) error {
	switch {
	case c.SplitSpecial:
		return fmt.Errorf("split_special_tokens true is %w", checkpoint.ErrUnsupported)
	case c.AddPrefixSpace && class.prefixSpace:
		return fmt.Errorf("add_prefix_space true is %w", checkpoint.ErrUnsupported)
	case c.ExtraIDs != nil && class.unigram && (*c.ExtraIDs < 0 || *c.ExtraIDs > 1<<16):
		return fmt.Errorf("extra_ids %d: expected 0 to %d", *c.ExtraIDs, 1<<16)
	}
	return nil
}

// fileToken is an added token in a file: an object, or only its content.
type fileToken struct {
	addedToken
	normalizedUnset bool // the file has no value for Normalized
}

// UnmarshalJSON takes an object or a string.
func (t *fileToken) UnmarshalJSON(data []byte) error {
	*t = fileToken{addedToken: addedToken{ID: noID}}
	if data[0] != '{' {
		t.normalizedUnset = true
		return json.Unmarshal(data, &t.Content)
	}
	if err := json.Unmarshal(data, &t.addedToken); err != nil {
		return err
	}
	var set struct{ Normalized *bool }
	if err := json.Unmarshal(data, &set); err != nil {
		return err
	}
	t.normalizedUnset = set.Normalized == nil
	return nil
}

package generate

import "github.com/gomflux/gomflux/picture"

// The lines of generate --json. Fields are only ever added.
type (
	JSONProgress struct {
		MessageType    string  `json:"message_type"` // progress
		Phase          string  `json:"phase"`
		Component      string  `json:"component,omitempty"`
		Bytes          int64   `json:"bytes,omitempty"`
		TotalBytes     int64   `json:"total_bytes,omitempty"`
		Step           int     `json:"step,omitempty"` // steps done
		Steps          int     `json:"steps,omitempty"`
		SecondsPerStep float64 `json:"seconds_per_step,omitempty"`
		SecondsLeft    float64 `json:"seconds_left,omitempty"` // of the steps
		Index          *int    `json:"index,omitempty"`        // of the image, left out while loading
		Count          int     `json:"count,omitempty"`        // images that are generated at once, from index on
	}
	JSONStart struct {
		MessageType string `json:"message_type"` // start
		Seed        uint64 `json:"seed"`
		Index       int    `json:"index"` // from 0
		Pictures    int    `json:"pictures"`
	}
	JSONPicture struct {
		MessageType string            `json:"message_type"` // picture
		File        string            `json:"file"`
		Settings    *picture.Settings `json:"settings"`
		Seconds     JSONSeconds       `json:"seconds"`
		PeakMemory  int               `json:"peak_memory_bytes"`
		Estimated   int64             `json:"estimated_memory_bytes"`
		Layers      []string          `json:"layers,omitempty"` // files of the layers, the lowest first
		Width       int               `json:"width"`            // of the file
		Height      int               `json:"height"`
		Transparent bool              `json:"transparent,omitempty"`

		PromptTokens int `json:"prompt_tokens"`
		TextTokens   int `json:"text_tokens"`
		CutTokens    int `json:"cut_tokens,omitempty"`

		Skipped         []int `json:"skipped_steps,omitempty"`
		SkippedNegative []int `json:"skipped_negative_steps,omitempty"`

		PromptCached bool `json:"prompt_cached,omitempty"`
	}
	JSONSeconds struct {
		Encode float64 `json:"encode"`
		Steps  float64 `json:"steps"`
		Decode float64 `json:"decode"`
		Save   float64 `json:"save"`
	}
)

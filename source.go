package gomflux

import (
	"io/fs"

	"github.com/gomflux/gomflux/models/catalog"
)

// Defaults are the recommended settings of a model.
type Defaults struct {
	Steps             int     `json:"steps"`    // the number of denoising steps
	Guidance          float64 `json:"guidance"` // the guidance scale
	NegativePrompt    string  `json:"negative_prompt,omitempty"`
	Height            int     `json:"height"`                        // in pixels
	Width             int     `json:"width"`                         // in pixels
	MaxSequenceLength int     `json:"max_sequence_length,omitempty"` // the largest number of tokens of a prompt
}

// A Source is a model that was found, but is not loaded.
type Source struct{ found catalog.Source }

// Find looks for a model by its name: a folder in the layout of Hugging Face diffusers
// or of mflux, a published model in the Hugging Face cache by its repository
// (owner/name) or its short name (z-image-turbo), a single file, or a built-in model
// that the program imports. If there is no such model, the error is an [ErrNotFound].
func Find(model string) (*Source, error) { return FindWith(model, "") }

// FindWith is like Find, with the name of a base model, which supplies the components
// that a single file does not contain. "" stands for the published model that the file
// derives from, if it can be determined and is on this machine.
func FindWith(model, base string) (*Source, error) {
	found, err := catalog.FindWith(model, base)
	if err != nil {
		return nil, err
	}
	return &Source{*found}, nil
}

// SourceFS returns the model in a file system, such as an embed.FS, that contains a model
// folder in diffusers' layout.
func SourceFS(fsys fs.FS) *Source { return &Source{catalog.Source{FS: fsys}} }

// Name returns the model's name, as accepted by [Find].
func (s *Source) Name() string { return s.found.Name }

// Path returns the model's folder or file, "" for a built-in model.
func (s *Source) Path() string { return s.found.Folder }

// Revision returns the commit of a model in the Hugging Face cache, "" for other models.
func (s *Source) Revision() string { return s.found.Revision }

// BaseModel returns the name of the base model of a single file, "" for a whole model.
func (s *Source) BaseModel() string { return s.found.Base }

// Defaults returns the settings that the model's makers recommend, nil if these are the
// defaults of its pipeline class.
func (s *Source) Defaults() *Defaults { return (*Defaults)(s.found.Defaults) }

// FS returns the model's files in the layout of diffusers.
func (s *Source) FS() fs.FS { return s.found.FS }

// Err returns the reason why an incomplete model folder could not be completed, nil for
// a whole model. FS contains the existing files in any case.
func (s *Source) Err() error { return s.found.Err }

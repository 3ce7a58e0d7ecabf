package gomflux

import (
	"io/fs"

	"github.com/gomflux/gomflux/models/catalog"
	"github.com/gomflux/gomflux/models/family"
)

// Defaults are the settings a model is meant to be run with.
type Defaults struct {
	Steps             int
	Guidance          float64
	NegativePrompt    string
	Height, Width     int
	MaxSequenceLength int
}

// A Source is a model that was found, and not opened yet.
type Source struct{ found catalog.Source }

// Find looks for a model by its name: a folder in the layout of Hugging Face
// diffusers or of mflux, a published model that is in the Hugging Face cache, by its
// repository (owner/name) or a short name (z-image-turbo), a single file, or a
// built-in model that the program imports. A model that cannot be found is
// [ErrNotFound].
func Find(model string) (*Source, error) { return FindWith(model, "") }

// FindWith is Find for a model that is not whole, such as a single file. What it does
// not have is taken from the base model, by its name; "" stands for the published
// model that the file is made from, if that can be told and is on this machine.
func FindWith(model, base string) (*Source, error) {
	found, err := catalog.FindWith(model, base)
	if err != nil {
		return nil, err
	}
	return &Source{*found}, nil
}

// SourceFS is the model in a file system, such as an embed.FS.
func SourceFS(fsys fs.FS) *Source { return &Source{catalog.Source{FS: fsys}} }

// Name is the model's name, as [Find] takes it.
func (s *Source) Name() string { return s.found.Name }

// Path is the model's folder or file, "" for a model inside the program.
func (s *Source) Path() string { return s.found.Folder }

// Revision is the commit of a model in the Hugging Face cache, "" of others.
func (s *Source) Revision() string { return s.found.Revision }

// BaseModel is the name of the model that a single file is completed with, "" for a
// whole model.
func (s *Source) BaseModel() string { return s.found.Base }

// Defaults are the settings that the model's makers recommend, nil where they are
// those of its pipeline class.
func (s *Source) Defaults() *Defaults { return (*Defaults)(s.found.Defaults) }

// FS holds the model's files in the layout of diffusers.
func (s *Source) FS() fs.FS { return s.found.FS }

// Err says why the model's folder could not be made a whole model, nil if it is one.
// FS shows what there is all the same.
func (s *Source) Err() error { return s.found.Err }

func (d *Defaults) internal() *family.Defaults { return (*family.Defaults)(d) }

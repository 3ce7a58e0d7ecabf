// Package catalog finds models and LoRAs by name. A model can be built into the
// program, in a folder, in the Hugging Face cache, or in a single file, which is
// completed to a whole model with the components of its base model.
package catalog

import (
	"io/fs"

	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// A Source is where a model was found.
type Source struct {
	Name     string           // as accepted by Find: a built-in or published model's name, a folder or a file
	Folder   string           // the folder or file on disk, "" for a built-in model
	Revision string           // the commit, for a model in the Hugging Face cache
	Defaults *family.Defaults // the recommended settings, nil for those of the pipeline class
	Base     string           // the base model of a single file, "" for a whole model
	FS       fs.FS            // the model folder in diffusers' layout
	// Err is the reason why a folder without a model_index.json could not be completed
	// to a whole model. Its components can still be inspected and used.
	Err error
}

// Index reads the source's model_index.json. If there is no such file, it returns Err,
// if set.
func (s *Source) Index() (index.Index, error) {
	if s.Err != nil && !index.Exists(s.FS) {
		return index.Index{}, s.Err
	}
	return index.Read(s.FS)
}

// Package catalog finds models and LoRAs by name: models that are in the program,
// in a folder, in the Hugging Face cache, or in a single file, which is made a
// whole model with what others have.
package catalog

import (
	"io/fs"

	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// A Source is where a model was found.
type Source struct {
	Name     string           // as Find takes it: a built-in or published model's name, a folder or a file
	Folder   string           // on disk, or the file; "" for a built-in model
	Revision string           // the commit, of a model in the Hugging Face cache
	Defaults *family.Defaults // nil: those of its pipeline class
	Base     string           // the model that what a single file lacks is taken from; "" for a whole model
	FS       fs.FS
	// Err says why a folder without a model_index.json could not be made a whole
	// model, where that was tried. Parts of it can be looked at and used all the same.
	Err error
}

// Index reads the source's model_index.json. Where there is none, the error is Err,
// if that says more.
func (s *Source) Index() (index.Index, error) {
	if s.Err != nil && !index.Exists(s.FS) {
		return index.Index{}, s.Err
	}
	return index.Read(s.FS)
}

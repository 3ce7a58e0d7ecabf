package catalog

import (
	"os"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/index"
)

// Find looks for a model by name: a built-in one, a folder, or a published one
// in the Hugging Face cache, by its short name, an alias or its repository's,
// with @ and a branch, a tag or a commit where it is not to be the main branch,
// and with a colon and the name of a single file.
// A folder that is there wins over a published model of its name. A file, and a
// folder without a model_index.json, is completed as by FindWith. The error about
// a model that is not on this machine is errs.ErrNotFound.
func Find(name string) (*Source, error) { return FindWith(name, "") }

// FindWith is Find for a model that is not whole, a single file for one: what it
// does not have is taken from another, by its name, which may be "" where the
// published model that it is made from can be told by the names of file and
// tensors, and is on this machine. A base for a whole model is an error.
func FindWith(name, base string) (*Source, error) {
	s, err := locate(name)
	if err != nil {
		return nil, err
	}
	made, err := s.assemble(base)
	switch info, statErr := os.Stat(s.Folder); {
	case err == nil && !made && base != "" && !index.Exists(s.FS):
		return nil, errs.Requestf("--base-model %s: %s has no transformer that could be completed, and no %s", base, name, index.File)
	case err == nil && !made && base != "":
		return nil, errs.Requestf("--base-model %s: %s is whole, and takes nothing from another model", base, name)
	case err != nil && base == "" && statErr == nil && info.IsDir():
		s.Err = err
	case err != nil:
		return nil, err
	}
	return s, nil
}

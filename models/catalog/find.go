package catalog

import (
	"os"

	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/index"
)

// Find looks for a model by name: a built-in model, a folder, a single file, or a
// published model in the Hugging Face cache. A published model is named by its short
// name, an alias or its repository, optionally followed by @ and a branch, tag or
// commit, and by a colon and the name of a single file. An existing folder takes
// precedence over a published model of the same name. A single file, or a folder
// without a model_index.json, is completed as by FindWith. A model that is not on this
// machine is an errs.ErrNotFound.
func Find(name string) (*Source, error) { return FindWith(name, "") }

// FindWith is Find with the name of the base model, which supplies the components that
// a single file lacks. If base is empty, it is guessed from the names of the file and
// its tensors, and must be on this machine. Naming a base model for a whole model is
// an error.
func FindWith(name, base string) (*Source, error) {
	s, err := locate(name)
	if err != nil {
		return nil, err
	}
	made, err := s.assemble(base)
	switch info, statErr := os.Stat(s.Folder); {
	case err == nil && !made && base != "" && !index.Exists(s.FS):
		return nil, errs.Requestf("--base-model %s: does not apply to %s, which has neither a transformer nor a %s", base, name, index.File)
	case err == nil && !made && base != "":
		return nil, errs.Requestf("--base-model %s: does not apply to %s, which is a whole model", base, name)
	case err != nil && base == "" && statErr == nil && info.IsDir():
		s.Err = err
	case err != nil:
		return nil, err
	}
	return s, nil
}

package component

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/textenc"
)

// A Language is a language model that was declared.
type Language struct {
	Model *textenc.CausalLM
	// Blind is why the model cannot see images, nil if it can.
	Blind error
	// Processor has the published values of the image processor, for folders without its config.
	Processor textenc.Qwen2VLImageProcessor
}

// language declares a language model of a class, after its config was read into c. declare returns the
// model, with a vision encoder or without.
func (f *Folder) language(dir string, c interface{ Validate() error }, declare func(vision bool) *textenc.CausalLM,
	sees func() bool,
) (l Language, err error) {
	if err := f.Config(dir, c); err != nil {
		return l, err
	}
	if l.Blind = fmt.Errorf("%s: has no vision_config: the language model cannot see images",
		checkpoint.FullName(f.FS, path.Join(dir, ConfigFile))); sees() {
		l.Blind, err = f.withoutVision(dir)
	}
	if err == nil {
		l.Model = declare(l.Blind == nil)
	}
	return l, err
}

// withoutVision returns an error that says that the weights in a folder have no vision encoder, nil if
// they have one.
func (f *Folder) withoutVision(dir string) (blind, err error) {
	folders, err := checkpoint.WeightFolders(f.FS)
	if err != nil || !slices.Contains(folders, dir) { // random weights, or an absent component
		return nil, nil
	}
	ck, err := checkpoint.OpenCheckpoint(f.FS, dir)
	if err != nil {
		return nil, err
	}
	defer ck.Close()
	for name := range ck.Tensors {
		if strings.Contains("."+name, ".visual.") {
			return nil, nil
		}
	}
	return fmt.Errorf("%s: lacks the tensors of the vision encoder", ck.Dir), nil
}

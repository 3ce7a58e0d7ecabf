package family

import (
	"cmp"
	"fmt"
	"image"
	"io/fs"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/index"
	"github.com/gomflux/gomflux/picture"
)

// All lists the supported families.
var All = []*Family{ZImage, Flux1, Flux2, Flux3, QwenImage, QwenImage21, Krea2, ErnieImage, Anima}

// Classes lists the names of the supported pipeline classes, sorted.
func Classes() (names []string) {
	for _, f := range All {
		for _, c := range f.Pipelines {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return names
}

// NamesWith names the families some of whose pipeline classes have something, for messages, as "A and B".
func NamesWith(has func(*Class) bool) string {
	return And(familyNames(func(f *Family) string {
		if slices.ContainsFunc(f.Pipelines, has) {
			return f.Name
		}
		return ""
	}))
}

// familyNames lists what is named of each family, and leaves out those of which nothing is.
func familyNames(of func(*Family) string) (names []string) {
	for _, f := range All {
		if name := of(f); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// modelNames lists the published models of a family whose pipeline class has something.
func (f *Family) modelNames(has func(*Class) bool) (names []string) {
	for _, m := range f.Models {
		if has(Find(m.Class)) {
			names = append(names, m.Name)
		}
	}
	return names
}

// modelsWith lists the published models whose pipeline class has something.
func modelsWith(has func(*Class) bool) (names []string) {
	for _, f := range All {
		names = append(names, f.modelNames(has)...)
	}
	return names
}

// HasTrueCFG reports whether a class has true_cfg_scale in addition to a guidance scale.
func HasTrueCFG(c *Class) bool { return c.TrueCFG }

// HasBoundsCFG reports whether a class has cfg_normalization and cfg_truncation.
func HasBoundsCFG(c *Class) bool { return c.BoundsCFG }

// Splitters names the published models that split an image into layers, for messages, as "A and B".
func Splitters() string { return And(modelsWith(func(c *Class) bool { return c.Layers })) }

// Find returns the pipeline class with a name, one of [Class.Also] too, or nil if it is not supported.
func Find(class string) *Class {
	for _, f := range All {
		for _, c := range f.Pipelines {
			if c.Name == class || slices.Contains(c.Also, class) {
				return c
			}
		}
	}
	if class == onlyAutoencoder.Name {
		return onlyAutoencoder
	}
	return nil
}

// onlyAutoencoder is the class of a pipeline of which nothing but the autoencoder is known.
var onlyAutoencoder = &Class{
	Name:       "a pipeline's autoencoder",
	Components: []Member{{Folder: component.Autoencoders, Class: component.AutoencoderKL}},
	Configure: func(f *Configs) (Pipeline, Networks) {
		for _, dir := range []string{"scheduler", component.Transformers} {
			f.Unfilled(dir, "no family describes the pipeline")
		}
		return nothingElse{}, nil
	},
}

// nothingElse is the pipeline of onlyAutoencoder.
type nothingElse struct {
	defaultMethods
	unpatched
}

func (nothingElse) Defaults() Defaults                             { return defaults(1, 0) }
func (nothingElse) Multiple() int                                  { return 1 }
func (nothingElse) PromptEncodings([]image.Image) []PromptEncoding { return nil }
func (nothingElse) Predictor(Conditioning, int, int, Compiler) (Predictor, error) {
	return nil, errs.Requestf("no family describes the pipeline")
}

// IndexOf returns the index of a whole model of a pipeline class. If no family describes the class, it has
// the autoencoder alone.
func IndexOf(class string) index.Index {
	c := Find(class)
	if c == nil {
		c = onlyAutoencoder
	}
	x := index.Index{Class: c.Name, Components: map[string]string{}}
	for _, m := range c.Components {
		x.Components[m.Folder] = m.ClassName()
	}
	return x
}

// Of returns the pipeline class of a model folder's index.
func Of(fsys fs.FS, x index.Index) (*Class, error) {
	if c := Find(x.Class); c != nil {
		for _, m := range c.Components {
			if repo, ok := x.Elsewhere[m.Folder]; ok && m.Class.Role != component.Scheduler && !m.Class.Tokenizes() {
				return nil, fmt.Errorf("%s: the %s of this modular pipeline is in %s, and not in the folder "+
					"(copy the component's files to %s)", checkpoint.FullName(fsys, index.Name(fsys)), m.Folder, repo,
					checkpoint.FullName(fsys, m.Folder))
			}
		}
		return c, nil
	}
	about := ""
	for _, u := range unsupported {
		if strings.Contains(x.Class, u.name) {
			about = " (" + u.about + ")"
			break
		}
	}
	return nil, fmt.Errorf("%w: %s: pipeline class %q%s; this version runs %s",
		errs.ErrUnsupported, checkpoint.FullName(fsys, index.Name(fsys)), x.Class, about, strings.Join(Classes(), ", "))
}

// unsupported describes diffusers' other pipelines of the supported families, by a part of their names.
var unsupported = []struct{ name, about string }{
	{"ControlNet", "which has a ControlNet next to the transformer"},
	{"FluxControl", "whose transformer takes a control image, such as edges or depth"},
	{"FluxPriorRedux", "which makes prompt embeddings of an image, and no image"},
	{"ZImageOmni", "which has another image encoder, SigLIP, for its reference images"},
}

// Names returns the names of the families.
func Names() []string { return familyNames(func(f *Family) string { return f.Name }) }

// Editors names the models that edit, for messages, as "A, B and C".
func Editors() string { return And(familyNames(func(f *Family) string { return f.Help.Editors })) }

// GuidanceUnit returns how the guidance scale of a class counts.
func (c *Class) GuidanceUnit() picture.GuidanceUnit { return cmp.Or(c.Guidance, picture.CFGScale) }

// HasAlpha reports whether the images of a class have an alpha channel in published models.
func (c *Class) HasAlpha() bool {
	return c.Layers || slices.ContainsFunc(c.Components, func(m Member) bool { return m.Class.HasAlpha() })
}

// TransparentModels names the models that generate transparent images, for messages, as "expected A
// or B".
func TransparentModels() string {
	names := modelsWith((*Class).HasAlpha)
	if len(names) == 0 {
		return "as are those of all built-in models"
	}
	return "expected " + strings.Join(names, " or ")
}

// tooManyReferences is the error of a model that edits one image and was given more. Its
// message names the first model of each family that takes so many.
type tooManyReferences int

func (n tooManyReferences) Error() string {
	names := familyNames(func(f *Family) string {
		return cmp.Or(f.modelNames(func(c *Class) bool { return c.References >= int(n) })...)
	})
	return fmt.Sprintf("%d images: this model edits one (%s take several)", int(n), And(names))
}

// And joins words to "a, b and c".
func And(words []string) string {
	n := len(words)
	if n < 2 {
		return strings.Join(words, "")
	}
	return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
}

package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gomflux/gomflux/internal/checkpoint"
	"github.com/gomflux/gomflux/internal/disk"
	"github.com/gomflux/gomflux/internal/hub"
	"github.com/gomflux/gomflux/internal/quote"
	"github.com/gomflux/gomflux/models/component"
	"github.com/gomflux/gomflux/models/errs"
	"github.com/gomflux/gomflux/models/family"
	"github.com/gomflux/gomflux/models/index"
)

// An UpscalerModel is a published network that enlarges images: a file in a repository of the Hugging Face hub.
type UpscalerModel struct {
	Name, Repo, File string
	More             []string // other files that it needs
	Class            string
	Scale            int
	Bytes            int64
	Licence          family.Licence
}

// Address is the name of the file as FindUpscaler and gomflux pull take it.
func (m *UpscalerModel) Address() string { return hub.Address(m.Repo, "", m.File) }

// Upscalers lists the published networks with a short name. The first is the default.
var Upscalers = []UpscalerModel{
	{
		Name: "realesrgan-x4plus", Repo: "Comfy-Org/Real-ESRGAN_repackaged", File: "RealESRGAN_x4plus.safetensors",
		Class: component.RRDBNet.Name, Scale: 4, Bytes: 66857836, Licence: family.LicenceNamed("bsd-3-clause"),
	},
	{
		Name: "4x-ultrasharp", Repo: "Kim2091/UltraSharp", File: "4x-UltraSharp.safetensors",
		Class: component.RRDBNet.Name, Scale: 4, Bytes: 66864028, Licence: family.LicenceNamed("cc-by-nc-sa-4.0"),
	},
	{
		Name: "seedvr2-3b", Repo: "Comfy-Org/SeedVR2", File: "diffusion_models/seedvr2_3b_int8_convrot.safetensors",
		More: []string{seedVR2VAE}, Class: component.NaDiT.Name, Scale: 8, Bytes: 3.96e9, Licence: family.LicenceNamed("apache-2.0"),
	},
	{
		Name: "seedvr2-7b", Repo: "Comfy-Org/SeedVR2", File: "diffusion_models/seedvr2_7b_int8_convrot.safetensors",
		More: []string{seedVR2VAE}, Class: component.NaDiT.Name, Scale: 8, Bytes: 8.83e9, Licence: family.LicenceNamed("apache-2.0"),
	},
}

const seedVR2VAE = "vae/seedvr2_ema_vae_fp16.safetensors"

// PublishedUpscaler returns the published network with a short name, in any case, nil without one.
func PublishedUpscaler(name string) *UpscalerModel {
	for i := range Upscalers {
		if strings.EqualFold(Upscalers[i].Name, name) {
			return &Upscalers[i]
		}
	}
	return nil
}

// UpscalerNames lists the networks with a short name: the published ones, and those of built-in models.
func UpscalerNames() (names []string) {
	for _, m := range Upscalers {
		names = append(names, m.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(builtins)) {
		if _, err := fs.Stat(builtins[name].FS, path.Join(component.Upscalers, component.ConfigFile)); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// OnlyUpscaler is FindUpscaler for a name that is that of nothing else, as that of a built-in model is. It is nil for others.
func OnlyUpscaler(name string) *Source {
	s, err := FindUpscaler(name)
	if err != nil || s.Folder == "" {
		return nil
	}
	return s
}

// FindUpscaler finds a network that enlarges images by name: a safetensors file, a folder with one, a published
// network, that of a built-in model, or a file of a repository in the Hugging Face cache. The source's FS is a folder with
// the network in component.Upscalers, and of SeedVR2 the autoencoder in component.Autoencoders and the prompt in PromptFolder.
func FindUpscaler(name string) (*Source, error) {
	published := PublishedUpscaler(name)
	_, missing := os.Stat(disk.ExpandHome(name))
	if published != nil && missing != nil {
		s, err := locate(published.Address())
		if errors.Is(err, errs.ErrNotFound) {
			return nil, errs.NotFound(fmt.Errorf("%s is not on this machine (to get it: gomflux pull %s; %d MB)", name, name,
				published.Bytes/1e6))
		}
		if err != nil {
			return nil, err
		}
		s.Name = published.Name
		return s, s.upscaler()
	}
	plain, _, _ := strings.Cut(name, ":")
	_, builtin := builtins[name]
	if repo, _, _ := Published(plain); repo == "" && !builtin && errors.Is(missing, fs.ErrNotExist) {
		return nil, errs.NotFound(fmt.Errorf("no upscaler %s: expected a safetensors file, owner/name[@revision]:file of the "+
			"Hugging Face hub, or one of %s", name, strings.Join(UpscalerNames(), ", ")))
	}
	if missing == nil && checkpoint.IsPickle(name) {
		return nil, pickleError(name, `d = torch.load(%q, map_location="cpu", weights_only=True); `+
			`d = next((d[k] for k in ("params_ema", "params", "state_dict") if k in d), d); `+
			`save_file({k: d[k].contiguous() for k in d}, %q)`)
	}
	s, err := locate(name)
	if err != nil {
		return nil, err
	}
	return s, s.upscaler()
}

// pickleError refuses a pickle, with the line of Python that converts it: code, in which stand the names of the pickle and of the
// safetensors file.
func pickleError(file, code string) error {
	from := filepath.Base(file)
	to := strings.TrimSuffix(from, filepath.Ext(from)) + safetensors
	code = fmt.Sprintf("import torch; from safetensors.torch import save_file; "+code, from, to)
	return fmt.Errorf("%w: %s: is a pickle file, which can run arbitrary code; use a safetensors file, or convert it: python -c %s",
		errs.ErrUnsupported, file, quote.Shell(code))
}

// upscaler replaces the source's files by those of its network. The error says that there is no network, as in a
// model's folder.
func (s *Source) upscaler() (err error) {
	const what = "a network that enlarges images"
	if info, err := os.Stat(s.Folder); err == nil && info.IsDir() {
		name, err := transformerOf(s.Folder)
		if err != nil {
			return err
		}
		if name != "" {
			s.Folder = filepath.Join(s.Folder, name)
			if s.FS, err = openSource(s.Folder); err != nil {
				return err
			}
		}
	}
	if s.FS, err = s.lone(component.Upscalers, what); err != nil {
		return err
	}
	_, err = fs.Stat(s.FS, path.Join(component.Upscalers, component.ConfigFile))
	if err != nil || index.Exists(s.FS) && s.Folder != "" {
		return fmt.Errorf("%s: expected %s in a single safetensors file", checkpoint.FullName(s.FS, ""), what)
	}
	class, err := component.ClassName(s.FS, component.Upscalers)
	if o, ok := s.FS.(*overlay); ok && err == nil && class == component.NaDiT.Name {
		return s.completeSeedVR2(o)
	}
	return err
}
